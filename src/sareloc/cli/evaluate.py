"""`sareloc evaluate`: recall and errors of a model, or of a map, on a dataset; with --fixes a localization report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sareloc.cli.options import MIN_CONFIDENCE, Device, Json, Precision, Root, Workers, print_notes
from sareloc.errors import ArgumentError
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.evaluation import FixReport, Report


def evaluate_command(
    dataset: str,
    *,
    model: str | None = None,
    root: Root = None,
    split: str | None = None,
    protocol: Literal["radius", "panorama", "time", "place-id", "average-precision"] | None = None,
    dim: int | None = None,
    boxes: Literal["crop", "full"] = "crop",
    store: Path | None = None,
    verify: int | None = None,
    place_map: Annotated[Path | None, Parameter(name="--map", metavar="MAP")] = None,
    fixes: Annotated[bool, Parameter(negative=())] = False,
    out_of_map: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    strangers: Annotated[list[Path] | None, Parameter(consume_multiple=True, show=False)] = None,
    min_confidence: float = MIN_CONFIDENCE,
    batch: int = 8,
    workers: Workers = 2,
    device: Device = None,
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Compute the descriptors of a dataset's database and queries, search exactly, and judge by the dataset's protocol.

    With --fixes: build a map of the database, localize the queries in it, and judge their positions, radii, headings
    and confidences instead. A fix is correct within 25 m, and answered if it has the minimum confidence.

    Parameters
    ----------
    dataset
        Name of a dataset, or a folder of photos with the layout of one.
    split
        Split of the dataset; default: test if it has one, else val, else train.
    model
        A packaged model (default, fast), a checkpoint, or a published file. Default: with --map the packaged model that
        the map was built with, else fast.
    protocol
        What counts as correct; default: the protocol of the dataset. radius counts every photo of a Tokyo 24/7
        panorama.
    dim
        Keep the first N dimensions of the descriptors; default: all.
    boxes
        For queries with boxes (Oxford, Paris): crop to the box, or use the full photo.
    store
        Folder of a descriptor cache, with --fixes of the map, to resume an interrupted run; default: none.
    verify
        Verify the top N results of each query geometrically, by local features, and re-rank them; 0: do not. Default:
        0, with --fixes 10 if the map holds local features.
    place_map
        Search this map of the dataset's database photos (a file or an address) instead of computing their descriptors.
        With --fixes it may hold other photos too.
    fixes
        Print a localization report instead of recall.
    out_of_map
        With --fixes: out-of-map photos, or folders of them with their subfolders. None of them should be answered;
        their positions are not needed.
    min_confidence
        With --fixes: the minimum confidence of an answer.
    batch
        Maximum number of photos encoded at once.
    """
    from sareloc.datasets import choose_split, load_dataset
    from sareloc.evaluation import evaluate, evaluate_fixes
    from sareloc.maps import PlaceMap, load_map_model
    from sareloc.models.checkpoint import STANDARD, load_model
    from sareloc.photos.collect import list_photos

    if fixes and protocol is not None:
        raise ArgumentError(
            "fixes are judged by their distance from the truth, not by a protocol: leave --protocol out"
        )
    out_of_map = [*(out_of_map or ()), *(strangers or ())]  # --strangers: its name until version 0.1
    if out_of_map and not fixes:
        raise ArgumentError("out-of-map photos are a part of the localization report: add --fixes")
    chosen = split or choose_split(dataset)
    if split is None and chosen not in ("test", "all"):
        print_notes([f"{dataset} has no test split: its {chosen} split is evaluated"])
    places = load_dataset(dataset, root, chosen)
    print_notes(places.notes)
    searched = None if place_map is None else PlaceMap(place_map)
    if searched is None:
        loaded = load_model(model or STANDARD, device, precision)
    else:
        loaded = load_map_model(searched.manifest, searched.path.name, model, device, precision)
    if fixes:
        judged = evaluate_fixes(
            loaded, places, place_map=searched, out_of_map=list_photos(out_of_map) if out_of_map else (),
            min_confidence=min_confidence, verify=verify, dim=dim, store=store, batch=batch, workers=workers,
        )  # fmt: skip
        print(json.dumps(judged.to_json()) if as_json else fix_table(judged))
    else:
        report = evaluate(
            loaded, places, place_map=searched, protocol=protocol, dim=dim, boxes=boxes, store=store,
            verify=verify or 0, batch=batch, workers=workers,
        )  # fmt: skip
        print(json.dumps(report.to_json()) if as_json else report_table(report))


def report_table(report: Report) -> str:
    """A report as text."""
    low, high = report.recall_at_1_interval or (0.0, 0.0)
    photos = f"{plural(report.database, 'database photo')}, {plural(report.queries, 'query')}"
    lines = [
        ("dataset", f"{report.dataset} {report.split}: {photos}"),
        ("model", f"{report.model} {report.fingerprint}, {report.dim}-D"),
        ("correct", f"{report.meaning} (protocol {report.protocol})"),
        *((f"recall@{n}", f"{percent:6.2f} %") for n, percent in report.recall.items()),
        ("95 % interval", f"{low:.2f} to {high:.2f} % for recall@1"),
    ]
    if report.plain_recall is not None:
        plain = ", ".join(f"@{n} {percent:.2f} %" for n, percent in report.plain_recall.items())
        lines.append(("plain recall", f"{plain} (protocol radius, for comparison with tools that use it)"))
    if report.mean_average_precision is not None:
        asked = "" if report.boxes is None else f" ({report.boxes} queries)"
        lines.append(("mAP", f"{report.mean_average_precision:6.2f} %{asked}"))
    if report.error_quantiles_m is not None:
        spread = ", ".join(f"{_metres(m)} for {100 * share:g} %" for share, m in report.error_quantiles_m.items())
        lines.append(("error", f"at most {spread} of the queries"))
    if report.queries_without_positives:
        unanswerable = plural(report.queries_without_positives, "query", ("has", "have"))
        lines.append(("unanswerable", f"{unanswerable} no positive: missed"))
    return _table([*lines, *_failures(report.failures)])


def fix_table(report: FixReport) -> str:
    """A localization report as text; what there is nothing to count of is left out."""
    photos = [f"{plural(report.database or 0, 'photo')} in the map", plural(report.queries, "query")]
    photos += [plural(report.strangers, "out-of-map photo")] if report.strangers else []
    verified = f"about {report.verify} matches verified" if report.verify else "matches not verified"
    queries, answers = "{:6.2f} % of the queries", "{:6.2f} % of the answers"
    measures = (
        ("correct", report.correct, f"{queries}: within 25 m", report.correct_interval),
        ("answered", report.answered, f"{queries}: confidence {report.min_confidence:g} or more", None),
        ("answers correct", report.answers_correct, answers, None),
        ("correct and answered", report.correct_and_answered, queries, report.correct_and_answered_interval),
        ("answers in radius", report.answers_in_radius, f"{answers}: the truth is within their radius", None),
        ("error", report.median_error_m, "{:6.1f} m, median of the answers", None),
        ("90 % error", report.error_90_m, "{:6.1f} m at most for 90 % of the answers", None),
        ("heading error", report.median_heading_error_deg, f"{{:6.1f}} degrees, median of {report.headings}", None),
        ("out-of-map rejected", report.strangers_rejected, "{:6.2f} % of the out-of-map photos", None),
        ("ECE", report.calibration_error, "{:6.3f}, expected calibration error of all confidences", None),
    )
    lines = [
        ("dataset", f"{report.dataset} {report.split}: {', '.join(photos)}"),
        ("model", f"{report.model} {report.fingerprint}, {verified}"),
    ]
    if report.ladder:
        steps = ", ".join(f"{step} {percent:.2f} %" for step, percent in report.ladder.items())
        lines.append(("recall@1", f"{steps}: the first match within 25 m"))
    for name, value, form, interval in measures:
        if value is not None:
            likely = "" if interval is None else f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})"
            lines.append((name, form.format(value) + likely))
    return _table([*lines, *_failures(report.failures)])


def _failures(failures: Mapping[str, tuple[tuple[str, str], ...]]) -> list[tuple[str, str]]:
    outcomes = {"database": "database: left out", "queries": "queries: missed", "strangers": "out-of-map: left out"}
    return [(outcomes[role], f"{photo}: {reason}") for role, photos in failures.items() for photo, reason in photos]


def _table(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _metres(metres: float | None) -> str:
    return "(no answer)" if metres is None else f"{metres:.1f} m"
