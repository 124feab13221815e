"""Fixes as text, GeoJSON, CSV, GPX and KML.

Times are UTC in ISO 8601, such as 2024-05-31T12:00:00Z. Headings are degrees clockwise from true north. GPX has no
element for the direction of a photo: heading_deg, radius_m and confidence are extensions in the namespace `EXTENSIONS`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from xml.etree import ElementTree

from sareloc.localize.estimate import PLACE_M, Fix, LatLon
from sareloc.localize.place_names import place_name, wind
from sareloc.photos.record import EPOCH, METHOD, Estimate, Geotag


class Answer(NamedTuple):
    """A query and its fix."""

    name: str
    """The photo's file name, or a name for a frame of a video."""
    time: float | None
    """When it was taken, in seconds since 1970, UTC; None: unknown."""
    fix: Fix


CSV_COLUMNS = (
    "photo",
    "lat",
    "lon",
    "radius_m",
    "confidence",
    "match",
    "distance",
    "heading_deg",
    "time",
    "place",
    "map",
)
GEOTAG_COLUMNS = ("file", "lat", "lon", "radius_m", "confidence", "heading_deg", "time", "place")
EXTENSIONS, KML = "urn:sareloc:gpx:1", "http://www.opengis.net/kml/2.2"
DIGITS = 7  # of a degree: a centimetre
EYE_M = 1.7  # height of the camera over the ground, for views in KML
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot have


def answer_text(photo: str, fix: Fix) -> str:
    """An answer for people: the photo's name, and below it where it was taken, how sure that is, and where it looks."""
    latlon = fix.latlon or fix.guess
    if latlon is None:
        return f"{photo}\n  {fix.reason}"
    rows = [("position", f"{coordinates(latlon)}  {osm_link(latlon)}")]
    if fix.latlon is None:
        where = "not in this map" if fix.map is None else "not in these maps"
        rows = [(f"{where}; low-confidence position", rows[0][1])]
    rows += [("place", name)] if (name := place_name(latlon)) else []
    rows += [("radius", _radius_sentence(fix.radius_m))] if fix.radius_m is not None else []
    rows.append(("confidence", _confidence_sentence(fix.confidence)))
    rows += [("heading", heading_sentence(fix.heading_deg))] if fix.heading_deg is not None else []
    rows += [("most like", match.photo) for match in fix.matches[:1]]
    rows += [("map", fix.map)] if fix.map else []
    return "\n".join([photo, *(f"  {name:<10}  {value}" for name, value in rows)])


def answer_line(photo: str, fix: Fix) -> str:
    """One line of text: the position, or the low-confidence position, or why there is none."""
    latlon, radius_m = (fix.latlon, fix.radius_m) if fix.found else (fix.guess, fix.guess_radius_m)
    if latlon is None:
        return f"{photo}: {fix.reason}"
    place = f" ({name})" if (name := place_name(latlon)) else ""
    like = "".join(f"; most like {match.photo}" for match in fix.matches[:1])
    bound, percent = _bounded_percent(fix.confidence)
    sure = f"radius {radius_m:.0f} m, confidence {bound}{percent / 100:.2f}"
    return f"{photo}: {coordinates(latlon)}{place}; {sure}{like}"


def coordinates(latlon: LatLon) -> str:
    """Latitude and longitude in degrees, to 10 cm."""
    return f"{latlon[0]:.6f}, {latlon[1]:.6f}"


def osm_link(latlon: LatLon) -> str:
    """The address of a map of OpenStreetMap with a marker at this position."""
    latitude, longitude = (f"{degrees:.6f}" for degrees in latlon)
    return f"https://www.openstreetmap.org/?mlat={latitude}&mlon={longitude}#map=18/{latitude}/{longitude}"


def heading_sentence(heading_deg: float) -> str:
    """Such as "looks south-west, 231°"."""
    return f"looks {wind(heading_deg)}, {round(heading_deg) % 360}°"


def _radius_sentence(radius_m: float) -> str:
    return f"9 of 10 such answers are within {radius_m:.0f} m"


def _confidence_sentence(confidence: float) -> str:
    bound, percent = _bounded_percent(confidence)
    return f"{bound}{percent} % sure that it is within {PLACE_M:.0f} m"


def _bounded_percent(confidence: float) -> tuple[str, int]:
    """The confidence in percent, from 1 to 99, after "more than " or "less than ": no answer is called certain."""
    percent = round(confidence * 100)
    return "more than " if percent > 99 else "less than " if percent < 1 else "", min(max(percent, 1), 99)


def estimated_geotag(fix: Fix) -> tuple[Geotag, Estimate]:
    """The geotag of a fix that has a position, for a photo or its sidecar, and what marks it as an estimate."""
    assert fix.latlon is not None
    assert fix.radius_m is not None
    return Geotag(fix.latlon), Estimate(fix.radius_m, f"{METHOD}, confidence {fix.confidence:.2f}")


def iso_time(time: float | None) -> str | None:
    """The time in ISO 8601, with milliseconds if it has a fraction; None if it is unknown."""
    if time is None:
        return None
    moment = _moment(time)
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")


def _moment(time: float) -> datetime:
    return EPOCH + timedelta(milliseconds=round(time * 1000))


def geojson(answers: Iterable[Answer]) -> str:
    """A FeatureCollection of Points; the geometry is null without a position."""
    return json.dumps({"type": "FeatureCollection", "features": [_feature(answer) for answer in answers]})


def csv_table(answers: Iterable[Answer]) -> str:
    """A CSV with the columns `CSV_COLUMNS`; the position is empty if there is none, the match is the first."""
    return _csv(CSV_COLUMNS, (_csv_row(answer) for answer in answers))


def geotags_csv(answers: Iterable[Answer]) -> str:
    """A table of geotags that `sareloc map build` reads beside photos, with the columns `GEOTAG_COLUMNS`."""
    rows = (
        (name, *latlon, round(fix.radius_m or 0, 1), round(fix.confidence, 4), _heading(fix), _iso(time), _place(fix))
        for (name, time, fix), latlon in _found(answers)
    )
    return _csv(GEOTAG_COLUMNS, rows)


def gpx(answers: Iterable[Answer], *, track: bool = False) -> str:
    """A GPX 1.1 file with a waypoint for each photo that has a position; `track`: with one track of them instead."""
    from gpxpy import gpx as files

    document = files.GPX()
    document.creator = "sareloc"
    document.nsmap["sareloc"] = EXTENSIONS
    if track:
        document.tracks.append(files.GPXTrack())
        document.tracks[0].segments.append(files.GPXTrackSegment(_gpx_points(files.GPXTrackPoint, answers)))
    else:
        document.waypoints = _gpx_points(files.GPXWaypoint, answers)
    return f"{document.to_xml('1.1')}\n"


def _gpx_points(kind: type[Any], answers: Iterable[Answer]) -> list[Any]:
    """Waypoints or track points, by their class in gpxpy."""
    points = []
    for answer, latlon in _found(answers):
        extensions = []
        for name, value in _measures(answer.fix).items():
            extensions.append(ElementTree.Element(f"{{{EXTENSIONS}}}{name}"))
            extensions[-1].text = f"{value:g}"
        point = kind(*latlon, time=None if answer.time is None else _moment(answer.time))
        point.name, point.description = NOT_XML.sub("\ufffd", answer.name), _summary(answer.fix)
        point.extensions = extensions
        points.append(point)
    return points


def kml(answers: Iterable[Answer], *, track: bool = False) -> str:
    """A KML 2.2 file with a placemark for each photo that has a position; `track`: also with a line through them.

    A photo with a heading has a camera, which Google Earth shows the view of.
    """
    ElementTree.register_namespace("", KML)
    root = ElementTree.Element(f"{{{KML}}}kml")
    document, found = _add(root, "Document"), list(_found(answers))
    if track and len(found) > 1:
        placemark = _add(document, "Placemark")
        _add(placemark, "name", "track")
        _add(_add(placemark, "LineString"), "coordinates", " ".join(_lonlat(latlon) for _, latlon in found))
    for answer, latlon in found:
        placemark = _add(document, "Placemark")
        _add(placemark, "name", answer.name)
        _add(placemark, "description", _summary(answer.fix))
        if answer.fix.heading_deg is not None:
            camera = _add(placemark, "Camera")
            looking = {"longitude": latlon[1], "latitude": latlon[0], "altitude": EYE_M}
            for name, value in (looking | {"heading": answer.fix.heading_deg, "tilt": 90}).items():
                _add(camera, name, str(round(value, DIGITS)))
            _add(camera, "altitudeMode", "relativeToGround")
        if answer.time is not None:
            _add(_add(placemark, "TimeStamp"), "when", _iso(answer.time))
        data = _add(placemark, "ExtendedData")
        for name, value in _measures(answer.fix).items():
            entry = _add(data, "Data")
            entry.set("name", name)
            _add(entry, "value", f"{value:g}")
        _add(_add(placemark, "Point"), "coordinates", _lonlat(latlon))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


POINT_FORMATS: Mapping[str, Callable[[Sequence[Answer]], str]] = {
    "geojson": geojson,
    "csv": csv_table,
    "gpx": gpx,
    "kml": kml,
}
"""Formats by name; for CSV also see `geotags_csv`."""
TRACK_FORMATS: Mapping[str, Callable[[Sequence[Answer]], str]] = {
    **POINT_FORMATS,
    "gpx": lambda answers: gpx(answers, track=True),
    "kml": lambda answers: kml(answers, track=True),
}
"""Formats by name, for answers along one path."""


def _found(answers: Iterable[Answer]) -> Iterator[tuple[Answer, LatLon]]:
    """The answers with a position, rounded."""
    for answer in answers:
        if answer.fix.latlon is not None:
            latitude, longitude = (round(degree, DIGITS) for degree in answer.fix.latlon)
            yield answer, (latitude, longitude)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    return text.getvalue()


def _csv_row(answer: Answer) -> tuple[object, ...]:
    name, time, fix = answer
    latitude, longitude = ("", "") if fix.latlon is None else (round(degree, DIGITS) for degree in fix.latlon)
    radius = "" if fix.radius_m is None else round(fix.radius_m, 1)
    first = (fix.matches[0].photo, round(fix.matches[0].distance, 4)) if fix.matches else ("", "")
    return name, latitude, longitude, radius, round(fix.confidence, 4), *first, *_rest(fix, time)


def _rest(fix: Fix, time: float | None) -> tuple[object, ...]:
    return _heading(fix), _iso(time), _place(fix), fix.map or ""


def _heading(fix: Fix) -> object:
    return "" if fix.heading_deg is None else round(fix.heading_deg, 1) % 360


def _place(fix: Fix) -> str:
    return place_name(fix.latlon) or ""


def _iso(time: float | None) -> str:
    return iso_time(time) or ""


def _measures(fix: Fix) -> dict[str, float]:
    """What GPX and KML have no elements for: heading (if known), radius and confidence."""
    known = {"heading_deg": fix.heading_deg, "radius_m": fix.radius_m}
    return {name: round(value, 1) for name, value in known.items() if value is not None} | {
        "confidence": round(fix.confidence, 4)
    }


def _summary(fix: Fix) -> str:
    """Place, radius and confidence in words."""
    known = [_place(fix), _radius_sentence(fix.radius_m or 0), _confidence_sentence(fix.confidence)]
    return "; ".join(part for part in known if part)


def _lonlat(latlon: LatLon) -> str:
    return f"{latlon[1]:.{DIGITS}f},{latlon[0]:.{DIGITS}f}"


def _add(parent: ElementTree.Element, name: str, text: str | None = None) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, f"{{{KML}}}{name}")
    child.text = None if text is None else NOT_XML.sub("\ufffd", text)
    return child


def _feature(answer: Answer) -> dict[str, Any]:
    properties = answer.fix.to_json(answer.name) | {"time": iso_time(answer.time)}
    latlon = properties.pop("latlon")
    geometry = None if latlon is None else {"type": "Point", "coordinates": [latlon[1], latlon[0]]}
    return {"type": "Feature", "geometry": geometry, "properties": properties}
