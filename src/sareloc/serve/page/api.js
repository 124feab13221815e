// Requests to the server: they resolve with the answer, or reject with a RequestError.

export class RequestError extends Error {
  /** kind: "lost" (no answer), "busy" (try again after waitS seconds), "refused" (title and detail say why). */
  constructor(kind, { title = "", detail = "", status = 0, waitS = 0 } = {}) {
    super(detail || title || kind);
    Object.assign(this, { kind, title, detail, status, waitS });
  }
}

const BUSY = new Set([429, 503]);
const LONGEST_WAIT_S = 60;
const TRIES = 20;

export async function fetchJson(path) {
  let response;
  try {
    response = await fetch(path, { headers: { Accept: "application/json" } });
  } catch {
    throw new RequestError("lost");
  }
  if (!response.ok) throw errorOf(response.status, await response.text(), response.headers.get("Retry-After"));
  return readJson(await response.text());
}

/** JSON with large ids as strings: ids of a map on Milvus have 63 bits, and a number of JavaScript holds 53. */
function readJson(text) {
  return JSON.parse(text.replace(/("id":\s*)(\d{16,})/g, '$1"$2"'));
}

/** The parameter that names the map of a photo; "" if the service has one map. */
export function mapParameter({ map }) {
  return map ? `&map=${encodeURIComponent(map)}` : "";
}

/** The address of a photo of the map as a JPEG, its longer side `size` px. photo: {id, map}. */
export function thumbnailUrl(photo, size) {
  return `photos/${photo.id}/thumbnail?size=${size}${mapParameter(photo)}`;
}

/** POST a file or a form. XMLHttpRequest, because fetch does not report upload progress. */
export function postFile(path, file, { signal, as = "json", token, onSent = () => {} }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.responseType = "blob";
    if (token) request.setRequestHeader("Authorization", `Bearer ${token}`);
    if (!(file instanceof FormData)) request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
    request.upload.onprogress = (event) => event.lengthComputable && onSent(event.loaded / event.total);
    request.upload.onload = () => onSent(1);
    request.onerror = () => reject(new RequestError("lost"));
    request.onabort = () => reject(signal.reason);
    request.onload = async () => {
      const { status, response } = request;
      if (status >= 300) reject(errorOf(status, await response.text(), request.getResponseHeader("Retry-After")));
      else resolve(as === "blob" ? response : readJson(await response.text()));
    };
    if (signal.aborted) return reject(signal.reason);
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(file);
  });
}

/** Repeat `action` while the server is busy; `onBusy(seconds)` is called before each wait. */
export async function retryWhileBusy(action, { signal, onBusy }) {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await action();
    } catch (error) {
      if (error.kind !== "busy" || left <= 1) throw error;
      onBusy(error.waitS);
      await wait(error.waitS, signal);
    }
  }
}

function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

function errorOf(status, text, retryAfter) {
  let problem = {};
  try {
    problem = JSON.parse(text);
  } catch {
    // an error page of a proxy: only its status is used
  }
  const { title = "", detail = "" } = problem;
  if (!BUSY.has(status)) return new RequestError("refused", { title, detail, status });
  const asked = Number(retryAfter);  // NaN for a date
  return new RequestError("busy", { title, detail, status, waitS: Math.min(asked > 0 ? asked : 2, LONGEST_WAIT_S) });
}
