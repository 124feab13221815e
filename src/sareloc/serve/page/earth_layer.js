// The Earth where there are no base tiles: land and water from afar, lines of latitude and longitude at every zoom.

import { CanvasLayer, TILE, coloursOf, scaleOf } from "./canvas_layer.js";
import { gridLabel } from "./text.js";
import { latitudeOf, mercator } from "./streets.js";

const FAINT_ZOOM = 6;  // the coastline is drawn for 1:110 million: closer up it is wrong by many pixels
const GONE_ZOOM = 9;
const FARTHEST_LATITUDE = 85.0511;  // the edge of the map
const [LINES_PX, STREET_LINES_PX, STREET_ZOOM] = [140, 280, 10];  // among streets they are fewer
const LABEL_PX = 120;  // a label can reach this far into the next tile
const STEPS = [90, 30, 10, 5, 2, 1].concat([1, 2, 3, 4, 5].flatMap((n) => [5, 2, 1].map((step) => step / 10 ** n)));

export const EarthLayer = CanvasLayer.extend({
  /** land: of land.json, {units, rings}: each ring is a point and the differences of those that follow. */
  showLand(land) {
    this.paths = pathsOf(land);
    this.redraw();
  },

  /** Tiles are also north and south of the map's edges, where there is water and Antarctica. */
  _isValidTile({ x, y, z }) {
    return z < GONE_ZOOM || L.GridLayer.prototype._isValidTile.call(this, { x, y, z });
  },

  paint(context, { x, y, z }, pixel) {
    const colour = coloursOf(this._map.getContainer());
    const [scale, left, top] = [scaleOf(z), x * TILE, y * TILE];
    if (this.paths && z < GONE_ZOOM) {
      context.save();
      context.globalAlpha = Math.min(1, (GONE_ZOOM - z) / (GONE_ZOOM - FAINT_ZOOM));
      context.fillStyle = colour("water");
      context.fillRect(0, 0, TILE, TILE);
      context.translate(-left, -top);
      context.scale(scale, scale);
      context.fillStyle = colour("map-background");
      context.strokeStyle = colour("coast");
      context.lineWidth = pixel / scale;
      context.translate(-1, 0);
      for (let copy = 0; copy < 3; copy += 1) {  // land beyond the antimeridian is at the other edge of the map
        context.fill(this.paths.land, "evenodd");
        context.stroke(this.paths.coast);
        context.translate(1, 0);
      }
      context.restore();
    }
    drawLines(context, colour, { step: stepOf(z), scale, left, top, pixel });
  },
});

/** {land, coast}: paths in the units of `mercator`; the coast is without the edge of the map. */
function pathsOf({ units, rings }) {
  const [land, coast] = [new Path2D(), new Path2D()];
  for (const ring of rings) {
    let [longitude, latitude] = [0, 0];
    const points = [];
    for (let i = 0; i < ring.length; i += 2) {
      [longitude, latitude] = [longitude + ring[i], latitude + ring[i + 1]];
      points.push([longitude / units, Math.max(latitude / units, -FARTHEST_LATITUDE)]);
    }
    const onEdge = ([, lat]) => lat === -FARTHEST_LATITUDE;
    points.forEach((point, i) => {
      const before = points.at(i - 1);
      const [x, y] = mercator(point[1], point[0]);
      if (i) land.lineTo(x, y);
      else land.moveTo(x, y);
      if (onEdge(point) && onEdge(before)) return;
      coast.moveTo(...mercator(before[1], before[0]));
      coast.lineTo(x, y);
    });
    land.closePath();
  }
  land.rect(0, 1, 1, 1);  // Antarctica, south of the edge of the map
  return { land, coast };
}

/** The spacing in degrees of the lines at a zoom. */
export function stepOf(zoom) {
  const least = zoom < STREET_ZOOM ? LINES_PX : STREET_LINES_PX;
  return STEPS.findLast((step) => (step * scaleOf(zoom)) / 360 >= least) ?? STEPS[0];
}

function drawLines(context, colour, { step, scale, left, top, pixel }) {
  const longitudeAt = (px) => ((left + px) / scale - 0.5) * 360;
  const latitudeAt = (px) => latitudeOf((top + px) / scale);
  const reach = LABEL_PX * pixel;
  const meridians = multiples(step, longitudeAt(-reach), longitudeAt(TILE));
  const parallels = multiples(step, latitudeAt(TILE + reach), latitudeAt(-reach))
    .filter((latitude) => Math.abs(latitude) < FARTHEST_LATITUDE);
  const across = (longitude) => mercator(0, longitude)[0] * scale - left;
  const down = (latitude) => mercator(latitude, 0)[1] * scale - top;
  context.strokeStyle = colour("graticule");
  context.lineWidth = pixel;
  context.beginPath();
  for (const longitude of meridians) context.moveTo(across(longitude), 0), context.lineTo(across(longitude), TILE);
  for (const latitude of parallels) context.moveTo(0, down(latitude)), context.lineTo(TILE, down(latitude));
  context.stroke();
  context.font = `${10 * pixel}px system-ui, sans-serif`;
  context.fillStyle = colour("grid-text");
  for (const latitude of parallels) {
    for (const longitude of meridians) {
      context.fillText(gridLabel(latitude, longitude, step), across(longitude) + 4 * pixel, down(latitude) - 4 * pixel);
    }
  }
}

function multiples(step, low, high) {
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
}
