"""The field's file names, which say where the photo was taken.

    @utm_east@utm_north@zone@band@lat@lon@pano_id@tile@heading@pitch@roll@height@time@note@.jpg

Fields may be empty; only the first two must be there. Some sets (Nordland) put made-up metres there and no zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from sareloc.errors import ArgumentError, PositionError
from sareloc.geo import utm_epsg, utm_from_wgs84, wgs84_from_utm
from sareloc.photos.geotag import EPOCH, Geotag, seconds_since_1970

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
    east_m, north_m = _number(east), _number(north)
    if east_m is None or north_m is None:
        return None
    lat, lon = _number(latitude), _number(longitude)
    heading, pitch, roll = map(_number, angles)
    return UtmName(
        (east_m, north_m),
        _epsg(zone, band, lat),
        None if lat is None or lon is None else (lat, lon),
        pano_id,
        tile,
        None if heading is None else heading % 360,
        pitch,
        roll,
        _number(height),
        _time(stamp),
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


def _number(text: str) -> float | None:
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


def _time(stamp: str) -> float | None:
    parts = STAMP.fullmatch(stamp)
    if parts is None:
        return None
    year, month, day, hour, minute, second = (int(part) if part else None for part in parts.groups())
    try:
        moment = datetime(year or 0, month or 1, day or 1, hour or 0, minute or 0, second or 0)
    except ValueError:
        return None
    return seconds_since_1970(moment)
