"""The field's file names, which say where the photo was taken.

    @utm_east@utm_north@zone@band@lat@lon@pano_id@tile@heading@pitch@roll@height@time@note@.jpg

Fields may be empty; only the first two must be there. Some sets (Nordland) put made-up metres there and no zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from sareloc.errors import ArgumentError, PhotoError, PositionError
from sareloc.geo import utm_epsg, utm_from_wgs84, wgs84_from_utm
from sareloc.photos.decoding import Source, open_photo, pillow_errors

# The geotag of a photo: where, in which direction and when it was taken.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_S, LAST_S = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 9999))


@dataclass(frozen=True)
class Geotag:
    """Where a photo was taken; what is unknown is None. Raises PositionError for values outside their range."""

    latlon: tuple[float, float]
    """Latitude, longitude in degrees, WGS84."""
    heading_deg: float | None = None
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360."""
    time: float | None = None
    """Seconds since 1970 in UTC; a clock whose zone is not known is read as if it showed UTC."""

    def __post_init__(self) -> None:
        latitude, longitude = self.latlon
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):
            raise PositionError(f"latitude {latitude}, longitude {longitude} is no place on Earth")
        if self.heading_deg is not None and not 0 <= self.heading_deg < 360:
            raise PositionError(f"a heading lies in 0 <= degrees < 360, found {self.heading_deg}")
        if self.time is not None and not FIRST_S <= self.time < LAST_S:
            raise PositionError(f"a time is in seconds since 1970, in the years 1 to 9998: found {self.time}")


@dataclass(frozen=True)
class Estimate:
    """How a position was estimated; written with it, so that nobody takes it for one that a receiver measured."""

    radius_m: float
    """The horizontal positioning error in metres."""
    method: str
    """The processing method, in ASCII."""


def seconds_since_1970(moment: datetime) -> float:
    """The moment as PhotoSet and Geotag hold it; one without a zone is read as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds()


# Reading a geotag out of a photo's EXIF, which cameras fill in with care or without.


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
            return _exif_time(exif.get_ifd(IFD.Exif), exif.get_ifd(IFD.GPSInfo))
    except PhotoError:
        return None


def geotag_from_exif(exif: Image.Exif) -> Geotag | None:
    """The geotag in an EXIF block; None where it holds no usable position."""
    gps = exif.get_ifd(IFD.GPSInfo)
    latitude = _angle(gps.get(GPS.GPSLatitude), gps.get(GPS.GPSLatitudeRef), "NS")
    longitude = _angle(gps.get(GPS.GPSLongitude), gps.get(GPS.GPSLongitudeRef), "EW")
    if latitude is None or longitude is None or latitude == longitude == 0:
        return None
    heading = _exif_number(gps.get(GPS.GPSImgDirection))
    if heading is not None:
        heading = heading % 360 if 0 <= heading <= 360 else None
    try:
        return Geotag((latitude, longitude), heading, _exif_time(exif.get_ifd(IFD.Exif), gps))
    except PositionError:
        return None


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


def _exif_time(camera: dict[int, Any], gps: dict[int, Any]) -> float | None:
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
    parts = [_exif_number(part) for part in clock] if isinstance(clock, tuple | list) else []
    try:
        day = datetime.strptime(_text(gps.get(GPS.GPSDateStamp)).replace("-", ":"), "%Y:%m:%d")
        hours, minutes, seconds = (part for part in parts if part is not None and 0 <= part <= 60)
        return seconds_since_1970(day + timedelta(hours=hours, minutes=minutes, seconds=seconds))
    except (ValueError, OverflowError):
        return None


def _exif_number(value: Any) -> float | None:
    """The value as a number, NaN for Pillow's 0/0: every use of it asks for a range, which NaN is never in."""
    try:
        return float(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    return value.strip("\0 ") if isinstance(value, str) else ""


BANDS = "CDEFGHJKLMNPQRSTUVWX"  # 8 degrees of latitude each, from 80 south; N and later lie north of the equator
STAMP = re.compile(r"(\d{4})(\d\d)?(\d\d)?(?:_(\d\d)(\d\d)?(\d\d)?)?")


@dataclass(frozen=True)
class UtmName:
    """What a file name says; what it leaves out is None or empty."""

    east_north: tuple[float, float]
    """Metres in the zone `epsg`, or in a frame of the dataset's own where that is None."""
    epsg: int | None = None
    latlon: tuple[float, float] | None = None
    """Degrees with five decimals, a metre: `east_north` has the centimetres."""
    pano_id: str = ""
    tile: str = ""
    heading_deg: float | None = None
    pitch_deg: float | None = None
    roll_deg: float | None = None
    height_m: float | None = None
    time: float | None = None
    """Seconds since 1970, UTC; of a stamp that names a year, a month or a day, the beginning of it."""
    note: str = ""

    def geotag(self) -> Geotag | None:
        """The place on Earth, from the metres where their zone is known, else from the degrees; None without both."""
        places = [self.latlon]
        if self.epsg is not None:
            try:
                latitude, longitude = wgs84_from_utm([self.east_north], self.epsg)[0].tolist()
                places.insert(0, (latitude, longitude))
            except PositionError:
                pass
        for place in places:
            if place is not None:
                try:
                    return Geotag(place, self.heading_deg, self.time)
                except PositionError:
                    continue
        return None


def parse_utm_name(name: str) -> UtmName | None:
    """What the file name says (without its folder), or None where it is not in the format."""
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
    """The file name that says this geotag: UTM with centimetres, degrees with five decimals, UTC to the second."""
    if "@" in pano_id + note + suffix or "/" in pano_id + note + suffix:
        raise ArgumentError(f"no part of a file name may hold '@' or '/': {pano_id!r}, {note!r}, {suffix!r}")
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
    # float() also takes "nan", "inf" and "1_000", which are no coordinates
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", text, re.ASCII) else None


def _epsg(zone: str, band: str, latitude: float | None) -> int | None:
    """The zone's EPSG code; the hemisphere is the band's, or the latitude's where there is no band."""
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
