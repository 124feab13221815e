"""Reports and training histories, read back from the files that `sareloc evaluate` and `sareloc train` wrote."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from sareloc.errors import ArgumentError
from sareloc.evaluation import CurvePoint, Report
from sareloc.training import EpochRecord

HISTORY = "history.csv"


def read_report(path: Path | str) -> Report:
    """The report that `sareloc evaluate --json` printed into this file."""
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as broken:  # bytes that are no text and text that is no JSON are ValueErrors
        raise ArgumentError(
            f"{path} cannot be read as a report ({broken}): make one with sareloc evaluate --json"
        ) from broken
    return report_from_json(given, str(path))


def report_from_json(given: Any, name: str) -> Report:
    """The report of a JSON object as `Report.to_json` makes it; `name` is what errors call it."""
    known = {f.name for f in fields(Report)}
    wanted = {f.name for f in fields(Report) if f.default is MISSING and f.default_factory is MISSING}
    if not isinstance(given, dict) or not wanted <= set(given):
        missing = (
            sorted(wanted - set(given)) if isinstance(given, dict) else [f"an object: found {type(given).__name__}"]
        )
        raise ArgumentError(f"{name} is no report of sareloc evaluate --json: it lacks {', '.join(missing)}")
    values = {key: value for key, value in given.items() if key in known}
    try:
        values["recall"] = _by_number(given["recall"], int)
        for key, kind in (("plain_recall", int), ("error_quantiles_m", float)):
            values[key] = None if given[key] is None else _by_number(given[key], kind)
        values["failures"] = {role: tuple((photo, why) for photo, why in listed)
                              for role, listed in given.get("failures", {}).items()}  # fmt: skip
        values["curve"] = tuple(CurvePoint(**point) for point in given.get("curve", ()))
        if given["recall_at_1_interval"] is not None:
            low, high = given["recall_at_1_interval"]
            values["recall_at_1_interval"] = (float(low), float(high))
    except (TypeError, ValueError, AttributeError) as broken:
        raise ArgumentError(f"{name} is no report of sareloc evaluate --json: {broken}") from broken
    return Report(**values)


def read_history(run: Path | str) -> tuple[EpochRecord, ...]:
    """The epochs of a training run, from its folder or from its history.csv."""
    path = Path(run)
    path = path / HISTORY if path.is_dir() else path
    kinds: Mapping[str, type] = {f.name: int if f.type == "int" else float for f in fields(EpochRecord)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        records = tuple(EpochRecord(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows)
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as broken:
        raise ArgumentError(
            f"{path} cannot be read as the history of a training run ({type(broken).__name__}: {broken}): "
            "give the folder that sareloc train --out wrote"
        ) from broken
    if not records:
        raise ArgumentError(f"{path} holds no epoch yet: the run has not finished its first")
    return records


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {constant}, which is no number")


def _by_number(given: Mapping[str, float | None], kind: type) -> dict[Any, float | None]:
    return {kind(key): value for key, value in given.items()}
