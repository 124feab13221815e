// The page: photos come in, the server is asked, the answers are shown. Each state has its own words in index.html.

import { clearMatch, showAnswer, showMatch, spokenAnswer } from "./answer.js";
import { Ground } from "./ground.js";
import { makeHeat } from "./heat.js";
import { openIntake } from "./intake.js";
import { Queue } from "./queue.js";
import { fetchJson, patiently, postFile } from "./server.js";
import { startWaiting } from "./waiting.js";
import { checkFile, count, degrees, metres, troubleWords } from "./words.js";

const MATCHES = 5;
const PHOTOS_AT_ONCE = 10000;  // two megabytes; a larger map is sampled, and sampled again for what is in view

const NO_FILE = { title: "That was not a file", detail: "Drop a photo from a folder, or save it first.", retry: false };

const byId = (id) => document.getElementById(id);
export const ground = new Ground(byId("ground"), byId("panel"));
const heat = makeHeat({ button: byId("heat-button"), image: byId("heat"), note: byId("heat-note") });
const queue = new Queue(
  { list: byId("queue-list"), count: byId("queue-count"), stop: byId("stop") },
  { ask, show, announce },
);
let settings, shown;
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

function showQuery(file) {
  const image = byId("query");
  if (image.src) URL.revokeObjectURL(image.src);
  const visible = (can) => {
    image.hidden = !can;
    byId("no-preview").hidden = can;
    byId("heat-button").hidden = !can || !settings?.heatmap;  // there must be something to lay it over
  };
  visible(true);
  image.onerror = () => visible(false);  // HEIC, in most browsers
  image.src = URL.createObjectURL(file);
}

/** The fix of a photo; rejects with what is wrong. */
async function ask(file, signal) {
  const unusable = await checkFile(file, settings?.max_bytes);
  if (unusable) throw unusable;
  const told = { title: byId("working-title"), detail: byId("working-detail") };
  const waiting = startWaiting({ box: byId("waiting"), bar: byId("progress"), ...told }, announce);
  try {
    const send = () => postFile(`localize?top=${MATCHES}`, file, { signal, onSent: waiting.sent });
    return await patiently(send, { signal, onBusy: waiting.busy });
  } finally {
    waiting.stop();
  }
}

function take(files) {
  if (document.body.dataset.state !== "empty") queue.start(files);
}

/** Put one of the photos that were given on the page, as far as it is answered. */
function show({ file, state, fix, trouble }, position) {
  ground.clear();
  clearMatch();
  if (file !== shown) {
    heat.of(file);
    showQuery(file);
    shown = file;
  }
  byId("query-caption").textContent = position ? `Photo ${position}` : "Your photo";
  if (state === "trouble") return showTrouble(trouble, () => queue.run());
  if (state === "answer") return tell(fix);
  enter("working");
  announce("Looking for this place.");
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
for (const name of ["cancel", "stop"]) {
  byId(name).addEventListener("click", () => {
    if (!queue.stop()) enter("start");
    announce("Cancelled.");
  });
}
window.addEventListener("online", () => {
  if (queue.stalled) queue.run();
  else if (document.body.dataset.state === "trouble" && !byId("retry-row").hidden) again();
});
openIntake(
  { choose: byId("choose"), shoot: byId("shoot"), file: byId("file"), camera: byId("camera"), curtain: byId("drop") },
  take,
  () => showTrouble(NO_FILE),
);
openMap();
