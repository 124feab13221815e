"""The geotag of a photo (position, heading, time), read from its EXIF or from a file name in the VPR-datasets format:

    @utm_east@utm_north@zone@band@lat@lon@pano_id@tile@heading@pitch@roll@height@time@note@.jpg

Fields may be empty; only the first two are required. Some datasets (Nordland) use local metres there and no zone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import utm_epsg, utm_from_wgs84, wgs84_from_utm
from sareloc.photos.photo_file import Source, find_metadata
from sareloc.photos.record import EPOCH, MARK_FIELDS, METHOD, Geotag, View, geotag_at, parse_address, seconds_since_1970

BANDS = "CDEFGHJKLMNPQRSTUVWX"  # UTM latitude bands of 8 degrees from 80 south; N and later are north of the equator
DIAGONAL_35MM = math.hypot(36.0, 24.0)
"""The diagonal of the 35 mm frame in mm: equivalent focal lengths have the same field of view along the diagonal."""
FOCAL_35MM_RANGE = (4.0, 2000.0)  # mm; cameras that do not know it write 0
STAMP = re.compile(r"(\d{4})(\d\d)?(\d\d)?(?:_(\d\d)(\d\d)?(\d\d)?)?")


@dataclass(frozen=True)
class PhotoTime:
    """When a photo was taken."""

    seconds: float
    """Since 1970 in UTC."""
    zone: Literal["photo", "given", "gps", "unknown"]
    """Where the time zone is from: the photo (OffsetTimeOriginal), the caller, the photo's GPS time, which is then
    `seconds`, or nowhere: the camera's clock is read as UTC."""
    clock: float | None
    """What the camera's clock showed, as seconds since 1970; None if the photo has only a GPS time."""


def read_exif_geotag(source: Source) -> Geotag | None:
    """The geotag in a photo's EXIF; None if it has none, if it is damaged, or if the photo cannot be read.

    A latitude or longitude without a hemisphere or out of range is not a position, nor is exactly 0, 0, which receivers
    without a fix write. A heading from magnetic north is not corrected.
    """
    metadata = find_metadata(source)
    return None if metadata is None else geotag_from_exif(metadata.exif)


def read_exif_time(source: Source, zone: tzinfo | None = None) -> PhotoTime | None:
    """The time in a photo's EXIF, with or without a position; None if it has no valid time or cannot be read.

    The camera's clock with its fraction of a second, in the zone of the photo (OffsetTimeOriginal), else in `zone`. If
    neither is known: the GPS time, else the camera's clock read as UTC.
    """
    metadata = find_metadata(source)
    return None if metadata is None else time_from_exif(metadata.exif, zone)


def read_focal_35mm(source: Source) -> float | None:
    """The 35 mm equivalent focal length in a photo's EXIF (FocalLengthIn35mmFilm), in mm; None if it is unknown.

    That of a view of a 360° photo follows from its field of view.
    """
    if isinstance(source, str | Path) and (view := parse_address(source).view) is not None:
        return view_focal_35mm(view)
    metadata = find_metadata(source)
    return None if metadata is None else focal_35mm_from_exif(metadata.exif)


def focal_35mm_from_exif(exif: Image.Exif) -> float | None:
    """The 35 mm equivalent focal length in an EXIF block, in mm; None if it has no valid one."""
    value = _exif_number(exif.get_ifd(IFD.Exif).get(Base.FocalLengthIn35mmFilm))
    return value if value is not None and FOCAL_35MM_RANGE[0] <= value <= FOCAL_35MM_RANGE[1] else None


def view_focal_35mm(view: View) -> float:
    """The 35 mm equivalent focal length of a view of a 360° photo, in mm."""
    focal_px = view.width / 2 / math.tan(math.radians(view.fov_deg / 2))
    return focal_px * DIAGONAL_35MM / math.hypot(view.width, view.height)


def geotag_from_exif(exif: Image.Exif) -> Geotag | None:
    """The geotag in an EXIF block; None if it has no valid position."""
    gps = exif.get_ifd(IFD.GPSInfo)
    latitude = _angle(gps.get(GPS.GPSLatitude), gps.get(GPS.GPSLatitudeRef), "NS")
    longitude = _angle(gps.get(GPS.GPSLongitude), gps.get(GPS.GPSLongitudeRef), "EW")
    estimated = any(METHOD in _text(gps.get(GPS[name])) for name in MARK_FIELDS)
    return geotag_at(latitude, longitude, heading_from_exif(exif), seconds_from_exif(exif), estimated)


def heading_from_exif(exif: Image.Exif) -> float | None:
    """The heading in an EXIF block (GPSImgDirection), 0 <= heading < 360; None if it has no valid one."""
    heading = _exif_number(exif.get_ifd(IFD.GPSInfo).get(GPS.GPSImgDirection))
    return None if heading is None or not 0 <= heading <= 360 else heading % 360


def _angle(value: Any, hemisphere: Any, positive_negative: str) -> float | None:
    """Degrees from one to three numbers (degrees, minutes, seconds) and a letter."""
    letter = _text(hemisphere)[:1].upper()
    parts = [_exif_number(part) for part in (value if isinstance(value, tuple | list) else (value,))]
    known = [part for part in parts if part is not None and part >= 0]
    if len(known) != len(parts) or not 1 <= len(parts) <= 3 or not letter or letter not in positive_negative:
        return None
    degrees, minutes, seconds = (*known, 0.0, 0.0)[:3]
    if minutes > 60 or seconds > 60:
        return None
    size = degrees + minutes / 60 + seconds / 3600
    return size if letter == positive_negative[0] else -size


def time_from_exif(exif: Image.Exif, zone: tzinfo | None = None) -> PhotoTime | None:
    """The time in an EXIF block; see `read_exif_time`."""
    camera, gps = exif.get_ifd(IFD.Exif), exif.get_ifd(IFD.GPSInfo)
    gps_time = _gps_time(gps)
    own = _own_zone(camera)
    clock = _camera_time(camera, own or zone or UTC)
    if gps_time is not None and (clock is None or (own is None and zone is None)):
        return PhotoTime(gps_time, "gps", clock)
    if clock is None:
        return None
    return PhotoTime(clock, "photo" if own is not None else "given" if zone is not None else "unknown", clock)


def seconds_from_exif(exif: Image.Exif) -> float | None:
    """The time in an EXIF block as `Geotag.time`."""
    time = time_from_exif(exif)
    return None if time is None else time.seconds


def _own_zone(camera: dict[int, Any]) -> tzinfo | None:
    found = re.fullmatch(r"([+-])(\d\d):(\d\d)", _text(camera.get(Base.OffsetTimeOriginal)))
    ahead = timedelta(hours=int(found[2]), minutes=int(found[3])) if found else timedelta(days=1)
    return timezone(-ahead if found and found[1] == "-" else ahead) if ahead < timedelta(days=1) else None


def _camera_time(camera: dict[int, Any], zone: tzinfo) -> float | None:
    try:
        shown = datetime.strptime(_text(camera.get(Base.DateTimeOriginal)), "%Y:%m:%d %H:%M:%S")
        seconds = seconds_since_1970(shown.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        return None
    fraction = re.fullmatch(r"\d+", _text(camera.get(Base.SubsecTimeOriginal)))
    return seconds + (float(f"0.{fraction[0]}") if fraction else 0.0)


def _gps_time(gps: dict[int, Any]) -> float | None:
    clock = gps.get(GPS.GPSTimeStamp)
    parts = [_exif_number(part) for part in clock] if isinstance(clock, tuple | list) else []
    try:
        day = datetime.strptime(_text(gps.get(GPS.GPSDateStamp)).replace("-", ":"), "%Y:%m:%d")
        hours, minutes, seconds = (part for part in parts if part is not None and 0 <= part <= 60)
        return seconds_since_1970(day + timedelta(hours=hours, minutes=minutes, seconds=seconds))
    except (ValueError, OverflowError):
        return None


def _exif_number(value: Any) -> float | None:
    """The value as a number; NaN for Pillow's 0/0, which fails every range check of the callers."""
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    return value.strip("\0 ") if isinstance(value, str) else ""


@dataclass(frozen=True)
class UtmName:
    """The fields of a file name in the VPR-datasets format; missing fields are None or empty."""

    east_north: tuple[float, float]
    """Metres in the UTM zone `epsg`, or in a local frame if that is None."""
    epsg: int | None = None
    latlon: tuple[float, float] | None = None
    """Degrees with five decimals (about a metre); `east_north` is more precise."""
    pano_id: str = ""
    tile: str = ""
    heading_deg: float | None = None
    pitch_deg: float | None = None
    roll_deg: float | None = None
    height_m: float | None = None
    time: float | None = None
    """Seconds since 1970, UTC; the start of the year, month or day if the stamp names only that."""
    note: str = ""

    def geotag(self) -> Geotag | None:
        """The geotag, from the metres if their zone is known, else from the degrees; None without a valid position."""
        candidates = [self.latlon]
        if self.epsg is not None:
            try:
                latitude, longitude = wgs84_from_utm([self.east_north], self.epsg)[0].tolist()
                candidates.insert(0, (latitude, longitude))
            except PositionError:
                pass
        for latlon in candidates:
            if latlon is not None:
                try:
                    return Geotag(latlon, self.heading_deg, self.time)
                except PositionError:
                    continue
        return None


def parse_utm_name(name: str) -> UtmName | None:
    """Parse a file name (without its folder); None if it has another format."""
    first, *fields = name.split("@")
    if first or len(fields) < 3:
        return None
    fields = [field.strip() for field in fields[:-1]]  # the last is the extension
    east, north, zone, band, latitude, longitude, pano_id, tile, *angles, height, stamp, note = (
        *fields[:14],
        *[""] * (14 - len(fields)),
    )
    east_m, north_m = _name_number(east), _name_number(north)
    if east_m is None or north_m is None:
        return None
    lat, lon = _name_number(latitude), _name_number(longitude)
    heading, pitch, roll = map(_name_number, angles)
    return UtmName(
        (east_m, north_m),
        _epsg(zone, band, lat),
        None if lat is None or lon is None else (lat, lon),
        pano_id,
        tile,
        None if heading is None else heading % 360,
        pitch,
        roll,
        _name_number(height),
        _name_time(stamp),
        note,
    )


def make_utm_name(
    geotag: Geotag, *, pano_id: str = "", tile: int | None = None, note: str = "", suffix: str = ".jpg"
) -> str:
    """A file name with this geotag: UTM to the centimetre, degrees with five decimals, UTC to the second.

    Args:
        geotag: position, heading and time.
        pano_id: name of the panorama.
        tile: number of the view in its panorama.
        note: any text without "@" and "/".
        suffix: of the file.
    """
    if "@" in pano_id + note + suffix or "/" in pano_id + note + suffix:
        raise ArgumentError(f"parts of a file name must not contain '@' or '/': {pano_id!r}, {note!r}, {suffix!r}")
    latitude, longitude = geotag.latlon
    epsg = utm_epsg(geotag.latlon)
    east, north = utm_from_wgs84([geotag.latlon], epsg)[0]
    band = BANDS[min(max(int(latitude // 8) + 10, 0), len(BANDS) - 1)]
    heading = "" if geotag.heading_deg is None else f"{geotag.heading_deg:06.2f}"
    moment = "" if geotag.time is None else f"{EPOCH + timedelta(seconds=geotag.time):%Y%m%d_%H%M%S}"
    return (
        f"@{east:010.2f}@{north:010.2f}@{epsg % 100:02d}@{band}@{latitude:09.5f}@{longitude:010.5f}@{pano_id}"
        f"@{'' if tile is None else f'{tile:02d}'}@{heading}@@@@{moment}@{note}@{suffix}"
    )


def _name_number(text: str) -> float | None:
    # float() also accepts "nan", "inf" and "1_000"
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", text, re.ASCII) else None


def _epsg(zone: str, band: str, latitude: float | None) -> int | None:
    """The EPSG code of a UTM zone; the hemisphere comes from the band, or from the latitude if there is no band."""
    if not re.fullmatch(r"\d{1,2}", zone, re.ASCII) or not 1 <= int(zone) <= 60:
        return None
    if len(band) == 1 and band.upper() in BANDS:
        north = band.upper() >= "N"
    elif latitude is not None:
        north = latitude >= 0
    else:
        return None
    return (32600 if north else 32700) + int(zone)


def _name_time(stamp: str) -> float | None:
    parts = STAMP.fullmatch(stamp)
    if parts is None:
        return None
    year, month, day, hour, minute, second = (int(part) if part else None for part in parts.groups())
    try:
        moment = datetime(year or 0, month or 1, day or 1, hour or 0, minute or 0, second or 0)
    except ValueError:
        return None
    return seconds_since_1970(moment)
