"""`sareloc map calibrate`: fit the confidence of a map's fixes on photos with known positions."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sareloc.cli.options import DEFAULT_LOCALIZER, Json, MapPath, Opened, print_notes
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.localize import CalibrationReport

LISTED = 5


def calibrate_command(
    place_map: MapPath,
    photos: Annotated[list[Path], Parameter(negative=())],
    *,
    geotags: Path | None = None,
    options: Opened = DEFAULT_LOCALIZER,
    as_json: Json = False,
) -> None:
    """Fit the confidence and the radius of a map's fixes on photos with positions; store them if they are better.

    The photos must not be in the map, and should be like the expected queries, from all over the map; 360° photos are
    left out. Old and new calibration are compared on photos that the new one was not fitted on (cross-validation). The
    new one is stored if the log loss of its confidence falls by more than one standard error and right answers minus
    wrong ones do not fall by more than one; otherwise the map is not changed. A calibration belongs to the search
    options: give those that localize will be given.

    Parameters
    ----------
    photos
        Photos with known positions, or folders of photos with their subfolders.
    geotags
        CSV (file, lat, lon) or GeoJSON with the positions of the photos; default: EXIF, sidecars and file names.
    """
    from sareloc.localize import calibrate
    from sareloc.photos import read_geotag
    from sareloc.photos.collect import list_photos, read_tables

    listed = list_photos(photos)
    table = read_tables(photos, geotags, listed)
    tags = {photo: table.tags.get(os.path.abspath(photo)) or read_geotag(photo) for photo in listed}
    estimated = [str(photo) for photo, tag in tags.items() if tag is not None and tag.estimated]
    print_notes(table.notes)
    tagged = {photo: tag.latlon for photo, tag in tags.items() if tag is not None and not tag.estimated}
    report = calibrate(options.open(place_map), list(tagged), list(tagged.values()))
    untagged = [str(photo) for photo, tag in tags.items() if tag is None]
    if as_json:
        left_out = {"unreadable": [*map(str, report.unreadable)], "untagged": untagged, "estimated": estimated}
        former = {"kept_because": report.rejected_because}  # until the next version
        print(json.dumps(asdict(report) | former | left_out))
    else:
        print(calibration_table(report, untagged, estimated))


def calibration_table(report: CalibrationReport, untagged: list[str], estimated: list[str]) -> str:
    """A calibration report as text."""
    before, after = report.before, report.after
    rows = [
        ("right fixes answered", _percent(before.right_kept), _percent(after.right_kept)),
        ("answers within 25 m", _percent(before.answers_right), _percent(after.answers_right)),
        ("answers within their radius", _percent(before.answers_in_radius), _percent(after.answers_in_radius)),
        ("absent photos rejected", _percent(before.absent_rejected), _percent(after.absent_rejected)),
        ("calibration error", f"{before.calibration_error:.3f}", f"{after.calibration_error:.3f}"),
        ("log loss", f"{before.log_loss:.3f}", f"{after.log_loss:.3f}"),
    ]
    origin = {"map": "fitted to the map's own photos", "photos": "fitted to earlier photos"}.get(
        report.before_origin, "default"
    )
    lines = [
        f"{plural(report.photos, 'photo')} of {plural(report.places, 'place')}, {report.right:.1%} of them found "
        "within 25 m",
        "an answer has confidence 0.5 or more; absent: the same photos, without the map's photos within 200 m",
        f"{'on photos that the new one was not fitted on':44}{'before':>10}{'after':>10}",
        *(f"  {name:42}{old:>10}{new:>10}" for name, old, new in rows),
        "the new calibration is better and was stored in the map"
        if report.rejected_because is None
        else f"nothing was written, the map keeps its calibration ({origin}): {report.rejected_because}",
    ]
    for verb, photos in (
        (("is in the map", "are in the map"), report.in_map),
        (("has no position", "have no position"), untagged),
        (("holds a position that sareloc estimated", "hold positions that sareloc estimated"), estimated),
        (("cannot be read",) * 2, [str(error) for error in report.unreadable]),
        (("is a 360° photo", "are 360° photos, whose views answer together,"), report.panoramas),
    ):
        if photos:
            lines.append(f"{plural(len(photos), 'photo', verb)} and {'was' if len(photos) == 1 else 'were'} left out:")
            lines += [f"  {photo}" for photo in photos[:LISTED]]
            lines += ["  ..."] if len(photos) > LISTED else []
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
