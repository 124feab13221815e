"""`sareloc geotag`: write the positions of fixes into copies of photos, XMP sidecars or a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.cli.options import (
    DEFAULT_CONDITION,
    DEFAULT_LOCALIZER,
    ConditionFlags,
    Flag,
    Opened,
    localize_files,
    print_notes,
    report_unreadable,
)
from sareloc.errors import explain
from sareloc.wording import plural

Table = Literal["csv", "gpx", "geojson", "kml"]


def geotag_command(
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    place_map: Annotated[list[Path], Parameter(name="--map", metavar="MAP", negative=())],
    out: Path = Path("geotagged"),
    sidecar: Literal["xmp"] | Table | None = None,
    xmp_names: Literal["appended", "replaced"] = "appended",
    min_confidence: float = 0.8,
    retag: Flag = False,
    replace: Flag = False,
    place_names: Flag = False,
    exiftool: Flag = False,
    dry_run: Flag = False,
    panorama: Flag = False,
    as_json: Annotated[Flag, Parameter(name="--json")] = False,
    centred: ConditionFlags = DEFAULT_CONDITION,
    options: Opened = DEFAULT_LOCALIZER,
) -> int:
    """Localize photos and write their positions into the EXIF of copies. The originals are not changed.

    The position of a JPEG, PNG, WebP or TIFF is written into the EXIF of its copy; image data, other metadata and the
    file's times are not changed. Other photos (HEIC, AVIF, raw files) are copied unchanged, with the position in an XMP
    sidecar beside the copy, which keeps the content of a sidecar of the original, or are written by --exiftool. So are
    videos that are named; their position is that of their first frame.

    A position is marked as an estimate: GPSHPositioningError is its radius, GPSAreaInformation names sareloc and the
    confidence.

    Each photo is listed with the file that was written, its position, radius and confidence, and the photo of the map
    that it is most like. Photos that already have a position are skipped. The exit status is 1 if there were photos to
    geotag and no position was found, or if writing one failed.

    Parameters
    ----------
    photos
        Photos, or folders of photos with their subfolders; videos, if they are named.
    place_map
        The map: a file, or an address such as milvus://HOST:PORT/NAME. May be repeated: several maps are asked at once,
        and the surest answers.
    out
        Folder for copies and sidecars. Subfolders are kept; if several folders are given, each keeps its own name
        as a level below this one.
    sidecar
        Write no copies, but an XMP sidecar for each photo (xmp; --out may be the folder of the photos), or one file of
        positions with headings and times: geotags.csv or geotags.geojson, which map build reads, geotags.gpx or
        geotags.kml.
    xmp_names
        Names of XMP sidecars: appended (photo.png.xmp: digiKam, darktable, Immich) or replaced (photo.xmp:
        Lightroom, which reads them beside raw files).
    min_confidence
        Minimum confidence of the positions that are written; those of the other photos are printed.
    retag
        Localize photos that already have a position, too.
    replace
        Replace files of the same name in the output folder.
    place_names
        Also write the IPTC properties City and Country into an XMP sidecar of each photo: City if the position is in a
        town (GeoNames, CC BY 4.0).
    exiftool
        Write the positions of HEIC, AVIF, raw files and videos (MP4, MOV) into their copies by the program exiftool,
        which must be installed, instead of into sidecars.
    dry_run
        Localize and list, but write nothing.
    panorama
        Treat photos without GPano tags that are 2:1 as 360° photos; the heading is that of their middle.
    as_json
        Print one JSON object per line for each localized photo: the keys of localize --json, and the files written.
    """
    from sareloc.localize import GeotagOptions, plan_geotags, write_positions
    from sareloc.localize.formats import answer_line

    def print_status(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout)

    chosen = GeotagOptions(sidecar, xmp_names, retag, replace, place_names, exiftool, dry_run)
    plan = plan_geotags(photos, out, chosen)
    print_notes(plan.notes)
    if plan.tagged:
        known = plural(plan.tagged, "photo", ("already has", "already have"))
        print_status(f"{known} a position (--retag: localize again)")
    if not plan.photos:
        return 0
    localizer = options.open(place_map, min_confidence=min_confidence, panorama=panorama)
    fixes = localize_files(localizer, plan.images, condition=centred.choose(localizer, plan.images))
    photo_of = dict(zip(map(str, plan.images), plan.photos, strict=True))
    found = {photo_of[image]: fix for image, fix in report_unreadable(fixes)}
    report = write_positions(plan, found)
    for error in report.errors:
        print(f"sareloc: {explain(error)}", file=sys.stderr)
    written, unsure = report.written, {photo: fix for photo, fix in found.items() if not fix.found}
    failed = len(found) - len(unsure) - len(written)
    if as_json:
        for photo, fix in found.items():
            print(json.dumps(fix.to_json(str(photo)) | {"written": [str(file) for file in written.get(photo, ())]}))
    else:
        for photo, files in written.items():
            print(f"{answer_line(str(photo), found[photo])} -> {', '.join(map(str, files))}")
    unreadable = len(plan.photos) - len(found)
    missing = f", {unreadable:,} could not be read" if unreadable else ""
    missing += f", {failed:,} could not be written" if failed else ""
    print_status(
        f"{len(written):,} of {plural(len(plan.photos), 'photo')} {'would be geotagged' if dry_run else 'geotagged'} "
        f"in {out}, {len(unsure):,} below confidence {min_confidence:g}{missing}"
    )
    if unsure and not as_json:
        lines = (answer_line(str(photo), fix) for photo, fix in unsure.items())
        print("low-confidence positions, not written:", *lines, sep="\n  ")
    return 0 if written and not failed else 1
