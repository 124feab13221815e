"""`sareloc geotag`: write the positions that were found into copies of photos, or into a table beside them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.cli import Device
from sareloc.cli.localize import ask, tell_unreadable
from sareloc.errors import ArgumentError, PhotoError, explain
from sareloc.files import replacing
from sareloc.localize import Fix, Search, open_localizer
from sareloc.localize.formats import geotags_csv, gpx
from sareloc.photos import Estimate, Geotag, find_photos, read_geotag, write_geotag

Flag = Annotated[bool, Parameter(negative=())]
METHOD = "sareloc visual place recognition"
SIDECARS = {"csv": ("geotags.csv", geotags_csv), "gpx": ("geotags.gpx", gpx)}


def geotag_command(
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    city: Annotated[Path, Parameter(name="--map")],
    out: Path = Path("geotagged"),
    sidecar: Literal["csv", "gpx"] | None = None,
    min_confidence: float = 0.8,
    retag: Flag = False,
    replace: Flag = False,
    model: str | None = None,
    search: Annotated[Search | None, Parameter(name="*")] = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
) -> int:
    """Find where photos were taken and write that into the EXIF of copies. The originals stay as they are.

    A position is marked as an estimate: GPSHPositioningError is its radius, GPSProcessingMethod names sareloc and the
    confidence. Times of the GPS and all other metadata stay as they are.

    Photos that have a position already are passed over. The exit status is 1 if no position was written, or if writing
    one failed.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or photos.
    city
        The map.
    out
        The folder that the copies, or the sidecar, go to. Subfolders are kept; of several folders given, each keeps its
        own name as a level below this one.
    sidecar
        Instead of copies write one file of positions: geotags.csv, which map build reads, or geotags.gpx.
    min_confidence
        Write only positions that are at least so sure.
    retag
        Look for photos that have a position already, too.
    replace
        Replace files of the same name in the folder.
    model
        The checkpoint that the map was built with; by itself the packaged model that it was built with.
    batch
        Photos described at once.
    workers
        Processes that decode photos.
    """
    targets = dict(copies(photos, out))
    if not targets:
        raise ArgumentError(f"no photos in {', '.join(map(str, photos))}" if photos else "no photos given: name some")
    if sidecar is None:
        targets = _checked(targets)
    elif (out / SIDECARS[sidecar][0]).exists() and not replace:
        raise ArgumentError(f"{out / SIDECARS[sidecar][0]} is there already: give another --out, or --replace")
    asked = [photo for photo in targets if retag or read_geotag(photo) is None]
    if len(asked) < len(targets):
        print(f"{len(targets) - len(asked):,} photos have a position already (--retag looks for them too)")
    if not asked:
        return 1
    localizer = open_localizer(
        city, model, search, min_confidence=min_confidence, device=device, batch=batch, workers=workers
    )
    found = [(Path(photo), fix) for photo, fix in tell_unreadable(ask(localizer, asked))]
    sure = [(photo, fix) for photo, fix in found if fix.found]
    if sidecar is not None:
        written = _write_sidecar(sure, out, sidecar)
    else:
        written = _write_copies([(photo, targets[photo], fix) for photo, fix in sure], replace)
    failed, unsure = len(sure) - written, len(found) - len(sure)
    print(
        f"{written:,} of {len(asked):,} photos geotagged in {out}, {unsure:,} below confidence {min_confidence:g}"
        + (f", {failed:,} could not be written" if failed else "")
    )
    return 0 if written and not failed else 1


def copies(given: Sequence[Path], out: Path) -> Iterator[tuple[Path, Path]]:
    """Each photo, and where its copy goes.

    Photos of a folder keep their subfolders. Where several folders are given, the folder's own name is the first level
    below `out`, so that photos of equal names in two folders stay apart.
    """
    several = sum(one.is_dir() for one in given) > 1
    for one in given:
        if one.is_dir():
            below = out / Path(os.path.abspath(one)).name if several else out
            yield from ((photo, below / photo.relative_to(one)) for photo in find_photos(one))
        else:
            yield one, out / one.name


def _checked(targets: dict[Path, Path]) -> dict[Path, Path]:
    """The same photos and copies, a photo given twice once. Raises ArgumentError if a copy would replace an original or
    the copy of another photo."""
    files = {photo: os.path.realpath(photo) for photo in targets}
    originals = set(files.values())
    by_target: dict[Path, Path] = {}
    for photo, target in targets.items():
        if os.path.realpath(target) in originals:
            raise ArgumentError(
                f"the copy of {photo} would replace the original {target}: give another folder as --out"
            )
        if target in by_target and files[photo] != files[by_target[target]]:
            raise ArgumentError(
                f"the copies of {by_target[target]} and {photo} would both be {target}, the same file: "
                "geotag them in two runs with two folders as --out"
            )
        by_target.setdefault(target, photo)
    return {photo: target for target, photo in by_target.items()}


def geotag_of(fix: Fix) -> tuple[Geotag, Estimate]:
    """The geotag of a fix that has a position, and what marks it as an estimate."""
    assert fix.latlon is not None
    assert fix.radius_m is not None
    return Geotag(fix.latlon), Estimate(fix.radius_m, f"{METHOD}, confidence {fix.confidence:.2f}")


def _write_copies(answers: Iterable[tuple[Path, Path, Fix]], replace: bool) -> int:
    """Write the copy of each photo; how many were written. Why one was not goes to standard error.

    A disk that is full or read-only ends it: no other copy could be written either.
    """
    written = 0
    for photo, target, fix in answers:
        try:
            if target.exists() and not replace:
                raise PhotoError(target, "is there already (--replace writes it anew)")
            write_geotag(photo, target, *geotag_of(fix))
            written += 1
        except (PhotoError, OSError) as error:
            print(f"sareloc: {explain(error)}", file=sys.stderr)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                break
    return written


def _write_sidecar(sure: Iterable[tuple[Path, Fix]], out: Path, kind: Literal["csv", "gpx"]) -> int:
    name, written = SIDECARS[kind]
    named = [(Path(os.path.relpath(photo, out)).as_posix(), fix) for photo, fix in sure]
    if named:
        with replacing(out / name) as beside:
            beside.write_text(written(named), encoding="utf-8")
    return len(named)
