"""`sareloc map`: build, add, sync, remove, info, verify, compact, copy. A map is a file, or an address of Milvus."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sareloc.cli import Device
from sareloc.errors import ArgumentError
from sareloc.maps import Box, MapInfo, compact_map, find_gone, map_info, open_store, remove_photos, verify_map
from sareloc.photos.finding import is_url

if TYPE_CHECKING:
    from sareloc.maps import BuildReport
    from sareloc.models.place_model import PlaceModel


LISTED = 10
NOTES = 100  # bad rows of a table are listed all at once, so that they can be corrected at once
GONE = "photos no longer exist; the map keeps them until map sync"
Json = Annotated[bool, Parameter(name="--json", negative=())]


def build(
    photos: Annotated[list[str], Parameter(negative=())],
    *,
    out: str,
    model: str = "default",
    geotags: Path | None = None,
    dim: int | None = None,
    storage: Literal["float16", "float32", "int8"] = "float16",
    batch: int = 8,
    workers: int = 2,
    cluster: str | None = None,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """Make a map of geotagged photos. Stopped at any moment, the same command goes on where it was.

    The exit status is 1 where no photo has a position.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or photos. With --cluster also URLs, such as s3://bucket/photos.
    out
        The map: a GeoPackage (.gpkg), which QGIS opens too, or an address such as milvus://host:19530/city.
    model
        A model that comes with sareloc (default, fast), or a checkpoint.
    geotags
        A CSV (file, lat, lon, heading, time) or GeoJSON with the photos' positions, instead of EXIF and file names.
        Bad rows are listed with their line numbers; the others are used.
    dim
        Keep the first so many dimensions of the descriptors.
    storage
        How each number of a descriptor is kept.
    batch
        Photos described at once, and written at once.
    workers
        Processes that decode photos; with --cluster, for each of its workers.
    cluster
        A Ray cluster whose workers describe the photos: ray://host:10001, or ray://local to start one here.
    as_json
        Print one JSON object.
    """
    knobs: dict[str, Any] = {"geotags": geotags, "dim": dim, "storage": storage, "batch": batch, "workers": workers}
    if cluster is not None:
        from sareloc.cluster.build import build_map_on_cluster

        return _tell(build_map_on_cluster(_load(model, "cpu"), photos, out, cluster=cluster, **knobs), out, as_json)
    from sareloc.maps import build_map

    if remote := [photo for photo in photos if is_url(photo)]:
        raise ArgumentError(f"{remote[0]} is not a folder of this machine: read URLs with --cluster ray://local")
    return _tell(build_map(_load(model, device), photos, out, **knobs), out, as_json)


def add(
    city: str,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    model: str | None = None,
    geotags: Path | None = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """Add photos to a map; those in it are updated if their position, name or content has changed.

    The exit status is 1 where no photo has a position.

    Parameters
    ----------
    city
        The map.
    photos
        Folders of photos, with their subfolders, or photos.
    model
        The checkpoint that the map was built with; by itself the packaged model that it was built with.
    geotags
        A CSV (file, lat, lon, heading, time) or GeoJSON with the photos' positions, instead of EXIF and file names.
        Bad rows are listed with their line numbers; the others are used.
    batch
        Photos described at once, and written at once.
    workers
        Processes that decode photos.
    as_json
        Print one JSON object.
    """
    from sareloc.maps import add_photos, load_map_model

    with open_store(city) as store:
        its_model = load_map_model(store.manifest, Path(city).name, model, device)
    report = add_photos(its_model, photos, city, geotags=geotags, batch=batch, workers=workers)
    return _tell(report, city, as_json)


def sync(
    city: str,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    geotags: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    allow_empty: Annotated[bool, Parameter(negative=())] = False,
    model: str | None = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Make a map hold the photos of these folders as they are now.

    New photos are added; photos that were moved, changed or got another position are updated; photos of the map that
    were in these folders and no longer exist are removed. Photos of the map that lie elsewhere stay as they are.

    Parameters
    ----------
    city
        The map.
    photos
        Folders of photos, with their subfolders, or photos.
    geotags
        A CSV (file, lat, lon, heading, time) or GeoJSON with the photos' positions, instead of EXIF and file names.
        Bad rows are listed with their line numbers; the others are used.
    dry_run
        Print what would be done, and write nothing.
    allow_empty
        Accept folders that do not exist or hold no photos, and remove all photos of the map that were in them.
    model
        The checkpoint that the map was built with; default: the packaged model that it was built with.
    batch
        Photos described at once, and written at once.
    workers
        Processes that decode photos.
    as_json
        Print one JSON object.
    """
    from sareloc.maps import sync_map

    report = sync_map(
        model,
        photos,
        city,
        geotags=geotags,
        batch=batch,
        workers=workers,
        device=device,
        allow_empty=allow_empty,
        dry_run=dry_run,
    )
    if dry_run and not as_json:
        print("dry run, nothing was written; without --dry-run the report would be:")
    _tell(report, city, as_json, removed=report.removed)


def remove(
    city: str,
    files: Annotated[list[str] | None, Parameter(negative=())] = None,
    *,
    box: tuple[float, float, float, float] | None = None,
) -> int:
    """Remove photos from a map, by name, by box, or by both: then those that fit both.

    The exit status is 1 if no photo fits.

    Parameters
    ----------
    city
        The map.
    files
        File names or patterns, such as "2019/*.jpg".
    box
        South, west, north and east in degrees.
    """
    if not files and box is None:
        raise ArgumentError("say which photos to remove: file names, or --box SOUTH WEST NORTH EAST")
    removed = remove_photos(city, files=files or (), area=None if box is None else Box(*box))
    if removed:
        print(f"removed {removed:,} photos from {city}")
        return 0
    print(f"sareloc: nothing was removed: no photo of {city} is named so or lies there", file=sys.stderr)
    return 1


def info(city: str, *, as_json: Json = False) -> None:
    """Say what a map holds: photos, extent, times, model, bytes, calibrations, and which photos no longer exist.

    Parameters
    ----------
    city
        The map.
    as_json
        Print one JSON object.
    """
    found = map_info(city)
    print(json.dumps(asdict(found)) if as_json else table(found))


def verify(city: str) -> int:
    """Read every byte of a map and say what is wrong with it. The exit status is 1 if something is.

    Photos whose files no longer exist are listed, too: they can still be matched, and are no damage of the map.

    Parameters
    ----------
    city
        The map.
    """
    problems = verify_map(city)
    print("\n".join(_listed(problems)) if problems else f"{city} is whole")
    if not problems:
        _list(GONE, find_gone(city))
    return 1 if problems else 0


def compact(city: str) -> None:
    """Give the space of removed photos back to the disk.

    Parameters
    ----------
    city
        The map.
    """
    before, after = compact_map(city)
    print(f"{city}: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after")


def copy(source: str, target: str, *, as_json: Json = False) -> None:
    """Copy a map, from a file to Milvus or back, and compare both. Stopped, the same command goes on where it was.

    Parameters
    ----------
    source
        The map.
    target
        Where it shall be, too: a file, or an address such as milvus://host:19530/city.
    as_json
        Print one JSON object.
    """
    from sareloc.maps import copy_map

    report = copy_map(source, target)
    if as_json:
        print(json.dumps(asdict(report) | {"source": source, "map": target}))
    else:
        there = report.photos - report.copied
        print(f"{target}: copied {report.copied:,} photos, {there:,} were in it already; checksum {report.checksum}")


def table(found: MapInfo) -> str:
    """A map's info for people to read."""
    made = found.manifest
    lines = [
        ("photos", f"{found.photos:,}"),
        ("model", f"{made.model} {made.fingerprint}"),
        ("descriptors", f"{made.dim} dimensions, {made.storage if found.file_bytes is not None else 'float32'}"),
        ("index", found.index),
        ("made by", f"{made.made_by}, format {made.format}"),
    ]
    if found.file_bytes is not None:
        each = found.file_bytes / max(found.photos, 1)
        lines.insert(3, ("file", f"{found.file_bytes / 1e6:,.1f} MB, {each:,.0f} bytes a photo"))
    if found.extent is not None:
        e = found.extent
        lines.append(("latitude", f"{e.south:.5f} to {e.north:.5f}"))
        lines.append(("longitude", f"{e.west:.5f} to {e.east:.5f}"))
    if found.first is not None:
        lines.append(("taken", f"{found.first} to {found.last}"))
    for one in found.calibrations:
        fitted = "cannot be read" if one.origin == "unreadable" else f"fitted on {one.photos:,} photos ({one.origin})"
        lines.append(("calibrated", f"search {one.search}, {fitted}"))
    if found.gone:
        lines.append(("gone", f"{len(found.gone):,} photos no longer exist, such as {found.gone[0]}"))
    return "\n".join(f"{name:<12}{value}" for name, value in lines)


def _load(model: str, device: str | None) -> PlaceModel:
    from sareloc.models.checkpoint import load_model

    return load_model(model, device)


def _tell(report: BuildReport, city: str, as_json: bool, removed: Sequence[str] = ()) -> int:
    unreadable = [str(error) for error in report.unreadable]
    used = report.added + report.updated + report.already + report.duplicates
    if as_json:
        told: dict[str, Any] = asdict(report) | {"unreadable": unreadable, "map": str(city)}
        print(json.dumps(told))
    else:
        print(f"{city}: {_counts(report)}")
        for said, photos in (
            ("photos that no longer exist were removed", removed),
            ("duplicates have another position", list(map(str, report.conflicts))),
            ("photos have no position", report.untagged),
            ("photos cannot be read", unreadable),
            (GONE, report.gone),
        ):
            _list(said, photos)
        if report.notes:
            print("notes:", *(f"  {note}" for note in _listed(report.notes, NOTES)), sep="\n")
        if report.untagged and not used:
            print("no photo has a position: give a table with --geotags (file, lat, lon)")
    return 0 if used else 1


def _counts(report: BuildReport) -> str:
    parts = [f"added {report.added:,} photos in {report.seconds:,.1f} s"]
    if report.updated:
        parts.append(f"updated {report.updated:,}")
    parts.append(f"{report.already:,} were in it already")
    if report.duplicates:
        parts.append(f"{report.duplicates:,} duplicate{'s'[: report.duplicates != 1]}")
    return ", ".join(parts)


def _list(said: str, photos: Sequence[str]) -> None:
    if photos:
        print(f"{len(photos):,} {said}:", *(f"  {line}" for line in _listed(photos)), sep="\n")


def _listed(lines: Iterable[str], most: int = LISTED) -> list[str]:
    known = list(lines)
    more = len(known) - most
    return known[:most] + ([f"... and {more:,} more (--json lists all)"] if more > 0 else [])
