"""Fixes as text that other programs read: GeoJSON, CSV, GPX, and a line for people. Pure functions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

# The answer: a fix, and the matches it rests on.

LatLon = tuple[float, float]
"""Latitude, longitude in degrees, WGS84."""


@dataclass(frozen=True)
class Match:
    """A photo of the map that looks like the query."""

    id: int
    """Under which the map holds it; never given to another photo."""
    photo: str
    """Its file, as the map names it."""
    latlon: LatLon
    distance: float
    """Between the descriptors, 0 to 2; shorter where re-ranking found that the photos also agree in detail."""


@dataclass(frozen=True)
class Fix:
    """Where a photo was taken, or that the map does not show it."""

    latlon: LatLon | None
    """None: the photo is not in this map, as far as can be told."""
    radius_m: float | None
    """Of 10 answers about places in the map, right or wrong, 9 are at most so far from the truth. None without one.

    For answers with a confidence of 0.5 or more; photos of places that the map does not show are not counted."""
    confidence: float
    """The probability that the position, or the best guess where none is given, is within 25 m of the truth."""
    matches: tuple[Match, ...]
    """The most alike first."""
    reason: str | None = None
    """Why there is no position."""
    guess: LatLon | None = None
    """The best guess where there is no position but there are matches: where a lower least confidence would put it."""
    guess_radius_m: float | None = None
    """The radius of the guess."""

    @property
    def found(self) -> bool:
        """Whether there is a position."""
        return self.latlon is not None

    def to_json(self, photo: str) -> dict[str, Any]:
        """A JSON object: photo, latlon, radius_m, confidence, matches; and where latlon is null reason, guess and
        guess_radius_m, as far as they are known."""
        told: dict[str, Any] = {"photo": photo, **asdict(self)}
        absent = {name for name in ("reason", "guess", "guess_radius_m") if told[name] is None}
        return {name: value for name, value in told.items() if name not in absent}


Answer = tuple[str, Fix]
"""A photo's name and its fix."""

CSV_COLUMNS = ("photo", "lat", "lon", "radius_m", "confidence", "match", "distance")
GPX = "http://www.topografix.com/GPX/1/1"
DIGITS = 7  # of a degree: a centimetre


def sentence(photo: str, fix: Fix) -> str:
    """One line for people."""
    if fix.latlon is None:
        return f"{photo}: {fix.reason}"
    best = f", most like {fix.matches[0].photo}" if fix.matches else ""
    return f"{photo}: {_place(fix.latlon, fix.radius_m, fix.confidence)}{best}"


def guess_sentence(photo: str, fix: Fix) -> str:
    """One line for people about a photo without a position: the best guess, or why there is none."""
    return f"{photo}: {fix.reason if fix.guess is None else _place(fix.guess, fix.guess_radius_m, fix.confidence)}"


def _place(latlon: LatLon, radius_m: float | None, confidence: float) -> str:
    return f"{latlon[0]:.6f}, {latlon[1]:.6f} within {radius_m:.0f} m, confidence {confidence:.2f}"


def geojson(answers: Iterable[Answer]) -> str:
    """A FeatureCollection of Points; one without a position has the geometry null."""
    features = [_feature(photo, fix) for photo, fix in answers]
    return json.dumps({"type": "FeatureCollection", "features": features})


def csv_table(answers: Iterable[Answer]) -> str:
    """A CSV with the columns of `CSV_COLUMNS`: the position (empty where there is none) and the first match."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for photo, fix in answers:
        latitude, longitude = ("", "") if fix.latlon is None else (round(degree, DIGITS) for degree in fix.latlon)
        radius = "" if fix.radius_m is None else round(fix.radius_m, 1)
        first = (fix.matches[0].photo, round(fix.matches[0].distance, 4)) if fix.matches else ("", "")
        table.writerow((photo, latitude, longitude, radius, round(fix.confidence, 4), *first))
    return text.getvalue()


def geotags_csv(answers: Iterable[Answer]) -> str:
    """A table of geotags as `sareloc map build` reads it beside photos: file, lat, lon; and how sure each is."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("file", "lat", "lon", "radius_m", "confidence"))
    for photo, fix in answers:
        if fix.latlon is not None and fix.radius_m is not None:
            latlon = (round(degree, DIGITS) for degree in fix.latlon)
            table.writerow((photo, *latlon, round(fix.radius_m, 1), round(fix.confidence, 4)))
    return text.getvalue()


def gpx(answers: Sequence[Answer]) -> str:
    """A GPX 1.1 file with a waypoint for each photo that has a position."""
    ElementTree.register_namespace("", GPX)
    root = ElementTree.Element(f"{{{GPX}}}gpx", version="1.1", creator="sareloc")
    for photo, fix in answers:
        if fix.latlon is not None:
            latitude, longitude = (f"{degree:.{DIGITS}f}" for degree in fix.latlon)
            point = ElementTree.SubElement(root, f"{{{GPX}}}wpt", lat=latitude, lon=longitude)
            ElementTree.SubElement(point, f"{{{GPX}}}name").text = photo
            said = f"within {fix.radius_m:.0f} m, confidence {fix.confidence:.2f}"
            ElementTree.SubElement(point, f"{{{GPX}}}desc").text = said
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _feature(photo: str, fix: Fix) -> dict[str, Any]:
    told = fix.to_json(photo)
    del told["latlon"]
    geometry = None
    if fix.latlon is not None:
        geometry = {"type": "Point", "coordinates": [fix.latlon[1], fix.latlon[0]]}
    return {"type": "Feature", "geometry": geometry, "properties": told}
