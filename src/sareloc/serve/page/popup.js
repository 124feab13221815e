// A popup with the photos of one spot of the map.

import { thumbnailUrl } from "./api.js";
import { compass, fileName, moment } from "./text.js";

/** photos: of one spot, [{id, latlon, name, heading, time, map}]. Returns the element to focus. */
export function openPhotoPopup(map, photos) {
  const image = new Image();
  const missing = Object.assign(document.createElement("p"), { textContent: "The picture is not on this server." });
  const about = document.createElement("p");
  const place = document.createElement("span");
  let shown = 0;
  const visible = (can) => ([image.hidden, missing.hidden] = [!can, can]);
  image.onerror = () => visible(false);
  const show = (number) => {
    shown = (number + photos.length) % photos.length;
    const { name, heading, time, map: mapName } = photos[shown];
    visible(true);
    image.src = thumbnailUrl(photos[shown], 480);
    image.alt = `Photo ${fileName(name)}`;
    const facing = heading == null ? "" : `facing ${compass(heading)}`;
    about.textContent = [time && moment(time), facing, mapName].filter(Boolean).join(" · ");
    place.textContent = `${shown + 1} of ${photos.length} here`;
  };
  const box = document.createElement("div");
  Object.assign(box, { className: "photo-popup", tabIndex: -1, role: "group", ariaLabel: "Photos taken here" });
  box.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    map.closePopup();
    map.getContainer().focus();
  });
  box.append(image, missing, about);
  if (photos.length > 1) {
    const row = document.createElement("div");
    row.className = "stepper";
    const step = (by) => () => show(shown + by);
    row.append(stepButton("‹", "Previous photo", step(-1)), place, stepButton("›", "Next photo", step(1)));
    box.append(row);
  }
  show(0);
  L.popup({ minWidth: 240, maxWidth: 240 }).setLatLng(photos[0].latlon).setContent(box).openOn(map);
  return box;
}

function stepButton(text, label, step) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "quiet", textContent: text, ariaLabel: label });
  button.addEventListener("click", step);
  return button;
}
