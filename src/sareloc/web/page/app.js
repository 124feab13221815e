// The page: a photo comes in, the server is asked, the answer is shown. Each state has its own words in index.html.

import { clearMatch, showAnswer, showMatch, spokenAnswer } from "./answer.js";
import { Ground } from "./ground.js";
import { makeHeat } from "./heat.js";
import { openIntake } from "./intake.js";
import { fetchJson, patiently, postFile } from "./server.js";
import { startWaiting } from "./waiting.js";
import { count, degrees, megabytes, metres, troubleWords } from "./words.js";

const MATCHES = 5;
const PHOTOS_AT_ONCE = 10000;  // two megabytes; a larger map is sampled, and sampled again for what is in view

const NO_FILE = { title: "That was not a file", detail: "Drop a photo from a folder, or save it first.", retry: false };

const byId = (id) => document.getElementById(id);
export const ground = new Ground(byId("ground"), byId("panel"));
const heat = makeHeat({ button: byId("heat-button"), image: byId("heat"), note: byId("heat-note") });
let settings, job;
let again = openMap;

function enter(state) {
  const focused = document.activeElement;
  document.body.dataset.state = state;
  for (const section of document.querySelectorAll("[data-when]")) {
    section.hidden = !section.dataset.when.split(" ").includes(state);
  }
  // A focused button that has just gone would send the keyboard back to the top of the page.
  if (focused?.closest("[hidden]")) document.querySelector("[data-when]:not([hidden]) h2[tabindex]")?.focus();
}

function announce(words) {
  byId("status").textContent = words;
}

function showTrouble({ title, detail, retry }, action) {
  byId("trouble-title").textContent = title;
  byId("trouble-detail").textContent = detail;
  byId("retry-row").hidden = !retry;
  again = action;
  enter("trouble");
  announce(`${title}. ${detail}`);
}

async function openMap() {
  try {
    settings = await fetchJson("settings");
    const limit = Math.min(PHOTOS_AT_ONCE, settings.max_features);
    const found = await fetchJson(`map?limit=${limit}`);
    if (settings.tiles) ground.setTiles(settings.tiles, settings.attribution);
    byId("about").textContent = `${settings.name} · ${count(found.total, "photo")}`;
    if (!found.total) {
      enter("empty");
      return announce(byId("empty-title").textContent);
    }
    ground.showPhotos(photosOf(found));
    ground.viewBox(found.bbox);
    if (found.features.length < found.total) followView(limit);
    enter("start");
  } catch (trouble) {
    byId("about").textContent = "";
    showTrouble(troubleWords(trouble), openMap);
  }
}

function photosOf({ features }) {
  return features.map(({ id, geometry, properties }) => ({
    id, latlon: [geometry.coordinates[1], geometry.coordinates[0]],
    heading: properties.heading_deg, name: properties.photo, time: properties.time,
  }));
}

/** A map too large to be fetched whole: after every move, the photos in view, or an even sample of them. */
function followView(limit) {
  let timer;
  let latest = 0;
  ground.onMoved((box) => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const mine = (latest += 1);
      const edges = box.map((edge) => edge.toFixed(6));
      const found = await fetchJson(`map?box=${edges}&limit=${limit}`).catch(() => null);
      if (found && mine === latest) ground.showPhotos(photosOf(found));
    }, 300);
  });
}

function showQuery(file, total) {
  const image = byId("query");
  byId("query-caption").textContent = total > 1 ? `The first of ${total} photos` : "Your photo";
  if (image.src) URL.revokeObjectURL(image.src);
  const show = (can) => {
    image.hidden = !can;
    byId("no-preview").hidden = can;
    byId("heat-button").hidden = !can || !settings?.heatmap;  // there must be something to lay it over
  };
  show(true);
  image.onerror = () => show(false);  // HEIC, in most browsers
  image.src = URL.createObjectURL(file);
}

async function ask(file, total = 1) {
  if (document.body.dataset.state === "empty") return;
  job?.abort();
  ground.clear();
  heat.of(file);
  clearMatch();
  if (settings && file.size > settings.max_bytes) {
    const detail = `It has ${megabytes(file.size)}; this server takes up to ${megabytes(settings.max_bytes)}.`;
    return showTrouble({ title: "This photo is too large", detail, retry: false });
  }
  job = new AbortController();
  const { signal } = job;
  showQuery(file, total);
  const told = { title: byId("working-title"), detail: byId("working-detail") };
  const waiting = startWaiting({ box: byId("waiting"), bar: byId("progress"), ...told }, announce);
  enter("working");
  announce("Looking for this place.");
  try {
    const fix = await patiently(() => postFile(`localize?top=${MATCHES}`, file, { signal, onSent: waiting.sent }), {
      signal, onBusy: waiting.busy,
    });
    if (!signal.aborted) tell(fix);
  } catch (trouble) {
    if (!signal.aborted) showTrouble(troubleWords(trouble), () => ask(file, total));
  } finally {
    waiting.stop();
  }
}

function tell(fix) {
  const away = ({ latlon }) => (fix.latlon ? metres(ground.map.distance(latlon, fix.latlon)) : "");
  const choose = (number) => {
    const match = fix.matches[number - 1];
    showMatch(match, number, away(match));
    ground.choosePin(number);
  };
  showAnswer(fix, away, choose);
  enter("answer");
  ground.showFix(fix, choose);
  if (fix.matches.length) choose(1);
  byId("copy").onclick = () => copy(degrees(fix.latlon, 6));
  announce(spokenAnswer(fix));
}

async function copy(text) {
  const button = byId("copy");
  const done = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Not allowed");
  announce(done);
  button.textContent = done;
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

byId("copy").hidden = !navigator.clipboard;  // absent where the page is not served securely
byId("retry").addEventListener("click", () => again());
byId("look-again").addEventListener("click", openMap);
byId("cancel").addEventListener("click", () => {
  job.abort(new DOMException("cancelled", "AbortError"));
  enter("start");
  announce("Cancelled.");
});
window.addEventListener("online", () => {
  if (document.body.dataset.state === "trouble" && !byId("retry-row").hidden) again();
});
openIntake(
  { choose: byId("choose"), shoot: byId("shoot"), file: byId("file"), camera: byId("camera"), curtain: byId("drop") },
  ask,
  () => showTrouble(NO_FILE),
);
openMap();
