"""Photos with a GPX track, the files of docs/tutorials/track.md: python examples/photos_on_a_track.py FOLDER

Writes a ride of five minutes (ride.gpx) and 24 photos of a camera whose clock shows local time in Zurich and is 3.2 s
fast; eight of them have a position, as of a phone that was nearby, 4 m off. The photos are plain colours.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import gpxpy.gpx
import numpy as np
from PIL import Image
from PIL.ExifTags import IFD, Base

from sareloc.files import write_atomically
from sareloc.geo import wgs84_from_enu
from sareloc.photos import Geotag, Track, write_geotag

HOME, SECONDS, SPEED_M_S, PHOTOS, FAST_S, NOISE_M = (47.3686, 8.5417), 300, 3.0, 24, 3.2, 4.0
START = datetime(2024, 5, 31, 10, 0, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rng = np.random.default_rng(4)
    track = ride(rng)
    write_atomically(folder / "ride.gpx", gpx_of(track).encode())
    print(folder / "ride.gpx")
    for number, when in enumerate(np.linspace(5, SECONDS + 20, PHOTOS)):
        path = take_photo(folder / "photos" / f"IMG_{number:04d}.jpg", START + timedelta(seconds=float(when) + FAST_S))
        position = track.at([START.timestamp() + when]).latlon[0]
        if number % 3 == 0 and not np.isnan(position[0]):
            latitude, longitude = wgs84_from_enu(rng.normal(0, NOISE_M, 2), position)[0].tolist()
            write_geotag(path, path, Geotag((latitude, longitude)))
    print(folder / "photos")


def ride(rng: np.random.Generator) -> Track:
    """One point a second; it stands still for 20 s."""
    times = np.arange(SECONDS + 1.0)
    headings = 0.4 + np.cumsum(rng.normal(0, 0.07, len(times)))
    speeds = np.where((times > 140) & (times < 160), 0.0, SPEED_M_S)
    enu = np.cumsum(speeds[:, None] * np.stack([np.sin(headings), np.cos(headings)], axis=1), axis=0)
    return Track(START.timestamp() + times, wgs84_from_enu(enu, HOME))


def gpx_of(track: Track) -> str:
    segment = gpxpy.gpx.GPXTrackSegment(
        [
            gpxpy.gpx.GPXTrackPoint(round(latitude, 7), round(longitude, 7), time=datetime.fromtimestamp(time, UTC))
            for time, (latitude, longitude) in zip(track.times.tolist(), track.latlon.tolist(), strict=True)
        ]
    )
    gpx = gpxpy.gpx.GPX()
    gpx.tracks.append(gpxpy.gpx.GPXTrack())
    gpx.tracks[0].segments.append(segment)
    return gpx.to_xml()


def take_photo(path: Path, shown: datetime) -> Path:
    """A photo at this time of the camera's clock, which has no time zone."""
    local = shown.astimezone(ZoneInfo("Europe/Zurich"))
    exif = Image.Exif()
    exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = f"{local:%Y:%m:%d %H:%M:%S}"
    exif.get_ifd(IFD.Exif)[Base.SubsecTimeOriginal] = f"{local:%f}"[:3]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (160, 120), (local.second * 4, 128, local.minute * 4)).save(path, exif=exif)
    return path


if __name__ == "__main__":
    main()
