// A zip archive of files, stored without compression (photos are compressed already). Pure functions.

const LARGEST = 2 ** 32 - 1;  // the format without its 64-bit extension
const UTF8_NAMES = 0x0800;
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** files: [{name, blob, time}], time in ms since 1970. Returns a promise of the archive; rejects above 4 GB. */
export async function zip(files) {
  const names = uniqueNames(files.map(({ name }) => name));
  const [parts, directory] = [[], []];
  let at = 0;
  for (const [i, { blob, time }] of files.entries()) {
    const name = new TextEncoder().encode(names[i]);
    const crc = checksum(new Uint8Array(await blob.arrayBuffer()));
    const entry = [20, UTF8_NAMES, 0, ...dosTime(time), [crc], [blob.size], [blob.size], name.length, 0];
    const header = record(0x04034b50, entry);
    parts.push(header, name, blob);
    directory.push(record(0x02014b50, [20, ...entry, 0, 0, 0, [0], [at]]), name);
    at += header.length + name.length + blob.size;
  }
  const size = directory.reduce((sum, { length }) => sum + length, 0);
  if (at + size > LARGEST) throw new Error("more than 4 GB: save fewer photos at once");
  const end = record(0x06054b50, [0, 0, files.length, files.length, [size], [at], 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

/** A name without folders and control characters for each file; equal ones get a number. */
export function uniqueNames(names) {
  const used = new Set();
  return names.map((given) => {
    const plain = given.replace(/[\u0000-\u001f\u007f/\\:*?"<>|]/g, "_").replace(/^\.+/, "_") || "photo";
    const [stem, ending] = plain.split(/(?=\.[^.]*$)/);
    let name = plain;
    for (let n = 2; used.has(name.toLowerCase()); n += 1) name = `${stem} (${n})${ending ?? ""}`;
    used.add(name.toLowerCase());
    return name;
  });
}

/** Little endian: a signature, then numbers of 16 bits, and of 32 bits those in brackets. */
function record(signature, numbers) {
  const bytes = [];
  for (const one of [[signature], ...numbers]) {
    const [value, size] = Array.isArray(one) ? [one[0], 4] : [one, 2];
    for (let i = 0; i < size; i += 1) bytes.push((value >>> (8 * i)) & 255);
  }
  return Uint8Array.from(bytes);
}

/** [time, date] in two seconds, local time, from 1980 on. */
function dosTime(time) {
  const t = new Date(Math.max(time, new Date(1980, 0, 1)));
  return [
    (t.getHours() << 11) | (t.getMinutes() << 5) | (t.getSeconds() >> 1),
    ((t.getFullYear() - 1980) << 9) | ((t.getMonth() + 1) << 5) | t.getDate(),
  ];
}

/** CRC-32. */
function checksum(bytes) {
  let crc = ~0;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
