// What in the photo mattered to the model, laid over it on demand.

import { patiently, postFile } from "./server.js";
import { troubleWords } from "./words.js";

const EXPLAINED = "Warm: covering it would change the model's mind most.";

/** Returns {of(file): for a new photo, null for none}. */
export function makeHeat({ button, image, note }) {
  let job, file, ready;
  const say = (text) => {
    note.textContent = text;
    note.hidden = !text;
  };
  const lay = (shown) => {
    image.hidden = !shown;
    button.setAttribute("aria-pressed", String(shown));
    say(shown ? EXPLAINED : "");
  };

  async function fetchHeat() {
    const { signal } = job;
    button.setAttribute("aria-busy", "true");
    say("Covering the photo piece by piece. This takes some seconds…");
    try {
      const overlay = await patiently(() => postFile("heatmap", file, { signal, as: "blob" }), {
        signal, onBusy: (seconds) => say(`The server is busy: trying again in ${Math.ceil(seconds)} s.`),
      });
      if (signal.aborted) return;
      image.src = URL.createObjectURL(overlay);
      await image.decode();
      ready = true;
      lay(true);
    } catch (trouble) {
      if (signal.aborted) return;
      const { title, detail } = troubleWords(trouble);
      say(`${title}. ${detail}`);
    } finally {
      if (!signal.aborted) button.removeAttribute("aria-busy");
    }
  }

  button.addEventListener("click", () => {
    if (button.getAttribute("aria-busy")) return;
    if (ready) lay(image.hidden);
    else fetchHeat();
  });

  return {
    of(photo) {
      job?.abort();
      job = new AbortController();
      [file, ready] = [photo, false];
      button.removeAttribute("aria-busy");
      if (image.src) URL.revokeObjectURL(image.src);
      image.removeAttribute("src");
      lay(false);
    },
  };
}
