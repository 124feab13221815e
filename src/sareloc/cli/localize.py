"""`sareloc localize`: where photos were taken."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sareloc.cli.options import (
    DEFAULT_CONDITION,
    DEFAULT_LOCALIZER,
    NO_VIDEO,
    ConditionFlags,
    Flag,
    MapPath,
    Opened,
    Videos,
    localize_files,
    print_notes,
    report_unreadable,
)
from sareloc.errors import ArgumentError, PhotoError
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.geo import Area
    from sareloc.localize import Fix, VideoWalk


def localize_command(
    place_map: MapPath,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    top: int = 5,
    min_confidence: float = 0.5,
    box: Annotated[tuple[float, float, float, float] | None, Parameter(negative=())] = None,
    circle: Annotated[tuple[float, float, float] | None, Parameter(negative=())] = None,
    walk_step_m: float | None = None,
    of_videos: Videos = NO_VIDEO,
    panorama: Flag = False,
    centred: ConditionFlags = DEFAULT_CONDITION,
    options: Opened = DEFAULT_LOCALIZER,
    as_json: Annotated[Flag, Parameter(name="--json")] = False,
    as_geojson: Annotated[Flag, Parameter(name="--geojson")] = False,
    as_csv: Annotated[Flag, Parameter(name="--csv")] = False,
    as_gpx: Annotated[Flag, Parameter(name="--gpx")] = False,
    as_kml: Annotated[Flag, Parameter(name="--kml")] = False,
) -> int:
    """Localize photos, or the frames of a video, in a map: where each was taken, by photos of the same place.

    Several maps are asked at once: sareloc localize berlin.gpkg rome.gpkg photo.jpg. Each answer is that of one map,
    which is named; it is the less sure the more another map is sure of another place. A walk may lead from one map
    into another.

    The radius belongs to many answers: of 10 positions of photos in the map, right or wrong, 9 are within their radius
    of the truth. The confidence belongs to one answer: the probability that this position is within 25 m of the truth.

    The place is the town of the position (GeoNames, CC BY 4.0). Photos that cannot be read are listed on standard
    error. The exit status is 1 if none can be read.

    Parameters
    ----------
    photos
        More maps (.gpkg files or addresses), then the queries: photos, folders of photos with their subfolders, or
        videos, each of which is one walk.
    top
        Number of matches to list for each photo.
    min_confidence
        Minimum confidence of a position; photos below it are reported as not in this map, with their low-confidence
        position.
    box
        Search only this area: south, west, north and east in degrees.
    circle
        Search only this area: latitude, longitude in degrees, radius in metres.
    walk_step_m
        Estimate the positions together, as of one walk, with at most this distance in metres between two photos that
        follow each other. Photos are sorted by time if all have one (in a table beside them, their EXIF, a sidecar or
        their names); otherwise they stay in the order given. Default for the frames of a video: 40 m for each second
        between them.
    panorama
        Treat photos without GPano tags that are 2:1 as 360° photos. A 360° photo is cut into views, which give one
        position together; the heading is that of its middle.
    as_json
        Print one JSON object per line: photo, latlon, radius_m, confidence, heading_deg, place, matches; without a
        position also reason, and as guess and guess_radius_m the low-confidence position; with several maps also map.
    as_geojson
        Print one GeoJSON FeatureCollection.
    as_csv
        Print a CSV: photo, lat, lon, radius_m, confidence, match, distance, heading_deg, time, place, map.
    as_gpx
        Print a GPX 1.1 file of the positions found: waypoints, or a track with --walk-step-m.
    as_kml
        Print a KML file of the positions found: placemarks, and a line through them with --walk-step-m.
    """
    from sareloc.localize import (
        localize_video,
        read_photo_times,
        read_video_walks,
        sort_by_time,
    )
    from sareloc.localize.formats import POINT_FORMATS, TRACK_FORMATS, Answer, answer_text, iso_time
    from sareloc.photos import is_video

    flags = {"json": as_json, "geojson": as_geojson, "csv": as_csv, "gpx": as_gpx, "kml": as_kml}
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise ArgumentError(f"choose one of {', '.join(f'--{name}' for name in flags)}: found {len(chosen)} of them")
    maps, photos = split_maps(place_map, photos)
    files = listed(photos)
    stills, videos = [file for file in files if not is_video(file)], [file for file in files if is_video(file)]
    if replace(of_videos, every_s=NO_VIDEO.every_s) != NO_VIDEO and not videos:
        raise ArgumentError("--track, --estimate-offset, --clock-offset and --video-start are options of videos")
    formats = POINT_FORMATS if walk_step_m is None and stills else TRACK_FORMATS
    written = formats.get(chosen[0]) if chosen else None
    times: dict[Path, float | None] = {}
    if walk_step_m is not None or written is not None:
        times, notes = read_photo_times(stills, photos)
        print_notes(notes)
    if walk_step_m is not None:
        stills, notes = sort_by_time(stills, times)
        print_notes(notes)
    walks: tuple[VideoWalk, ...] = ()
    if videos:
        read = read_video_walks(videos, of_videos.options(), step_m=walk_step_m)
        print_notes(read.notes)
        for error in read.errors:
            print(f"sareloc: {error}", file=sys.stderr)
        walks = read.walks
    if not stills and not walks:
        return 1
    localizer = options.open(maps, min_confidence=min_confidence, panorama=panorama)
    near = area(box, circle)
    condition = centred.choose(localizer, [*stills, *(frame for walk in walks for frame in walk.frames)], near)

    def localized() -> Iterator[tuple[str, Fix | PhotoError]]:
        if stills:
            yield from localize_files(localizer, stills, walk_step_m, near=near, top=top, condition=condition)
        for walk in walks:
            found = localize_video(localizer, walk, near=near, top=top, condition=condition, progress=True)
            if found.note is not None:
                print_notes([f"{walk.video}: {found.note}"])
            times.update(zip(walk.frames, found.times, strict=True))
            yield from zip(map(str, walk.frames), found.fixes, strict=True)

    count = found = 0
    if written is not None:
        answers = [Answer(photo, times[Path(photo)], fix) for photo, fix in report_unreadable(localized())]
        count = len(answers)
        print(written(answers).rstrip("\n"))
    else:
        for photo, fix in report_unreadable(localized()):
            count, found = count + 1, found + fix.found
            time = {"time": iso_time(times[Path(photo)])} if Path(photo) in times else {}
            print(json.dumps(fix.to_json(photo) | time) if as_json else f"{answer_text(photo, fix)}\n", flush=True)
        if not as_json:
            unreadable = len(stills) + sum(len(walk.frames) for walk in walks) - count
            asked = "photos and frame" if stills and walks else "photo" if stills else "frame"
            missing = f", {unreadable:,} could not be read" if unreadable else ""
            print(f"{found:,} of {plural(count + unreadable, asked)} found{missing}")
    return 0 if count else 1


def split_maps(first: Path, given: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The maps and the photos of a command line: after the first map, what is a GeoPackage or an address is a map."""
    from sareloc.maps.store import is_map_address

    maps = [first, *(one for one in given if is_map_address(one))]
    photos = [one for one in given if not is_map_address(one)]
    if given and not photos:
        raise ArgumentError(
            f"no photos were given, only maps ({', '.join(map(str, maps))}): name the photos after them"
        )
    return maps, photos


def listed(given: Sequence[Path]) -> list[Path]:
    """The photos given and those in the folders given. Whether a file exists is checked when it is read."""
    from sareloc.photos import find_photos
    from sareloc.photos.finding import raw_twins_note

    files = [file for one in given for file in (find_photos(one) if one.is_dir() else [one])]
    print_notes(raw_twins_note([file for file in files if file not in given]))
    if not files:
        raise ArgumentError(f"no photos in {', '.join(map(str, given))}" if given else "no photos given")
    return files


def area(box: tuple[float, float, float, float] | None, circle: tuple[float, float, float] | None) -> Area | None:
    """The area to search."""
    from sareloc.geo import Box, Circle

    if box is not None and circle is not None:
        raise ArgumentError("choose one of --box and --circle")
    if circle is not None:
        return Circle(circle[:2], circle[2])
    return None if box is None else Box(*box)
