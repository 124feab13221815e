// Photos that are chosen together: localized one after the other; a list shows them and their answers.

import { previewOf } from "./preview.js";
import { errorText, queueCount, shortVerdict, verdictOf } from "./text.js";

const THUMBNAIL_PX = 160;
const MARKS = { answer: "✓", error: "!", working: "…", waiting: "" };

export class Queue {
  /**
   * localize(file, signal): a promise of its fix. show(photo, position): show one photo; photo: {file, state,
   * fix, error}, where state is "waiting", "working", "answer" or "error"; position: "2 of 5", "" for a single one.
   * changed(): called when the photos or their answers change. announce(text): for screen readers.
   */
  constructor({ list, count, stop }, { localize, show, changed, announce }) {
    Object.assign(this, { list, count, stopButton: stop, localize, show, changed, announce });
    this.photos = [];
  }

  /** Replace all photos by these and localize them. */
  start(files) {
    this.job?.abort();
    this.photos = files.map((file) => ({ file, state: "waiting" }));
    this.list.replaceChildren(...this.photos.map((photo) => this.makeItem(photo)));
    if (this.photos.length > 1) drawThumbnails(this.photos);
    this.chosen = this.photos[0];
    this.run();
  }

  /** Localize the photos without an answer; stops if the server does not answer. */
  async run() {
    this.job = new AbortController();
    const { signal } = this.job;
    this.stalled = null;
    for (const photo of this.photos) {
      if (photo.state === "answer" || (photo.error && !photo.error.retry)) continue;
      this.change(photo, { state: "working", error: null });
      try {
        const fix = await this.localize(photo.file, signal);
        if (signal.aborted) return;
        this.change(photo, { state: "answer", fix });
      } catch (error) {
        if (signal.aborted) return;
        this.change(photo, { state: "error", error: errorText(error) });
      }
      if (photo.error?.away) {
        this.stalled = photo;
        this.choose(photo);
        break;
      }
      if (photo !== this.chosen) this.announce(this.count.textContent);
    }
    this.job = null;
    this.render();
  }

  /** Remove the photos without an answer; returns whether any photo is left. */
  stop() {
    this.job?.abort(new DOMException("cancelled", "AbortError"));
    this.job = null;
    for (const { state, item } of this.photos) if (state === "waiting" || state === "working") item.remove();
    this.photos = this.photos.filter(({ state }) => state === "answer" || state === "error");
    this.render();
    if (!this.photos.length) return false;
    this.choose(this.photos.includes(this.chosen) ? this.chosen : this.photos.at(-1));
    return true;
  }

  choose(photo) {
    this.chosen = photo;
    this.render();
    photo.item.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.show(photo, this.photos.length > 1 ? `${this.photos.indexOf(photo) + 1} of ${this.photos.length}` : "");
  }

  change(photo, news) {
    Object.assign(photo, news);
    if (photo === this.chosen) this.choose(photo);
    else this.render();
  }

  render() {
    this.changed();
    this.count.textContent = queueCount(this.photos, this.job || this.stalled);
    if (!this.job && document.activeElement === this.stopButton) this.chosen.button.focus();
    this.stopButton.hidden = !this.job;
    document.body.toggleAttribute("data-several", this.photos.length > 1);
    this.photos.forEach((photo, i) => {
      const { file, state, fix, error, button, mark, caption } = photo;
      const said = { answer: fix && verdictOf(fix), error: error?.title, working: "Looking", waiting: "Waiting" };
      const short = { answer: fix && shortVerdict(fix), error: "Problem", working: "Looking…", waiting: "" };
      button.disabled = state === "waiting";
      button.dataset.state = state;
      button.setAttribute("aria-pressed", String(photo === this.chosen));
      button.setAttribute("aria-label", `Photo ${i + 1}, ${file.name}: ${said[state]}`);
      mark.textContent = state === "answer" && !fix.latlon ? "?" : MARKS[state];
      caption.textContent = short[state];
    });
  }

  makeItem(photo) {
    const [item, button, mark, caption] = ["li", "button", "span", "small"].map((name) => document.createElement(name));
    button.type = "button";
    mark.className = "number";
    button.append(mark);
    button.addEventListener("click", () => this.choose(photo));
    item.append(button, caption);
    Object.assign(photo, { item, button, mark, caption });
    return item;
  }
}

/** One at a time: a dozen camera photos decoded at once can exceed the memory of a phone. */
async function drawThumbnails(photos) {
  for (const { file, item, button } of photos) {
    if (!item.isConnected) continue;
    const small = { resizeHeight: THUMBNAIL_PX, resizeQuality: "medium" };
    const bitmap = await createImageBitmap(file, small)
      .catch(async () => createImageBitmap(await previewOf(file), small)).catch(() => null);
    if (!bitmap) continue;  // not a photo
    const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    button.prepend(canvas);
  }
}
