"""`sareloc map`: build, add, sync, upgrade, remove, info, verify, compact, copy. A map: a file or a server address."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sareloc.cli.options import NO_TRACK, Device, Flag, Json, Precision, Track
from sareloc.errors import ArgumentError

if TYPE_CHECKING:
    from sareloc.maps import MapInfo
    from sareloc.photos import ViewOptions

if TYPE_CHECKING:
    from sareloc.maps import BuildReport
    from sareloc.models.place_model import PlaceModel


LISTED = 10
NOTES = 100  # bad rows of a table are all listed, so that they can be corrected together
GONE = "photos no longer exist; they stay in the map until map sync"
Map = Annotated[str, Parameter(name="map")]
"""The argument MAP of every command: a file, or a server address such as milvus://host:19530/city."""
CUTTING = "360° photos"


@dataclass(frozen=True)
class CutOptions:
    """The options of how 360° photos are cut into views."""

    panorama: Annotated[bool, Parameter(negative=(), group=CUTTING)] = False
    """Also cut photos without GPano tags that are 2:1: they are full spheres. Photos with the tags always are cut."""
    view_yaw: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True, group=CUTTING)] = None
    """Directions of the views in degrees from the middle of the panorama, to the right. Default: twelve, 0 30 60 ..."""
    view_pitch: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True, group=CUTTING)] = None
    """Angles above the horizon in degrees; all yaws are cut at each. Default: 0."""
    view_fov: Annotated[float | None, Parameter(group=CUTTING)] = None
    """Horizontal field of view in degrees. Default: 60."""

    def options(self) -> ViewOptions:
        """The options for the library."""
        from sareloc.photos import ViewOptions

        chosen = {"yaw_deg": self.view_yaw, "pitch_deg": self.view_pitch, "fov_deg": self.view_fov}
        given = {name: value for name, value in chosen.items() if value is not None}
        return ViewOptions(**given, untagged=self.panorama)  # type: ignore[arg-type]


def build(
    photos: Annotated[list[str], Parameter(negative=())],
    *,
    out: str,
    model: str | None = None,
    geotags: Path | None = None,
    track: Track = NO_TRACK,
    dim: int | None = None,
    storage: Literal["float16", "float32", "int8"] = "float16",
    keypoints: int | None = None,
    views: Annotated[CutOptions | None, Parameter(name="*")] = None,
    batch: int = 8,
    workers: int = 2,
    cluster: str | None = None,
    device: Device = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> int:
    """Build a map of geotagged photos. If it is interrupted, repeat the command to continue.

    The exit status is 1 if no photo has a position.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or single photos. With --cluster also URLs, such as
        s3://bucket/photos.
    out
        The map: a GeoPackage file (.gpkg), which QGIS can open, or a server address such as milvus://host:19530/city.
    model
        A packaged model (default, fast), a checkpoint, or a published file. Default: that of the map if it exists,
        else fast, or default on a GPU.
    geotags
        A CSV (file, lat, lon, heading, time), GeoJSON or Mapillary image descriptions with the photos' positions.
        Default: geotags.csv or another table in the folder, else EXIF, XMP, Takeout JSON, file names. Bad rows are
        listed; the others are used.
    dim
        Dimensions of the descriptors to keep: the first ones of a model with a PCA whitening; for other models, such
        as SALAD, BoQ and MegaLoc, a whitening is fitted on up to 4,096 of the photos and stored in the map.
        Default: all.
    storage
        Type of the stored descriptors.
    keypoints
        Keypoints of each photo whose local features are stored, up to 4096: matches are then verified without the
        photos. 0: none. Default: 1024, or those of the map.
    batch
        Photos in one forward pass of the model and one transaction.
    workers
        Processes that decode photos (with --cluster: for each of its workers); 0: no other process.
    cluster
        A Ray cluster that computes the descriptors: ray://host:10001, or ray://local to start one on this machine.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.photos.finding import is_url

    options: dict[str, Any] = {
        "geotags": geotags,
        "track": track.options(),
        "dim": dim,
        "storage": storage,
        "keypoints": keypoints,
        "views": None if views is None else views.options(),
        "batch": batch,
        "workers": workers,
    }
    if cluster is not None:
        from sareloc.cluster.build import build_map_on_cluster

        return _tell(
            build_map_on_cluster(_model_for(out, model, "cpu", precision), photos, out, cluster=cluster, **options),
            out,
            as_json,
        )
    from sareloc.maps.build import build_map

    if remote := [photo for photo in photos if is_url(photo)]:
        raise ArgumentError(f"{remote[0]} is a URL, not a folder: read URLs with --cluster ray://local")
    return _tell(build_map(_model_for(out, model, device, precision), photos, out, **options), out, as_json)


def add(
    map_path: Map,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    model: str | None = None,
    geotags: Path | None = None,
    track: Track = NO_TRACK,
    views: Annotated[CutOptions | None, Parameter(name="*")] = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> int:
    """Add photos to a map. Photos that are in it are updated if their position, name or content has changed.

    The exit status is 1 if no photo has a position.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    photos
        Folders of photos, with their subfolders, or single photos.
    model
        The checkpoint that the map was built with. Default: the packaged model that it was built with.
    geotags
        A CSV (file, lat, lon, heading, time), GeoJSON or Mapillary image descriptions with the photos' positions.
        Default: geotags.csv or another table in the folder, else EXIF, XMP, Takeout JSON, file names. Bad rows are
        listed; the others are used.
    batch
        Photos in one forward pass of the model and one transaction.
    workers
        Processes that decode photos; 0: no other process.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.maps import load_map_model, open_store
    from sareloc.maps.build import add_photos

    with open_store(map_path) as store:
        its_model = load_map_model(store.manifest, Path(map_path).name, model, device, precision)
    report = add_photos(
        its_model,
        photos,
        map_path,
        geotags=geotags,
        track=track.options(),
        views=None if views is None else views.options(),
        batch=batch,
        workers=workers,
    )
    return _tell(report, map_path, as_json)


def sync(
    map_path: Map,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    geotags: Path | None = None,
    track: Track = NO_TRACK,
    dry_run: Flag = False,
    allow_empty: Flag = False,
    model: str | None = None,
    batch: int = 8,
    workers: int = 2,
    device: Device = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Synchronize a map with folders of photos.

    New photos are added; photos whose name, content or position has changed are updated; photos of the map that were in
    these folders and no longer exist are removed. Photos of the map outside of these folders are not changed.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    photos
        Folders of photos, with their subfolders, or single photos.
    geotags
        A CSV (file, lat, lon, heading, time), GeoJSON or Mapillary image descriptions with the photos' positions.
        Default: geotags.csv or another table in the folder, else EXIF, XMP, Takeout JSON, file names. Bad rows are
        listed; the others are used.
    dry_run
        Only print what would be done.
    allow_empty
        Accept folders that do not exist or have no photos, and remove all photos of the map that were in them.
    model
        The checkpoint that the map was built with. Default: the packaged model that it was built with.
    batch
        Photos in one forward pass of the model and one transaction.
    workers
        Processes that decode photos; 0: no other process.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.maps.build import sync_map

    report = sync_map(
        model,
        photos,
        map_path,
        geotags=geotags,
        track=track.options(),
        batch=batch,
        workers=workers,
        device=device,
        precision=precision,
        allow_empty=allow_empty,
        dry_run=dry_run,
    )
    if dry_run and not as_json:
        print("dry run, nothing was written; without --dry-run the report would be:")
    _tell(report, map_path, as_json, removed=report.removed)


def upgrade(
    map_path: Map,
    *,
    keypoints: int | None = None,
    workers: int = 2,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Add the local features that photos of a map lack. If it is interrupted, repeat the command to continue.

    A map of an older format is brought to the present one. Photos that cannot be read, that have changed since they
    were added, or that are behind URLs are listed.

    Parameters
    ----------
    map_path
        The map, a file.
    keypoints
        Keypoints of each photo, 1 to 4096. Default: those of the map, 1024 if it has none.
    workers
        Processes that decode photos; 0: no other process.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.maps import add_local_features

    report = add_local_features(map_path, keypoints=keypoints, device=device, workers=workers)
    unreadable = [str(error) for error in report.unreadable]
    if as_json:
        print(json.dumps(asdict(report) | {"unreadable": unreadable, "map": map_path}))
        return
    print(
        f"{map_path}: added local features of {report.added:,} photos, up to {report.keypoints} keypoints each, in "
        f"{report.seconds:,.1f} s; {report.already:,} had them already"
    )
    _list("photos still have none", unreadable)


def remove(
    map_path: Map,
    files: Annotated[list[str] | None, Parameter(negative=())] = None,
    *,
    box: tuple[float, float, float, float] | None = None,
) -> int:
    """Remove photos from a map, by file name, by box, or those that meet both.

    The exit status is 1 if no photo was removed.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    files
        File names in the map, or patterns such as "2019/*.jpg".
    box
        South, west, north and east in degrees.
    """
    from sareloc.maps import Box, remove_photos

    if not files and box is None:
        raise ArgumentError("nothing to remove: give file names, or --box SOUTH WEST NORTH EAST")
    removed = remove_photos(map_path, files=files or (), area=None if box is None else Box(*box))
    if removed:
        print(f"removed {removed:,} photos from {map_path}")
        return 0
    print(f"sareloc: nothing was removed: no photo of {map_path} has such a name or is in the box", file=sys.stderr)
    return 1


def info(map_path: Map, *, as_json: Json = False) -> None:
    """Show the content of a map: photos, extent, times, model, size, local features, calibrations, lost files.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.maps import map_info

    found = map_info(map_path)
    print(json.dumps(asdict(found)) if as_json else table(found))


def verify(map_path: Map) -> int:
    """Check a map's integrity: read all of it and list the problems. The exit status is 1 if there are any.

    Photos whose files no longer exist are listed too; they can still be retrieved and are not a problem of the map.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    """
    from sareloc.maps import find_gone, verify_map

    problems = verify_map(map_path)
    print("\n".join(_listed(problems)) if problems else f"{map_path}: no problems found")
    if not problems:
        _list(GONE, find_gone(map_path))
    return 1 if problems else 0


def compact(map_path: Map) -> None:
    """Free the disk space of removed photos.

    Parameters
    ----------
    map_path
        The map: a file, or a server address such as milvus://host:19530/city.
    """
    from sareloc.maps import compact_map

    before, after = compact_map(map_path)
    print(f"{map_path}: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after")


def copy(source: str, target: str, *, as_json: Json = False) -> None:
    """Copy a map to another file or server, and compare both. If it is interrupted, repeat the command to continue.

    Parameters
    ----------
    source
        The map: a file or a server address.
    target
        The copy: a file, or a server address such as milvus://host:19530/city.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.maps import copy_map

    report = copy_map(source, target)
    if as_json:
        print(json.dumps(asdict(report) | {"source": source, "map": target}))
    else:
        there = report.photos - report.copied
        print(f"{target}: copied {report.copied:,} photos, {there:,} were in it already; checksum {report.checksum}")
        _list_notes(report.notes)


def table(found: MapInfo) -> str:
    """`MapInfo` as lines of text."""
    made = found.manifest
    before = found.whitened_from
    reduced = "" if before is None else f", whitened from {before:,} dimensions by the map's own whitening"
    lines = [
        ("photos", f"{found.photos:,}{_told_views(found)}"),
        ("model", f"{made.model} {made.fingerprint}"),
        (
            "descriptors",
            f"{made.dim} dimensions, {made.storage if found.file_bytes is not None else 'float32'}{reduced}",
        ),
        ("index", found.index),
        ("made by", f"{made.made_by}, format {made.format}"),
    ]
    if found.file_bytes is not None:
        each = found.file_bytes / max(found.photos, 1)
        lines.insert(3, ("file", f"{found.file_bytes / 1e6:,.1f} MB, {each:,.0f} bytes a photo"))
    lines.insert(3, ("features", _told_features(found)))
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


def _told_views(found: MapInfo) -> str:
    return f", of which {found.views:,} are views of {found.panoramas:,} 360° photos" if found.views else ""


def _told_features(found: MapInfo) -> str:
    stored = found.local_features
    if found.file_bytes is None:
        return "none, computed from the photos when matches are verified"
    if stored is None:
        return "none, add them with sareloc map upgrade"
    return f"{stored.keypoints} keypoints, {stored.photos:,} photos, {stored.bytes / 1e6:,.1f} MB"


def _model_for(out: str, model: str | None, device: str | None, precision: Precision) -> PlaceModel:
    """The model to build a map with; default: that of the map if it exists, else one that suits the device."""
    from sareloc.maps import load_map_model, map_backend, open_store
    from sareloc.models.checkpoint import load_model, packaged_for

    if model is None and map_backend(out).exists(out):
        with open_store(out) as store:
            return load_map_model(store.manifest, Path(out).name, None, device, precision)
    return load_model(model or packaged_for(device), device, precision)


def _tell(report: BuildReport, map_path: str, as_json: bool, removed: Sequence[str] = ()) -> int:
    unreadable = [str(error) for error in report.unreadable]
    used = report.added + report.updated + report.already + report.duplicates
    if as_json:
        told: dict[str, Any] = asdict(report) | {"unreadable": unreadable, "map": map_path}
        print(json.dumps(told))
    else:
        print(f"{map_path}: {_counts(report)}")
        for said, photos in (
            ("photos that no longer exist were removed", removed),
            ("duplicates have another position", list(map(str, report.conflicts))),
            ("photos have no position", report.untagged),
            ("photos cannot be read", unreadable),
            (GONE, report.gone),
        ):
            _list(said, photos)
        _list_notes(report.notes)
        if report.untagged and not used:
            print("no photo has a position: give a table with --geotags (file, lat, lon) or a track with --track")
    return 0 if used else 1


def _counts(report: BuildReport) -> str:
    parts = [f"added {report.added:,} photos in {report.seconds:,.1f} s"]
    if report.updated:
        parts.append(f"updated {report.updated:,}")
    parts.append(f"{report.already:,} were in it already")
    if report.duplicates:
        parts.append(f"{report.duplicates:,} duplicate{'s'[: report.duplicates != 1]}")
    if report.panoramas:
        parts.append(f"{report.panoramas:,} 360° photo{'s'[: report.panoramas != 1]} as views")
    if report.features:
        parts.append(f"local features of {report.features:,}")
    return ", ".join(parts)


def _list_notes(notes: Sequence[str]) -> None:
    if notes:
        print("notes:", *(f"  {note}" for note in _listed(notes, NOTES)), sep="\n")


def _list(said: str, photos: Sequence[str]) -> None:
    if photos:
        print(f"{len(photos):,} {said}:", *(f"  {line}" for line in _listed(photos)), sep="\n")


def _listed(lines: Iterable[str], most: int = LISTED) -> list[str]:
    known = list(lines)
    more = len(known) - most
    return known[:most] + ([f"... and {more:,} more (--json lists all)"] if more > 0 else [])
