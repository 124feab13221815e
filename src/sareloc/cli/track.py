"""`sareloc data track`: positions of photos by a track, as a table; and the options for tracks of other commands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sareloc.cli.options import NO_TRACK, Flag, Json, Track
from sareloc.cli.printing import print_notes
from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import replacing

if TYPE_CHECKING:
    from sareloc.photos.track_geotags import TrackReport


def track_command(
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    out: Path,
    track: Annotated[Track, Parameter(show=True)] = NO_TRACK,
    figure: Path | None = None,
    replace: Flag = False,
    as_json: Json = False,
) -> int:
    """Write the positions of photos on a GPS track to a table, by their EXIF times; the photos are not changed.

    Photos that have a position (in a geotags.csv or geotags.geojson in the folder, in EXIF, in a sidecar or in the file
    name) keep it and are not in the table. The exit status is 1 if no photo got a position; then nothing is written.

    Parameters
    ----------
    photos
        Folders of photos, with their subfolders, or single photos.
    out
        The table (.csv): file, lat, lon, heading, time, and the distances to the nearest track point, track_s and
        track_m. As geotags.csv in the folder of the photos it is read by map build; elsewhere name it with --geotags.
    figure
        Draw the track and the photos on it to this file (.png, .svg or .pdf).
    replace
        Overwrite the table if it exists; positions that it gave to photos are determined again.
    as_json
        Print the result as one JSON object.
    """
    from sareloc.photos.collect import list_photos, read_tables
    from sareloc.photos.finding import NOT_UTF8, is_utf8
    from sareloc.photos.track_geotags import TrackOptions, geotags_by_options, track_geotags_csv

    options = TrackOptions(**vars(track))
    if out.suffix.lower() != ".csv":
        raise ArgumentError(f"the table must end in .csv: found {out}")
    if out.exists() and not replace:
        raise ArgumentError(f"{out} exists: give another --out, or --replace")
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
