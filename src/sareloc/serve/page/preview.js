// Photos of formats that browsers cannot show (HEIC, TIFF, camera raw): the server makes a small JPEG of them.

import { postFile, retryWhileBusy } from "./api.js";

const SIZE_PX = 1024;
const BEGINNINGS = /^(....ftyp|II|MM|FUJIFILM)/s;  // others, such as text, are not sent
const made = new WeakMap();

/** A promise of the JPEG of a file; rejects if the server cannot make one. */
export function previewOf(file) {
  if (!made.has(file)) made.set(file, makePreview(file));
  return made.get(file);
}

async function makePreview(file) {
  const head = new TextDecoder("latin1").decode(await file.slice(0, 12).arrayBuffer());
  if (!BEGINNINGS.test(head)) throw new Error("not a photo that the server could show");
  const { signal } = new AbortController();
  const send = () => postFile(`preview?size=${SIZE_PX}`, file, { signal, as: "blob" });
  return retryWhileBusy(send, { signal, onBusy: () => {} });
}
