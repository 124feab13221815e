// A look at the photos of one spot of the map, in a popup.

import { compass, fileName, moment } from "./words.js";

/** photos: of one spot, [{id, latlon, name, heading, time}]. */
export function openPeek(map, photos) {
  const image = new Image();
  const about = document.createElement("p");
  const place = document.createElement("span");
  let shown = 0;
  const show = (number) => {
    shown = (number + photos.length) % photos.length;
    const { id, name, heading, time } = photos[shown];
    image.src = `photos/${id}/thumbnail?size=480`;
    image.alt = `Photo ${fileName(name)}`;
    about.textContent = [time && moment(time), heading != null && `facing ${compass(heading)}`].filter(Boolean).join(" · ");
    place.textContent = `${shown + 1} of ${photos.length} here`;
  };
  const box = document.createElement("div");
  box.className = "peek";
  box.append(image, about);
  if (photos.length > 1) {
    const row = document.createElement("div");
    row.className = "stepper";
    const [back, on] = [stepButton("‹", "Previous photo", () => show(shown - 1)), stepButton("›", "Next photo", () => show(shown + 1))];
    row.append(back, place, on);
    box.append(row);
  }
  show(0);
  L.popup({ minWidth: 240, maxWidth: 240 }).setLatLng(photos[0].latlon).setContent(box).openOn(map);
}

function stepButton(text, label, step) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: text });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", step);
  return button;
}
