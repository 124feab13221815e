// The answer in the panel: verdict, position, and the photo beside its matches.

import { thumbnailUrl } from "./api.js";
import { confidenceOf, degrees, fileName, headingOf, mapSite, radiusOf, verdictOf } from "./text.js";

const byId = (id) => document.getElementById(id);

/** Fill the panel; `choose(number)` is called when a thumbnail is pressed or focused. away(match): its distance. */
export function showAnswer(fix, away, choose) {
  byId("verdict").textContent = verdictOf(fix);
  byId("confidence").textContent = confidenceOf(fix);
  byId("bar").style.width = `${fix.confidence * 100}%`;
  byId("where").hidden = !fix.latlon;
  document.body.dataset.found = fix.latlon ? "yes" : "no";
  if (fix.latlon) {
    byId("latlon").textContent = degrees(fix.latlon);
    byId("radius").textContent = `${radiusOf(fix)}: the circle.`;
    byId("place").textContent = fix.place ?? "";
    byId("place").hidden = !fix.place;
    byId("map-name").textContent = fix.map ? `Map ${fix.map}` : "";
    byId("map-name").hidden = !fix.map;
    byId("heading").textContent = headingOf(fix);
    byId("heading").hidden = fix.heading_deg == null;
    byId("open").href = `geo:${degrees(fix.latlon, 6).replace(" ", "")}`;
    byId("site").href = mapSite(fix.latlon);
  }
  byId("matches-unit").textContent = fix.latlon ? " · distance from the answer" : "";
  byId("matches").replaceChildren(...fix.matches.map((match, i) => thumbnail(match, i + 1, away(match), choose)));
}

export function spokenAnswer(fix) {
  const place = fix.place ? `, ${fix.place}` : "";
  const where = fix.latlon ? ` At ${degrees(fix.latlon)}${place}. ${radiusOf(fix)}.` : "";
  const heading = fix.latlon && headingOf(fix) ? ` ${headingOf(fix)}.` : "";
  return `${verdictOf(fix)}.${where}${heading} ${confidenceOf(fix)}`;
}

/** Show one match beside the photo. */
export function showMatch(match, number, away) {
  for (const [i, button] of byId("matches").querySelectorAll("button").entries()) {
    button.setAttribute("aria-pressed", String(i + 1 === number));
  }
  const image = byId("match");
  image.src = thumbnailUrl(match, 512);
  image.alt = `Match ${number}, ${fileName(match.photo)}`;
  const visible = (can) => {
    image.hidden = !can;
    byId("no-match").hidden = can;
  };
  visible(true);
  image.onerror = () => visible(false);
  const parts = [`Match ${number}`, match.map, away && `${away} from the answer`];
  byId("match-caption").textContent = parts.filter(Boolean).join(" · ");
}

export function clearMatch() {
  byId("match").hidden = byId("no-match").hidden = true;
  byId("match").removeAttribute("src");
  byId("match-caption").textContent = "";
}

function thumbnail(match, number, away, choose) {
  const item = document.createElement("li");
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.setAttribute("aria-label", `Match ${number}${away ? `, ${away} from the answer` : ""}`);
  const image = Object.assign(new Image(), { src: thumbnailUrl(match, 192), alt: "", loading: "lazy" });
  image.addEventListener("error", () => image.remove());  // its number stays
  const label = Object.assign(document.createElement("span"), { className: "number", textContent: number });
  const caption = Object.assign(document.createElement("small"), { textContent: away });
  button.append(image, label);
  button.addEventListener("click", () => choose(number));
  button.addEventListener("focus", () => choose(number));
  item.append(button, caption);
  return item;
}
