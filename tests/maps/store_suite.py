"""What every keeper of a map must do, a file or a server: subclass `StoreContract` and give `make`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
import pytest
from tests.index.contract_suite import unit_vectors
from tests.maps.small_town import geotag_of
from tests.maps.test_map_file import TINY, photo

from sareloc.maps import Area, Box, Circle, Entry, MapStore
from sareloc.maps.records import entry_of, same_geotag
from sareloc.photos import Geotag

HALF = 1e-3


class StoreContract:
    """Each test gets an empty store, open to write, of `TINY`'s manifest."""

    @abstractmethod
    def make(self) -> MapStore: ...

    def fill(self, count: int = 5) -> MapStore:
        store = self.make()
        assert store.add([photo(number) for number in range(count)], unit_vectors(count)) == count
        return store

    def test_says_what_it_is(self) -> None:
        store = self.make()
        made = store.manifest
        assert (made.model, made.fingerprint, made.dim, made.storage) == (
            TINY.model,
            TINY.fingerprint,
            TINY.dim,
            "float16",
        )
        assert len(made.map_id) == 32
        assert store.count() == 0
        assert list(store.records()) == []

    def test_the_same_content_is_taken_once(self) -> None:
        store = self.fill(3)
        again = replace(photo(1), file="copy.jpg")
        assert store.add([again, photo(3)], unit_vectors(2, seed=1)) == 1
        assert store.add([again, photo(3)], unit_vectors(2, seed=1)) == 0
        assert store.count() == 4
        assert set(files(store)) == {"0000.jpg", "0001.jpg", "0002.jpg", "0003.jpg"}

    def test_photos_are_found_by_content_and_by_file(self) -> None:
        store = self.fill(5)
        known = store.known([photo(1).sha256, photo(3).sha256, photo(77).sha256])
        assert {digest: entry.file for digest, entry in known.items()} == {
            photo(1).sha256: "0001.jpg",
            photo(3).sha256: "0003.jpg",
        }
        entries = store.entries(["0001.jpg", "0004.jpg", "absent.jpg", 'odd "name"\\\'ü\n.jpg'])
        assert entries["0001.jpg"] == known[photo(1).sha256]
        assert entries["0004.jpg"].stamp == (1004, 4)
        assert not {"absent.jpg", 'odd "name"\\\'ü\n.jpg'} & entries.keys()
        assert store.known([]) == {}

    def test_odd_names_come_back(self) -> None:
        store, name = self.make(), 'odd "name"\\\'ü\n%.jpg'
        store.add([replace(photo(1), file=name)], unit_vectors(1))
        assert store.entries([name])[name].stamp == (1001, 1)
        assert files(store) == [name]

    def test_a_photo_replaces_the_one_that_had_its_name(self) -> None:
        store = self.fill(3)
        old = store.entries(["0001.jpg"])["0001.jpg"]
        assert store.add([replace(photo(9), file="0001.jpg", replaces=old.photo_id)], unit_vectors(1, seed=1)) == 1
        assert {name: entry.stamp for name, entry in store.entries(FILES).items()} == {
            "0000.jpg": (1000, 0),
            "0001.jpg": (1009, 9),
            "0002.jpg": (1002, 2),
        }

    def test_a_photo_that_moved_gets_its_new_name_and_keeps_its_descriptor(self) -> None:
        store = self.fill(3)
        first, third = (store.known([photo(n).sha256])[photo(n).sha256].photo_id for n in (0, 2))
        store.update([entry_of(replace(photo(2), file="0000.jpg", replaces=first, modified_ns=77), third)])
        entries = store.entries(FILES)
        assert entries.keys() == {"0000.jpg", "0001.jpg"}
        assert (entries["0000.jpg"].photo_id, entries["0000.jpg"].stamp) == (third, (1002, 77))
        # "replaces" is out of date: that photo has another name by now
        second = entries["0001.jpg"].photo_id
        store.update([entry_of(replace(photo(1), file="0003.jpg", replaces=third), second)])
        assert store.entries([*FILES, "0003.jpg"]).keys() == {"0000.jpg", "0003.jpg"}
        vectors = {p.file: vector for photos, rows in store.records() for p, vector in zip(photos, rows, strict=True)}
        np.testing.assert_allclose(vectors["0000.jpg"], unit_vectors(3)[2], atol=HALF)

    def test_corrected_geotags_are_written_and_descriptors_kept(self) -> None:
        store = self.fill(5)
        entries = store.entries(FILES)
        moved = Geotag((-33.5, 151.25), 359.5, 1.6e9 + 0.25)
        bare = Geotag(geotag_of(2).latlon)
        absent = Entry(12345, "absent.jpg", (1, 1), moved)
        changed = [replace(entries["0001.jpg"], geotag=moved), replace(entries["0002.jpg"], geotag=bare), absent]
        store.update(changed)
        store.update([])
        after = store.entries(FILES)
        assert (after["0001.jpg"].geotag, after["0002.jpg"].geotag) == (moved, bare)
        assert after["0001.jpg"].stamp == entries["0001.jpg"].stamp
        assert same_geotag(after["0000.jpg"].geotag, geotag_of(0))
        assert [name for _, _, names in store.pages(Circle(moved.latlon, 1)) for name in names] == ["0001.jpg"]
        found = {p.file: (p, v) for records, rows in store.records() for p, v in zip(records, rows, strict=True)}
        assert found.keys() == {f"{number:04d}.jpg" for number in range(5)}
        assert found["0001.jpg"][0] == replace(photo(1), geotag=moved)
        for number in range(5):
            np.testing.assert_allclose(found[f"{number:04d}.jpg"][1], unit_vectors(5)[number], atol=HALF)

    def test_removed_photos_are_gone(self) -> None:
        store = self.fill(5)
        ids = [store.known([photo(n).sha256])[photo(n).sha256].photo_id for n in (1, 4)]
        assert store.remove(np.array([*ids, 12345], dtype=np.int64)) == 2
        assert store.remove(np.array(ids, dtype=np.int64)) == 0
        assert store.remove(np.zeros(0, dtype=np.int64)) == 0
        assert (store.count(), sorted(files(store))) == (3, ["0000.jpg", "0002.jpg", "0003.jpg"])

    @pytest.mark.parametrize(
        ("area", "inside"),
        [
            (None, range(8)),
            (Box(geotag_of(2).latlon[0], 2, geotag_of(4).latlon[0], 3), (2, 3, 4)),
            (Circle(geotag_of(3).latlon, 12), (2, 3, 4)),
            (Circle((0, 0), 10), ()),
        ],
    )
    def test_pages_keep_to_the_area(self, area: Area | None, inside: tuple[int, ...]) -> None:
        found = [
            (name, tuple(latlon))
            for ids, rows, names in self.fill(8).pages(area)
            for _, latlon, name in zip(ids, rows.tolist(), names, strict=True)
        ]
        assert sorted(found) == [(f"{number:04d}.jpg", geotag_of(number).latlon) for number in inside]

    def test_the_antimeridian_is_crossed(self) -> None:
        store, longitudes = self.make(), (179.9, -179.9, 180.0, -180.0, 0.0)
        photos = [replace(photo(n), geotag=Geotag((10.0, longitude))) for n, longitude in enumerate(longitudes)]
        store.add(photos, unit_vectors(5))
        for area in (Box(9, 179, 11, -179), Circle((10, 180), 20_000), Circle((10, -179.95), 20_000)):
            found = {name for _, _, names in store.pages(area) for name in names}
            assert found == {"0000.jpg", "0001.jpg", "0002.jpg", "0003.jpg"}, area

    def test_records_are_whole(self) -> None:
        store = self.make()
        photos = [photo(1), replace(photo(2), geotag=Geotag((-33.5, 151.25))), replace(photo(3), replaces=None)]
        store.add(photos, unit_vectors(3))
        found = {p.sha256: (p, v) for records, rows in store.records() for p, v in zip(records, rows, strict=True)}
        assert len(found) == 3
        for number, one in enumerate(photos):
            record, vector = found[one.sha256]
            assert record == one
            np.testing.assert_allclose(vector, unit_vectors(3)[number], atol=HALF)

    def test_photos_are_found_by_id(self) -> None:
        store = self.fill(5)
        ids = [store.known([photo(n).sha256])[photo(n).sha256].photo_id for n in (3, 1)]
        found = store.photos_of(np.array([*ids, 12345, ids[0]], dtype=np.int64))
        assert found == {ids[0]: photo(3), ids[1]: photo(1)}
        assert store.photos_of(np.zeros(0, dtype=np.int64)) == {}

    def test_local_features_come_back_unless_the_store_holds_none(self) -> None:
        store = self.fill(3)
        first, second, third = sorted(store.known([photo(n).sha256])[photo(n).sha256].photo_id for n in range(3))
        wanted = np.array([third, first, 12345], dtype=np.int64)
        held = store.holds_local_features
        assert store.ids_without_features().tolist() == [first, second, third]
        for _ in range(2):  # writing is repeatable
            assert store.write_features(wanted, [b"third", b"first", b"of no photo"]) == (2 if held else 0)
        everything = np.array([first, second, third, 12345], dtype=np.int64)
        assert store.features(everything) == ({first: b"first", third: b"third"} if held else {})
        assert store.ids_without_features().tolist() == ([second] if held else [first, second, third])
        store.write_features(wanted[:1], [b"again"])
        assert store.features(wanted[:1]) == ({third: b"again"} if held else {})

    def test_notes(self) -> None:
        store = self.make()
        assert store.notes() == {}
        store.write_note("calibration plain", "first")
        store.write_note("calibration plain", '{"weights": [1.5, "ü"]}')
        store.write_note("calibration verify=20", "x" * 5000)
        assert store.notes() == {"calibration plain": '{"weights": [1.5, "ü"]}', "calibration verify=20": "x" * 5000}
        assert store.manifest.fingerprint == TINY.fingerprint


FILES = [f"{number:04d}.jpg" for number in range(3)]


def files(store: MapStore) -> list[str]:
    return [name for _, _, names in store.pages() for name in names]
