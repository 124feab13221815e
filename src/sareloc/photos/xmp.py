"""XMP sidecars: geotags in a separate file, for photo formats that are not rewritten.

Properties and their formats follow the XMP specification, part 2, namespace exif.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from sareloc.errors import PhotoError, PositionError
from sareloc.photos.geotags import EPOCH, Estimate, Geotag

SidecarNames = Literal["appended", "replaced"]
"""photo.png.xmp, as in digiKam, darktable and Immich, or photo.xmp, as in Lightroom."""

META, RDF, EXIF = "adobe:ns:meta/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://ns.adobe.com/exif/1.0/"
EMPTY = f'<x:xmpmeta xmlns:x="{META}"><rdf:RDF xmlns:rdf="{RDF}"/></x:xmpmeta>'.encode()
HEAD, TAIL = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n', '\n<?xpacket end="w"?>\n'
LARGEST_BYTES = 32_000_000
MINUTE_PARTS = 10**8  # of an arc minute: 0.02 mm on the ground


def sidecar_path(photo: str | Path, names: SidecarNames = "appended") -> Path:
    """The path of a photo's XMP sidecar, which need not exist."""
    path = Path(photo)
    return path.with_name(f"{path.name}.xmp") if names == "appended" else path.with_suffix(".xmp")


def find_sidecar(photo: str | Path) -> Path | None:
    """The existing XMP sidecar of a photo, under either name; None if there is none."""
    candidates = (sidecar_path(photo, "appended"), sidecar_path(photo, "replaced"))
    return next((path for path in candidates if os.path.isfile(path)), None)  # False also for a name that is too long


def read_sidecar_geotag(photo: str | Path) -> Geotag | None:
    """The position and heading in a photo's XMP sidecar; None if there is no sidecar or no valid position."""
    sidecar = find_sidecar(photo)
    if sidecar is None:
        return None
    try:
        found = dict(_properties(_parse(_read(sidecar))))
        latitude, longitude = (_degrees(found.get(f"GPS{axis}", "")) for axis in ("Latitude", "Longitude"))
        heading = found.get("GPSImgDirection")
        if latitude == longitude == 0:  # written without a fix, as in EXIF
            return None
        return Geotag((latitude, longitude), None if heading is None else float(Fraction(heading)) % 360)
    except (OSError, ValueError, ZeroDivisionError, PositionError):
        return None


def sidecar_with_geotag(photo: str | Path, geotag: Geotag, estimate: Estimate | None = None) -> bytes:
    """The bytes of an XMP sidecar with this geotag and the other content of the photo's existing sidecar.

    estimate: marks the position as an estimate. Raises PhotoError if the existing sidecar is not valid XMP.
    """
    existing = find_sidecar(photo)
    if existing is None:
        return _with_fields(EMPTY, _fields(geotag, estimate))
    try:
        return _with_fields(_read(existing), _fields(geotag, estimate))
    except (OSError, ValueError, RecursionError) as error:
        raise PhotoError(existing, f"this sidecar cannot be read as XMP ({error}): repair or move it") from error


def _with_fields(xmp: bytes, new: dict[str, str]) -> bytes:
    """The XMP document with these exif properties in place of those of the same names."""
    root = _parse(xmp)
    rdf = root if root.tag == f"{{{RDF}}}RDF" else next(root.iter(f"{{{RDF}}}RDF"))
    about = ""
    for block in rdf.findall(f"{{{RDF}}}Description"):
        about = block.get(f"{{{RDF}}}about", about)
        for name in new:
            tag = f"{{{EXIF}}}{name}"
            block.attrib.pop(tag, None)
            for old in block.findall(tag):
                block.remove(old)
    block = ElementTree.SubElement(rdf, f"{{{RDF}}}Description", {f"{{{RDF}}}about": about})
    for name, value in new.items():
        ElementTree.SubElement(block, f"{{{EXIF}}}{name}").text = value
    ElementTree.indent(root)
    return (HEAD + ElementTree.tostring(root, encoding="unicode") + TAIL).encode()


def _fields(geotag: Geotag, estimate: Estimate | None) -> dict[str, str]:
    latitude, longitude = geotag.latlon
    fields = {
        "GPSVersionID": "2.3.0.0",
        "GPSLatitude": _coordinate(latitude, "NS"),
        "GPSLongitude": _coordinate(longitude, "EW"),
        "GPSMapDatum": "WGS-84",
    }
    if geotag.heading_deg is not None:
        fields |= {"GPSImgDirectionRef": "T", "GPSImgDirection": f"{round(geotag.heading_deg * 100)}/100"}
    if geotag.time is not None:
        fields["GPSTimeStamp"] = f"{(EPOCH + timedelta(seconds=geotag.time)):%Y-%m-%dT%H:%M:%S}Z"
    if estimate is not None:
        fields["GPSHPositioningError"] = f"{round(estimate.radius_m * 100)}/100"
        fields["GPSProcessingMethod"] = estimate.method
    return fields


def _coordinate(degrees: float, positive_negative: str) -> str:
    """Degrees and minutes, such as 52,12.15000000N."""
    whole, part = divmod(round(abs(degrees) * 60 * MINUTE_PARTS), 60 * MINUTE_PARTS)
    minutes, fraction = divmod(part, MINUTE_PARTS)
    return f"{whole},{minutes}.{fraction:08d}{positive_negative[degrees < 0]}"


def _degrees(text: str) -> float:
    """Degrees from the format of `_coordinate`, or from degrees, minutes and seconds, such as 12,34,56N."""
    found = re.fullmatch(r"\s*(\d{1,3}),(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?([NSEW])\s*", text)
    if found is None:
        raise ValueError(f"not a coordinate: {text!r}")
    size = int(found[1]) + float(found[2]) / 60 + float(found[3] or 0) / 3600
    return size if found[4] in "NE" else -size


def _properties(root: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Names and values of the simple exif properties, from elements and attributes."""
    for block in root.iter(f"{{{RDF}}}Description"):
        for tag, value in (*block.attrib.items(), *((child.tag, child.text or "") for child in block)):
            if tag.startswith(f"{{{EXIF}}}"):
                yield tag.removeprefix(f"{{{EXIF}}}"), value


def _read(sidecar: Path) -> bytes:
    if sidecar.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES:,} bytes")
    return sidecar.read_bytes()


def _parse(content: bytes) -> ElementTree.Element:
    """The root of an XMP document; raises ValueError if malformed. Registers its namespace prefixes for writing."""
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError("it declares a document type")
    try:
        root = ElementTree.fromstring(content)
        prefixes = {uri: prefix for _, (prefix, uri) in ElementTree.iterparse(BytesIO(content), ["start-ns"])}
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error
    if root.tag != f"{{{RDF}}}RDF" and next(root.iter(f"{{{RDF}}}RDF"), None) is None:
        raise ValueError("it contains no RDF")
    for uri, prefix in ({META: "x", RDF: "rdf", EXIF: "exif"} | prefixes).items():
        if prefix and not re.fullmatch(r"ns\d+", prefix):  # ElementTree assigns such prefixes
            ElementTree.register_namespace(prefix, uri)
    return root
