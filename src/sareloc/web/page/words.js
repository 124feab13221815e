// What is said, and how numbers are written.

const SURE = [
  [0.95, "Very likely here"],
  [0.8, "Likely here"],
  [0.6, "Probably here"],
  [0, "Perhaps here"],
];

export function verdictOf(fix) {
  return fix.latlon ? SURE.find(([least]) => fix.confidence >= least)[1] : "Not in this map";
}

/** Never "100 %" or "0 %": a confidence is not a certainty. */
export function percent(share) {
  if (share >= 0.995) return "over 99 %";
  if (share < 0.005) return "under 1 %";
  return `${Math.round(share * 100)} %`;
}

export function confidenceOf(fix) {
  if (fix.latlon) return `${capital(percent(fix.confidence))} sure of the place`;
  if (!fix.matches.length) return fix.reason ?? "There is nothing to compare with.";
  return `The best guess would be right with a chance of ${percent(fix.confidence)}, too little to call it a place.`;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

export function degrees([latitude, longitude], digits = 5) {
  return `${latitude.toFixed(digits)}, ${longitude.toFixed(digits)}`;
}

export function metres(m) {
  if (m < 1) return "under 1 m";
  if (m >= 9950) return `${Math.round(m / 1000)} km`;
  return m >= 950 ? `${(m / 1000).toFixed(1)} km` : `${Math.round(m)} m`;
}

export function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function fileName(path) {
  return path.split(/[\\/]/).pop();
}

const WINDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"];

export function compass(heading) {
  return WINDS[Math.round(heading / 45) % 8];
}

/** time: ISO 8601. */
export function moment(time) {
  return new Date(time).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

const LOST = {
  title: "The server does not answer",
  detail: "It may have been stopped, or this device may be offline.",
};

/** Title, detail and whether trying again may help. */
export function troubleWords(trouble) {
  if (trouble.kind === "lost") return { ...LOST, retry: true };
  if (trouble.kind === "busy") return { title: "The server is busy", detail: trouble.detail, retry: true };
  const told = { detail: trouble.detail || trouble.title || trouble.message, retry: true };
  if (trouble.kind !== "refused") return { title: "Something went wrong on this page", ...told };
  if (trouble.status >= 500) return { title: "Something went wrong on the server", ...told };
  if (trouble.status === 408) return { title: "The photo did not arrive in time", ...told };
  return { title: "This photo cannot be used", ...told, retry: false };
}
