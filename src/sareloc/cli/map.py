"""`sareloc map`: build, add, sync, upgrade, remove, info, verify, compact, copy, adapt. A map: a file or a server
address."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sareloc.cli.map_text import (
    adapt_text,
    copy_text,
    first_of,
    info_text,
    listing_line,
    problems_text,
    report_text,
    upgrade_text,
)
from sareloc.cli.options import MAP, NO_TRACK, Device, Flag, Json, Precision, Track, Workers
from sareloc.errors import ArgumentError
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.maps import BuildReport, CopyReport, FeaturesReport, MapConfig


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
        from sareloc.config_files import read_options
        from sareloc.maps import MapConfig
        from sareloc.photos import ViewOptions

        options = {"workers": WORKERS} | ({} if self.config is None else read_options(self.config, MapConfig))
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
    from sareloc.photos import is_url

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
    show(report, as_json, report_text(report, out), map=out)
    return 0 if report.used else 1


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

    The exit status is 1 if no photo has a position, nor one that sareloc estimated, which is left out.
    """
    from sareloc.maps import add_photos

    config, track = options.map_config(views), options.track.options()
    report = add_photos(photos, map_path, model, geotags=options.geotags, track=track, config=config)
    show(report, as_json, report_text(report, map_path), map=map_path)
    return 0 if report.used or report.estimated else 1


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
    show(report, as_json, report_text(report, map_path), map=map_path)


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
    show(report, as_json, upgrade_text(report, map_path), map=map_path)


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
        print(*(f"  {name}" for name in first_of(removed, "")), sep="\n")
        return 0
    print(f"sareloc: nothing was removed: no photo of {map_path} has such a name or is in the box", file=sys.stderr)
    return 1


def info(map_path: Map, *, as_json: Json = False) -> None:
    """Show the content of a map: photos, extent, times, model, size, local features, calibrations, missing files."""
    from sareloc.maps import map_info

    found = map_info(map_path)
    print(json.dumps(asdict(found)) if as_json else info_text(found))


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
        if not as_json:
            print(listing_line(path.name, known))
            continue
        box = None if known.extent is None else asdict(known.extent)
        made = {"name": path.name, "photos": known.photos, "model": known.manifest.model, "extent": box}
        stored = known.local_features
        print(json.dumps(made | {"keypoints": None if stored is None else stored.keypoints}))
    if not found:
        print(f"sareloc: {folder} has no maps (.gpkg)", file=sys.stderr)
    return 0 if found else 1


def verify(map_path: Map) -> int:
    """Check a map's integrity: read all of it and list the problems. The exit status is 1 if there are any.

    Photos whose files no longer exist are listed too; they can still be retrieved and are not a problem of the map.
    """
    from sareloc.maps import find_gone, verify_map

    problems = verify_map(map_path)
    print(problems_text(map_path, problems, [] if problems else find_gone(map_path)))
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
    show(report, as_json, copy_text(report, target), source=source, map=target)


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
    """Learn from the photos of a map how they are best compared, test it on parts held out, and write an adapted map.

    Photos that geometry verifies as showing the same thing, and relit copies of photos, say what differs between photos
    of one place; the search is made to ignore it. Each third of the area, by position, is held out once: the adapted
    map is written only if the 95 % interval of the gain of recall@1 there is above zero, and no interval, also of
    correct answers and of rejections of absent photos, is below zero. The map itself is not changed. If it is
    interrupted, repeat the command to continue.

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
    print(json.dumps(report.to_json()) if as_json else adapt_text(report))


def show(report: BuildReport | FeaturesReport | CopyReport, as_json: bool, text: str, **maps: str) -> None:
    """Print a report: as JSON, with the names of its maps, or as text."""
    print(json.dumps(asdict(report) | maps, default=str) if as_json else text)
