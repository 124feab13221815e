// A Leaflet layer of canvas tiles: the cost of drawing depends on what is in view.

export const TILE = 512;

/**
 * Extended with paint(context, coords, pixel): draws what tile coords.x, coords.y of zoom coords.z shows, in its
 * pixels, of which a pixel on the screen takes `pixel`: between two whole zooms the browser scales tiles.
 */
export const CanvasLayer = L.GridLayer.extend({
  initialize(options) {
    L.GridLayer.prototype.initialize.call(this, { tileSize: TILE, updateWhenZooming: false, ...options });
  },

  getEvents() {
    const repaint = () => {  // of tiles that stay and are scaled in another way
      const [before, now] = [this.paintedZoom, this._map.getZoom()];
      if (before !== now && Math.round(before) === Math.round(now)) this.redraw();
    };
    return { ...L.GridLayer.prototype.getEvents.call(this), zoomend: repaint };
  },

  /** As Leaflet's, which would take a zoom between two whole ones for that of the tiles. */
  redraw() {
    this._removeAllTiles();
    this._update();
    return this;
  },

  createTile(coords) {
    const tile = document.createElement("canvas");
    const sharpness = window.devicePixelRatio || 1;
    tile.width = tile.height = TILE * sharpness;
    const context = tile.getContext("2d");
    context.scale(sharpness, sharpness);
    this.paintedZoom = this._map.getZoom();
    this.paint(context, coords, 1 / this._map.getZoomScale(this.paintedZoom, coords.z));
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
