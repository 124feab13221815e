"""`sareloc map`: build, add, sync, upgrade, remove, info, verify, compact, copy, adapt. A map: a file or a server
address."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sareloc.cli.options import MAP, NO_TRACK, Device, Flag, Json, Precision, Track, Workers
from sareloc.errors import ArgumentError
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.adapt import AdaptReport
    from sareloc.maps import BuildReport, MapConfig, MapInfo


LISTED = 10
GONE = ("no longer exists; it stays in the map until map sync", "no longer exist; they stay in the map until map sync")
LEFT_OUT = "estimated by sareloc: left out; --trust-estimates takes"
ESTIMATED = (f"holds a position {LEFT_OUT} it", f"hold positions {LEFT_OUT} them")
FILES_OWN = "(--restore: the positions of the files)"
KEPT_EDITS = (f"keeps what was edited in the map {FILES_OWN}", f"keep what was edited in the map {FILES_OWN}")
NOT_ADDED = "removed from the map before, not added again (--restore adds"
KEPT_REMOVALS = (f"was {NOT_ADDED} it)", f"were {NOT_ADDED} them)")
RESTORED = ("is again as its file says", "are again as their files say")
Map = Annotated[str, MAP]
Photos = Annotated[list[Path], Parameter(negative=(), help="Folders of photos, with their subfolders, or photos.")]


@dataclass(frozen=True)
class RareOptions:
    """Options of `MapConfig` that help does not show: they are keys of the file of --config, or given here."""

    dim: int | None = None
    storage: Literal["float16", "float32", "int8"] | None = None
    batch: int | None = None
    precision: Precision | None = None


@dataclass(frozen=True)
class CutOptions:
    """How 360° photos are cut into views: `ViewOptions`."""

    panorama: Flag = False
    view_yaw: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True)] = None
    view_pitch: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True)] = None
    view_fov: float | None = None


Rare = Annotated[RareOptions, Parameter(name="*", show=False)]
Cut = Annotated[CutOptions, Parameter(name="*", show=False)]
MapTrack = Annotated[Track, Parameter(show=False)]
"""The options of tracks, of which help shows --track alone; all are in the help of sareloc data track."""
NO_RARE, NO_CUT = RareOptions(), CutOptions()
WORKERS = 2


@dataclass(frozen=True)
class PhotoOptions:
    """Where the positions of photos come from, and how photos are encoded."""

    geotags: Path | None = None
    """Table of positions: CSV (file, lat, lon, heading, time), GeoJSON, Mapillary. Default: geotags.csv in the folder,
    else EXIF, XMP, Takeout JSON, file names."""
    track: MapTrack = NO_TRACK
    workers: int | None = None
    """Processes that decode photos; 0: no other process. Default: 2."""
    device: Device = None
    trust_estimates: Flag = False
    """Also use positions that sareloc estimated (geotag); by default they are left out."""
    restore: Flag = False
    """Read positions that were edited in the map from the files again, and add removed photos again."""
    config: Annotated[Path | None, Parameter(name="--config")] = None
    """TOML file of other options (dim, storage, batch, precision, views, ...)."""
    rare: Rare = NO_RARE

    def map_config(self, cut: CutOptions = NO_CUT, **given: int | None) -> MapConfig:
        """The options of a map: those given on the command line, else those of the file, else the defaults."""
        from sareloc.maps import MapConfig
        from sareloc.maps.config import read_map_config
        from sareloc.photos import ViewOptions

        options = {"workers": WORKERS} | ({} if self.config is None else read_map_config(self.config))
        chosen = vars(self.rare) | {"workers": self.workers, "device": self.device, "restore": self.restore or None}
        chosen |= given
        options |= {name: value for name, value in chosen.items() if value is not None}
        options |= {"trust_estimates": True} if self.trust_estimates else {}
        if cut != NO_CUT:
            angles = {"yaw_deg": cut.view_yaw, "pitch_deg": cut.view_pitch, "fov_deg": cut.view_fov}
            views: dict[str, Any] = {name: value for name, value in angles.items() if value is not None}
            if cut.panorama:
                views["untagged"] = True
            options["views"] = replace(options.get("views") or ViewOptions(), **views)
        return MapConfig(**options)


NO_OPTIONS = PhotoOptions()
Options = Annotated[PhotoOptions, Parameter(name="*")]
MapModel = Annotated[
    str | None,
    Parameter(help="The checkpoint that the map was built with. Default: the packaged model that it was built with."),
]


def build(
    photos: Annotated[list[str], Parameter(negative=())],
    *,
    out: str,
    model: str | None = None,
    keypoints: int | None = None,
    views: Cut = NO_CUT,
    cluster: str | None = None,
    options: Options = NO_OPTIONS,
    as_json: Json = False,
) -> int:
    """Build a map of geotagged photos. If it is interrupted, repeat the command to continue.

    The exit status is 1 if no photo has a position.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or photos; with --cluster also URLs (s3://bucket/photos).
    out
        A GeoPackage file (.gpkg), which QGIS can open, or an address such as milvus://host:19530/city.
    model
        A packaged model, a checkpoint, or a published file. Default: that of the map if it exists, else fast, or
        default on a GPU.
    keypoints
        Keypoints of a photo's local features, up to 4096; 0: none. Default: 1024.
    cluster
        A Ray cluster: ray://host:10001 or ray://local.
    """
    from sareloc.photos.finding import is_url

    config, track = options.map_config(views, keypoints=keypoints), options.track.options()
    report: BuildReport
    if cluster is not None:
        from sareloc.cluster.build import build_map_on_cluster

        report = build_map_on_cluster(
            photos, out, model, cluster=cluster, geotags=options.geotags, track=track, config=config
        )
    else:
        from sareloc.maps import build_map

        if remote := [photo for photo in photos if is_url(photo)]:
            raise ArgumentError(f"{remote[0]} is a URL, not a folder: read URLs with --cluster ray://local")
        report = build_map(photos, out, model, geotags=options.geotags, track=track, config=config)
    return print_report(report, out, as_json)


def add(
    map_path: Map,
    photos: Photos,
    *,
    model: MapModel = None,
    views: Cut = NO_CUT,
    options: Options = NO_OPTIONS,
    as_json: Json = False,
) -> int:
    """Add photos to a map. Photos that are in it are updated if their position, name or content has changed.

    The exit status is 1 if no photo has a position.
    """
    from sareloc.maps import add_photos

    config, track = options.map_config(views), options.track.options()
    report = add_photos(photos, map_path, model, geotags=options.geotags, track=track, config=config)
    return print_report(report, map_path, as_json)


def sync(
    map_path: Map,
    photos: Photos,
    *,
    dry_run: Flag = False,
    allow_empty: Flag = False,
    model: MapModel = None,
    options: Options = NO_OPTIONS,
    as_json: Json = False,
) -> None:
    """Synchronize a map with folders of photos.

    New photos are added; photos whose name, content or position has changed are updated; photos of the map that were in
    these folders and no longer exist are removed. Photos of the map outside of these folders are not changed.

    Parameters
    ----------
    dry_run
        Only print what would be done.
    allow_empty
        Accept folders that do not exist or have no photos, and remove all photos of the map that were in them.
    """
    from sareloc.maps import sync_map

    report = sync_map(
        photos, map_path, model, geotags=options.geotags, track=options.track.options(), allow_empty=allow_empty,
        dry_run=dry_run, config=options.map_config(),
    )  # fmt: skip
    if dry_run and not as_json:
        print("dry run, nothing was written; without --dry-run the report would be:")
    print_report(report, map_path, as_json)


def upgrade(
    map_path: Map,
    *,
    keypoints: int | None = None,
    workers: Workers = 2,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Add the local features that a map lacks, also to its search vectors. If it is interrupted, repeat it to continue.

    A map of an older format is brought to the present one. Photos that cannot be read, that have changed since they
    were added, or that are behind URLs are listed. Aggregated local features are added to the search vectors without
    reading a photo; calibrations that were fitted before are then removed.

    Parameters
    ----------
    keypoints
        Keypoints of each photo, 1 to 4096. Default: those of the map, 1024 if it has none.
    """
    from sareloc.maps import add_local_features

    report = add_local_features(map_path, keypoints=keypoints, device=device, workers=workers)
    unreadable = [str(error) for error in report.unreadable]
    if as_json:
        print(json.dumps(asdict(report) | {"unreadable": unreadable, "map": map_path}))
        return
    print(
        f"{map_path}: added local features of {plural(report.added, 'photo')}, up to {report.keypoints} keypoints "
        f"each, in {report.seconds:,.1f} s; {report.already:,} had them already"
    )
    if report.aggregated:
        of = plural(report.aggregated, "photo")
        print(f"{map_path}: search vectors of {of} have aggregated local features now")
    _list(("still has none", "still have none"), unreadable)
    _list_notes(report.notes)


def remove(
    map_path: Map,
    files: Annotated[list[str] | None, Parameter(negative=())] = None,
    *,
    box: tuple[float, float, float, float] | None = None,
    dry_run: Flag = False,
) -> int:
    """Remove photos from a map, by file name, by box, or those that meet both. The files are not deleted.

    map build, add and sync do not add them again, unless with --restore. The exit status is 1 if no photo was removed.

    Parameters
    ----------
    files
        File names in the map, or patterns such as "2019/*.jpg".
    box
        South, west, north and east in degrees.
    dry_run
        Only print what would be removed.
    """
    from sareloc.maps import Box, remove_photos

    if not files and box is None:
        raise ArgumentError("nothing to remove: give file names, or --box SOUTH WEST NORTH EAST")
    area = None if box is None else Box(*box)
    removed = remove_photos(map_path, files=files or (), area=area, dry_run=dry_run)
    if removed:
        print(f"{'would remove' if dry_run else 'removed'} {plural(len(removed), 'photo')} from {map_path}")
        print(*(f"  {name}" for name in _listed(removed)), sep="\n")
        return 0
    print(f"sareloc: nothing was removed: no photo of {map_path} has such a name or is in the box", file=sys.stderr)
    return 1


def info(map_path: Map, *, as_json: Json = False) -> None:
    """Show the content of a map: photos, extent, times, model, size, local features, calibrations, missing files."""
    from sareloc.maps import map_info

    found = map_info(map_path)
    print(json.dumps(asdict(found)) if as_json else table(found))


def list_command(folder: Path, *, as_json: Json = False) -> int:
    """List the maps in a folder: photos, model, area and local features of each. The exit status is 1 if there is none.

    With --json: one object a line for each map: name, photos, model, extent and keypoints, or name and problem.

    Parameters
    ----------
    folder
        Folder of map files (.gpkg); its subfolders are not searched.
    """
    from sareloc.maps import MapInfo, list_maps

    found = list_maps(folder)
    for path, known in found.items():
        if not isinstance(known, MapInfo):
            print(json.dumps({"name": path.name, "problem": str(known)}) if as_json else f"{path.name}: {known}")
            continue
        keypoints = None if known.local_features is None else known.local_features.keypoints
        box = None if known.extent is None else asdict(known.extent)
        made = {"name": path.name, "photos": known.photos, "model": known.manifest.model, "extent": box}
        area = "no area" if box is None else "{south:.4f}, {west:.4f} to {north:.4f}, {east:.4f}".format(**box)
        features = "no local features" if keypoints is None else plural(keypoints, "keypoint")
        line = f"{path.name:<24}  {plural(known.photos, 'photo')}  model {known.manifest.model}  {area}  {features}"
        print(json.dumps(made | {"keypoints": keypoints}) if as_json else line)
    if not found:
        print(f"sareloc: {folder} has no maps (.gpkg)", file=sys.stderr)
    return 0 if found else 1


def verify(map_path: Map) -> int:
    """Check a map's integrity: read all of it and list the problems. The exit status is 1 if there are any.

    Photos whose files no longer exist are listed too; they can still be retrieved and are not a problem of the map.
    """
    from sareloc.maps import find_gone, verify_map

    problems = verify_map(map_path)
    print("\n".join(_listed(problems)) if problems else f"{map_path}: no problems found")
    if not problems:
        _list(GONE, find_gone(map_path))
    return 1 if problems else 0


def compact(map_path: Map) -> None:
    """Free the disk space of removed photos."""
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
    """
    from sareloc.maps import copy_map

    report = copy_map(source, target)
    if as_json:
        print(json.dumps(asdict(report) | {"source": source, "map": target}))
    else:
        there = report.photos - report.copied
        print(f"{target}: copied {plural(report.copied, 'photo')}, {_already(there)}; checksum {report.checksum}")
        _list_notes(report.notes)


def adapt(
    map_path: Map,
    *,
    out: Path,
    photos: Annotated[tuple[Path, ...], Parameter(negative=(), consume_multiple=True)] = (),
    model: MapModel = None,
    seed: int = 0,
    workers: Workers = 2,
    device: Device = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Learn from the photos of a map how they are best compared, prove it on parts held out, and write an adapted map.

    Photos that geometry verifies as showing the same thing, and relit copies of photos, say what differs between photos
    of one place; the search is made to ignore it. Each third of the area, by position, is held out once: the adapted
    map is written only if recall@1 there surely rises and neither correct answers nor rejections of absent photos
    surely fall. The map itself is not changed. If it is interrupted, repeat the command to continue.

    Parameters
    ----------
    out
        The folder to write, which must not exist: the adapted map, of the same name, and adaptation.json. It is used,
        extended and adapted again like any map.
    photos
        Photos without positions, or folders of them, such as earlier queries or a drive by night: those that the map
        places with confidence are learnt from too.
    seed
        Random seed of the parts that are held out, and of the relit copies.
    """
    from sareloc.adapt import adapt_map
    from sareloc.photos.collect import list_photos

    report = adapt_map(
        map_path, out, photos=list_photos(photos) if photos else (), model=model, seed=seed, device=device,
        precision=precision, workers=workers, say=lambda line: print(f"sareloc: {line}", file=sys.stderr),
    )  # fmt: skip
    print(json.dumps(asdict(report)) if as_json else adapt_table(report))


def adapt_table(report: AdaptReport) -> str:
    """The report of an adaptation as text."""
    lines = [
        f"{report.photos:,} photos, {report.verified:,} verified pairs, {report.refuted:,} look-alikes refuted, "
        f"{report.relit:,} photos relit, {report.placed:,} of {report.given:,} photos without positions placed",
        f"{'each third of the area held out, %':44}{'before':>8}{'after':>8}   95 % of the difference",
    ]
    for one in report.proved:
        lines.append(f"{one.kind}, {one.recall_1.queries:,} queries")
        for name, gain in (
            ("recall@1 without verification", one.recall_1),
            ("answered and correct, verified", one.answered),
            ("absent photos rejected", one.rejected),
        ):
            if gain is not None:
                lines.append(
                    f"  {name:42}{gain.before:>8.1f}{gain.after:>8.1f}   {gain.low:+.1f} to {gain.high:+.1f}"
                    + f" ({gain.queries:,} queries)" * (gain.queries != one.recall_1.queries)
                )
    mean, low, high = report.mean_gain
    lines.append(f"mean gain of recall@1: {mean:+.1f} points, {low:+.1f} to {high:+.1f}; {report.seconds / 60:.1f} min")
    if suspicious := len(report.geotags.suspicious):
        lines.append(f"{suspicious:,} geotags are suspicious: sareloc data check MAP --geometry lists them")
    lines += [f"note: {note}" for note in report.notes]
    if report.map is None:
        lines.append(f"nothing was written, the map stays as it is: {report.kept_because}")
    else:
        lines.append(f"{report.map}: {report.directions} directions of the search vector were shortened")
    return "\n".join(lines)


def table(found: MapInfo) -> str:
    """`MapInfo` as lines of text."""
    made = found.manifest
    before = found.whitened_from
    reduced = "" if before is None else f", whitened from {before:,} dimensions by the map's own whitening"
    lines = [
        ("photos", f"{found.photos:,}{_views_text(found)}"),
        ("model", f"{made.model} {made.fingerprint}"),
        (
            "descriptors",
            f"{made.dim} dimensions, {made.storage if found.file_bytes is not None else 'float32'}{reduced}",
        ),
        ("search vector", _vector_text(found)),
        ("index", found.index),
        ("made by", f"{made.made_by}, format {made.format}"),
    ]
    if found.file_bytes is not None:
        each = found.file_bytes / max(found.photos, 1)
        lines.insert(4, ("file", f"{found.file_bytes / 1e6:,.1f} MB, {each:,.0f} bytes a photo"))
    lines.insert(4, ("features", _features_text(found)))
    if found.extent is not None:
        e = found.extent
        lines.append(("latitude", f"{e.south:.5f} to {e.north:.5f}"))
        lines.append(("longitude", f"{e.west:.5f} to {e.east:.5f}"))
    if found.first is not None:
        lines.append(("taken", f"{found.first} to {found.last}"))
    if found.edited:
        lines.append(("edited", f"{plural(len(found.edited), 'photo')} by other programs, such as {found.edited[0]}"))
    if found.removed:
        lines.append(("removed", f"{plural(found.removed, 'photo')}, not added again without --restore"))
    if found.unusable:
        lines.append(("left out", f"{plural(len(found.unusable), 'photo')}, such as {found.unusable[0]}"))
    for one in found.calibrations:
        fitted = (
            "cannot be read"
            if one.origin == "unreadable"
            else f"fitted on {plural(one.photos, 'photo')} ({one.origin})"
        )
        lines.append(("calibrated", f"search {one.search}, {fitted}"))
    if found.gone:
        lines.append(
            ("missing", f"the files of {plural(len(found.gone), 'photo')} no longer exist, such as {found.gone[0]}")
        )
    return "\n".join(f"{name:<15}{value}" for name, value in lines)


def _views_text(found: MapInfo) -> str:
    return f", of which {found.views:,} are views of {plural(found.panoramas, '360° photo')}" if found.views else ""


def _vector_text(found: MapInfo) -> str:
    made = found.manifest
    if made.aggregate_dim:
        return f"{made.dim} + {made.aggregate_dim} dimensions: descriptor and aggregated local features"
    upgrade = "" if found.local_features is None else "; add aggregated local features with sareloc map upgrade"
    return f"{made.dim} dimensions: the descriptor{upgrade}"


def _features_text(found: MapInfo) -> str:
    stored = found.local_features
    if stored is None and found.file_bytes is None:
        return "none, computed from the photos when matches are verified"
    if stored is None:
        return "none, add them with sareloc map upgrade"
    size = "" if stored.bytes is None else f", {stored.bytes / 1e6:,.1f} MB"
    return f"{stored.keypoints} keypoints, {plural(stored.photos, 'photo')}{size}"


def print_report(report: BuildReport, map_path: str, as_json: bool) -> int:
    """Print what was done with the photos; the exit status: 1 if none of them is in the map."""
    unreadable = [str(error) for error in report.unreadable]
    used = report.added + report.updated + report.already + report.duplicates + len(report.kept_removals)
    if as_json:
        print(json.dumps(asdict(report) | {"unreadable": unreadable, "map": map_path}))
    else:
        print(f"{map_path}: {_counts(report)}")
        for verb, photos in (
            *_changes(report),
            (("has no position", "have no position"), report.untagged),
            (("cannot be read", "cannot be read"), unreadable),
            (KEPT_EDITS, report.kept_edits),
            (KEPT_REMOVALS, report.kept_removals),
            (RESTORED, report.restored),
            (GONE, report.gone),
            (ESTIMATED, report.estimated),
        ):
            _list(verb, photos)
        _list(("", ""), list(map(str, report.duplicate_photos)), "duplicate")
        _list_notes(report.notes)
        if report.untagged and not used:
            print("no photo has a position: give a table with --geotags (file, lat, lon) or a track with --track")
    return 0 if used else 1


def _counts(report: BuildReport) -> str:
    parts = [f"added {plural(report.added, 'photo')} in {report.seconds:,.1f} s"]
    if report.updated:
        parts.append(f"updated {report.updated:,}")
    parts.append(_already(report.already))
    if report.duplicates:
        parts.append(plural(report.duplicates, "duplicate"))
    if report.panoramas:
        parts.append(f"{plural(report.panoramas, '360° photo')} as views")
    if report.features:
        parts.append(f"local features of {report.features:,}")
    return ", ".join(parts)


def _already(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'} in it already"


def _changes(report: BuildReport) -> Iterator[tuple[tuple[str, str], Sequence[str]]]:
    """What `sync` removed, and what a dry run of it would do, each with its verb."""
    from sareloc.maps import SyncReport

    if isinstance(report, SyncReport):
        if report.dry_run:
            yield ("would be added",) * 2, report.added_photos
            yield ("would be updated",) * 2, report.updated_photos
            yield ("that no longer exists would be removed", "that no longer exist would be removed"), report.removed
        else:
            yield ("that no longer exists was removed", "that no longer exist were removed"), report.removed


def _list_notes(notes: Sequence[str]) -> None:
    if notes:
        print("notes:", *(f"  {note}" for note in _listed(notes)), sep="\n")


def _list(verb: tuple[str, str], photos: Sequence[str], what: str = "photo") -> None:
    """Print how many photos, with the verb for one or for several, and the first of them."""
    if photos:
        heading = plural(len(photos), what, verb).rstrip()
        print(f"{heading}:", *(f"  {line}" for line in _listed(photos)), sep="\n")


def _listed(lines: Iterable[str]) -> list[str]:
    known = list(lines)
    more = len(known) - LISTED
    return known[:LISTED] + ([f"... and {more:,} more (--json lists all)"] if more > 0 else [])
