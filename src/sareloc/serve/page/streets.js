// Streets from the positions of photos: nearby spots are joined. Pure functions.

const EARTH_M = 2 * Math.PI * 6378137;
const SAME_SPOT_M = 2;  // photos of one panorama or of a standing camera are one spot
const SAME_PLACE_M = 25;  // whatever the spacing, photos this near show one place
const FARTHEST_M = 60;
const TIMES_USUAL = 2.2;

/** Web Mercator, 0 to 1 from the north-west corner of the world: at zoom z, times 256 * 2^z gives pixels. */
export function mercator(latitude, longitude) {
  const sine = Math.sin((latitude * Math.PI) / 180);
  return [longitude / 360 + 0.5, 0.5 - Math.log((1 + sine) / (1 - sine)) / (4 * Math.PI)];
}

/** The latitude at a `mercator` y. */
export function latitudeOf(y) {
  return (Math.atan(Math.sinh(Math.PI * (1 - 2 * y))) * 180) / Math.PI;
}

export function metresIn(latitude) {
  return EARTH_M * Math.cos((latitude * Math.PI) / 180);
}

/** Points by squares of `side`, to find those in a box without comparing all of them. */
export class Grid {
  constructor(x, y, side) {
    Object.assign(this, { x, y, side, squares: new Map() });
    for (let i = 0; i < x.length; i += 1) {
      const key = squareKey(Math.floor(x[i] / side), Math.floor(y[i] / side));
      const square = this.squares.get(key);
      if (square) square.push(i);
      else this.squares.set(key, [i]);
    }
  }

  /** Indices of the points in a box, in any order. */
  inside(left, top, right, bottom) {
    const { x, y, side, squares } = this;
    const found = [];
    const take = (square) => {
      for (const i of square) if (x[i] >= left && x[i] <= right && y[i] >= top && y[i] <= bottom) found.push(i);
    };
    const [c0, c1, r0, r1] = [left, right, top, bottom].map((edge) => Math.floor(edge / side));
    if ((c1 - c0 + 1) * (r1 - r0 + 1) >= squares.size) {
      squares.forEach(take);  // fewer than the squares of the box
    } else {
      for (let c = c0; c <= c1; c += 1) for (let r = r0; r <= r1; r += 1) take(squares.get(squareKey(c, r)) ?? []);
    }
    return found;
  }
}

function squareKey(column, row) {
  return column * 67108864 + row;  // below 2^53: a square is never smaller than 1 m, the world 2^25.3 m
}

/**
 * Photos (arrays of latitudes and longitudes) -> spots: their Mercator x, y, a grid of them, the photos that each
 * holds, and metresPerUnit at the middle of the map.
 */
export function findSpots(latitudes, longitudes) {
  const middle = latitudes.length ? latitudes.reduce((sum, latitude) => sum + latitude, 0) / latitudes.length : 0;
  const metresPerUnit = metresIn(middle);
  const side = SAME_SPOT_M / metresPerUnit;
  const byPlace = new Map();
  const x = [], y = [], photos = [];
  latitudes.forEach((latitude, photo) => {
    const [px, py] = mercator(latitude, longitudes[photo]);
    const key = squareKey(Math.round(px / side), Math.round(py / side));
    if (!byPlace.has(key)) {
      byPlace.set(key, x.length);
      x.push(px), y.push(py), photos.push([]);
    }
    photos[byPlace.get(key)].push(photo);
  });
  return { x, y, photos, metresPerUnit, grid: new Grid(x, y, FARTHEST_M / metresPerUnit) };
}

/**
 * For every spot, the spots (of higher number) that it is joined with; how far apart such can be and
 * usually are, in units.
 *
 * Two spots are joined unless a third is nearer to both than they are to each other (the relative neighbourhood
 * graph), and only within about twice the usual spacing: so a street is a chain, and parallel streets stay apart.
 */
export function joinSpots({ x, y, grid, metresPerUnit }) {
  const farthest = FARTHEST_M / metresPerUnit;
  const usual = usualSpacing(x, y, grid, farthest);
  const reach = Math.min(Math.max(TIMES_USUAL * usual, SAME_PLACE_M / metresPerUnit), farthest);
  const joined = x.map((_, a) => {
    const near = neighbours(x, y, grid, a, reach);
    const between = (b, d) => near.some((c) => c.d < d && distance(x, y, c.b, b) < d);
    return near.filter(({ b, d }) => b > a && !between(b, d)).map(({ b }) => b);
  });
  return { joined, reach, usual };
}

/** The median distance to the nearest other spot, of some hundred spots; `farthest` where all are alone. */
function usualSpacing(x, y, grid, farthest) {
  const step = Math.max(1, Math.floor(x.length / 500));
  const spacings = [];
  for (let a = 0; a < x.length; a += step) {
    const nearest = neighbours(x, y, grid, a, farthest)[0];
    if (nearest) spacings.push(nearest.d);
  }
  return spacings.sort((p, q) => p - q)[spacings.length >> 1] ?? farthest;
}

/** The other spots within `reach`, the nearest first. */
function neighbours(x, y, grid, a, reach) {
  const near = [];
  for (const b of grid.inside(x[a] - reach, y[a] - reach, x[a] + reach, y[a] + reach)) {
    const d = distance(x, y, a, b);
    if (b !== a && d <= reach) near.push({ b, d });
  }
  return near.sort((p, q) => p.d - q.d);
}

function distance(x, y, a, b) {
  return Math.hypot(x[a] - x[b], y[a] - y[b]);
}
