"""The embedding view: photos at their t-SNE positions, as a figure and as a zoomable, self-contained HTML page."""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats, Image, Ints
from sareloc.datasets.places import PhotoSet
from sareloc.errors import ArgumentError, need
from sareloc.figures.matches import jpeg_uri
from sareloc.figures.style import INK, new_figure, require_finite, styled
from sareloc.files import write_atomically
from sareloc.geo import within_radius

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MIN_PHOTOS = 5
PERPLEXITY = 30.0
MAX_SIDE_INCHES, MIN_SIDE_INCHES = 9.0, 3.0
ZOOMS = tuple(1.25**step for step in range(17))  # to 36
THUMBNAIL = 0.075  # of the page's shorter side


def project_tsne(
    descriptors: npt.ArrayLike, *, seed: int = 0, perplexity: float = PERPLEXITY, threads: int = 1
) -> Floats:
    """t-SNE coordinates (N, 2) of descriptors, scaled to 0..1, deterministic for a seed.

    Args:
        descriptors: (N, D).
        seed: of t-SNE.
        perplexity: about the number of neighbours that count; at most (N - 1) / 3.
        threads: of the computation.

    Raises:
        ArgumentError: if N is below `MIN_PHOTOS`.
    """
    rows = require_finite(descriptors, "descriptors")
    if rows.ndim != 2 or len(rows) < MIN_PHOTOS:
        raise ArgumentError(f"an embedding view needs at least {MIN_PHOTOS} descriptors (N, D): found {rows.shape}")
    tsne = need("openTSNE", "plot").TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3), initialization="pca", metric="euclidean",
        neighbors="exact", random_state=seed, n_jobs=threads,
    )  # fmt: skip
    with warnings.catch_warnings():  # deprecation warnings of its dependencies
        warnings.simplefilter("ignore")
        points = np.asarray(tsne.fit(rows), dtype=np.float64)
    low, span = points.min(axis=0), max(float(np.ptp(points, axis=0).max()), 1e-9)
    centred: Floats = (points - low - (np.ptp(points, axis=0) - span) / 2) / span
    return centred


def place_labels(photos: PhotoSet, radius_m: float = 25.0, turn_deg: float = 45.0) -> Ints:
    """A place label (N,), from 0, for each photo: photos with equal labels show one place.

    Labels follow the first place id where the dataset has ids. Otherwise photos are grouped greedily by position:
    each photo without a label starts a place, and others without a label join it.

    Args:
        photos: with place ids or positions.
        radius_m: photos within this distance join a place,
        turn_deg: if their headings differ by at most this, or are unknown.

    Raises:
        ArgumentError: if there are neither ids nor positions.
    """
    if photos.place_ids is not None:
        numbers: dict[int, int] = {}
        firsts = [ids[0] if ids else -1 for ids in photos.place_ids]
        return np.array([numbers.setdefault(first, len(numbers)) for first in firsts], dtype=np.int64)
    if photos.positions is None:
        raise ArgumentError("these photos have neither place ids nor positions: they cannot be grouped into places")
    headings = np.full(len(photos), np.nan) if photos.headings_deg is None else photos.headings_deg
    places = np.full(len(photos), -1, dtype=np.int64)
    count = 0
    for row, near in enumerate(within_radius(photos.positions.metres, photos.positions.metres, radius_m)):
        if places[row] < 0:
            turned = np.abs((headings[near] - headings[row] + 180) % 360 - 180) > turn_deg  # False if unknown
            places[near[(places[near] < 0) & ~turned]] = count
            count += 1
    return places


def fitting_zooms(points: Floats, size: float, zooms: Sequence[float] = ZOOMS) -> Floats:
    """The smallest of `zooms` at which each thumbnail fits without overlapping another: (N,), inf if at none.

    `points` (N, 2) are the centres within 0..1, `size` is a thumbnail's side at zoom 1. Thumbnails keep their size
    while the points move apart, so a thumbnail that fits at one zoom fits at every larger one. Earlier photos have
    priority.
    """
    fits = np.full(len(points), np.inf)
    for zoom in zooms:
        shown = points[np.isfinite(fits)]
        for row in np.flatnonzero(np.isinf(fits)):
            if not (np.abs(shown - points[row]).max(axis=1) < size / zoom).any():
                fits[row] = zoom
                shown = np.concatenate([shown, points[row : row + 1]])
    return fits


def place_colour(place: int) -> tuple[float, float, float]:
    """An RGB colour for a place label: hues spaced by the golden ratio, in three values of lightness."""
    hue = place * 0.61803398875 % 1
    value = (0.85, 0.6, 0.95)[place % 3]
    colour: Floats = need("matplotlib.colors", "plot").hsv_to_rgb([hue, 0.8, value])
    return float(colour[0]), float(colour[1]), float(colour[2])


def _text_colour(background: tuple[float, float, float]) -> str:
    """Dark or white, by the luminance of the background."""
    return INK if float(np.dot(background, (0.299, 0.587, 0.114))) > 0.5 else "white"


@styled
def draw_embedding(
    points: npt.ArrayLike, places: npt.ArrayLike, images: Sequence[Image | None], size: float = 0.06
) -> Figure:
    """Thumbnails at their points with the colour and number of their place; dots where a thumbnail would overlap.

    Args:
        points: (N, 2) from `project_tsne`.
        places: (N,) from `place_labels`.
        images: a thumbnail of each photo; None: a dot.
        size: a thumbnail's side as a fraction of the figure.
    """
    where, numbers = require_finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places and {len(images)} images: each photo needs one of each"
        )
    fits = fitting_zooms(where, size, (1.0,))
    low, high = where.min(axis=0) - 0.6 * size, where.max(axis=0) + 0.6 * size
    inches = np.maximum(MAX_SIDE_INCHES * (high - low) / (high - low).max(), MIN_SIDE_INCHES)
    figure = new_figure(inches[0], inches[1])
    axes = figure.subplots()
    axes.set_axis_off()
    for point, place, image, zoom in zip(where, numbers.tolist(), images, fits, strict=True):
        colour = place_colour(place)
        if image is None or np.isinf(zoom):
            axes.plot(*point, "o", color=colour, markersize=7.5, zorder=1, gid="dot")
            axes.text(point[0], point[1], f"{place}", fontsize=4.2, color=_text_colour(colour), ha="center",
                      va="center_baseline", zorder=1.5)  # fmt: skip
            continue
        across, up = size * 0.46 * np.array(image.shape[1::-1]) / max(image.shape[:2])
        left, bottom, right, top = point[0] - across, point[1] - up, point[0] + across, point[1] + up
        axes.imshow(image, extent=(left, right, bottom, top), zorder=2, interpolation="antialiased")
        axes.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], color=colour,
                  linewidth=2.2, zorder=3, gid="thumbnail")  # fmt: skip
        axes.text(left, top, f"{place}", fontsize=6, color="white", ha="left", va="top", zorder=4,
                  bbox={"boxstyle": "square,pad=0.2", "facecolor": "black", "alpha": 0.6, "linewidth": 0})  # fmt: skip
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    return figure


def write_embedding_page(
    path: Path | str,
    points: npt.ArrayLike,
    places: npt.ArrayLike,
    images: Sequence[Image | None],
    names: Sequence[str],
    *,
    title: str = "Embedding of photos (t-SNE)",
) -> Path:
    """Write a page of photos at their points.

    Wheel, pinch, buttons or + and - zoom; dragging or the arrow keys pan; hovering over a photo shows its name and
    highlights all photos of its place.

    Args:
        path: of the page.
        points: (N, 2) from `project_tsne`.
        places: (N,) from `place_labels`.
        images: a thumbnail of each photo.
        names: of the photos.
        title: of the page.
    """
    where, numbers = require_finite(points, "points"), np.asarray(places, dtype=np.int64)
    if not len(where) == len(numbers) == len(images) == len(names):
        raise ArgumentError(
            f"found {len(where)} points, {len(numbers)} places, {len(images)} images and {len(names)} names: "
            "each photo needs one of each"
        )
    photos = [
        {
            "x": round(float(x), 5),
            "y": round(float(1 - y), 5),  # in pages y points down
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
    return write_atomically(Path(path), page.encode(errors="backslashreplace"))


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
<div id="name" role="status">Zoom in to turn dots into photos; point at one to highlight its place.</div>
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
  const target = Math.min(40, Math.max(0.8, zoom * factor)), ratio = target / zoom;
  const px = (x - view.clientWidth / 2) / side(), py = (y - view.clientHeight / 2) / side();
  shiftX = px + (shiftX - px) * ratio;
  shiftY = py + (shiftY - py) * ratio;
  zoom = target;
  show();
}
function moveBy(x, y) { shiftX += x / side(); shiftY += y / side(); show(); }
function showAll() { zoom = 1; shiftX = shiftY = 0; show(); }
view.addEventListener("wheel", event => {
  event.preventDefault();
  zoomBy(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
}, { passive: false });
const pointers = new Map();
view.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, event);
  view.setPointerCapture(event.pointerId);
});
for (const end of ["pointerup", "pointercancel"]) view.addEventListener(end, event => pointers.delete(event.pointerId));
view.addEventListener("pointermove", event => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const others = [...pointers.values()].filter(pointer => pointer.pointerId !== event.pointerId);
  if (others.length) {
    const distance = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
    zoomBy(distance(event, others[0]) / distance(before, others[0]), others[0].clientX, others[0].clientY);
  } else moveBy(event.clientX - before.clientX, event.clientY - before.clientY);
  pointers.set(event.pointerId, event);
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
