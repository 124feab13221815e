"""`sareloc data track`: positions of photos by a track, as a table; and the options for tracks of other commands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal  # noqa: F401  cyclopts evaluates the types of TrackOptions here

from cyclopts import Parameter

from sareloc.cli import print_notes
from sareloc.errors import ArgumentError, PhotoError
from sareloc.files import replacing
from sareloc.photos.collect import list_photos, read_tables
from sareloc.photos.finding import NOT_UTF8, TABLES, is_utf8
from sareloc.photos.track_geotags import TrackOptions, TrackReport, geotags_by_options, track_geotags_csv


@dataclass(frozen=True)
class GivenTrack(TrackOptions):
    """Tracks as given on the command line, where an offset may begin with a minus sign."""

    clock_offset: Annotated[float | str, Parameter(allow_leading_hyphen=True)] = 0.0
    """What to add to the camera's clock: -3.2s if it was 3.2 s fast; also 1h2m3s or +00:01:30."""


Track = Annotated[GivenTrack | None, Parameter(name="*", negative=(), consume_multiple=True)]
"""The options `--track`, `--timezone`, `--clock-offset`, ... of every command that places photos on tracks."""


def track_command(
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    out: Path,
    track: Track = None,
    figure: Path | None = None,
    replace: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
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
    if track is None:
        raise ArgumentError("no track was given: name a GPX file or an NMEA log (--track FILE)")
    if out.suffix.lower() != ".csv":
        raise ArgumentError(f"the table must end in .csv: found {out}")
    if out.exists() and not replace:
        raise ArgumentError(f"{out} exists: give another --out, or --replace")
    listed = list(dict.fromkeys(list_photos(photos)))
    tables = read_tables(_without_table(photos, out), None, listed)
    report = geotags_by_options(listed, track, tables.tags)
    written = [one for one in report.placed if is_utf8(os.path.relpath(one.photo, out.parent))]
    print_notes(str(PhotoError(one.photo, NOT_UTF8)) for one in report.placed if one not in written)
    if written:
        with replacing(out) as beside:
            beside.write_text(track_geotags_csv(written, out.parent), encoding="utf-8")
    if figure is not None:
        from sareloc.figures import draw_track, save_figure

        save_figure(draw_track(report), figure)
    print(json.dumps(_told(report, out if written else None)) if as_json else _table(report, tables.notes, out))
    return 0 if written else 1


def _without_table(photos: Sequence[Path], out: Path) -> list[Path]:
    """The folders whose tables give positions: not that of the table to be replaced."""
    replaced = os.path.realpath(out.parent) if out.name in TABLES else None
    return [folder for folder in photos if os.path.realpath(folder) != replaced]


def _table(report: TrackReport, notes: Sequence[str], out: Path) -> str:
    lines = [str(one) for one in report.placed]
    lines += [f"{photo}: no position, {reason}" for photo, reason in report.untagged]
    lines += [f"note: {note}" for note in (*notes, *report.notes)]
    lines.append(report.summary() + (f"; written to {out}" if report.placed else "; nothing was written"))
    return "\n".join(lines)


def _told(report: TrackReport, out: Path | None) -> dict[str, Any]:
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
