// A Leaflet layer of canvas tiles: the cost of drawing depends on what is in view.

export const TILE = 512;

/** Extended with paint(context, coords): draws what tile coords.x, coords.y of zoom coords.z shows, in its pixels. */
export const CanvasLayer = L.GridLayer.extend({
  initialize(options) {
    L.GridLayer.prototype.initialize.call(this, { tileSize: TILE, updateWhenZooming: false, ...options });
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
});

/** Pixels of the width of the world. */
export function scaleOf(zoom) {
  return 256 * 2 ** zoom;
}

/** A function from the name of a colour in the style sheet, such as "dot", to its value, also in dark mode. */
export function coloursOf(element) {
  const style = getComputedStyle(element);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}
