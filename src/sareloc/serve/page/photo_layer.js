// The photos of the map as a Leaflet layer: streets, a dot for each spot, a tick for each heading, on canvas tiles.

import { CanvasLayer, TILE, coloursOf, scaleOf } from "./canvas_layer.js";
import { findSpots, joinSpots, mercator } from "./streets.js";

const MARGIN_PX = 16;  // the drawing of a spot can reach this far into the next tile
const STROKES_AT_ONCE = 400;  // browsers slow down on paths of many thousand pieces
const STREET_M = 9;
const TICK_PX = 6.5;
const EDGE_PX = 1.25;

export const PhotoLayer = CanvasLayer.extend({
  initialize(options) {
    CanvasLayer.prototype.initialize.call(this, options);
    this.show([]);
  },

  /** photos: [{id, latlon, heading, name, time, map}]. */
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

  /** A tile at the antimeridian also shows what reaches into it from the other edge of the map. */
  paint(context, coords, pixel) {
    const scale = scaleOf(coords.z);
    const pad = this.spots.reach + (MARGIN_PX * pixel) / scale;
    const [left, top, size] = [coords.x, coords.y, 1].map((tiles) => (tiles * TILE) / scale);
    for (let world = Math.floor(left - pad); world < left + size + pad; world += 1) {
      this.paintPart(context, { left: left - world, top, size, pad, scale, pixel });
    }
  },

  /** left, top, size: of the tile, in the units of `mercator`; spots up to `pad` outside of it are drawn, too. */
  paintPart(context, { left, top, size, pad, scale, pixel }) {
    const { x, y, photos, joined, usual, grid, metresPerUnit } = this.spots;
    const across = (i) => (x[i] - left) * scale;
    const down = (i) => (y[i] - top) * scale;
    const spots = grid.inside(left - pad, top - pad, left + size + pad, top + size + pad);
    const colour = coloursOf(this._map.getContainer());
    const spacing = usual * scale;

    context.lineCap = "round";
    const lines = spots.flatMap((a) => joined[a].map((b) => [across(a), down(a), across(b), down(b)]));
    const width = Math.min(22 * pixel, Math.max(1.5 * pixel, (STREET_M / metresPerUnit) * scale));
    if (spacing > pixel) strokeLines(context, lines, colour("street"), width);

    const radius = Math.max(Math.min(3 * pixel, spacing / 8), leastRadius(this.paintedZoom) * pixel);
    if (spacing > 28 * pixel) {
      const headings = (i) => photos[i].map((photo) => this.photos[photo].heading).filter((heading) => heading != null);
      const ends = [radius, radius + TICK_PX * pixel];
      const ticks = spots.flatMap((i) => headings(i).map((heading) => tick([across(i), down(i)], heading, ends)));
      strokeLines(context, ticks, colour("tick"), 1.2 * pixel);
    }
    for (const [name, size] of [["dot-edge", radius + EDGE_PX * pixel], ["dot", radius]]) {
      context.fillStyle = colour(name);
      context.beginPath();
      for (const i of spots) {
        const [px, py] = [across(i), down(i)];
        context.moveTo(px + size, py);
        context.arc(px, py, size, 0, 2 * Math.PI);
      }
      context.fill();
    }
  },
});

/** Pixels: a dot is seen also where a whole city is one, and thousands of them show streets closer up. */
function leastRadius(zoom) {
  return Math.min(5, Math.max(1.5, 5 - 0.6 * (zoom - 8)));
}

/** A line from [x, y] in the direction of a heading, between two distances. */
function tick([x, y], heading, distances) {
  const [east, south] = [Math.sin((heading * Math.PI) / 180), -Math.cos((heading * Math.PI) / 180)];
  return distances.flatMap((distance) => [x + east * distance, y + south * distance]);
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
