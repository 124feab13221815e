// What matched: the photo and a match in a dialog, with a line between each pair of local features that agree.

import { mapParameter, postFile, retryWhileBusy, thumbnailUrl } from "./api.js";
import { agreement, errorText, fileName, linesDrawn } from "./text.js";

const MOST_LINES = 100;
const COLOURS = ["#56b4e9", "#f0e442", "#ff8c3b", "#34d1a0", "#f2a2cf", "#ffffff"];  // light: photos are darker
const DOT_PX = 3;

/**
 * shown: the image of the photo on the page; query, photo: the images of the dialog; lines: the SVG element over both.
 * Returns {setMatch(file, match, number)}: of a photo and the match that is shown beside it; the button is hidden if the
 * match was not verified. setMatch() without arguments: there is no match.
 */
export function makeMatched({ shown, button, dialog, close, note, query, photo, caption, lines }) {
  let job, asked, found;

  const draw = () => {
    lines.toggleAttribute("hidden", !found);
    lines.replaceChildren(...(found ? drawLines(lines, query, photo, found) : []));
  };

  async function fetchInliers() {
    const { signal } = job;
    note.textContent = "Comparing the local features of both photos…";
    try {
      const send = () => postFile(`inliers?id=${asked.match.id}${mapParameter(asked.match)}`, asked.file, { signal });
      const answer = await retryWhileBusy(send, {
        signal, onBusy: (seconds) => (note.textContent = `The server is busy: trying again in ${Math.ceil(seconds)} s.`),
      });
      if (signal.aborted) return;
      found = answer;
      lines.setAttribute("aria-label", agreement(found.inliers));
      note.textContent = linesDrawn(found.inliers, MOST_LINES);
      draw();
    } catch (error) {
      if (signal.aborted) return;
      const { title, detail } = errorText(error);
      note.textContent = `${title}. ${detail}`;
    }
  }

  button.addEventListener("click", () => {
    query.src = shown.src;
    photo.src = thumbnailUrl(asked.match, 1024);
    caption.textContent = `Match ${asked.number}`;
    photo.alt = `Match ${asked.number}, ${fileName(asked.match.photo)}`;
    job = new AbortController();
    dialog.showModal();
    if (!found) fetchInliers();
  });
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => job.abort());
  const resized = new ResizeObserver(draw);
  for (const element of [query, photo]) resized.observe(element);

  return {
    setMatch(file, match, number) {
      dialog.close();
      [asked, found] = [{ file, match, number }, null];
      button.hidden = match?.inliers == null;
      draw();
    },
  };
}

/** The elements of at most 100 lines; neighbours differ in colour. Side by side, neighbours are from top to bottom. */
function drawLines(lines, query, photo, { inliers, query_size, photo_size, query_xy, photo_xy }) {
  const whole = lines.getBoundingClientRect();
  const [from, to] = [pictureIn(query, query_size, whole), pictureIn(photo, photo_size, whole)];
  const along = to.top >= from.top + from.height ? 0 : 1;
  const count = Math.min(inliers, MOST_LINES);
  const shown = Array.from({ length: count }, (_, i) => Math.floor((i * inliers) / count));
  shown.sort((a, b) => query_xy[a][along] - query_xy[b][along]);
  const place = ([x, y], picture) => [picture.left + x * picture.width, picture.top + y * picture.height];
  return shown.map((pair, i) => {
    const colour = COLOURS[i % COLOURS.length];
    const [[x1, y1], [x2, y2]] = [place(query_xy[pair], from), place(photo_xy[pair], to)];
    const ends = [[x1, y1], [x2, y2]].map(([cx, cy]) => element("circle", { cx, cy, r: DOT_PX }));
    const group = element("g", { stroke: colour, fill: colour });
    group.append(element("line", { x1, y1, x2, y2 }), ...ends);
    return group;
  });
}

/** Where an image of this size is drawn in its element (object-fit: contain), from the top left corner of `whole`. */
function pictureIn(image, [wide, high], whole) {
  const box = image.getBoundingClientRect();
  const scale = Math.min(box.width / wide, box.height / high);
  const [width, height] = [wide * scale, high * scale];
  const [left, top] = [box.left - whole.left + (box.width - width) / 2, box.top - whole.top + (box.height - height) / 2];
  return { left, top, width, height };
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
