"""XMP: geotags in sidecars, for photo formats that are not rewritten, and in the packet inside a photo, where Adobe's
programs write them; and the one reader of XML, for XMP and GPX.

XML is read with limits on elements, depth, the length of a tag, and encodings. Document types are refused, since
entities could make a document grow without limit. Properties and their formats follow the XMP specification, part 2,
namespace exif. A property is an attribute, as Lightroom and darktable write it, or an element.
"""

from __future__ import annotations

import codecs
import os
import re
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from xml.etree import ElementTree
from xml.parsers import expat

from sareloc.errors import PhotoError
from sareloc.files import read_regular
from sareloc.photos.photo_file import Source, find_metadata
from sareloc.photos.record import (
    EPOCH,
    ESTIMATE_FIELDS,
    MARK_FIELDS,
    METHOD,
    NOT_MEASURED,
    Estimate,
    Geotag,
    geotag_at,
    seconds_since_1970,
    valid_time,
)

DEEPEST = 100
LONGEST_TAG = 2_000_000  # bytes, with its attributes; also of a comment
CHUNK = 1 << 16
ENCODINGS = re.compile(  # of text; others of Python's codecs decompress, or run code of a codec on the whole file
    r"utf-?8|utf-?16(le|be)?|us-ascii|ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d|koi8-[ru]", re.IGNORECASE
)


class XmlError(ValueError):
    """XML that is malformed or beyond the limits.

    `damaged_at`: the byte at which it is malformed; None: it is beyond a limit. `encoding`: as `parse_xml` returns it.
    """

    def __init__(self, message: str, damaged_at: int | None = None, encoding: str | None = None) -> None:
        super().__init__(message)
        self.damaged_at = damaged_at
        self.encoding = encoding


class XmlTarget(Protocol):
    """What receives the parts of a document in their order, as that of `xml.etree.ElementTree.XMLParser`."""

    def start(self, tag: str, attrs: dict[str, str], /) -> object:
        """An element begins."""

    def end(self, tag: str, /) -> object:
        """It ends."""

    def data(self, data: str, /) -> object:
        """Text inside it; may come in pieces."""


def parse_xml(content: bytes, target: XmlTarget, *, most_elements: int, namespaces: bool = True) -> str | None:
    """Pass the elements of a document to `target`; returns its encoding, None: UTF-8 or by its byte-order mark.

    namespaces: tags and attributes are called {namespace}name, else as they are written. The document is not kept in
    memory. Raises XmlError, also for an encoding that is not one of the common ones of text.
    """
    parser = expat.ParserCreate(namespace_separator="}" if namespaces else None)
    parser.buffer_text = True
    elements = depth = 0
    encoding: str | None = None

    def declared(version: str, name: str | None, standalone: int) -> None:
        nonlocal encoding
        if name is not None and not ENCODINGS.fullmatch(name):
            raise XmlError(f"its encoding is {name[:80]!r}, expected UTF-8 or UTF-16")
        encoding = name

    def refused(*_: Any) -> None:
        raise XmlError("it declares a document type")

    def begun(name: str, attributes: dict[str, str]) -> None:
        nonlocal elements, depth
        elements, depth = elements + 1, depth + 1
        if elements > most_elements or depth > DEEPEST:
            raise XmlError(f"it has more than {most_elements:,} elements or {DEEPEST} levels")
        if namespaces:
            attributes = {_full(key): value for key, value in attributes.items()}
            name = _full(name)
        target.start(name, attributes)

    def ended(name: str) -> None:
        nonlocal depth
        depth -= 1
        target.end(_full(name) if namespaces else name)

    parser.XmlDeclHandler = declared
    parser.StartDoctypeDeclHandler = refused
    parser.StartElementHandler, parser.EndElementHandler = begun, ended
    parser.CharacterDataHandler = target.data
    try:
        for at in range(0, len(content), CHUNK):
            parser.Parse(content[at : at + CHUNK], False)
            if at + CHUNK - parser.CurrentByteIndex > LONGEST_TAG:
                raise XmlError(f"a tag has more than {LONGEST_TAG:,} bytes")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise XmlError(str(error), parser.ErrorByteIndex, encoding) from error
    except XmlError:
        raise
    except (LookupError, ValueError) as error:  # of the encoding
        raise XmlError(str(error)) from error
    return encoding


def _full(name: str) -> str:
    return f"{{{name}" if "}" in name else name


SidecarNames = Literal["appended", "replaced"]
"""photo.png.xmp, as in digiKam, darktable and Immich, or photo.xmp, as in Lightroom."""

META, RDF, EXIF = "adobe:ns:meta/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://ns.adobe.com/exif/1.0/"
PHOTOSHOP, IPTC = "http://ns.adobe.com/photoshop/1.0/", "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
GPANO = "http://ns.google.com/photos/1.0/panorama/"
DESCRIPTION = f"{{{RDF}}}Description"
TAKEN = (  # the time that the camera showed, best first
    *(f"{{{EXIF}}}DateTimeOriginal", "{http://ns.adobe.com/photoshop/1.0/}DateCreated"),
    "{http://ns.adobe.com/xap/1.0/}CreateDate",
)
EMPTY = f'<x:xmpmeta xmlns:x="{META}"><rdf:RDF xmlns:rdf="{RDF}"/></x:xmpmeta>'.encode()
HEAD, TAIL = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n', '\n<?xpacket end="w"?>\n'
LARGEST_BYTES = 32_000_000
MOST_ELEMENTS = 500_000
LONGEST_VALUE = 200
"""Characters of a property that is used: a number or a time."""
MINUTE_PARTS = 10**8  # of an arc minute: 0.02 mm on the ground


class PlaceTags(NamedTuple):
    """The IPTC properties City, Country and CountryCode; None: it is not written."""

    city: str | None
    country: str
    country_code: str


def sidecar_path(photo: str | Path, names: SidecarNames = "appended") -> Path:
    """The path of a photo's XMP sidecar, which need not exist."""
    path = Path(photo)
    return path.with_name(f"{path.name}.xmp") if names == "appended" else path.with_suffix(".xmp")


def find_sidecar(photo: str | Path) -> Path | None:
    """The existing XMP sidecar of a photo, under either name; None if there is none."""
    candidates = (sidecar_path(photo, "appended"), sidecar_path(photo, "replaced"))
    return next((path for path in candidates if os.path.isfile(path)), None)  # False also for a name that is too long


def read_sidecar_geotag(photo: str | Path) -> Geotag | None:
    """The geotag in a photo's XMP sidecar; None if there is no sidecar or no valid position."""
    return _geotag(_sidecar_properties(photo))


def read_sidecar_time(photo: str | Path) -> float | None:
    """The time in a photo's XMP sidecar, with or without a position, as `Geotag.time`."""
    return _time(_sidecar_properties(photo))


def read_embedded_geotag(source: Source) -> Geotag | None:
    """The geotag in the XMP packet inside a photo; None if it has none, or if the photo cannot be read."""
    metadata = find_metadata(source)
    return None if metadata is None else geotag_from_xmp(metadata.xmp)


def geotag_from_xmp(packet: bytes | None) -> Geotag | None:
    """The geotag in an XMP packet; None if it has none, or is malformed."""
    return _geotag(_packet_properties(packet))


def time_from_xmp(packet: bytes | None) -> float | None:
    """The time in an XMP packet, with or without a position, as `Geotag.time`."""
    return _time(_packet_properties(packet))


def _packet_properties(packet: bytes | None) -> dict[str, str]:
    try:
        return {} if packet is None else xmp_properties(packet)
    except ValueError:
        return {}


def xmp_properties(packet: object) -> dict[str, str]:
    """The simple properties in an XMP packet, by name with namespace: those of `rdf:Description`, and all of GPano.

    Empty if this is no packet: neither bytes nor a text. Of values with more than `LONGEST_VALUE` characters, which are
    neither a number nor a time, the beginning. Raises ValueError if it is malformed or beyond the limits of
    `parse_xml`.
    """
    if not isinstance(packet, str | bytes):
        return {}
    content = packet.encode() if isinstance(packet, str) else packet
    if content[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        content = content.strip(b"\0 \r\n\t")  # photos have padding around it
    found = _Properties()
    _parse(content, found)
    return found.values


def _sidecar_properties(photo: str | Path) -> dict[str, str]:
    sidecar = find_sidecar(photo)
    try:
        return {} if sidecar is None else xmp_properties(read_regular(sidecar, LARGEST_BYTES))
    except (OSError, ValueError):
        return {}


def _geotag(found: dict[str, str]) -> Geotag | None:
    latitude, longitude, heading, *marks = (
        found.get(f"{{{EXIF}}}{name}", "") for name in ("GPSLatitude", "GPSLongitude", "GPSImgDirection", *MARK_FIELDS)
    )
    estimated = any(METHOD in mark for mark in marks)
    return geotag_at(_degrees(latitude, "NS"), _degrees(longitude, "EW"), _heading(heading), _time(found), estimated)


def xmp_with_geotag(geotag: Geotag, estimate: Estimate | None = None) -> bytes:
    """An XMP document of this geotag alone."""
    return _with_fields(EMPTY, _fields(geotag, estimate))


def sidecar_with_geotag(
    photo: str | Path, geotag: Geotag, estimate: Estimate | None = None, place: PlaceTags | None = None
) -> bytes:
    """The bytes of an XMP sidecar with this geotag and the other content of the photo's existing sidecar.

    Args:
        photo: the photo.
        geotag: position, heading and time.
        estimate: marks the position as an estimate.
        place: default: no names.

    Raises:
        PhotoError: if the existing sidecar is not valid XMP.
    """
    existing, fields = find_sidecar(photo), _fields(geotag, estimate) | _place_fields(place)
    if existing is None:
        return _with_fields(EMPTY, fields)
    try:
        return _with_fields(read_regular(existing, LARGEST_BYTES), fields)
    except (OSError, ValueError) as error:
        raise PhotoError(existing, f"this sidecar cannot be read as XMP ({error}): repair or move it") from error


def _with_fields(xmp: bytes, new: dict[str, str]) -> bytes:
    """The XMP document with these properties, of exif unless a name has a namespace, in place of the same ones and of
    `ESTIMATE_FIELDS`."""
    tree = ElementTree.TreeBuilder()
    _parse(xmp, tree)
    root = tree.close()
    _register_prefixes(xmp)
    rdf = root if root.tag == f"{{{RDF}}}RDF" else next(root.iter(f"{{{RDF}}}RDF"))
    about = ""
    for block in rdf.findall(f"{{{RDF}}}Description"):
        about = block.get(f"{{{RDF}}}about", about)
        for name in {*new, *ESTIMATE_FIELDS}:
            tag = _tag(name)
            block.attrib.pop(tag, None)
            for old in block.findall(tag):
                block.remove(old)
    block = ElementTree.SubElement(rdf, f"{{{RDF}}}Description", {f"{{{RDF}}}about": about})
    for name, value in new.items():
        ElementTree.SubElement(block, _tag(name)).text = value
    ElementTree.indent(root)
    return (HEAD + ElementTree.tostring(root, encoding="unicode") + TAIL).encode()


def _tag(name: str) -> str:
    return name if name.startswith("{") else f"{{{EXIF}}}{name}"


def _place_fields(place: PlaceTags | None) -> dict[str, str]:
    if place is None:
        return {}
    city = {} if place.city is None else {f"{{{PHOTOSHOP}}}City": place.city}
    return city | {f"{{{PHOTOSHOP}}}Country": place.country, f"{{{IPTC}}}CountryCode": place.country_code}


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
        fields |= {"GPSAreaInformation": estimate.method, "GPSProcessingMethod": NOT_MEASURED}
    return fields


def _coordinate(degrees: float, positive_negative: str) -> str:
    """Degrees and minutes, such as 52,12.15000000N."""
    whole, part = divmod(round(abs(degrees) * 60 * MINUTE_PARTS), 60 * MINUTE_PARTS)
    minutes, fraction = divmod(part, MINUTE_PARTS)
    return f"{whole},{minutes}.{fraction:08d}{positive_negative[degrees < 0]}"


def _degrees(text: str, positive_negative: str) -> float | None:
    """Degrees from the format of `_coordinate`, or from degrees, minutes and seconds, such as 12,34,56N."""
    found = re.fullmatch(r"\s*(\d{1,3}),(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?([NSEW])\s*", text, re.ASCII)
    if found is None or found[4] not in positive_negative:
        return None
    minutes, seconds = float(found[2]), float(found[3] or 0)
    if minutes > 60 or seconds > 60:
        return None
    size = int(found[1]) + minutes / 60 + seconds / 3600
    return size if found[4] == positive_negative[0] else -size


def _heading(text: str) -> float | None:
    """Degrees from a rational number, such as 1763/10, or a decimal one; None for other texts and above 360."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)(?:/(\d{1,15}))?\s*", text, re.ASCII)
    if found is None or (found[2] is not None and int(found[2]) == 0):
        return None
    degrees = float(found[1]) / int(found[2] or 1)
    return degrees % 360 if degrees <= 360 else None


def _time(found: dict[str, str]) -> float | None:
    """The camera time if its zone is known, else the GPS time, else the camera time read as UTC, as in EXIF."""
    shown = next((moment for name in TAKEN if (moment := _moment(found.get(name, ""))) is not None), None)
    used = shown
    if shown is None or shown.tzinfo is None:
        used = _moment(found.get(f"{{{EXIF}}}GPSTimeStamp", "")) or shown
    return None if used is None else valid_time(seconds_since_1970(used))


def _moment(text: str) -> datetime | None:
    """A date with a time, in ISO 8601 or as darktable writes it (2024:05:31 12:00:00.000); None for other texts."""
    found = re.fullmatch(r"\s*(\d{4})[-:](\d\d)[-:](\d\d)[T ](.+?)\s*", text)
    try:
        return datetime.fromisoformat(f"{found[1]}-{found[2]}-{found[3]}T{found[4]}") if found else None
    except ValueError:
        return None


class _Properties:
    """Collects the properties of `xmp_properties` while a packet is read, and nothing else of it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._open: list[str] = []
        self._text: list[str] | None = None  # that of the innermost element, before its first child

    def start(self, tag: str, attrs: dict[str, str]) -> None:
        self._keep()
        for name, value in attrs.items():
            if tag == DESCRIPTION or _is_gpano(name):
                self.values[name] = _shortened(value)
        self._text = [] if self._open[-1:] == [DESCRIPTION] or _is_gpano(tag) else None
        self._open.append(tag)

    def end(self, tag: str) -> None:
        self._keep()
        self._open.pop()

    def data(self, data: str) -> None:
        if self._text is not None and len(self._text) <= LONGEST_VALUE:
            self._text.append(data)

    def _keep(self) -> None:
        if self._text is not None:
            self.values[self._open[-1]] = _shortened("".join(self._text))
        self._text = None


def _shortened(value: str) -> str:
    return value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."


def _is_gpano(name: str) -> bool:
    return name.startswith(f"{{{GPANO}}}")


def _parse(content: bytes, target: XmlTarget) -> None:
    """Pass the elements of an XMP document to `target`; raises ValueError if it is malformed."""
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES:,} bytes")
    if RDF.encode() not in content.replace(b"\0", b""):  # also in UTF-16
        raise ValueError("it contains no RDF")
    parse_xml(content, target, most_elements=MOST_ELEMENTS)


def _register_prefixes(content: bytes) -> None:
    """Have ElementTree write an XMP document with the namespace prefixes that it has."""
    prefixes = {uri: prefix for _, (prefix, uri) in ElementTree.iterparse(BytesIO(content), ["start-ns"])}
    usual = {META: "x", RDF: "rdf", EXIF: "exif", PHOTOSHOP: "photoshop", IPTC: "Iptc4xmpCore"}
    for uri, prefix in (usual | prefixes).items():
        if prefix and not re.fullmatch(r"ns\d+", prefix):  # ElementTree assigns such prefixes
            ElementTree.register_namespace(prefix, uri)
