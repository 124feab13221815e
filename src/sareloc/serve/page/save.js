// The answers as files to download: tables and waypoints are made here, geotagged photos by the server.

import { postFile, retryWhileBusy } from "./api.js";
import { toCsv, toGeojson, toGpx } from "./formats.js";
import { count, errorText } from "./text.js";
import { zip } from "./zip.js";

const FORMATS = {
  gpx: [toGpx, "application/gpx+xml"],
  csv: [toCsv, "text/csv"],
  geojson: [toGeojson, "application/geo+json"],
};

/**
 * buttons: {gpx, csv, geojson, photos}; answers(): [{file, fix}] of all photos that have an answer. announce(text): for
 * screen readers. Returns {update()}: the buttons fit the answers.
 */
export function makeSave({ box, note, buttons }, { answers, announce }) {
  const say = (text) => {
    note.textContent = text;
    note.hidden = !text;
    if (text) announce(text);
  };

  for (const [name, [write, type]] of Object.entries(FORMATS)) {
    buttons[name].addEventListener("click", () => {
      const named = answers().map(({ file, fix }) => ({ name: file.name, fix }));
      download(new Blob([write(named)], { type }), `positions.${name}`);
    });
  }

  async function savePhotos() {
    const found = answers().filter(({ fix }) => fix.latlon);
    const [files, failed] = [[], []];
    for (const [i, { file, fix }] of found.entries()) {
      say(`Writing the position into photo ${i + 1} of ${found.length}…`);
      try {
        files.push(...(await tagged(file, fix)));
      } catch (error) {
        failed.push(`${file.name}: ${errorText(error).detail}`);
      }
    }
    if (files.length === 1) download(files[0].blob, files[0].name);
    else if (files.length) download(await zip(files), "geotagged.zip");
    say([`${count(found.length - failed.length, "photo")} geotagged.`, ...failed].join(" "));
  }

  buttons.photos.addEventListener("click", async () => {
    if (buttons.photos.getAttribute("aria-busy")) return;
    buttons.photos.setAttribute("aria-busy", "true");
    try {
      await savePhotos();
    } catch (error) {
      say(errorText(error).detail);
    } finally {
      buttons.photos.removeAttribute("aria-busy");
    }
  });

  return {
    update() {
      const found = answers().filter(({ fix }) => fix.latlon).length;
      box.classList.toggle("nothing", !found);
      buttons.photos.textContent = found > 1 ? "Geotagged photos" : "Geotagged photo";
      if (!buttons.photos.getAttribute("aria-busy")) say("");
    },
  };
}

/** A photo with the position of its fix: itself if the service writes its format, else it and its XMP sidecar. */
async function tagged(file, { latlon: [lat, lon], radius_m, confidence }) {
  const { signal } = new AbortController();
  const fix = new URLSearchParams({ lat, lon, radius_m, confidence });
  const send = () => postFile(`geotag?${fix}`, file, { signal, as: "blob" });
  const blob = await retryWhileBusy(send, { signal, onBusy: () => {} });
  const time = file.lastModified;
  if (blob.type.startsWith("image/")) return [{ name: file.name, blob, time }];
  return [{ name: file.name, blob: file, time }, { name: `${file.name}.xmp`, blob, time }];
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);  // Safari reads it after the click
}
