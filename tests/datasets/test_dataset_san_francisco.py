"""San Francisco: building ids from the ground-truth files, and from the photos' names."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from sareloc.datasets import find_positives, load_dataset
from sareloc.errors import DatasetError

GROUND_TRUTH = "0000 671172717\n0001 671172718 937467332\n0002\n"
NAMES = [
    "b/PCI_sp_9_37.789727_-122.386935_937762214_0_937467332_246.264_-37.8198.jpg",
    "a/PCI_sp_11841_37.790000_-122.386935_937762214_0_671172717_-10.5_-37.8198.jpg",
    "a/PCI_sp_11841_37.790000_-122.386935_937762214_1_727224067_90_0.jpg",
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cartoid_groundTruth_2014_04.txt").write_text(GROUND_TRUTH)
    return tmp_path


def write_ids(root, ids):
    column = np.empty((len(ids), 1), dtype=object)
    column[:, 0] = [str(number) for number in ids]
    savemat(root / "sv_cartoid.mat", {"sv_cartoid": column})


def test_from_the_list_of_ids(root):
    write_ids(root, [937467332, 1, 671172717, 671172718])
    places = load_dataset("sf0", root)
    assert places.protocol == "place-id"
    assert places.queries.path(1) == root / "BuildingQueryImagesCartoIDCorrected-Upright" / "0001.jpg"
    assert list(places.queries.place_ids) == [(671172717,), (671172718, 937467332), ()]
    assert list(places.database.place_ids) == [(937467332,), (1,), (671172717,), (671172718,)]
    assert [rows.tolist() for rows in find_positives(places)] == [[2], [0, 3], []]


def test_from_the_names_of_photos(root, make_photo):
    for name in NAMES:
        make_photo(root / name)
    write_ids(root, [1])  # not asked where there are photos
    places = load_dataset("sf0", root)
    assert places.database.files == tuple(NAMES)  # panorama 9 before 11841
    assert list(places.database.place_ids) == [(937467332,), (671172717,), (727224067,)]
    np.testing.assert_allclose(places.database.positions.latlon()[0], [37.789727, -122.386935], atol=1e-9)
    assert places.database.headings_deg.tolist() == [246.264, 349.5, 90]
    assert all(places.database.path(row).is_file() for row in range(3))


def test_errors_say_the_layout(root, make_photo):
    with pytest.raises(DatasetError, match=r"no PCI_sp_\*.jpg.*\n  ROOT/cartoid"):
        load_dataset("sf0", root)
    make_photo(root / "PCI_sp_1_2_3.jpg")
    with pytest.raises(DatasetError, match="5 fields"):
        load_dataset("sf0", root)
    (root / "PCI_sp_1_2_3.jpg").rename(root / "PCI_sp_1_north_-122.4_0_0_5_0_0.jpg")
    with pytest.raises(DatasetError, match="'north'"):
        load_dataset("sf0", root)
    (root / "cartoid_groundTruth_2014_04.txt").write_text("0000 671172717\n0001 house\n")
    with pytest.raises(DatasetError, match=r"line 2: .*building ids"):
        load_dataset("sf0", root)
    (root / "cartoid_groundTruth_2014_04.txt").unlink()
    with pytest.raises(DatasetError, match=r"no cartoid_groundTruth_2014_04.txt"):
        load_dataset("sf0", root)


@pytest.mark.data
@pytest.mark.slow
def test_the_real_ids(shared_data):
    places = load_dataset("sf0", shared_data / "sf0")
    assert (len(places.database), len(places.queries)) == (1_062_468, 803)
    assert places.database.place_ids[0] == (727224067,)
    assert places.queries.place_ids[11] == (671172725, 671172727, 671172729)
    assert places.database.place_ids.ids.nbytes + places.database.place_ids.starts.nbytes < 18e6
    assert sum(len(rows) > 0 for rows in find_positives(places)) == 751  # no more than these can be found
