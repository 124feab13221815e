"""The real sets that experiments use, with the counts and rules of their own tables."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from benchmarks import real_sets

from sareloc.datasets import find_positives, photo_paths

pytestmark = pytest.mark.data


def counts(places):
    assert all(path.is_file() for path in photo_paths(places))
    return len(places.database), len(places.queries)


def test_cambridge(shared_data):
    assert {split: counts(real_sets.cambridge(shared_data, split)) for split in ("train", "val", "test")} == {
        "train": (1520, 512),
        "val": (480, 176),
        "test": (796, 216),
    }


def test_tmbud_by_its_table(shared_data):
    with (shared_data / "tmbud" / "meta.csv").open() as lines:
        building = {row["file"]: int(row["building_id"]) for row in csv.DictReader(lines)}
    expected = [
        (real_sets.tmbud_night_to_day(shared_data), (379, 169)),
        (real_sets.tmbud_east(shared_data, "DAY"), (169, 342)),
        (real_sets.tmbud_east(shared_data, "NIGHT"), (169, 90)),
        (real_sets.tmbud_west(shared_data), (158, 381)),
    ]
    for places, sizes in expected:
        assert counts(places) == sizes
        assert set(places.database.files).isdisjoint(places.queries.files)
        for row, right in enumerate(find_positives(places)):
            same = [building[file] == building[places.queries.files[row]] for file in places.database.files]
            assert right.tolist() == np.flatnonzero(same).tolist()
    west, east = (set(expected[i][0].database.place_ids) for i in (3, 1))
    assert west.isdisjoint(east)


@pytest.mark.parametrize("pair", real_sets.GARDENS_POINT_PAIRS)
def test_gardens_point_by_its_table(shared_data, pair):
    places = real_sets.gardens_point(shared_data, *pair)
    assert counts(places) == (200, 200)
    assert places.queries.folder.name == pair[0]
    with (shared_data / "gardens_point" / "gt.csv").open() as lines:
        right = [[int(frame) for frame in row[1].split()] for row in list(csv.reader(lines))[1:]]
    assert [rows.tolist() for rows in find_positives(places)] == right


def test_the_others(shared_data):
    assert counts(real_sets.landmarks(shared_data)) == (620, 80)
    assert counts(real_sets.landmarks(shared_data, "train")) == (2120, 680)
    assert counts(real_sets.exif(shared_data)) == (9, 0)
