"""Names of places: the town of a position, offline, from a table of GeoNames (https://www.geonames.org, CC BY 4.0).

`towns.npz` beside this module has the towns of 1,000 and more inhabitants; `python -m research.make_place_names` writes
it. A missing or damaged table is reported once, as a warning, and positions have no names then.
"""

from __future__ import annotations

import io
import logging
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sareloc.arrays import Floats, Ints
from sareloc.files import read_regular
from sareloc.geo import ecef_from_wgs84

TABLE = Path(__file__).with_name("towns.npz")
LARGEST_BYTES, MOST_TOWNS, LONGEST_TEXT = 10_000_000, 1_000_000, 50_000_000
DEGREE_PARTS = 10_000  # of a degree: 11 m
VILLAGE_M, GROWTH = 500.0, 0.42
WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
NO_NAMES = "place names are left out: their table {} {}; install sareloc again"

log = logging.getLogger("sareloc.localize")


@dataclass(frozen=True)
class Town:
    """The town that a position is in, or outside of."""

    name: str
    country_code: str
    """ISO 3166, such as GB."""
    country: str
    """Its English name."""
    distance_m: float
    """From the centre of the town to the position."""
    direction: str
    """Of the position, seen from the centre: one of `WINDS`."""
    inside: bool
    """Whether the position is within the radius of a town of so many inhabitants (see `find_town`)."""

    def __str__(self) -> str:
        """Such as "Cambridge, GB" or "7 km north of Cambridge, GB"."""
        town = f"{self.name}, {self.country_code}"
        return town if self.inside else f"{max(self.distance_m / 1000, 1):,.0f} km {self.direction} of {town}"


def find_town(latlon: tuple[float, float], table: Path = TABLE) -> Town | None:
    """The town of a position in degrees; None without a table.

    A town of P inhabitants is taken as a disc of radius r = 0.5 km (P / 1000)^0.42: 0.5 km for 1,000 inhabitants, 4 km
    for 145,000 and 23 km for 9 million. The town is the one with the least power distance d^2 - r^2: a position in a
    district of a city is in the city, one outside of all towns is near the nearest, where a city is nearer than a
    village at the same distance from its centre.
    """
    from pyproj import Geod

    towns = load_towns(table)
    if towns is None:
        return None
    # |x - c|^2 - r^2 = |x|^2 - 2 x.c + (|c|^2 - r^2)
    row = int((towns.offsets - 2 * towns.centres_m @ ecef_from_wgs84(latlon)[0]).argmin())
    latitude, longitude = towns.latlon[row]
    azimuth, _, distance_m = Geod(ellps="WGS84").inv(longitude, latitude, latlon[1], latlon[0])
    country_code, _, country = towns.countries[towns.country_rows[row]].partition("\t")
    inside = distance_m <= towns.radii_m[row]
    return Town(towns.names[row], country_code, country, float(distance_m), wind(azimuth), bool(inside))


def place_name(latlon: tuple[float, float] | None) -> str | None:
    """The name of a place, such as "2 km north of Cambridge, GB"; None without a position or without a table."""
    town = None if latlon is None else find_town(latlon)
    return None if town is None else str(town)


def wind(degrees: float) -> str:
    """The nearest of eight directions, from degrees clockwise from north."""
    return WINDS[round(degrees / 45) % len(WINDS)]


@dataclass(frozen=True, eq=False)
class Towns:
    """The table in memory."""

    latlon: Floats
    """(N, 2) degrees."""
    radii_m: Floats
    """(N,)"""
    centres_m: Floats
    """(N, 3) earth-centred."""
    offsets: Floats
    """(N,) squared norm of the centre minus squared radius."""
    names: list[str]
    country_rows: Ints
    countries: list[str]
    """Code, tab, name."""


@lru_cache(maxsize=2)
def load_towns(table: Path) -> Towns | None:
    """The table; None, with a warning, if it is missing or damaged. Read once."""
    try:
        return read_towns(read_regular(table, LARGEST_BYTES))
    except OSError as error:
        log.warning(NO_NAMES.format(table, f"cannot be read ({error.strerror})"))
    except (ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        log.warning(NO_NAMES.format(table, f"is damaged ({error})"))
    return None


def read_towns(content: bytes) -> Towns:
    """The table in the bytes of a file; raises ValueError, KeyError, EOFError or BadZipFile if it is damaged."""
    sizes = [entry.file_size for entry in zipfile.ZipFile(io.BytesIO(content)).infolist()]
    if sum(sizes) > LONGEST_TEXT:
        raise ValueError(f"it has {sum(sizes):,} bytes, expected at most {LONGEST_TEXT:,}")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        parts, population, country_rows = arrays["latlon"], arrays["population"], arrays["country"].astype(np.int64)
        names, countries = (arrays[text].tobytes().decode().split("\n") for text in ("names", "countries"))
    count = len(names)
    if parts.shape != (2, count) or population.shape != (count,) or country_rows.shape != (count,):
        raise ValueError(f"{count:,} names, but other numbers of positions, populations or countries")
    if count > MOST_TOWNS or country_rows.max() >= len(countries):
        raise ValueError("it has too many towns, or countries without a name")
    latlon = parts.T / DEGREE_PARTS
    radii_m = VILLAGE_M * (population / 1000) ** GROWTH
    centres_m = ecef_from_wgs84(latlon)
    return Towns(
        latlon, radii_m, centres_m, (centres_m**2).sum(axis=1) - radii_m**2, names, country_rows, countries
    )  # fmt: skip
