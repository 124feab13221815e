"""The embedding view as a page to zoom into: dots become thumbnails as soon as they fit. One file, no network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sareloc.errors import ArgumentError
from sareloc.figures.embedding import fitting_zooms, place_colour
from sareloc.figures.style import finite, write_beside
from sareloc.figures.thumbnails import jpeg_uri

Image = npt.NDArray[np.uint8]

THUMBNAIL = 0.075  # of the page's shorter side


def write_embedding_page(
    path: Path | str,
    points: npt.ArrayLike,
    places: npt.ArrayLike,
    images: Sequence[Image | None],
    names: Sequence[str],
    *,
    title: str = "Photos where the model puts them",
) -> Path:
    """Write the page: `points` (N, 2) from `embed`, `places` (N,) from `places_of`, thumbnails, and names to show.

    Wheel, pinch, buttons or + and - zoom; dragging or the arrow keys move; pointing at a photo shows its name and
    lights up all photos of its place.
    """
    where, numbers = finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images) == len(names):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places, {len(images)} images and {len(names)} names: "
            "each photo needs one of each"
        )
    photos = [
        {
            "x": round(float(x), 5),
            "y": round(float(1 - y), 5),  # pages count downwards
            "fit": None if np.isinf(fit) or image is None else float(fit),
            "place": place,
            "colour": "#" + "".join(f"{round(255 * part):02x}" for part in place_colour(place)),
            "name": name,
            "image": None if image is None else jpeg_uri(image, quality=70),
        }
        for (x, y), fit, place, image, name in zip(
            where, fitting_zooms(where, THUMBNAIL), numbers.tolist(), images, names, strict=True
        )
    ]
    page = (
        PAGE.replace("{{title}}", html.escape(title))
        .replace("{{count}}", f"{len(photos):,} photos, {len(set(numbers.tolist())):,} places")
        .replace("{{thumbnail}}", str(THUMBNAIL))
        .replace("{{photos}}", json.dumps(photos).replace("<", "\\u003c"))
    )
    return write_beside(Path(path), page.encode(errors="backslashreplace"))


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --panel: #fffe; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e6edf3; --panel: #1c2128ee; } }
html, body { margin: 0; height: 100%; overflow: hidden; background: var(--page); color: var(--ink); }
body { font: 14px/1.4 "DejaVu Sans", Verdana, sans-serif; }
#view { position: absolute; inset: 0; touch-action: none; cursor: grab; outline-offset: -3px; }
#view:active { cursor: grabbing; }
.photo { position: absolute; left: 0; top: 0; width: 9px; height: 9px; margin: -4.5px; border-radius: 50%;
  background: var(--colour); transition: opacity .15s; }
.photo img { display: none; }
.photo.fits { width: auto; height: auto; margin: 0; border-radius: 3px; border: 3px solid var(--colour); z-index: 1;
  translate: -50% -50%; background: var(--colour); }
.photo.fits img { display: block; max-width: var(--side); max-height: var(--side); pointer-events: none; }
#view.lit .photo { opacity: .12; }
#view.lit .photo.lit { opacity: 1; z-index: 2; }
header, #name { position: absolute; left: 12px; padding: 8px 12px; border-radius: 8px; background: var(--panel);
  box-shadow: 0 1px 4px #0003; max-width: calc(100% - 48px); z-index: 3; }
header { top: 12px; } header h1 { font-size: 15px; margin: 0; } header p { margin: 2px 0 6px; }
header button { font: inherit; min-width: 34px; min-height: 30px; margin-right: 4px; }
#name { bottom: 12px; min-height: 1.4em; overflow-wrap: anywhere; }
</style>
</head>
<body>
<div id="view" tabindex="0" role="application" aria-label="Photos by similarity: arrow keys move, plus and minus zoom">
</div>
<header>
<h1>{{title}}</h1><p>{{count}}</p>
<button id="in" aria-label="zoom in">+</button><button id="out" aria-label="zoom out">−</button>
<button id="all">show all</button>
</header>
<div id="name" role="status">Zoom in to turn dots into photos; point at one to light up its place.</div>
<script type="application/json" id="photos">{{photos}}</script>
<script>
"use strict";
const view = document.getElementById("view"), label = document.getElementById("name");
const photos = JSON.parse(document.getElementById("photos").textContent);
let zoom = 1, shiftX = 0, shiftY = 0;
for (const photo of photos) {
  const element = photo.element = document.createElement("div");
  element.className = "photo";
  element.style.setProperty("--colour", photo.colour);
  if (photo.image) {
    const image = element.appendChild(document.createElement("img"));
    image.src = photo.image;
    image.alt = photo.name;
  }
  element.addEventListener("pointerenter", () => light(photo));
  element.addEventListener("pointerleave", () => light(null));
  view.appendChild(element);
}
function light(photo) {
  view.classList.toggle("lit", photo !== null);
  for (const other of photos) other.element.classList.toggle("lit", photo !== null && other.place === photo.place);
  if (photo) label.textContent = photo.name + " · place " + photo.place;
}
const side = () => 0.88 * Math.min(view.clientWidth, view.clientHeight);
function show() {
  view.style.setProperty("--side", {{thumbnail}} * side() - 6 + "px");
  for (const photo of photos) {
    const x = view.clientWidth / 2 + ((photo.x - 0.5) * zoom + shiftX) * side();
    const y = view.clientHeight / 2 + ((photo.y - 0.5) * zoom + shiftY) * side();
    photo.element.style.transform = `translate(${x}px, ${y}px)`;
    photo.element.classList.toggle("fits", photo.fit !== null && zoom >= photo.fit);
  }
}
function zoomBy(factor, x = view.clientWidth / 2, y = view.clientHeight / 2) {
  const wanted = Math.min(40, Math.max(0.8, zoom * factor)), ratio = wanted / zoom;
  const px = (x - view.clientWidth / 2) / side(), py = (y - view.clientHeight / 2) / side();
  shiftX = px + (shiftX - px) * ratio;
  shiftY = py + (shiftY - py) * ratio;
  zoom = wanted;
  show();
}
function moveBy(x, y) { shiftX += x / side(); shiftY += y / side(); show(); }
function showAll() { zoom = 1; shiftX = shiftY = 0; show(); }
view.addEventListener("wheel", event => {
  event.preventDefault();
  zoomBy(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
}, { passive: false });
const fingers = new Map();
view.addEventListener("pointerdown", event => {
  fingers.set(event.pointerId, event);
  view.setPointerCapture(event.pointerId);
});
for (const end of ["pointerup", "pointercancel"]) view.addEventListener(end, event => fingers.delete(event.pointerId));
view.addEventListener("pointermove", event => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const others = [...fingers.values()].filter(finger => finger.pointerId !== event.pointerId);
  if (others.length) {
    const far = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
    zoomBy(far(event, others[0]) / far(before, others[0]), others[0].clientX, others[0].clientY);
  } else moveBy(event.clientX - before.clientX, event.clientY - before.clientY);
  fingers.set(event.pointerId, event);
});
const KEYS = { "+": () => zoomBy(1.4), "=": () => zoomBy(1.4), "-": () => zoomBy(1 / 1.4), "0": showAll,
  ArrowLeft: () => moveBy(60, 0), ArrowRight: () => moveBy(-60, 0),
  ArrowUp: () => moveBy(0, 60), ArrowDown: () => moveBy(0, -60) };
view.addEventListener("keydown", event => { if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); } });
document.getElementById("in").onclick = () => zoomBy(1.4);
document.getElementById("out").onclick = () => zoomBy(1 / 1.4);
document.getElementById("all").onclick = showAll;
window.addEventListener("resize", show);
show();
</script>
</body>
</html>
"""
