"""Names of places: the town of a position, from the packaged table, by the definition of its distance."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from research.make_place_names import make_table

from sareloc.geo import ecef_from_wgs84
from sareloc.localize import find_town
from sareloc.localize.place_names import TABLE, load_towns, place_name, read_towns, wind

MEGABYTES = 3


def city(number: int, name: str, latitude: float, longitude: float, population: int, code: str = "GB") -> dict:
    return {
        "geonameid": number, "name": name, "latitude": latitude, "longitude": longitude, "countrycode": code,
        "population": population,
    }  # fmt: skip


def write_table(path: Path, *cities: dict) -> Path:
    countries = {code: {"name": f"Land {code}"} for code in ("GB", "IT")}
    path.write_bytes(make_table({str(one["geonameid"]): one for one in cities}, countries))
    return path


@pytest.mark.parametrize(
    ("latlon", "name"),
    [
        ((52.205, 0.12), "Cambridge, GB"),
        ((48.8584, 2.2945), "Paris, FR"),  # nearer to the centre of a district than to that of the city
        ((51.6565, -0.39), "Watford, GB"),  # not London, 27 km away
        ((45.75, 21.22), "Timişoara, RO"),
        ((46.3234, 9.8125), "7 km north-west of Chiesa in Valmalenco, IT"),
        ((-17.0, 179.99), "74 km east of Savusavu, FJ"),  # across the antimeridian
    ],
)
def test_towns_of_the_packaged_table(latlon: tuple[float, float], name: str) -> None:
    assert place_name(latlon) == name


def test_every_position_on_earth_has_a_town() -> None:
    for latlon in [(90, 0), (-90, 0), (0, 180), (0, -180), (-48.9, -123.4)]:
        town = find_town(latlon)
        assert 100_000 < town.distance_m < 5_000_000
        assert not town.inside


@settings(max_examples=25)
@given(st.floats(-90, 90), st.floats(-180, 180))
def test_the_town_has_the_least_power_distance(latitude: float, longitude: float) -> None:
    towns = load_towns(TABLE)
    found = find_town((latitude, longitude))
    power = ((towns.centres_m - ecef_from_wgs84((latitude, longitude))) ** 2).sum(axis=1) - towns.radii_m**2
    assert towns.names[power.argmin()] == found.name


def test_a_city_reaches_farther_than_a_village(tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "towns.npz",
        city(1, "City", 50.0, 0.0, 1_000_000),  # radius 9.1 km
        city(2, "Village", 50.2, 0.0, 1000),  # 22 km north; radius 0.5 km
        city(3, "Hamlet", 50.0, 0.1, 999),
    )
    towns = load_towns(table)
    assert towns.names == ["City", "Village"]
    assert towns.radii_m == pytest.approx([9098.5, 500], abs=1)
    assert str(find_town((50.08, 0.0), table)) == "City, GB"
    assert str(find_town((50.11, 0.0), table)) == "12 km north of City, GB"  # 10 km from the village
    assert str(find_town((50.17, 0.0), table)) == "3 km south of Village, GB"
    assert str(find_town((50.2, 0.0098), table)) == "1 km east of Village, GB"
    assert find_town((50.2, 0.0), table).country == "Land GB"


@pytest.mark.parametrize(
    ("degrees", "name"),
    [(0, "north"), (22, "north"), (23, "north-east"), (231, "south-west"), (338, "north"), (-90, "west")],
)
def test_winds(degrees: float, name: str) -> None:
    assert wind(degrees) == name


def test_the_table_is_small_and_names_its_source() -> None:
    assert TABLE.stat().st_size < MEGABYTES * 1e6
    with np.load(TABLE, allow_pickle=False) as arrays:
        attribution = arrays["attribution"].tobytes().decode()
    assert "GeoNames" in attribution
    assert "CC BY 4.0" in attribution
    assert len(load_towns(TABLE).names) > 140_000


def damaged(content: bytes) -> dict[str, bytes]:
    changed = {}
    for name in ("latlon", "names", "country"):
        with np.load(io.BytesIO(content)) as arrays:
            parts = dict(arrays)
        parts[name] = parts[name][..., :1] + 200 if name == "country" else parts[name][..., :1]
        file = io.BytesIO()
        np.savez_compressed(file, **parts)
        changed[name] = file.getvalue()
    short = io.BytesIO()
    with zipfile.ZipFile(short, "w") as archive:
        archive.writestr("latlon.npy", b"\x93NUMPY")
    return changed | {
        "cut": content[:500], "empty": b"", "text": b"not a table", "array": short.getvalue(),
        "flipped": content[:300] + bytes(64) + content[364:],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["latlon", "names", "country", "cut", "empty", "text", "array", "flipped", "missing"])
def test_a_damaged_table_is_a_sentence_and_no_name(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_table(tmp_path / "whole.npz", city(1, "City", 50, 0, 10_000), city(2, "Town", 51, 0, 10_000, "IT"))
    assert len(read_towns(whole.read_bytes()).names) == 2
    table = tmp_path / f"{kind}.npz"
    if kind != "missing":
        table.write_bytes(damaged(whole.read_bytes())[kind])
    with caplog.at_level(logging.WARNING, "sareloc.localize"):
        assert find_town((50.0, 0.0), table) is None
        assert find_town((50.0, 0.0), table) is None
    (told,) = caplog.messages
    assert "place names are left out" in told
    assert table.name in told


def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, latlon=np.zeros((2, 10_000_000), np.int32))
    assert len(file.getvalue()) < 200_000
    with pytest.raises(ValueError, match="expected at most"):
        read_towns(file.getvalue())
