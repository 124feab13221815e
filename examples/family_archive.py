"""Photos with positions in different places, of docs/tutorials/sidecars.md: python examples/family_archive.py FOLDER

Writes eleven photos of a walk: some with EXIF, some with XMP sidecars, an export of Google Takeout with its JSON files,
a table, and one photo without any position. One photo has two positions that differ. The photos are plain colours.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from sareloc.files import write_atomically
from sareloc.geo import wgs84_from_enu
from sareloc.photos import Geotag, exif_bytes
from sareloc.photos.xmp import sidecar_with_geotag

START, STEP_M, TIME = (48.8584, 2.2945), 30.0, 1_717_149_600
LONG = "PXL_20240531_100512345.PORTRAIT-01.COVER.jpg"
JSON_FILES = {
    "takeout/IMG_2001.jpg": "IMG_2001.jpg.json",
    "takeout/IMG_2002.jpg": "IMG_2002.jpg.supplemental-metadata.json",
    "takeout/IMG_2002(1).jpg": "IMG_2002.jpg.supplemental-metadata(1).json",
    f"takeout/{LONG}": f"{f'{LONG}.supplemental-metadata'[:46]}.json",
}
PHOTOS = (
    *("camera/IMG_0001.jpg", "camera/IMG_0002.jpg", "camera/IMG_0003.jpg"),  # EXIF
    *("edited/IMG_1001.jpg", "edited/IMG_1002.jpg"),  # XMP sidecars
    *JSON_FILES,
    "scans/old_town.jpg",  # in the table
    "scans/unknown.jpg",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for number, name in enumerate(PHOTOS):
        photo, geotag = folder / name, geotag_of(number)
        colour = np.random.default_rng(number).integers(0, 256, 3).tolist()
        photo.parent.mkdir(parents=True, exist_ok=True)
        exif = exif_bytes(geotag) if name.startswith("camera/") else b""
        Image.new("RGB", (320, 240), tuple(colour)).save(photo, exif=exif)
        if name == "edited/IMG_1001.jpg":
            write_atomically(photo.with_suffix(".xmp"), sidecar_with_geotag(photo.name, geotag))
        if name == "edited/IMG_1002.jpg":
            write_atomically(photo.with_name(f"{photo.name}.xmp"), sidecar_with_geotag(photo.name, geotag))
        if name in JSON_FILES:
            write_atomically(photo.with_name(JSON_FILES[name]), takeout_json(photo.name, geotag))
    # corrected in Google Photos, as exported: the position in EXIF differs
    write_atomically(folder / "camera/IMG_0003.jpg.json", takeout_json("IMG_0003.jpg", geotag_of(6)))
    latitude, longitude = geotag_of(PHOTOS.index("scans/old_town.jpg")).latlon
    write_atomically(folder / "geotags.csv", f"file,lat,lon\nscans/old_town.jpg,{latitude},{longitude}\n".encode())
    print(f"{len(PHOTOS)} photos written to {folder}")


def geotag_of(number: int) -> Geotag:
    """One step of the walk to the north-east, a minute after the one before."""
    away = [number * STEP_M, number * STEP_M * 0.6 + 25 * (number % 2)]
    latitude, longitude = wgs84_from_enu([away], START)[0].round(7).tolist()
    return Geotag((latitude, longitude), None, TIME + 60.0 * number)


def takeout_json(title: str, geotag: Geotag) -> bytes:
    """The part of Takeout's JSON that has the position and the time."""
    latitude, longitude = geotag.latlon
    metadata = {
        "title": title,
        "photoTakenTime": {"timestamp": f"{geotag.time:.0f}"},
        "geoData": {"latitude": latitude, "longitude": longitude, "altitude": 0.0},
    }
    return json.dumps(metadata).encode()


if __name__ == "__main__":
    main()
