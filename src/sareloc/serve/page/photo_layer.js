// The photos of the map as a Leaflet layer: streets, a dot for each spot, a tick for each heading, on canvas tiles.
// Tiles instead of one marker for each photo: the cost depends on what is in view, not on the size of the map.

import { findSpots, joinSpots, mercator } from "./streets.js";

const TILE = 512;
const MARGIN_PX = 16;  // the drawing of a spot can reach this far into the next tile
const STROKES_AT_ONCE = 400;  // browsers slow down on paths of many thousand pieces
const STREET_M = 9;
const TICK_PX = 6.5;

export const PhotoLayer = L.GridLayer.extend({
  initialize(options) {
    L.GridLayer.prototype.initialize.call(this, { tileSize: TILE, updateWhenZooming: false, ...options });
    this.show([]);
  },

  /** photos: [{id, latlon, heading, name, time}]. */
  show(photos) {
    this.photos = photos;
    this.spots = findSpots(photos.map((photo) => photo.latlon[0]), photos.map((photo) => photo.latlon[1]));
    Object.assign(this.spots, joinSpots(this.spots));
    if (this._map) this.redraw();
  },

  /** The photos of the spot nearest to a position, within `withinPx` pixels on the screen; [] if there is none. */
  near(latlng, withinPx) {
    const { x, y, grid, photos } = this.spots;
    const [px, py] = mercator(latlng.lat, latlng.wrap().lng);
    const reach = withinPx / scaleOf(this._map.getZoom());
    const away = (i) => Math.hypot(x[i] - px, y[i] - py);
    const found = grid.inside(px - reach, py - reach, px + reach, py + reach).filter((i) => away(i) <= reach);
    if (!found.length) return [];
    const nearest = found.reduce((best, i) => (away(i) < away(best) ? i : best));
    return photos[nearest].map((photo) => this.photos[photo]);
  },

  createTile(coords) {
    const tile = document.createElement("canvas");
    const sharpness = window.devicePixelRatio || 1;
    tile.width = tile.height = TILE * sharpness;
    const context = tile.getContext("2d");
    context.scale(sharpness, sharpness);
    this.paint(context, coords);
    return tile;
  },

  paint(context, coords) {
    const { x, y, photos, joined, reach, usual, grid, metresPerUnit } = this.spots;
    const scale = scaleOf(coords.z);
    const across = (i) => x[i] * scale - coords.x * TILE;
    const down = (i) => y[i] * scale - coords.y * TILE;
    const pad = reach + MARGIN_PX / scale;
    const [left, top, size] = [coords.x, coords.y, 1].map((tiles) => (tiles * TILE) / scale);
    const spots = grid.inside(left - pad, top - pad, left + size + pad, top + size + pad);
    const colour = coloursOf(this._map.getContainer());
    const spacing = usual * scale;

    context.lineCap = "round";
    const lines = spots.flatMap((a) => joined[a].map((b) => [across(a), down(a), across(b), down(b)]));
    const width = Math.min(22, Math.max(1.5, (STREET_M / metresPerUnit) * scale));
    if (spacing > 1) strokeLines(context, lines, colour.street, width);

    const radius = Math.min(3, Math.max(0.9, spacing / 8));
    if (spacing > 28) {
      const headings = (i) => photos[i].map((photo) => this.photos[photo].heading).filter((heading) => heading != null);
      const ticks = spots.flatMap((i) => headings(i).map((heading) => tick(across(i), down(i), heading, radius)));
      strokeLines(context, ticks, colour.tick, 1.2);
    }
    context.fillStyle = colour.dot;
    context.beginPath();
    for (const i of spots) {
      const [px, py] = [across(i), down(i)];
      if (radius < 1.5) context.rect(px - radius, py - radius, 2 * radius, 2 * radius);
      else context.moveTo(px + radius, py), context.arc(px, py, radius, 0, 2 * Math.PI);
    }
    context.fill();
  },
});

function scaleOf(zoom) {
  return 256 * 2 ** zoom;
}

function tick(x, y, heading, radius) {
  const [east, south] = [Math.sin((heading * Math.PI) / 180), -Math.cos((heading * Math.PI) / 180)];
  const end = radius + TICK_PX;
  return [x + east * radius, y + south * radius, x + east * end, y + south * end];
}

function strokeLines(context, lines, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  for (let start = 0; start < lines.length; start += STROKES_AT_ONCE) {
    context.beginPath();
    for (const [x0, y0, x1, y1] of lines.slice(start, start + STROKES_AT_ONCE)) {
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
    }
    context.stroke();
  }
}

/** Colours are defined in the style sheet, also those of dark mode. */
function coloursOf(element) {
  const style = getComputedStyle(element);
  const read = (name) => style.getPropertyValue(name).trim();
  return { street: read("--street"), dot: read("--dot"), tick: read("--tick") };
}
