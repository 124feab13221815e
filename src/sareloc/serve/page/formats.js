// Answers as files of other programs: CSV, GeoJSON and GPX, as `sareloc localize` writes them. Pure functions.
// answers: [{name, fix}], where fix is an answer of the server.

import { sureness, radiusOf } from "./text.js";

const COLUMNS = ["photo", "lat", "lon", "radius_m", "confidence", "match", "distance", "heading_deg", "time", "place",
  "map"];
const GPX = "http://www.topografix.com/GPX/1/1";
const EXTENSIONS = "urn:sareloc:gpx:1";
const NOT_XML = /[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;

/** A row for each photo; the position is empty if there is none. */
export function toCsv(answers) {
  const rows = answers.map(({ name, fix }) => {
    const [match] = fix.matches;
    const [lat, lon] = fix.latlon ?? [];
    return [
      name, rounded(lat, 7), rounded(lon, 7), rounded(fix.radius_m, 1), rounded(fix.confidence, 4),
      match?.photo, rounded(match?.distance, 4), rounded(fix.heading_deg, 1), "", fix.latlon && fix.place, fix.map,
    ];
  });
  return [COLUMNS, ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** A Point for each photo; the geometry is null without a position. */
export function toGeojson(answers) {
  const features = answers.map(({ name, fix: { latlon, ...properties } }) => ({
    type: "Feature",
    geometry: latlon && { type: "Point", coordinates: [latlon[1], latlon[0]] },
    properties: { ...properties, photo: name },
  }));
  return JSON.stringify({ type: "FeatureCollection", features });
}

/** A waypoint for each photo that has a position. */
export function toGpx(answers) {
  const gpx = document.implementation.createDocument(GPX, "gpx");
  const add = (parent, space, name, text) => {
    const child = parent.appendChild(gpx.createElementNS(space, name));
    if (text != null) child.textContent = String(text).replace(NOT_XML, "\ufffd");
    return child;
  };
  gpx.documentElement.setAttribute("version", "1.1");
  gpx.documentElement.setAttribute("creator", "sareloc");
  for (const { name, fix } of answers.filter((answer) => answer.fix.latlon)) {
    const point = add(gpx.documentElement, GPX, "wpt");
    ["lat", "lon"].forEach((axis, i) => point.setAttribute(axis, fix.latlon[i].toFixed(7)));
    add(point, GPX, "name", name);
    add(point, GPX, "desc", [fix.place, radiusOf(fix), sureness(fix)].filter(Boolean).join("; "));
    const extensions = add(point, GPX, "extensions");
    for (const [key, digits] of [["heading_deg", 1], ["radius_m", 1], ["confidence", 4]]) {
      if (fix[key] != null) add(extensions, EXTENSIONS, `sareloc:${key}`, rounded(fix[key], digits));
    }
  }
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(gpx)}\n`;
}

function rounded(value, digits) {
  return value == null ? "" : Number(value.toFixed(digits));
}

function cell(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
