"""Geotags by the program exiftool, for formats that are not written here: HEIC, AVIF, raw files of cameras, videos."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import writing
from sareloc.photos.photo_file import open_file
from sareloc.photos.record import ESTIMATE_FIELDS, NOT_MEASURED, Estimate, Geotag, is_video
from sareloc.photos.write_geotags import keep_status

LONGEST_S = 600.0
VIDEOS = (".mp4", ".mov", ".m4v", ".3gp", ".insv")
"""Videos that exiftool writes."""


def exiftool_writes(photo: str | Path) -> bool:
    """Whether exiftool may be asked to write this file, by its name: photos, and `VIDEOS`."""
    return not is_video(photo) or Path(photo).suffix.lower() in VIDEOS


def find_exiftool() -> str:
    """The path of the program; raises ArgumentError if it is not installed."""
    program = shutil.which("exiftool")
    if program is None:
        raise ArgumentError(
            "exiftool is not installed: apt-get install libimage-exiftool-perl or brew install exiftool; without "
            "--exiftool such photos get XMP sidecars"
        )
    return program


def write_by_exiftool(photo: str | Path, target: str | Path, geotag: Geotag, estimate: Estimate | None = None) -> None:
    """Copy a photo of any format that exiftool writes, with this geotag in its EXIF; the file's times are kept.

    In a video the position is that of its start, in the metadata of QuickTime (`com.apple.quicktime.location`), as
    phones write it; it has no heading.

    Args:
        photo: the photo or video, which is not changed.
        target: path of the copy.
        geotag: position and heading.
        estimate: marks the position as an estimate.

    Raises:
        ArgumentError: if exiftool is not installed.
        PhotoError: if exiftool cannot write the file; its message is the reason.
        OSError: if the target cannot be written; it is then unchanged.
    """
    program, target = find_exiftool(), Path(target)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".exiftool-") as folder:  # its name says the format
            copy = Path(os.path.abspath(folder)) / f"photo{Path(photo).suffix}"
            with open_file(photo, str(photo)) as original, copy.open("wb") as copied:
                status = os.stat(photo)
                shutil.copyfileobj(original, copied)
            # an empty config: that of the user may run code of its own
            words = [program, "-config", "", "-overwrite_original", "-q", "-n", "-api", "LargeFileSupport=1"]
            words += [*(_video_tags if is_video(photo) else _tags)(geotag, estimate), str(copy)]
            try:
                done = subprocess.run(words, capture_output=True, timeout=LONGEST_S, stdin=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                raise PhotoError(photo, f"exiftool did not end in {LONGEST_S:.0f} s") from None
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip().replace(f" - {copy}", "")
                raise PhotoError(photo, f"exiftool cannot write it: {said or f'status {done.returncode}'}")
            keep_status(status, copy)
            os.replace(copy, target)


def _tags(geotag: Geotag, estimate: Estimate | None) -> list[str]:
    latitude, longitude = geotag.latlon
    tags = {
        "GPSLatitude": f"{abs(latitude):.9f}",
        "GPSLatitudeRef": "N" if latitude >= 0 else "S",
        "GPSLongitude": f"{abs(longitude):.9f}",
        "GPSLongitudeRef": "E" if longitude >= 0 else "W",
        "GPSMapDatum": "WGS-84",
    }
    if geotag.heading_deg is not None:
        tags |= {"GPSImgDirectionRef": "T", "GPSImgDirection": f"{geotag.heading_deg:.6f}"}
    tags |= dict.fromkeys(ESTIMATE_FIELDS, "")  # those of the former position are removed
    if estimate is not None:
        tags |= {"GPSHPositioningError": f"{estimate.radius_m:.2f}"}
        tags |= {"GPSAreaInformation": estimate.method, "GPSProcessingMethod": NOT_MEASURED}
    return [f"-EXIF:{name}={value}" for name, value in tags.items()]


def _video_tags(geotag: Geotag, estimate: Estimate | None) -> list[str]:
    """The mark of an estimate is the note of the location (see `sareloc.photos.telemetry_formats.read_location`)."""
    latitude, longitude = geotag.latlon
    tags = {
        "GPSCoordinates": f"{latitude:.9f} {longitude:.9f}",
        "LocationAccuracyHorizontal": "" if estimate is None else f"{estimate.radius_m:.2f}",
        "LocationNote": "" if estimate is None else estimate.method,
    }
    return [f"-Keys:{name}={value}" for name, value in tags.items()]
