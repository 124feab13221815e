"""The photos of a map as a page shows them, and noticing that a map has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.localize.street import street_model, view, write_view

from sareloc.errors import MapError
from sareloc.localize import Localizer
from sareloc.maps import Box, MapConfig, PlaceMap, add_photos, open_map_file
from sareloc.maps.records import PhotoTable
from sareloc.photos import Geotag, read_image
from sareloc.serve.live_map import LiveMap, LiveMaps, Query
from sareloc.serve.routes import map_geojson


def listing(*latlon: tuple[float, float]) -> PhotoTable:
    ids = np.arange(len(latlon)) * 2 + 1
    return PhotoTable(ids, np.array(latlon, dtype=float).reshape(-1, 2), tuple(f"{i}.jpg" for i in ids))


@pytest.mark.parametrize(
    ("latlon", "extent"),
    [
        ([], None),
        ([(48.0, 2.0)], Box(48.0, 2.0, 48.0, 2.0)),
        ([(48.0, 2.0), (49.0, -3.0), (47.0, 1.0)], Box(47.0, -3.0, 49.0, 2.0)),
        ([(-17.0, 179.5), (-16.0, -179.0), (-18.0, 178.0)], Box(-18.0, 178.0, -16.0, -179.0)),
        ([(0.0, 10.0), (1.0, 10.0)], Box(0.0, 10.0, 1.0, 10.0)),
    ],
)
def test_the_box_of_a_map_takes_the_shorter_way_round(latlon: list[tuple[float, float]], extent: Box | None) -> None:
    shown = listing(*latlon)
    assert shown.extent == extent
    if extent is not None:
        assert len(extent.rows(shown.latlon)) == len(latlon)


def test_files_are_found_by_id() -> None:
    shown = listing((1, 1), (2, 2), (3, 3))
    assert [shown.file_of(i) for i in range(-1, 8)] == [None, None, "1.jpg", None, "3.jpg", None, "5.jpg", None, None]
    assert listing().file_of(1) is None


def test_headings_and_times_are_in_the_answer(own_folder: Path) -> None:
    from PIL import Image

    from sareloc.photos import exif_bytes

    tag = Geotag((48.0, 2.0), 123.0, 1.7e9)
    (own_folder / "new").mkdir()
    Image.fromarray(view(40, 0)).save(own_folder / "new" / "a.jpg", exif=exif_bytes(tag))
    add_photos(own_folder / "new", own_folder / "street.gpkg", street_model(), config=MapConfig(progress=False))
    listed = PlaceMap(own_folder / "street.gpkg").list_photos(Box(47.9, 1.9, 48.1, 2.1), 10)
    told = map_geojson({"street.gpkg": listed}, str, several=False)
    assert told["features"][0]["properties"] == {
        "photo": "new/a.jpg", "heading_deg": 123.0, "time": "2023-11-14T22:13:20.000Z",
    }  # fmt: skip
    assert (told["inside"], told["total"]) == (1, 91)


def test_every_change_of_a_map_is_a_new_version_and_nothing_else_is(own_folder: Path) -> None:
    map_path = own_folder / "street.gpkg"
    watched = PlaceMap(map_path)
    first = watched.version()
    PlaceMap(map_path)  # reading is no change
    assert watched.version() == first
    seen = {first}
    with open_map_file(map_path, write=True) as file:
        for number in range(20):  # faster than a time stamp's grain
            file.write_note("number", str(number))
            assert watched.version() not in seen
            seen.add(watched.version())
    last = watched.version()
    assert watched.version() == last
    shutil.copy(map_path, own_folder / "copy.gpkg")
    (own_folder / "copy.gpkg").replace(map_path)
    assert watched.version() != last
    map_path.unlink()
    with pytest.raises(MapError, match="cannot be read: No such file"):
        watched.version()
    watched.close()


def test_a_map_that_is_closed_last_leaves_one_file(own_folder: Path) -> None:
    map_path = own_folder / "street.gpkg"
    watched = PlaceMap(map_path)
    with open_map_file(map_path, write=True) as file:
        file.write_note("a", "b")
        watched.version()
    watched.close()
    assert [file.name for file in own_folder.glob("street.gpkg*")] == ["street.gpkg"]
    with open_map_file(map_path, write=True) as file:
        file.write_note("a", "c")
        watched.version()
    del watched  # as if it was closed
    assert [file.name for file in own_folder.glob("street.gpkg*")] == ["street.gpkg"]


def test_nothing_is_read_again_while_nothing_changes(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    map_path = own_folder / "street.gpkg"
    place_map = PlaceMap(map_path)
    live = LiveMaps({"a": LiveMap(street_model(), place_map, Localizer(street_model(), place_map))}, 0.5)
    question = Query(read_image(view(5, 99), (street_model().preprocess.size,)), None, 3)
    first = live.localize([question])
    listed = place_map.current_files()
    reads: list[int] = []
    monkeypatch.setattr(PlaceMap, "refresh", lambda self: reads.append(1))
    assert live.localize([question]) == first
    assert reads == []
    assert place_map.current_files() is listed
    write_view(own_folder / "new" / "a.jpg", view(40, 0), (48.0, 2.0))
    add_photos(own_folder / "new", map_path, street_model(), config=MapConfig(progress=False))
    live.localize([question])
    assert reads == [1]
    assert place_map.current_count() == 91
    live.close()
