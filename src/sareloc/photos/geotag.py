"""The geotag of a photo: where, in which direction and when it was taken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sareloc.errors import PositionError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_S, LAST_S = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 9999))


@dataclass(frozen=True)
class Geotag:
    """Where a photo was taken; what is unknown is None. Raises PositionError for values outside their range."""

    latlon: tuple[float, float]
    """Latitude, longitude in degrees, WGS84."""
    heading_deg: float | None = None
    """Compass direction of the optical axis, clockwise from north, 0 <= heading < 360."""
    time: float | None = None
    """Seconds since 1970 in UTC; a clock whose zone is not known is read as if it showed UTC."""

    def __post_init__(self) -> None:
        latitude, longitude = self.latlon
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):
            raise PositionError(f"latitude {latitude}, longitude {longitude} is no place on Earth")
        if self.heading_deg is not None and not 0 <= self.heading_deg < 360:
            raise PositionError(f"a heading lies in 0 <= degrees < 360, found {self.heading_deg}")
        if self.time is not None and not FIRST_S <= self.time < LAST_S:
            raise PositionError(f"a time is in seconds since 1970, in the years 1 to 9998: found {self.time}")


@dataclass(frozen=True)
class Estimate:
    """How a position was estimated; written with it, so that nobody takes it for one that a receiver measured."""

    radius_m: float
    """The horizontal positioning error in metres."""
    method: str
    """The processing method, in ASCII."""


def seconds_since_1970(moment: datetime) -> float:
    """The moment as PhotoSet and Geotag hold it; one without a zone is read as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds()
