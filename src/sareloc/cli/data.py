"""`sareloc data`: check a dataset, positions of photos by a track, a synthetic city or a drive through it, views."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sareloc.cli.options import NO_TRACK, NOTES, Device, Flag, Json, Root, Split, Track, Workers, print_notes
from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import replacing
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.adapt import GeotagCheck
    from sareloc.datasets import Check, Places
    from sareloc.photos import TrackOptions
    from sareloc.photos.track_geotags import TrackReport

LISTED = 5
DRAWING_HELP = "Device for rendering: cpu, cuda, cuda:N (GPU number N, from 0), mps. Default: cuda if there is a GPU."


def check(
    dataset: str,
    *,
    root: Root = None,
    split: Split = "test",
    figure: Path | None = None,
    decode: Flag = False,
    sources: Flag = False,
    geometry: Flag = False,
    page: Path | None = None,
    workers: Workers = 2,
    device: Device = None,
    as_json: Json = False,
) -> int:
    """Check a dataset: photos, extent, sources of positions, queries with a positive, missing and unreadable files.

    Of the sources of positions (a table, EXIF, XMP, Takeout JSON, file name), in this order, the first that has one is
    used; positions of others are noted if they are more than 50 m away. With --geometry the photos are compared with
    each other: a photo that agrees with photos of a place more than 100 m away, and with none around its geotag, has a
    suspicious geotag, and is listed with the position that geometry suggests. The exit status is 1 if a file is missing
    or cannot be read.

    Parameters
    ----------
    dataset
        The name of a published dataset, a folder of photos, or a CSV file; with --geometry also a map (.gpkg).
    figure
        Draw a map of database and queries to this file (.png, .svg or .pdf); of a folder without queries, by the
        sources of the positions.
    decode
        Decode every photo instead of reading its header; finds truncated files, takes longer.
    sources
        Also list the source of each photo's position.
    geometry
        Also list suspicious geotags. The photos of a dataset are encoded as for a map: if there is a map of them, give
        that instead.
    page
        Write the suspicious geotags with pictures to this file (.html).
    """
    from sareloc.datasets import check_places, load_dataset
    from sareloc.figures import draw_dataset, save_figure

    if page is not None and not geometry:
        raise ArgumentError("--page shows suspicious geotags: give --geometry too")
    if Path(dataset).suffix.lower() == ".gpkg":
        return _check_map(Path(dataset), page, geometry, device, as_json)
    places = load_dataset(dataset, root, split)
    if figure is not None:
        save_figure(draw_dataset(places), figure)
    found = check_places(places, decode=decode, progress=True)
    by_photo = sources_by_photo(places) if sources else {}
    geotags = None
    if geometry:
        from sareloc.adapt import check_geotags_of_dataset
        from sareloc.maps import MapConfig

        geotags = check_geotags_of_dataset(places, config=MapConfig(workers=workers, device=device))
        _write_page(page, geotags, Path())
    if as_json:
        more = {"sources": by_photo} if sources else {}
        print(json.dumps(found.to_json() | more | ({} if geotags is None else {"geotags": asdict(geotags)})))
    else:
        print(check_table(found, by_photo, decoded=decode))
        if geotags is not None:
            print(*geotag_lines(geotags), sep="\n")
    return 1 if found.missing or found.unreadable else 0


def _check_map(path: Path, page: Path | None, geometry: bool, device: str | None, as_json: bool) -> int:
    """Check the geotags of a map's photos."""
    from sareloc.adapt import check_geotags
    from sareloc.maps import PlaceMap

    if not geometry:
        raise ArgumentError(f"{path} is a map: check its geotags with --geometry, the file with sareloc map verify")
    with PlaceMap(path) as place_map:
        found = check_geotags(place_map, device=device)
    _write_page(page, found, path.parent)
    print(json.dumps({"geotags": asdict(found)}) if as_json else "\n".join(geotag_lines(found)))
    return 0


def _write_page(page: Path | None, found: GeotagCheck, folder: Path) -> None:
    if page is not None:
        from sareloc.figures import write_geotag_page

        write_geotag_page(page, found, folder)


def geotag_lines(found: GeotagCheck) -> list[str]:
    """Suspicious geotags as lines of text."""
    lines = [
        ("geotags", f"{len(found.suspicious):,} suspicious"),
        ("", f"{found.compared:,} of {plural(found.photos, 'photo')} agree with another photo by geometry"),
    ]
    for one in found.suspicious:
        where = ", ".join(f"{number:.5f}" for number in one.suggested)
        agree = plural(len(one.witnesses), "photo", ("agrees", "agree"))
        surely = f"confidence {one.confidence:.2f}, {agree}, such as {one.witnesses[0].photo}"
        lines.append(("", f"{one.photo}: {one.away_m:,.0f} m away at {where} ({surely})"))
    return [f"{name:<12}{value}" for name, value in lines]


def sources_by_photo(places: Places) -> dict[str, str]:
    """The source of each photo's position, by its file; empty for datasets that have their own files of positions."""
    return {
        str(photos.path(row)): source
        for photos in (places.database, places.queries)
        for row, source in enumerate(photos.sources or ())
    }


def check_table(found: Check, by_photo: Mapping[str, str] | None = None, *, decoded: bool = False) -> str:
    """The result of a check as text; `by_photo`: also with these sources of positions."""
    lines = [("dataset", f"{found.name}, split {found.split}"), ("database", plural(found.database, "photo"))]
    lines.append(("queries", _queries(found)))
    lines += [("", published) for published in _published(found)]
    if found.extent is not None:
        lines.append(
            ("extent", f"{found.extent.east_west_m:,.0f} m east-west, {found.extent.south_north_m:,.0f} m north-south")
        )
        if found.extent.south is not None:
            e = found.extent
            lines.append(("", f"latitude {e.south:.5f} to {e.north:.5f}, longitude {e.west:.5f} to {e.east:.5f}"))
    if found.position_sources:
        lines.append(("positions", _sources(found)))
        if set(found.position_sources) != {"file name"}:  # if all names have positions, nothing else is read
            lines.append(("", f"of each photo the first of: {', '.join(_priority())}"))
        lines += [("", f"{file}: {source}") for file, source in (by_photo or {}).items()]
    how = "decoded" if decoded else "opened (--decode also decodes the pixels)"
    lines.append(("files", f"{found.photos - len(found.missing) - len(found.unreadable):,} of {found.photos:,} {how}"))
    lines += _listed("missing", found.missing)
    lines += _listed("unreadable", [f"{file}: {reason}" for file, reason in found.unreadable])
    lines += _listed("left out", [f"{file}: no geotag" for file in found.left_out])
    lines += [("note", note) for note in found.notes[:NOTES]]
    lines += [("", f"and {len(found.notes) - NOTES:,} more (--json lists all)")] if len(found.notes) > NOTES else []
    return "\n".join(f"{name:<12}{value}" for name, value in lines)


def _queries(found: Check) -> str:
    if not found.queries:
        return "none: a dataset without queries can be mapped, not evaluated"
    how = f" within {found.hit_radius_m:g} m" if found.protocol in ("radius", "panorama", "time") else ""
    share = 100 * found.queries_with_positive / found.queries
    return f"{found.queries:,}, of which {found.queries_with_positive:,} ({share:.1f} %) have a positive{how}"


def _sources(found: Check) -> str:
    """Such as "412 EXIF, 31 Takeout JSON, 7 none"."""
    counts = {**found.position_sources, "none": len(found.left_out)}
    return ", ".join(f"{counts[name]:,} {name}" for name in [*_priority(), "none"] if counts.get(name))


def _priority() -> tuple[str, ...]:
    """The sources of positions; the first that has one is used."""
    from sareloc.photos import SOURCES
    from sareloc.photos.finding import TABLE

    return (TABLE, *(name for name, _ in SOURCES))


def _published(found: Check) -> list[str]:
    from sareloc.datasets import DATASETS

    counts = DATASETS[found.name].splits.get(found.split) if found.name in DATASETS else None
    if counts is None or counts == (found.database, found.queries):
        return []
    return [f"(the published dataset has {counts[0]:,} database photos and {counts[1]:,} queries)"]


def _listed(name: str, values: tuple[str, ...] | list[str]) -> list[tuple[str, str]]:
    if not values:
        return []
    rest = [("", f"and {len(values) - LISTED:,} more (--json lists all)")] if len(values) > LISTED else []
    return [(name, f"{len(values):,}"), *(("", value) for value in values[:LISTED]), *rest]


def draw(
    out: Path,
    *,
    seed: int = 0,
    size: Literal["small", "medium", "large"] = "small",
    split: Literal["train", "val", "test", "all"] = "all",
    photo: str | None = None,
    panoramas: Flag = False,
    device: Annotated[str | None, Parameter(help=DRAWING_HELP)] = None,
) -> None:
    """Render a synthetic city as a dataset, with the exact position of every photo in its file name and EXIF.

    An interrupted run is resumed.

    Parameters
    ----------
    out
        The folder in which images/{train,val,test}/{database,queries}/ are written.
    seed
        Random seed of the city.
    size
        Database photos + queries per split: small 150 + 50, medium 3,000 + 1,000, large 10,008 + 7,000.
    split
        The split to write; the splits do not overlap.
    photo
        Height and width in pixels, such as 480x640. Default: 240x320 for small, 480x640 for medium and large.
    panoramas
        Write the database as 360° photos (equirectangular, with GPano tags) instead of the views cut from them.
    """
    from sareloc.city import draw_places
    from sareloc.models.preprocess import TORCH_DEVICES, find_device

    splits = ("train", "val", "test") if split == "all" else (split,)
    photo_size = None if photo is None else _frame_size(photo, "--photo")
    where = find_device(device, TORCH_DEVICES)
    written = draw_places(
        out, seed, size, splits=splits, photo_size=photo_size, panoramas=panoramas, device=where, progress=True
    )
    print(f"{plural(written, 'photo')} written to {out / 'images'}")


def views(
    pano: Path,
    out: Path,
    *,
    yaw: Annotated[tuple[float, ...] | None, Parameter(consume_multiple=True)] = None,
    pitch: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (0.0,),
    fov: float = 60.0,
    size: str = "640x480",
    panorama: Flag = False,
) -> None:
    """Cut a 360° photo into perspective views and write them as JPEGs with position, heading and focal length.

    Parameters
    ----------
    pano
        An equirectangular 360° photo with GPano tags, full or partial.
    out
        The folder in which the views are written: PANO_yaw000_pitch+00.jpg, ...
    yaw
        Directions of the views in degrees from the middle of the panorama, to the right. Default: twelve, 0 30 60 ...
    pitch
        Angles above the horizon in degrees; all yaws are cut at each.
    fov
        Horizontal field of view in degrees.
    size
        Width and height of a view in pixels, such as 640x480, or one number for a square.
    panorama
        Treat a photo without GPano tags as a full sphere; it must be 2:1.
    """
    from sareloc.photos import ViewOptions, write_views

    width, height = _view_size(size)
    options = ViewOptions(yaw or ViewOptions.yaw_deg, pitch, fov, width, height)
    written, left_out = write_views(pano, out, options, assume=panorama)
    print(f"{plural(len(written), 'view')} written to {out}")
    if left_out:
        shown = ", ".join(f"{view.yaw_deg:g}/{view.pitch_deg:g}" for view in left_out[:LISTED])
        more = f" and {len(left_out) - LISTED} more" if len(left_out) > LISTED else ""
        print(f"{len(left_out):,} not inside the partial panorama (yaw/pitch): {shown}{more}")


def _view_size(text: str) -> tuple[int, int]:
    width, by, height = text.partition("x")
    if not by:
        height = width
    if not (width.isdecimal() and height.isdecimal()):
        raise ArgumentError(f"--size must be the width and height in pixels, such as 640x480 or 512: found {text!r}")
    return int(width), int(height)


def drive(
    out: Path,
    *,
    seed: int = 0,
    size: Literal["small", "medium", "large"] = "small",
    split: Literal["train", "val", "test"] = "test",
    number: int = 0,
    seconds: float = 60.0,
    fps: float = 10.0,
    frame: str = "270x480",
    weather: str = "clear",
    clock_offset_s: Annotated[float, Parameter(name="--clock-offset")] = -3.2,
    gps_noise_m: float = 1.5,
    device: Annotated[str | None, Parameter(help=DRAWING_HELP)] = None,
) -> None:
    """Render a drive through a synthetic city: a video, a GPX track by another clock, and the exact pose of each frame.

    Writes drive.mp4, drive.gpx, truth.csv and drive.json. The town is that of `data draw` with the same seed, size and
    split, so that a map of its database localizes the frames. Needs the extra `video`.

    Parameters
    ----------
    out
        The folder to write to.
    seed
        Random seed of the city.
    size
        Size of the city, as for `data draw`.
    split
        The split whose town is driven through.
    number
        Number of the route: other routes are on other days in the same town.
    seconds
        Length of the video.
    fps
        Frames per second.
    frame
        Height and width of a frame in pixels; even numbers.
    weather
        clear, low sun, overcast, rain, fog, snow, dusk, night or wet night.
    clock_offset_s
        Seconds to add to the camera's clock to get the track's time: negative if the camera's clock is fast.
    gps_noise_m
        Standard deviation in metres of the track's error to the east and to the north.
    """
    from sareloc.city import draw_drive, make_drive
    from sareloc.models.preprocess import TORCH_DEVICES, find_device

    where = find_device(device, TORCH_DEVICES)
    found = make_drive(
        seed, size, split, number=number, seconds=seconds, fps=fps, weather=weather, clock_offset_s=clock_offset_s,
        gps_noise_m=gps_noise_m,
    )  # fmt: skip
    draw_drive(found, out, frame_size=_frame_size(frame, "--frame"), device=where, progress=True)
    print(f"{plural(len(found.poses), 'frame')} and {plural(len(found.track_times), 'track point')} written to {out}")


def _frame_size(text: str, option: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ArgumentError(f"{option} must be height x width in pixels, such as 480x640: found {text!r}")
    return int(height), int(width)


def track(
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    out: Path,
    tracks: Annotated[Track, Parameter(show=True)] = NO_TRACK,
    figure: Path | None = None,
    replace: Flag = False,
    as_json: Json = False,
) -> int:
    """Write the positions of photos on a GPS track to a table, by their EXIF times, or the track inside videos to GPX.

    The photos are not changed.

    Photos that have a position (in a geotags.csv or geotags.geojson in the folder, in EXIF, in a sidecar or in the file
    name) keep it and are not in the table. The exit status is 1 if no photo got a position; then nothing is written.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or single photos; or videos whose track is written.
    out
        Of videos: the track inside them (.gpx). Of photos: the table (.csv): file, lat, lon, heading, time, and the
        distances to the nearest track point, track_s and track_m. As geotags.csv in the folder of the photos it is read
        by map build; elsewhere name it with --geotags.
    figure
        Draw the track and the photos on it to this file (.png, .svg or .pdf).
    replace
        Overwrite the table if it exists; positions that it gave to photos are determined again.
    """
    from sareloc.photos import is_video
    from sareloc.photos.collect import list_photos, read_tables
    from sareloc.photos.finding import NOT_UTF8, is_utf8
    from sareloc.photos.track_geotags import TrackOptions, geotags_by_options, track_geotags_csv

    options, of_videos = TrackOptions(**vars(tracks)), any(map(is_video, photos))
    if of_videos and not all(map(is_video, photos)):
        raise ArgumentError("give photos or videos: of videos the track inside is written, of photos a table")
    if out.suffix.lower() != (".gpx" if of_videos else ".csv"):
        wanted = "the track of videos must end in .gpx" if of_videos else "the table must end in .csv"
        raise ArgumentError(f"{wanted}: found {out}")
    if out.exists() and not replace:
        raise ArgumentError(f"{out} exists: give another --out, or --replace")
    if of_videos:
        return _write_track(photos, options, out, as_json)
    listed = list(dict.fromkeys(list_photos(photos)))
    tables = read_tables(_without_table(photos, out), None, listed)
    report = geotags_by_options(listed, options, tables.tags)
    written = [one for one in report.placed if is_utf8(os.path.relpath(one.photo, out.parent))]
    print_notes(str(PhotoError(one.photo, NOT_UTF8)) for one in report.placed if one not in written)
    if written:
        with replacing(out) as beside:
            beside.write_text(track_geotags_csv(written, out.parent), encoding="utf-8")
    if figure is not None:
        from sareloc.figures import draw_track, save_figure

        save_figure(draw_track(report), figure)
    print(json.dumps(_to_json(report, out if written else None)) if as_json else _table(report, tables.notes, out))
    return 0 if written else 1


def _write_track(videos: Sequence[Path], options: TrackOptions, out: Path, as_json: bool) -> int:
    """Write the track inside videos, and print how many positions it has, their accuracy and their clock."""
    from sareloc.photos.track_geotags import tracks_in_videos
    from sareloc.photos.tracks import gpx_of_track

    found = tracks_in_videos(videos, options)
    with replacing(out) as beside:
        beside.write_text(gpx_of_track(found), encoding="utf-8")
    first, last = (float(time) for time in found.times[[0, -1]])
    written = {"track": str(out), "points": len(found), "start": first, "end": last, "notes": list(found.notes)}
    print(json.dumps(written) if as_json else "\n".join([*found.notes, f"{found} written to {out}"]))
    return 0


def _without_table(photos: Sequence[Path], out: Path) -> list[Path]:
    """The folders whose tables give positions: not that of the table to be replaced."""
    from sareloc.photos.finding import TABLES

    replaced = os.path.realpath(out.parent) if out.name in TABLES else None
    return [folder for folder in photos if os.path.realpath(folder) != replaced]


def _table(report: TrackReport, notes: Sequence[str], out: Path) -> str:
    lines = [str(one) for one in report.placed]
    lines += [f"{photo}: no position, {reason}" for photo, reason in report.untagged]
    lines += [f"note: {note}" for note in (*notes, *report.notes)]
    lines.append(report.summary() + (f"; written to {out}" if report.placed else "; nothing was written"))
    return "\n".join(lines)


def _to_json(report: TrackReport, out: Path | None) -> dict[str, Any]:
    return {
        "table": None if out is None else str(out),
        "clock_offset_s": report.clock_offset_s,
        "estimated": report.estimate is not None,
        "placed": [
            {
                "photo": str(one.photo),
                "lat": one.geotag.latlon[0],
                "lon": one.geotag.latlon[1],
                "heading_deg": one.geotag.heading_deg,
                "time": one.geotag.time,
                "track_s": one.nearest_s,
                "track_m": one.nearest_m,
            }
            for one in report.placed
        ],
        "own": [str(photo) for photo in report.own],
        "untagged": [{"photo": str(photo), "reason": reason} for photo, reason in report.untagged],
        "notes": list(report.notes),
    }
