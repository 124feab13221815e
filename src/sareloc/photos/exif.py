"""Reading a geotag out of a photo's EXIF, which cameras fill in with care or without."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from sareloc.errors import PhotoError, PositionError
from sareloc.photos.decoding import Source, open_photo, pillow_errors
from sareloc.photos.geotag import Geotag, seconds_since_1970


def read_exif_geotag(source: Source) -> Geotag | None:
    """The geotag in the photo's EXIF; None where there is none, where it is damaged, and where no photo is.

    A latitude or longitude without its hemisphere, or out of range, is no position; nor is exactly 0, 0, which is
    what receivers without a fix write. A heading from magnetic north is taken as it is.
    """
    try:
        with open_photo(source) as photo, pillow_errors(""):
            exif = photo.getexif()
            return geotag_from_exif(exif)
    except PhotoError:
        return None


def read_exif_time(source: Source) -> float | None:
    """When the photo was taken, by its EXIF, with or without a position: seconds since 1970, as in `Geotag.time`.

    None where the EXIF holds no usable time, and where no photo is.
    """
    try:
        with open_photo(source) as photo, pillow_errors(""):
            exif = photo.getexif()
            return _time(exif.get_ifd(IFD.Exif), exif.get_ifd(IFD.GPSInfo))
    except PhotoError:
        return None


def geotag_from_exif(exif: Image.Exif) -> Geotag | None:
    """The geotag in an EXIF block; None where it holds no usable position."""
    gps = exif.get_ifd(IFD.GPSInfo)
    latitude = _angle(gps.get(GPS.GPSLatitude), gps.get(GPS.GPSLatitudeRef), "NS")
    longitude = _angle(gps.get(GPS.GPSLongitude), gps.get(GPS.GPSLongitudeRef), "EW")
    if latitude is None or longitude is None or latitude == longitude == 0:
        return None
    heading = _number(gps.get(GPS.GPSImgDirection))
    if heading is not None:
        heading = heading % 360 if 0 <= heading <= 360 else None
    try:
        return Geotag((latitude, longitude), heading, _time(exif.get_ifd(IFD.Exif), gps))
    except PositionError:
        return None


def _angle(value: Any, hemisphere: Any, positive_negative: str) -> float | None:
    """Degrees from one to three numbers (degrees, minutes, seconds) and a letter."""
    letter = _text(hemisphere)[:1].upper()
    parts = [_number(part) for part in (value if isinstance(value, tuple | list) else (value,))]
    known = [part for part in parts if part is not None and part >= 0]
    if len(known) != len(parts) or not 1 <= len(parts) <= 3 or not letter or letter not in positive_negative:
        return None
    degrees, minutes, seconds = (*known, 0.0, 0.0)[:3]
    if minutes > 60 or seconds > 60:
        return None
    size = degrees + minutes / 60 + seconds / 3600
    return size if letter == positive_negative[0] else -size


def _time(camera: dict[int, Any], gps: dict[int, Any]) -> float | None:
    """The camera's clock where its zone is known, else the satellites', else the camera's as if it showed UTC."""
    local = _camera_clock(camera)
    zone = re.fullmatch(r"([+-])(\d\d):(\d\d)", _text(camera.get(Base.OffsetTimeOriginal)))
    if local is not None and zone:
        ahead_s = (int(zone[2]) * 60 + int(zone[3])) * 60
        return local - ahead_s if zone[1] == "+" else local + ahead_s
    satellites = _satellite_clock(gps)
    return local if satellites is None else satellites


def _camera_clock(camera: dict[int, Any]) -> float | None:
    try:
        shown = datetime.strptime(_text(camera.get(Base.DateTimeOriginal)), "%Y:%m:%d %H:%M:%S")
    except ValueError:
        return None
    fraction = re.fullmatch(r"\d+", _text(camera.get(Base.SubsecTimeOriginal)))
    return seconds_since_1970(shown) + (float(f"0.{fraction[0]}") if fraction else 0.0)


def _satellite_clock(gps: dict[int, Any]) -> float | None:
    clock = gps.get(GPS.GPSTimeStamp)
    parts = [_number(part) for part in clock] if isinstance(clock, tuple | list) else []
    try:
        day = datetime.strptime(_text(gps.get(GPS.GPSDateStamp)).replace("-", ":"), "%Y:%m:%d")
        hours, minutes, seconds = (part for part in parts if part is not None and 0 <= part <= 60)
        return seconds_since_1970(day + timedelta(hours=hours, minutes=minutes, seconds=seconds))
    except (ValueError, OverflowError):
        return None


def _number(value: Any) -> float | None:
    """The value as a number, NaN for Pillow's 0/0: every use of it asks for a range, which NaN is never in."""
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    return value.strip("\0 ") if isinstance(value, str) else ""
