// Talking to the server: every answer is a value, everything else a Trouble that says what kind it is.

export class Trouble extends Error {
  /** kind: "lost" (no answer at all), "busy" (come back after waitS), "refused" (the server says why). */
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
    throw new Trouble("lost");
  }
  if (!response.ok) throw troubleOf(response.status, await response.text(), response.headers.get("Retry-After"));
  return readJson(await response.text());
}

/** JSON whose ids stay what they are: those of a map on Milvus have 63 bits, and a number of JavaScript holds 53. */
function readJson(text) {
  return JSON.parse(text.replace(/("id":\s*)(\d{16,})/g, '$1"$2"'));
}

/** POST a file. XMLHttpRequest, because fetch cannot tell how much of a large photo has been sent. */
export function postFile(path, file, { signal, as = "json", onSent = () => {} }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.responseType = "blob";
    request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
    request.upload.onprogress = (event) => event.lengthComputable && onSent(event.loaded / event.total);
    request.upload.onload = () => onSent(1);
    request.onerror = () => reject(new Trouble("lost"));
    request.onabort = () => reject(signal.reason);
    request.onload = async () => {
      const { status, response } = request;
      if (status !== 200) reject(troubleOf(status, await response.text(), request.getResponseHeader("Retry-After")));
      else resolve(as === "blob" ? response : readJson(await response.text()));
    };
    if (signal.aborted) return reject(signal.reason);
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(file);
  });
}

/** Call `action` again for as long as the server is busy; `onBusy(seconds)` is told before each wait. */
export async function patiently(action, { signal, onBusy }) {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await action();
    } catch (trouble) {
      if (trouble.kind !== "busy" || left <= 1) throw trouble;
      onBusy(trouble.waitS);
      await wait(trouble.waitS, signal);
    }
  }
}

function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

function troubleOf(status, text, retryAfter) {
  let told = {};
  try {
    told = JSON.parse(text);
  } catch {
    // a proxy's own error page: its status has to say enough
  }
  const { title = "", detail = "" } = told;
  if (!BUSY.has(status)) return new Trouble("refused", { title, detail, status });
  const asked = Number(retryAfter);  // a date, or nothing, is not a number
  return new Trouble("busy", { title, detail, status, waitS: Math.min(asked > 0 ? asked : 2, LONGEST_WAIT_S) });
}
