// The page: takes photos, sends them to the server, shows the answers. The text of each state is in index.html.

import { makeAdding } from "./adding.js";
import { clearMatch, showAnswer, showMatch, spokenAnswer } from "./answer.js";
import { MapView } from "./map_view.js";
import { makeHeatmap } from "./heatmap.js";
import { makeMatched } from "./matched.js";
import { listenForPhotos } from "./photo_input.js";
import { previewOf } from "./preview.js";
import { Queue } from "./queue.js";
import { makeSave } from "./save.js";
import { fetchJson, retryWhileBusy, postFile } from "./api.js";
import { showProgress } from "./progress.js";
import { aboutMaps, checkFile, degrees, metres, errorText } from "./text.js";

const MATCHES = 5;
const PHOTOS_AT_ONCE = 10000;  // two megabytes; of a larger map, a sample of what is in view

const NO_FILE = { title: "No file was dropped", detail: "Drop a photo from a folder, or save it first.", retry: false };

const byId = (id) => document.getElementById(id);
export const mapView = new MapView(byId("map"), byId("panel"));
const heatmap = makeHeatmap({ button: byId("heat-button"), image: byId("heat"), note: byId("heat-note") });
const matched = makeMatched({
  shown: byId("query"), button: byId("matched-button"), dialog: byId("matched"), close: byId("matched-close"), note: byId("matched-note"),
  query: byId("matched-query"), photo: byId("matched-photo"), caption: byId("matched-caption"),
  lines: byId("matched-lines"),
});
const queue = new Queue(
  { list: byId("queue-list"), count: byId("queue-count"), stop: byId("stop") },
  { localize, show, announce, changed: () => save.update() },
);
const save = makeSave(
  {
    box: byId("save"), note: byId("save-note"),
    buttons: { gpx: byId("save-gpx"), csv: byId("save-csv"), geojson: byId("save-geojson"), photos: byId("save-photos") },
  },
  { answers: () => queue.photos.filter(({ fix }) => fix), announce },
);
makeAdding(
  {
    form: byId("add-form"), map: byId("add-map"), token: byId("add-token"), position: byId("add-position"), input: byId("add-file"),
    note: byId("add-note"),
  },
  { maxBytes: () => settings.max_bytes, changed: showMap, announce },
);
let settings, shown;
let retryAction = openMap;

function setState(state) {
  const focused = document.activeElement;
  document.body.dataset.state = state;
  for (const section of document.querySelectorAll("[data-when]")) {
    section.hidden = !section.dataset.when.split(" ").includes(state);
  }
  // If the focused button was hidden, keyboard users would start again at the top of the page.
  if (focused?.closest("[hidden]")) document.querySelector("[data-when]:not([hidden]) h2[tabindex]")?.focus();
}

function announce(words) {
  byId("status").textContent = words;
}

function showError({ title, detail, retry }, action) {
  byId("error-title").textContent = title;
  byId("error-detail").textContent = detail;
  byId("retry-row").hidden = !retry;
  retryAction = action;
  setState("error");
  announce(`${title}. ${detail}`);
}

async function openMap() {
  try {
    settings = await fetchJson("settings");
    if (settings.tiles) mapView.setTiles(settings.tiles, settings.attribution);
    else mapView.setEarth(fetchJson("assets/land.json"));
    document.body.toggleAttribute("data-adding", settings.adding);
    byId("add-map").replaceChildren(...settings.maps.map((name) => new Option(name)));
    byId("add-map-row").hidden = settings.maps.length < 2;
    const found = await showMap();
    if (!found.total) {
      setState("empty");
      return announce(byId("empty-title").textContent);
    }
    if (found.features.length < found.total) followView(photosAtOnce());
    setState("start");
  } catch (error) {
    byId("about").textContent = "";
    showError(errorText(error), openMap);
  }
}

function photosAtOnce() {
  return Math.min(PHOTOS_AT_ONCE, settings.max_features);
}

/** Show the photos of the map, all of them or an even sample; the view moves if there were none before. */
async function showMap() {
  const found = await fetchJson(`map?limit=${photosAtOnce()}`);
  byId("about").textContent = aboutMaps(settings, found.total);
  const first = !mapView.photoLayer.photos.length;
  mapView.showPhotos(photosOf(found));
  if (found.total && first) mapView.viewBox(found.bbox);
  if (found.total && document.body.dataset.state === "empty") setState("start");
  return found;
}

function photosOf({ features }) {
  return features.map(({ id, geometry, properties }) => ({
    id, latlon: [geometry.coordinates[1], geometry.coordinates[0]],
    heading: properties.heading_deg, name: properties.photo, time: properties.time, map: properties.map,
  }));
}

/** Of a map too large to fetch at once: after every move, fetch the photos in view, or an even sample of them. */
function followView(limit) {
  let timer;
  let latest = 0;
  mapView.onMoved((box) => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const mine = (latest += 1);
      const edges = box.map((edge) => edge.toFixed(6));
      const found = await fetchJson(`map?box=${edges}&limit=${limit}`).catch(() => null);
      if (found && mine === latest) mapView.showPhotos(photosOf(found));
    }, 300);
  });
}

function showQuery(file) {
  const image = byId("query");
  if (image.src) URL.revokeObjectURL(image.src);
  const visible = (can) => {
    image.hidden = !can;
    byId("no-preview").hidden = can;
    byId("heat-button").hidden = !can || !settings?.heatmap;  // the heat map is shown over the photo
  };
  visible(true);
  image.onerror = async () => {  // HEIC, in most browsers
    image.onerror = () => visible(false);
    visible(false);
    const small = file.size <= settings.max_bytes ? await previewOf(file).catch(() => null) : null;
    if (!small || file !== shown) return;
    image.src = URL.createObjectURL(small);
    visible(true);
  };
  image.src = URL.createObjectURL(file);
}

/** The fix of a photo; rejects with an error that `errorText` explains. */
async function localize(file, signal) {
  const unusable = await checkFile(file, settings?.max_bytes);
  if (unusable) throw unusable;
  const texts = { title: byId("working-title"), detail: byId("working-detail") };
  const waiting = showProgress({ box: byId("waiting"), bar: byId("progress"), ...texts }, announce);
  try {
    const send = () => postFile(`localize?top=${MATCHES}`, file, { signal, onSent: waiting.sent });
    return await retryWhileBusy(send, { signal, onBusy: waiting.busy });
  } finally {
    waiting.stop();
  }
}

function start(files) {
  if (document.body.dataset.state !== "empty") queue.start(files);
}

/** Show one of the photos and the state of its answer. */
function show({ file, state, fix, error }, position) {
  mapView.clear();
  clearMatch();
  matched.setMatch();
  if (file !== shown) {
    heatmap.setPhoto(file);
    shown = file;
    showQuery(file);
  }
  byId("query-caption").textContent = position ? `Photo ${position}` : "Your photo";
  if (state === "error") return showError(error, () => queue.run());
  if (state === "answer") return showFix(fix);
  setState("working");
  announce("Looking for this place.");
}

function showFix(fix) {
  const away = ({ latlon }) => (fix.latlon ? metres(mapView.map.distance(latlon, fix.latlon)) : "");
  const choose = (number) => {
    const match = fix.matches[number - 1];
    showMatch(match, number, away(match));
    matched.setMatch(shown, match, number);
    mapView.choosePin(number);
  };
  showAnswer(fix, away, choose);
  setState("answer");
  mapView.showFix(fix, choose);
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

byId("copy").hidden = !navigator.clipboard;  // undefined unless the page is served by HTTPS or from localhost
byId("retry").addEventListener("click", () => retryAction());
byId("look-again").addEventListener("click", openMap);
for (const name of ["cancel", "stop"]) {
  byId(name).addEventListener("click", () => {
    if (!queue.stop()) setState("start");
    announce("Cancelled.");
  });
}
window.addEventListener("online", () => {
  if (queue.stalled) queue.run();
  else if (document.body.dataset.state === "error" && !byId("retry-row").hidden) retryAction();
});
listenForPhotos(
  { choose: byId("choose"), shoot: byId("shoot"), file: byId("file"), camera: byId("camera"), overlay: byId("drop") },
  start,
  () => showError(NO_FILE),
);
openMap();
