// The occlusion heat map of a photo, shown over it on demand.

import { retryWhileBusy, postFile } from "./api.js";
import { errorText } from "./text.js";

const EXPLAINED = "Warm colours: covering these parts changes the model's descriptor most.";

/** Returns {setPhoto(file)}: hides the heat map of the previous photo. */
export function makeHeatmap({ button, image, note }) {
  let job, file, ready;
  const say = (text) => {
    note.textContent = text;
    note.hidden = !text;
  };
  const toggle = (shown) => {
    image.hidden = !shown;
    button.setAttribute("aria-pressed", String(shown));
    say(shown ? EXPLAINED : "");
  };

  async function fetchHeatmap() {
    const { signal } = job;
    button.setAttribute("aria-busy", "true");
    say("Covering one part of the photo after the other. This takes some seconds…");
    try {
      const overlay = await retryWhileBusy(() => postFile("heatmap", file, { signal, as: "blob" }), {
        signal, onBusy: (seconds) => say(`The server is busy: trying again in ${Math.ceil(seconds)} s.`),
      });
      if (signal.aborted) return;
      image.src = URL.createObjectURL(overlay);
      await image.decode();
      ready = true;
      toggle(true);
    } catch (error) {
      if (signal.aborted) return;
      const { title, detail } = errorText(error);
      say(`${title}. ${detail}`);
    } finally {
      if (!signal.aborted) button.removeAttribute("aria-busy");
    }
  }

  button.addEventListener("click", () => {
    if (button.getAttribute("aria-busy")) return;
    if (ready) toggle(image.hidden);
    else fetchHeatmap();
  });

  return {
    setPhoto(photo) {
      job?.abort();
      job = new AbortController();
      [file, ready] = [photo, false];
      button.removeAttribute("aria-busy");
      if (image.src) URL.revokeObjectURL(image.src);
      image.removeAttribute("src");
      toggle(false);
    },
  };
}
