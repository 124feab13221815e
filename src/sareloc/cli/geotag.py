"""`sareloc geotag`: write the positions of fixes into copies of photos, XMP sidecars or a table."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
from sareloc.errors import ArgumentError, PhotoError, explain
from sareloc.files import replacing
from sareloc.wording import counted, plural

if TYPE_CHECKING:
    from sareloc.localize import Fix
    from sareloc.photos.xmp import PlaceTags, SidecarNames

Table = Literal["csv", "gpx", "geojson", "kml"]
Way = Literal["exif", "exiftool", "sidecar"]


@dataclass(frozen=True)
class Outputs:
    """The files that are written for one photo."""

    copy: Path | None = None
    xmp: Path | None = None
    """The sidecar of the copy, or of the original."""
    way: Way = "sidecar"
    """What contains the position of a copy: its EXIF, written here or by exiftool, or its sidecar."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(file for file in (self.copy, self.xmp) if file is not None)


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
    from sareloc.localize import read_photo_times
    from sareloc.localize.formats import answer_line
    from sareloc.photos.exiftool import find_exiftool
    from sareloc.photos.finding import raw_twins_note

    if exiftool:
        find_exiftool()

    def print_status(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout)

    targets = dict(copies(photos, out))
    print_notes([*raw_twins_note([photo for photo in targets if photo not in photos]), *_videos_note(photos)])
    if not targets:
        raise ArgumentError(f"no photos in {', '.join(map(str, photos))}" if photos else "no photos given")
    outputs: dict[Path, Outputs] = {photo: Outputs() for photo in targets}
    if sidecar is None or sidecar == "xmp":
        all_sidecars = sidecar == "xmp" or place_names
        outputs = plan(targets, copy=sidecar is None, sidecars=all_sidecars, exiftool=exiftool, xmp_names=xmp_names)
    elif (out / f"geotags.{sidecar}").exists() and not (replace or dry_run):
        raise ArgumentError(f"{out / f'geotags.{sidecar}'} exists: give another --out, or --replace")
    asked = {_image_of(photo): photo for photo in outputs if retag or not _has_position(photo)}
    if len(asked) < len(outputs):
        known = plural(len(outputs) - len(asked), "photo", ("already has", "already have"))
        print_status(f"{known} a position (--retag: localize again)")
    if not asked:
        return 0
    times: dict[Path, float | None] = {}
    if sidecar not in (None, "xmp"):
        times, notes = read_photo_times(list(asked), photos)
        print_notes(notes)
    localizer = options.open(place_map, min_confidence=min_confidence, panorama=panorama)
    fixes = localize_files(localizer, list(asked), condition=centred.choose(localizer, list(asked)))
    found = [(asked[Path(image)], fix) for image, fix in report_unreadable(fixes)]
    sure = [(photo, fix) for photo, fix in found if fix.found]
    table = None if sidecar is None or sidecar == "xmp" else out / f"geotags.{sidecar}"
    written: dict[Path, tuple[Path, ...]] = {}
    if dry_run:
        written = {photo: outputs[photo].files or (out / f"geotags.{sidecar}",) for photo, _ in sure}
    elif table is None:
        each = ((photo, outputs[photo], fix) for photo, fix in sure)
        written = _write_each(each, replace=replace, place_names=place_names)
    else:
        images = {photo: image for image, photo in asked.items()}
        answers = [(images[photo], times[images[photo]], fix) for photo, fix in sure]
        rows = _write_table(answers, table, sidecar)  # type: ignore[arg-type]
        written = dict.fromkeys([asked[image] for image in rows], (table,))
    unsure, failed = [(photo, fix) for photo, fix in found if not fix.found], len(sure) - len(written)
    if as_json:
        for photo, fix in found:
            print(json.dumps(fix.to_json(str(photo)) | {"written": [str(file) for file in written.get(photo, ())]}))
    else:
        for photo, fix in sure:
            if photo in written:
                print(f"{answer_line(str(photo), fix)} -> {', '.join(map(str, written[photo]))}")
    missing = f", {failed:,} could not be written" if failed else ""
    print_status(
        f"{len(written):,} of {plural(len(asked), 'photo')} {'would be geotagged' if dry_run else 'geotagged'} "
        f"in {out}, {len(unsure):,} below confidence {min_confidence:g}{missing}"
    )
    if unsure and not as_json:
        print("low-confidence positions, not written:", *(answer_line(str(p), fix) for p, fix in unsure), sep="\n  ")
    return 0 if written and not failed else 1


def _image_of(file: Path) -> Path:
    """The image that is localized: the photo, or the first frame of a video."""
    from sareloc.photos.record import Address, is_video

    return Address(file, time_s=0.0).path if is_video(file) else file


def _videos_note(given: Sequence[Path]) -> list[str]:
    """A note on the videos in folders, which are not localized."""
    from sareloc.photos import find_photos
    from sareloc.photos.record import VIDEO_EXTENSIONS

    videos = [str(video) for one in given if one.is_dir() for video in find_photos(one, VIDEO_EXTENSIONS)]
    return [f"{counted(videos, 'video')} in folders not geotagged: name a video to geotag it"] if videos else []


def _has_position(file: Path) -> bool:
    from sareloc.photos import is_video, read_geotag
    from sareloc.photos.telemetry import find_telemetry

    return (find_telemetry(file) if is_video(file) else read_geotag(file)) is not None


def copies(given: Sequence[Path], out: Path) -> Iterator[tuple[Path, Path]]:
    """Each photo and the path of its copy.

    Photos of a folder keep their subfolders. If several folders are given, the folder's own name is the first level
    below `out`, so that photos of equal names in two folders do not collide.
    """
    from sareloc.photos import find_photos

    several = sum(one.is_dir() for one in given) > 1
    for one in given:
        if one.is_dir():
            below = out / Path(os.path.abspath(one)).name if several else out
            yield from ((photo, below / photo.relative_to(one)) for photo in find_photos(one))
        else:
            yield one, out / one.name


def plan(
    targets: dict[Path, Path], *, copy: bool, sidecars: bool, exiftool: bool, xmp_names: SidecarNames
) -> dict[Path, Outputs]:
    """The files to be written for each photo; a photo given twice counts once.

    The copy of a JPEG, PNG, WebP or TIFF contains its position; any other photo, and a video, needs a sidecar, unless
    exiftool writes its copy. Raises ArgumentError if a file would replace an original, or one that is written for
    another photo.
    """
    from sareloc.photos.exiftool import exiftool_writes
    from sareloc.photos.write_geotags import takes_exif
    from sareloc.photos.xmp import sidecar_path

    originals = {os.path.realpath(photo) for photo in targets}
    writers: dict[Path, Path] = {}
    plans: dict[Path, Outputs] = {}
    for photo, target in targets.items():
        exif = takes_exif(photo)
        way: Way = "exif" if exif else "exiftool" if exiftool and copy and exiftool_writes(photo) else "sidecar"
        xmp = sidecar_path(target, xmp_names) if sidecars or way == "sidecar" else None
        outputs = Outputs(target if copy else None, xmp, way)
        for file in outputs.files:
            if os.path.realpath(file) in originals:
                raise ArgumentError(
                    f"the copy of {photo} would replace the original {file}: give another folder as --out"
                )
            other = writers.setdefault(file, photo)
            if os.path.realpath(other) != os.path.realpath(photo):
                raise ArgumentError(
                    f"{other} and {photo} would both be written to {file}, the same file: "
                    "geotag them in two runs with two folders as --out"
                )
        if writers[outputs.files[0]] == photo:
            plans[photo] = outputs
    return plans


def place_tags(fix: Fix) -> PlaceTags | None:
    """The names of a fix's place; the city if the position is in it. None without a table of names."""
    from sareloc.localize import find_town
    from sareloc.photos.xmp import PlaceTags

    town = None if fix.latlon is None else find_town(fix.latlon)
    return None if town is None else PlaceTags(town.name if town.inside else None, town.country, town.country_code)


def _write_each(
    answers: Iterable[tuple[Path, Outputs, Fix]], *, replace: bool, place_names: bool
) -> dict[Path, tuple[Path, ...]]:
    """Write the files of each photo; the photos written, each with its files. Errors are printed to standard error.

    A disk that is full or read-only ends the loop: no other file could be written either.
    """
    from sareloc.localize.formats import estimated_geotag
    from sareloc.photos import write_geotag, write_sidecar
    from sareloc.photos.exiftool import write_by_exiftool

    written = {}
    for photo, output, fix in answers:
        try:
            for file in output.files:
                if file.exists() and not replace:
                    raise PhotoError(file, "exists (--replace overwrites it)")
            if output.copy is not None and output.way != "sidecar":
                write = write_geotag if output.way == "exif" else write_by_exiftool
                write(photo, output.copy, *estimated_geotag(fix))
            if output.xmp is not None:
                copy = output.copy if output.way == "sidecar" else None
                place = place_tags(fix) if place_names else None
                write_sidecar(photo, output.xmp, *estimated_geotag(fix), copy=copy, place=place)
            written[photo] = output.files
        except (PhotoError, OSError) as error:
            print(f"sareloc: {explain(error)}", file=sys.stderr)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                break
    return written


def _write_table(sure: Iterable[tuple[Path, float | None, Fix]], table: Path, kind: Table) -> list[Path]:
    """Write the table; the photos in it."""
    from sareloc.localize.formats import POINT_FORMATS, Answer, geotags_csv
    from sareloc.photos.finding import NOT_UTF8, is_utf8

    answers = {
        photo: Answer(Path(os.path.relpath(photo, table.parent)).as_posix(), time, fix) for photo, time, fix in sure
    }
    for answer in answers.values():
        if not is_utf8(answer.name):
            print(f"sareloc: {PhotoError(answer.name, NOT_UTF8)}", file=sys.stderr)
    answers = {photo: answer for photo, answer in answers.items() if is_utf8(answer.name)}
    tables = {**POINT_FORMATS, "csv": geotags_csv}
    if answers:
        with replacing(table) as beside:
            beside.write_text(tables[kind](list(answers.values())), encoding="utf-8")
    return list(answers)
