// Texts of the page, and the format of numbers.

const SURE = [
  [0.95, "Very likely here"],
  [0.8, "Likely here"],
  [0.6, "Probably here"],
  [0, "Perhaps here"],
];

export function verdictOf(fix) {
  return fix.latlon ? SURE.find(([least]) => fix.confidence >= least)[1] : fix.map ? "Not in these maps" : "Not in this map";
}

/** One or two words, for a list. */
export function shortVerdict(fix) {
  return fix.latlon ? verdictOf(fix).replace(" here", "") : "Not found";
}

/** Never "100 %" or "0 %": a confidence is not a certainty. */
export function percent(share) {
  if (share >= 0.995) return "more than 99\u00a0%";  // no line ends before the sign
  if (share < 0.005) return "less than 1\u00a0%";
  return `${Math.round(share * 100)}\u00a0%`;
}

/** As the command line says it. */
export function sureness(fix) {
  return `${percent(fix.confidence)} sure that it is within 25\u00a0m`;
}

export function confidenceOf(fix) {
  if (fix.latlon) return capital(sureness(fix));
  if (!fix.matches.length) return fix.reason ?? "The map has no photos to compare with.";
  return `The position found has a chance of ${percent(fix.confidence)} of being right, too low to show it.`;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

export function degrees([latitude, longitude], digits = 5) {
  return `${latitude.toFixed(digits)}, ${longitude.toFixed(digits)}`;
}

export function metres(m) {
  if (m < 1) return "under 1 m";
  if (m >= 9950) return `${Math.round(m / 1000).toLocaleString("en")} km`;
  return m >= 950 ? `${(m / 1000).toFixed(1)} km` : `${Math.round(m)} m`;
}

/** What the radius of a fix means; at least 1 m. */
export function radiusOf({ radius_m: m }) {
  return `9 of 10 such answers are within ${metres(Math.max(1, m))}`;
}

/** A crossing of lines of latitude and longitude, `step` degrees apart. */
export function gridLabel(latitude, longitude, step) {
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const around = longitude - 360 * Math.round(longitude / 360);
  const one = (degree, [positive, negative]) => {
    const size = Math.abs(degree).toFixed(digits);
    return Number(size) === 0 ? "0°" : `${size}° ${degree > 0 ? positive : negative}`;
  };
  return `${one(latitude, "NS")}, ${Math.abs(around) === 180 ? "180°" : one(around, "EW")}`;
}

/** A link to a position on OpenStreetMap; nothing is loaded before it is pressed. */
export function mapSite([latitude, longitude]) {
  const [lat, lon] = [latitude, longitude].map((degree) => degree.toFixed(6));
  return `https://www.openstreetmap.org/?mlat=${lat}&mlon=${lon}#map=19/${lat}/${lon}`;
}

export function megabytes(bytes, digits = bytes < 1e7 ? 1 : 0) {
  return `${(bytes / 1e6).toFixed(digits)} MB`;
}

/** The error of a file that need not be sent; null if there is none. */
export async function checkFile(file, maxBytes = Infinity) {
  const { name, size } = file;
  const readable = await file.slice(0, 1).arrayBuffer().then(() => true, () => false);
  if (!readable) {
    const detail = `${name} was moved, deleted or changed since it was chosen, or is a folder. Choose it again.`;
    return { title: "This file cannot be read", detail, retry: false };
  }
  if (!size) {
    const detail = `${name} has 0 bytes. Perhaps it was not copied completely, or has been moved: choose the original.`;
    return { title: "This file is empty", detail, retry: false };
  }
  if (size <= maxBytes) return null;
  const digits = megabytes(size) === megabytes(maxBytes) ? 6 : undefined;  // not "34 MB; up to 34 MB"
  const [has, takes] = [size, maxBytes].map((bytes) => megabytes(bytes, digits));
  const detail = `${name} has ${has}; this server accepts up to ${takes}. Choose a smaller copy of it.`;
  return { title: "This photo is too large", detail, retry: false };
}

export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** How many photos of a queue have an answer while it is `open`, and how many of them a position at its end. */
export function queueCount(photos, open) {
  const [done, found] = [({ state }) => state === "answer" || state === "error", ({ fix }) => fix?.latlon];
  const number = photos.filter(open ? done : found).length;
  return `${number} of ${photos.length} ${open ? "answered" : "found"}`;
}

/** The line below the title: the name of the map, or how many maps there are, and their photos. */
export function aboutMaps({ name, maps }, photos) {
  const several = maps.length > 1 ? `${count(maps.length, "map")} · ` : "";
  return `${name} · ${several}${count(photos, "photo")}`;
}

export function fileName(path) {
  return path.split(/[\\/]/).pop();
}

const WINDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"];

export function compass(heading) {
  return WINDS[Math.round(heading / 45) % 8];
}

/** The heading of a fix in words; "" if it is unknown. */
export function headingOf({ heading_deg: heading }) {
  return heading == null ? "" : `Looking ${compass(heading)}, ${Math.round(heading) % 360}°`;
}

/** count: of local features that agree on one two-view geometry. */
export function agreement(count) {
  if (!count) return "No local features agree";
  return count === 1 ? "1 local feature agrees" : `${count.toLocaleString("en")} local features agree`;
}

export function linesDrawn(count, most) {
  if (!count) return `${agreement(count)}: only the descriptors of these photos are alike.`;
  const some = count > most ? ` ${most} of them are drawn.` : "";
  return `${agreement(count)}. Each line connects the same point in both photos.${some}`;
}

/** time: ISO 8601. */
export function moment(time) {
  return new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

const LOST = {
  title: "The server does not answer",
  detail: "It may have been stopped, or this device may be offline.",
};

/** Title, detail, whether to offer a retry, and whether the server did not answer (away), as for other photos. */
export function errorText(error) {
  if (!(error instanceof Error)) return error;  // from `checkFile`
  if (error.kind === "lost") return { ...LOST, retry: true, away: true };
  if (error.kind === "busy") return { title: "The server is busy", detail: error.detail, retry: true, away: true };
  const shown = { detail: error.detail || error.title || error.message, retry: true };
  if (error.kind !== "refused") return { title: "Something went wrong on this page", ...shown };
  if (error.status >= 500) return { title: "Something went wrong on the server", ...shown };
  if (error.status === 408) return { title: "The photo did not arrive in time", ...shown };
  // details of a photo sent as the body begin with "photo: "
  return { title: "This photo cannot be used", detail: capital(shown.detail.replace(/^photo: /, "")), retry: false };
}
