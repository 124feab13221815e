"""The answer: a fix, and the matches it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

LatLon = tuple[float, float]
"""Latitude, longitude in degrees, WGS84."""


@dataclass(frozen=True)
class Match:
    """A photo of the map that looks like the query."""

    id: int
    """Under which the map holds it; never given to another photo."""
    photo: str
    """Its file, as the map names it."""
    latlon: LatLon
    distance: float
    """Between the descriptors, 0 to 2; shorter where re-ranking found that the photos also agree in detail."""


@dataclass(frozen=True)
class Fix:
    """Where a photo was taken, or that the map does not show it."""

    latlon: LatLon | None
    """None: the photo is not in this map, as far as can be told."""
    radius_m: float | None
    """Of 10 answers about places in the map, right or wrong, 9 are at most so far from the truth. None without one.

    For answers with a confidence of 0.5 or more; photos of places that the map does not show are not counted."""
    confidence: float
    """The probability that the position, or the best guess where none is given, is within 25 m of the truth."""
    matches: tuple[Match, ...]
    """The most alike first."""
    reason: str | None = None
    """Why there is no position."""
    guess: LatLon | None = None
    """The best guess where there is no position but there are matches: where a lower least confidence would put it."""
    guess_radius_m: float | None = None
    """The radius of the guess."""

    @property
    def found(self) -> bool:
        """Whether there is a position."""
        return self.latlon is not None

    def to_json(self, photo: str) -> dict[str, Any]:
        """A JSON object: photo, latlon, radius_m, confidence, matches; and where latlon is null reason, guess and
        guess_radius_m, as far as they are known."""
        told: dict[str, Any] = {"photo": photo, **asdict(self)}
        absent = {name for name in ("reason", "guess", "guess_radius_m") if told[name] is None}
        return {name: value for name, value in told.items() if name not in absent}
