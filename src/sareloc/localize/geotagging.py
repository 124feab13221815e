"""Writing the positions of fixes: into copies of photos, XMP sidecars or a table.

plan = plan_geotags([Path("photos")], Path("geotagged"))
fixes = localizer.localize_many(plan.images)
found = {photo: fix for photo, fix in zip(plan.photos, fixes, strict=True) if isinstance(fix, Fix)}
written = write_positions(plan, found).written
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import replacing
from sareloc.localize.clock import read_photo_times
from sareloc.localize.estimate import Fix
from sareloc.localize.formats import POINT_FORMATS, Answer, estimated_geotag, geotags_csv
from sareloc.localize.place_names import find_town
from sareloc.photos import Address, find_photos, is_video, read_geotag, write_geotag, write_sidecar
from sareloc.photos.exiftool import exiftool_writes, find_exiftool, write_by_exiftool
from sareloc.photos.finding import NOT_UTF8, is_utf8, raw_twins_note
from sareloc.photos.record import VIDEO_EXTENSIONS
from sareloc.photos.telemetry import find_telemetry
from sareloc.photos.write_geotags import takes_exif
from sareloc.photos.xmp import PlaceTags, SidecarNames, sidecar_path
from sareloc.wording import counted

TABLE_FORMATS: Mapping[str, Callable[[Sequence[Answer]], str]] = {**POINT_FORMATS, "csv": geotags_csv}
NO_MORE_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class GeotagOptions:
    """Which files the positions are written into."""

    sidecar: Literal["xmp", "csv", "gpx", "geojson", "kml"] | None = None
    """No copies, but an XMP sidecar for each photo, or one table of all. Default: copies."""
    xmp_names: SidecarNames = "appended"
    """Names of XMP sidecars: photo.png.xmp or photo.xmp."""
    retag: bool = False
    """Also photos that have a position."""
    replace: bool = False
    """Replace files of the same name."""
    place_names: bool = False
    """Also write town and country, into an XMP sidecar of each photo."""
    exiftool: bool = False
    """Write HEIC, AVIF, raw files and videos by the program exiftool instead of into sidecars."""
    dry_run: bool = False
    """Write nothing."""


@dataclass(frozen=True)
class GeotagOutputs:
    """The files that are written for one photo."""

    copy: Path | None = None
    xmp: Path | None = None
    """The sidecar of the copy, or of the original."""
    way: Literal["exif", "exiftool", "sidecar"] = "sidecar"
    """What contains the position of a copy: its EXIF, written here or by exiftool, or its sidecar."""
    table: Path | None = None
    """Of all photos."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(file for file in (self.copy, self.xmp, self.table) if file is not None)


@dataclass(frozen=True)
class GeotagPlan:
    """The photos that are to be localized, and what is written for each."""

    outputs: Mapping[Path, GeotagOutputs]
    """By the file of the photo or video."""
    tagged: int
    """Photos that have a position already and are left out."""
    times: Mapping[Path, float | None]
    """When they were taken, for a table, in seconds since 1970; None: unknown."""
    options: GeotagOptions
    notes: tuple[str, ...] = ()
    """Files in the folders that are left out; problems of tables of times."""

    @property
    def photos(self) -> tuple[Path, ...]:
        """Their files."""
        return tuple(self.outputs)

    @property
    def images(self) -> tuple[Path, ...]:
        """What is localized for each: the photo, or the first frame of a video."""
        return tuple(map(_image_of, self.outputs))


@dataclass(frozen=True)
class GeotagReport:
    """What was written."""

    written: Mapping[Path, tuple[Path, ...]]
    """The files of each photo."""
    errors: tuple[PhotoError | OSError, ...] = ()
    """Why others were not written."""


def plan_geotags(given: Sequence[Path], out: Path, options: GeotagOptions | None = None) -> GeotagPlan:
    """What is to be localized and written; nothing is written.

    The copy of a JPEG, PNG, WebP or TIFF contains its position; any other photo, and a video, needs a sidecar, unless
    exiftool writes its copy. Photos of a folder keep their subfolders; if several folders are given, the folder's own
    name is the first level below `out`. A photo given twice counts once.

    Args:
        given: photos, videos, and folders of photos.
        out: the folder of copies, sidecars and tables.
        options: default: positions in copies.

    Raises:
        ArgumentError: if there are no photos, or a file would replace an original, one of another photo, or a table.
        MissingExtraError: if exiftool is asked for and not installed.
    """
    options = options or GeotagOptions()
    if options.exiftool:
        find_exiftool()
    targets = dict(_copies(given, out))
    notes = [*raw_twins_note([photo for photo in targets if photo not in given]), *_videos_note(given)]
    if not targets:
        found = f"no photos in {', '.join(map(str, given))}" if given else "no photos given"
        raise ArgumentError(". ".join([found, *notes]))
    if options.sidecar is None or options.sidecar == "xmp":
        outputs, table = _outputs(targets, options), None
    else:
        table = out / f"geotags.{options.sidecar}"
        if table.exists() and not (options.replace or options.dry_run):
            raise ArgumentError(f"{table} exists: give another --out, or --replace")
        outputs = {photo: GeotagOutputs(table=table) for photo in targets}
    asked = {photo: files for photo, files in outputs.items() if options.retag or not _has_position(photo)}
    times: dict[Path, float | None] = {}
    if table is not None and asked:
        taken, time_notes = read_photo_times(list(map(_image_of, asked)), given)
        times = dict(zip(asked, taken.values(), strict=True))
        notes += time_notes
    return GeotagPlan(asked, len(outputs) - len(asked), times, options, tuple(notes))


def write_positions(plan: GeotagPlan, fixes: Mapping[Path, Fix]) -> GeotagReport:
    """Write the positions of fixes, marked as estimates; the originals are not changed.

    A disk that is full or read-only ends the writing: no other file could be written either.

    Args:
        plan: of the photos.
        fixes: by the photos of the plan; those without a position are left out.
    """
    sure = {photo: fix for photo, fix in fixes.items() if fix.found}
    if plan.options.dry_run:
        return GeotagReport({photo: plan.outputs[photo].files for photo in sure})
    if plan.options.sidecar in TABLE_FORMATS:
        return _write_table(plan, sure)
    written: dict[Path, tuple[Path, ...]] = {}
    errors: list[PhotoError | OSError] = []
    for photo, fix in sure.items():
        try:
            _write_files(photo, plan.outputs[photo], fix, plan.options)
            written[photo] = plan.outputs[photo].files
        except (PhotoError, OSError) as error:
            errors.append(error)
            if isinstance(error, OSError) and error.errno in NO_MORE_WRITES:
                break
    return GeotagReport(written, tuple(errors))


def _image_of(file: Path) -> Path:
    return Address(file, time_s=0.0).path if is_video(file) else file


def _videos_note(given: Sequence[Path]) -> list[str]:
    """A note on the videos in folders, which are not localized."""
    videos = [str(video) for one in given if one.is_dir() for video in find_photos(one, VIDEO_EXTENSIONS)]
    return [f"{counted(videos, 'video')} in folders not geotagged: name a video to geotag it"] if videos else []


def _has_position(file: Path) -> bool:
    return (find_telemetry(file) if is_video(file) else read_geotag(file)) is not None


def _copies(given: Sequence[Path], out: Path) -> Iterator[tuple[Path, Path]]:
    """Each photo and the path of its copy."""
    several = sum(one.is_dir() for one in given) > 1
    for one in given:
        if one.is_dir():
            below = out / Path(os.path.abspath(one)).name if several else out
            yield from ((photo, below / photo.relative_to(one)) for photo in find_photos(one))
        else:
            yield one, out / one.name


def _outputs(targets: Mapping[Path, Path], options: GeotagOptions) -> dict[Path, GeotagOutputs]:
    """The files for each photo, by the paths of their copies; see `plan_geotags`."""
    copy, sidecars = options.sidecar is None, options.sidecar == "xmp" or options.place_names
    originals = {os.path.realpath(photo) for photo in targets}
    writers: dict[Path, Path] = {}
    planned: dict[Path, GeotagOutputs] = {}
    for photo, target in targets.items():
        by_exiftool = options.exiftool and copy and exiftool_writes(photo)
        way: Literal["exif", "exiftool", "sidecar"] = (
            "exif" if takes_exif(photo) else "exiftool" if by_exiftool else "sidecar"
        )
        xmp = sidecar_path(target, options.xmp_names) if sidecars or way == "sidecar" else None
        outputs = GeotagOutputs(target if copy else None, xmp, way)
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
            planned[photo] = outputs
    return planned


def _place_tags(fix: Fix) -> PlaceTags | None:
    """The names of a fix's place; the city if the position is in it. None without a table of names."""
    town = None if fix.latlon is None else find_town(fix.latlon)
    return None if town is None else PlaceTags(town.name if town.inside else None, town.country, town.country_code)


def _write_files(photo: Path, outputs: GeotagOutputs, fix: Fix, options: GeotagOptions) -> None:
    for file in outputs.files:
        if file.exists() and not options.replace:
            raise PhotoError(file, "exists (--replace overwrites it)")
    if outputs.copy is not None and outputs.way != "sidecar":
        write = write_geotag if outputs.way == "exif" else write_by_exiftool
        write(photo, outputs.copy, *estimated_geotag(fix))
    if outputs.xmp is not None:
        copy = outputs.copy if outputs.way == "sidecar" else None
        place = _place_tags(fix) if options.place_names else None
        write_sidecar(photo, outputs.xmp, *estimated_geotag(fix), copy=copy, place=place)


def _write_table(plan: GeotagPlan, sure: Mapping[Path, Fix]) -> GeotagReport:
    """Write the table; photos whose names are not UTF-8 are left out."""
    answers: dict[Path, Answer] = {}
    errors: list[PhotoError] = []
    for photo, fix in sure.items():
        (table,) = plan.outputs[photo].files
        name = Path(os.path.relpath(_image_of(photo), table.parent)).as_posix()
        if is_utf8(name):
            answers[photo] = Answer(name, plan.times[photo], fix)
        else:
            errors.append(PhotoError(name, NOT_UTF8))
    if answers:
        with replacing(table) as beside:
            beside.write_text(TABLE_FORMATS[str(plan.options.sidecar)](list(answers.values())), encoding="utf-8")
    return GeotagReport({photo: plan.outputs[photo].files for photo in answers}, tuple(errors))
