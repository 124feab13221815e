"""Fixes as GeoJSON, CSV, GPX and lines of text. Pure functions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

from sareloc.localize.estimate import Fix, LatLon

Answer = tuple[str, Fix]
"""A photo's name and its fix."""

CSV_COLUMNS = ("photo", "lat", "lon", "radius_m", "confidence", "match", "distance")
GPX = "http://www.topografix.com/GPX/1/1"
DIGITS = 7  # of a degree: a centimetre


def sentence(photo: str, fix: Fix) -> str:
    """One line of text."""
    if fix.latlon is None:
        return f"{photo}: {fix.reason}"
    best = f", most like {fix.matches[0].photo}" if fix.matches else ""
    return f"{photo}: {_place(fix.latlon, fix.radius_m, fix.confidence)}{best}"


def guess_sentence(photo: str, fix: Fix) -> str:
    """One line of text about a photo without a position: the best guess, or why there is none."""
    return f"{photo}: {fix.reason if fix.guess is None else _place(fix.guess, fix.guess_radius_m, fix.confidence)}"


def _place(latlon: LatLon, radius_m: float | None, confidence: float) -> str:
    return f"{latlon[0]:.6f}, {latlon[1]:.6f} within {radius_m:.0f} m, confidence {confidence:.2f}"


def geojson(answers: Iterable[Answer]) -> str:
    """A FeatureCollection of Points; the geometry is null without a position."""
    features = [_feature(photo, fix) for photo, fix in answers]
    return json.dumps({"type": "FeatureCollection", "features": features})


def csv_table(answers: Iterable[Answer]) -> str:
    """A CSV with the columns `CSV_COLUMNS`: the position (empty if there is none) and the first match."""
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
    """A table of geotags that `sareloc map build` reads beside photos: file, lat, lon, radius_m, confidence."""
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
