"""What an evaluation found, as one frozen record and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class CurvePoint:
    """Answering only where the first result is no farther than `distance`: right among answered, among all (%)."""

    distance: float
    precision: float
    recall: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an evaluation found. Shares are percentages of all queries; errors are metres to the first result."""

    dataset: str
    split: str
    model: str = ""
    fingerprint: str = ""
    """Of the model; both are empty for rankings that came from elsewhere."""
    dim: int | None = None
    protocol: str
    meaning: str
    """What counts as right, in words."""
    boxes: Literal["crop", "full"] | None = None
    """Whether queries were cropped to their boxes, where the dataset has boxes."""
    database: int
    queries: int
    queries_without_positives: int
    """Queries that no database photo answers; each counts as missed."""
    recall: Mapping[int, float]
    """Recall@N by N."""
    recall_at_1_interval: tuple[float, float] | None
    """Where recall@1 lies in 95 % of resamples of the queries; None without queries."""
    plain_recall: Mapping[int, float] | None
    """Recall@N by the protocol "radius", beside that of Tokyo's own rules, which other tools leave out."""
    mean_average_precision: float | None
    median_error_m: float | None
    """None where positions are unknown, or half of the queries have no answer."""
    error_quantiles_m: Mapping[float, float | None] | None
    """By share of the queries."""
    curve: tuple[CurvePoint, ...]
    """Precision and recall over a threshold on the distance; empty where a ranking came without distances."""
    failures: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: {"database": (), "queries": ()})
    """Photos that could not be decoded, with reasons: a database photo is left out, a query counts as missed."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object: what `sareloc evaluate --json` prints."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value
