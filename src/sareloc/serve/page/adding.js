// Adding photos to the map, with the token of the service. The token stays in this page and is not stored.

import { postFile, retryWhileBusy } from "./api.js";
import { checkFile, count, errorText } from "./text.js";

const POSITION = /^\s*([-+]?\d+(?:\.\d*)?)\s*[,; ]\s*([-+]?\d+(?:\.\d*)?)\s*$/;

const PREFIX = "No photo was added: ";  // of the server's reasons
const FIELDS = "send one in the fields lat and lon";

/** map: the list of the maps. maxBytes(): of a request. changed(): called after photos were added. announce(text): for screen readers. */
export function makeAdding({ form, map, token, position, input, note }, { maxBytes, changed, announce }) {
  const say = (text) => {
    note.textContent = text;
    note.hidden = !text;
    announce(text);
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const place = position.value.trim();
    if (!token.value) return say("Enter the token of this service first."), token.focus();
    if (place && !POSITION.test(place)) {
      return say("A position is a latitude and a longitude, such as 48.8584, 2.2945."), position.focus();
    }
    return input.click();
  });

  input.addEventListener("change", async () => {
    const files = [...input.files];
    input.value = "";
    if (!files.length || form.getAttribute("aria-busy")) return;
    form.setAttribute("aria-busy", "true");
    try {
      await addAll(files);
    } finally {
      form.removeAttribute("aria-busy");
    }
  });

  async function addAll(files) {
    const problems = [];
    let added = 0;
    for (const [i, file] of files.entries()) {
      say(`Adding photo ${i + 1} of ${files.length}…`);
      try {
        await add(file);
        added += 1;
      } catch (error) {
        if (error.status === 401) {
          problems.push("The token is wrong.");
          break;
        }
        const { detail, away } = errorText(error);
        const reason = detail.replace(PREFIX, "").replace(FIELDS, "enter one above");
        problems.push(reason.startsWith(file.name) ? reason : `${file.name}: ${reason}`);
        if (away) break;
      }
    }
    if (added) await changed();
    say([`${added} of ${count(files.length, "photo")} added.`, ...problems].join(" "));
  }

  async function add(file) {
    const unusable = await checkFile(file, maxBytes());
    if (unusable) throw unusable;
    const fields = new FormData();
    fields.append("photos", file);
    if (map.options.length > 1) fields.append("map", map.value);
    const [, lat, lon] = POSITION.exec(position.value) ?? [];
    if (lat) fields.append("lat", lat), fields.append("lon", lon);
    const { signal } = new AbortController();
    const send = () => postFile("photos", fields, { signal, token: token.value });
    await retryWhileBusy(send, { signal, onBusy: () => {} });
  }
}
