"""What `sareloc map` prints: the records of the library as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.adapt import AdaptReport
    from sareloc.maps import BuildReport, CopyReport, FeaturesReport, MapInfo

LISTED = 10
ALL_IN_JSON = " (--json lists all)"
GONE = ("no longer exists; it stays in the map until map sync", "no longer exist; they stay in the map until map sync")
LEFT_OUT = "estimated by sareloc: left out; --trust-estimates takes"
ESTIMATED = (f"holds a position {LEFT_OUT} it", f"hold positions {LEFT_OUT} them")
FILES_OWN = "(--restore: the positions of the files)"
KEPT_EDITS = (f"keeps what was edited in the map {FILES_OWN}", f"keep what was edited in the map {FILES_OWN}")
NOT_ADDED = "removed from the map before, not added again (--restore adds"
KEPT_REMOVALS = (f"was {NOT_ADDED} it)", f"were {NOT_ADDED} them)")
RESTORED = ("is again as its file says", "are again as their files say")


def report_text(report: BuildReport, map_path: str) -> str:
    """What was done with the photos that were given for a map."""
    lines = [f"{map_path}: {_counts(report)}"]
    for verb, photos in (
        *_changes(report),
        (("has no position", "have no position"), report.untagged),
        (KEPT_EDITS, report.kept_edits),
        (KEPT_REMOVALS, report.kept_removals),
        (RESTORED, report.restored),
        (GONE, report.gone),
        (ESTIMATED, report.estimated),
    ):
        lines += named_photos(verb, photos)
    lines += named_photos(("cannot be read",) * 2, list(map(str, report.unreadable)), "file")
    lines += named_photos(("", ""), list(map(str, report.duplicate_photos)), "duplicate")
    lines += _notes(report.notes)
    if report.untagged and not report.used:
        lines.append("no photo has a position: give a table with --geotags (file, lat, lon) or a track with --track")
    return "\n".join(lines)


def upgrade_text(report: FeaturesReport, map_path: str) -> str:
    """What was added to the photos of a map."""
    lines = [
        f"{map_path}: added local features of {plural(report.added, 'photo')}, up to {report.keypoints} keypoints "
        f"each, in {report.seconds:,.1f} s; {report.already:,} had them already"
    ]
    if report.aggregated:
        of = plural(report.aggregated, "photo")
        lines.append(f"{map_path}: search vectors of {of} have aggregated local features now")
    lines += named_photos(("still has none", "still have none"), list(map(str, report.unreadable)))
    return "\n".join(lines + _notes(report.notes))


def copy_text(report: CopyReport, target: str) -> str:
    """What was copied to another map."""
    there = _already(report.photos - report.copied)
    copied = f"{target}: copied {plural(report.copied, 'photo')}, {there}; checksum {report.checksum}"
    return "\n".join([copied, *_notes(report.notes)])


def problems_text(map_path: str, problems: Sequence[str], gone: Sequence[str]) -> str:
    """The problems of a map; if there are none, its photos whose files no longer exist."""
    if problems:
        return "\n".join(first_of(problems, ""))
    return "\n".join([f"{map_path}: no problems found", *named_photos(GONE, gone, hint="")])


def listing_line(name: str, known: MapInfo) -> str:
    """A map in the list of those in a folder."""
    box = None if known.extent is None else asdict(known.extent)
    area = "no area" if box is None else "{south:.4f}, {west:.4f} to {north:.4f}, {east:.4f}".format(**box)
    stored = known.local_features
    features = "no local features" if stored is None else plural(stored.keypoints, "keypoint")
    return f"{name:<24}  {plural(known.photos, 'photo')}  model {known.manifest.model}  {area}  {features}"


def adapt_text(report: AdaptReport) -> str:
    """The report of an adaptation as text."""
    lines = [
        f"{report.photos:,} photos, {report.verified:,} verified pairs, {report.refuted:,} look-alikes refuted, "
        f"{report.relit:,} photos relit, {report.placed:,} of {report.given:,} photos without positions placed",
        f"{'each third of the area held out, %':44}{'before':>8}{'after':>8}   95 % of the difference",
    ]
    for one in report.held_out:
        lines.append(f"{one.kind}, {plural(one.recall_1.queries, 'query')}")
        for name, gain in (
            ("recall@1 without verification", one.recall_1),
            ("answered and correct, verified", one.answered),
            ("absent photos rejected", one.rejected),
        ):
            if gain is not None:
                lines.append(
                    f"  {name:42}{gain.before:>8.1f}{gain.after:>8.1f}   {gain.low:+.1f} to {gain.high:+.1f}"
                    + f" ({plural(gain.queries, 'query')})" * (gain.queries != one.recall_1.queries)
                )
    mean, low, high = report.mean_gain
    lines.append(f"mean gain of recall@1: {mean:+.1f} points, {low:+.1f} to {high:+.1f}; {report.seconds / 60:.1f} min")
    if suspicious := len(report.geotags.suspicious):
        lines.append(f"{plural(suspicious, 'suspicious geotag')}: sareloc data check MAP --geometry lists them")
    lines += [f"note: {note}" for note in report.notes]
    if report.map is None:
        lines.append(f"nothing was written, the map stays as it is: {report.rejected_because}")
    else:
        lines.append(f"{report.map}: {plural(report.directions, 'direction')} shortened in the search vectors")
    return "\n".join(lines)


def info_text(found: MapInfo) -> str:
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


def _notes(notes: Sequence[str]) -> list[str]:
    return ["notes:", *(f"  {note}" for note in first_of(notes))] if notes else []


def named_photos(
    verb: tuple[str, str], photos: Sequence[str], what: str = "photo", hint: str = ALL_IN_JSON
) -> list[str]:
    """How many photos, with the verb for one or for several, and the first of them; nothing if there are none."""
    if not photos:
        return []
    heading = plural(len(photos), what, verb).rstrip()
    return [f"{heading}:", *(f"  {line}" for line in first_of(photos, hint))]


def first_of(lines: Iterable[str], hint: str = ALL_IN_JSON) -> list[str]:
    """The first ten lines, and how many more there are; `hint`: where all of them are."""
    known = list(lines)
    more = len(known) - LISTED
    return known[:LISTED] + ([f"... and {more:,} more{hint}"] if more > 0 else [])
