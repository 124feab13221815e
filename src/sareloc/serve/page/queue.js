// Photos that are given together: answered one after the other, each answer kept and chosen from a list.

import { shortVerdict, troubleWords, verdictOf } from "./words.js";

const THUMBNAIL_PX = 160;
const MARKS = { answer: "✓", trouble: "!", working: "…", waiting: "" };

export class Queue {
  /**
   * ask(file, signal): a promise of its fix. show(photo, position): put one photo on the page; photo: {file, state,
   * fix, trouble}, where state is "waiting", "working", "answer" or "trouble"; position: "2 of 5", "" for one alone.
   * announce(words): for screen readers.
   */
  constructor({ list, count, stop }, { ask, show, announce }) {
    Object.assign(this, { list, count, stopButton: stop, ask, show, announce });
    this.photos = [];
  }

  /** Forget all photos and begin with these. */
  start(files) {
    this.job?.abort();
    this.photos = files.map((file) => ({ file, state: "waiting" }));
    this.list.replaceChildren(...this.photos.map((photo) => this.makeItem(photo)));
    if (this.photos.length > 1) drawThumbnails(this.photos);
    this.chosen = this.photos[0];
    this.run();
  }

  /** Answer what is not answered yet; stops while the server is away. */
  async run() {
    this.job = new AbortController();
    const { signal } = this.job;
    this.stalled = null;
    for (const photo of this.photos) {
      if (photo.state === "answer" || (photo.trouble && !photo.trouble.retry)) continue;
      this.change(photo, { state: "working", trouble: null });
      try {
        const fix = await this.ask(photo.file, signal);
        if (signal.aborted) return;
        this.change(photo, { state: "answer", fix });
      } catch (trouble) {
        if (signal.aborted) return;
        this.change(photo, { state: "trouble", trouble: troubleWords(trouble) });
      }
      if (photo.trouble?.away) {
        this.stalled = photo;
        this.choose(photo);
        break;
      }
      if (photo !== this.chosen) this.announce(this.count.textContent);
    }
    this.job = null;
    this.tell();
  }

  /** Keep what is answered; returns whether anything was. */
  stop() {
    this.job?.abort(new DOMException("cancelled", "AbortError"));
    this.job = null;
    for (const { state, item } of this.photos) if (state === "waiting" || state === "working") item.remove();
    this.photos = this.photos.filter(({ state }) => state === "answer" || state === "trouble");
    this.tell();
    if (!this.photos.length) return false;
    this.choose(this.photos.includes(this.chosen) ? this.chosen : this.photos.at(-1));
    return true;
  }

  choose(photo) {
    this.chosen = photo;
    this.tell();
    photo.item.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.show(photo, this.photos.length > 1 ? `${this.photos.indexOf(photo) + 1} of ${this.photos.length}` : "");
  }

  change(photo, news) {
    Object.assign(photo, news);
    if (photo === this.chosen) this.choose(photo);
    else this.tell();
  }

  tell() {
    const done = this.photos.filter(({ state }) => state === "answer" || state === "trouble").length;
    this.count.textContent = `${done} of ${this.photos.length} answered`;
    if (!this.job && document.activeElement === this.stopButton) this.chosen.button.focus();
    this.stopButton.hidden = !this.job;
    document.body.toggleAttribute("data-several", this.photos.length > 1);
    this.photos.forEach((photo, i) => {
      const { file, state, fix, trouble, button, mark, caption } = photo;
      const said = { answer: fix && verdictOf(fix), trouble: trouble?.title, working: "Looking", waiting: "Waiting" };
      const short = { answer: fix && shortVerdict(fix), trouble: "Problem", working: "Looking…", waiting: "" };
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

/** Small pictures, one at a time: some dozen photos of a camera, decoded at once, fill the memory of a phone. */
async function drawThumbnails(photos) {
  for (const { file, item, button } of photos) {
    if (!item.isConnected) continue;
    const small = { resizeHeight: THUMBNAIL_PX, resizeQuality: "medium" };
    const bitmap = await createImageBitmap(file, small).catch(() => null);
    if (!bitmap) continue;  // no photo, or of a kind that this browser cannot show
    const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    button.prepend(canvas);
  }
}
