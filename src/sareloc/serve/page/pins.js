// Positions of numbered pins on the screen, so that none covers another. A pure function.

const STEPS = 60;

/**
 * points: [x, y] in pixels that the pins point at; apart: the minimum distance between pins and from `keepOff`.
 * Pins start a little above their points and push one another aside; the same points give the same pins.
 */
export function spreadPins(points, apart, keepOff = []) {
  const pins = points.map(([x, y], i) => {
    const angle = i * 2.4;  // golden angle: pins of one point leave it in different directions
    return [x + 2 * Math.cos(angle), y - apart * 0.75 + 2 * Math.sin(angle)];
  });
  for (let step = 0; step < STEPS; step += 1) {
    let calm = true;
    pins.forEach((pin, i) => {
      for (const other of pins.slice(0, i)) calm = push(pin, other, apart, 0.5) && calm;
      for (const other of keepOff) calm = push(pin, other, apart, 0) && calm;
    });
    if (calm) break;
  }
  return pins;
}

/** Move `pin` and `other` apart, `other` by the given share of the way; returns true if they were far enough apart. */
function push(pin, other, apart, share) {
  const [dx, dy] = [pin[0] - other[0], pin[1] - other[1]];
  const distance = Math.hypot(dx, dy);
  if (distance >= apart - 0.5) return true;
  const [ux, uy] = distance ? [dx / distance, dy / distance] : [0, -1];
  const missing = apart - distance;
  pin[0] += ux * missing * (1 - share), pin[1] += uy * missing * (1 - share);
  if (share) other[0] -= ux * missing * share, other[1] -= uy * missing * share;
  return false;
}
