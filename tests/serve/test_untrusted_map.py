"""A map from an untrusted source: only allowed photos are shown, and whatever it holds, no answer is a 500."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from tests.localize.street import street_model
from tests.maps.small_town import gis
from tests.serve.running import street_client

from sareloc.errors import ArgumentError
from sareloc.maps import PlaceMap, copy_map
from sareloc.serve import ServeConfig, make_app
from sareloc.serve.served_map import allowed_path, hidden_photos


@pytest.fixture
def secrets(own_folder: Path) -> Path:
    """A folder beside the map's, with a photo that nobody has asked to show."""
    folder = own_folder.parent / "secrets"
    folder.mkdir()
    (own_folder / "queries" / "q01.jpg").rename(folder / "secret.jpg")
    return folder


def hostile_names(folder: Path, secrets: Path) -> dict[int, str]:
    """Names, by id, that a map may be given by a stranger."""
    photos = folder / "photos"
    (photos / "link.jpg").symlink_to(secrets / "secret.jpg")
    (photos / "linked").symlink_to(secrets)
    (photos / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    (photos / "text.jpg").write_text("no photo")
    os.mkfifo(photos / "pipe.jpg")
    return {
        1: str(secrets / "secret.jpg"),
        2: "../secrets/secret.jpg",
        3: "photos/../../secrets/secret.jpg",
        4: "photos/link.jpg",
        5: "photos/linked/secret.jpg",
        6: "photos/damaged.jpg",
        7: "photos/text.jpg",
        8: "photos/pipe.jpg",
        9: "photos",
        10: "photos/gone.jpg",
        11: str(secrets / "gone.jpg"),
        12: "/dev/zero",
        13: "/etc/passwd",
        14: "photos/" + "long" * 1000,
    }


def rename(path: Path, names: dict[int, str]) -> None:
    with gis(path) as connection:
        connection.executemany("UPDATE photos SET file = ? WHERE fid = ?", [(name, i) for i, name in names.items()])
    connection.close()


def answers(client: httpx.Client, ids: list[int]) -> list[tuple[int, str, dict[str, str]]]:
    found = [client.get(f"/photos/{i}/thumbnail") for i in ids]
    return [
        (one.status_code, one.text, {name: value for name, value in one.headers.items() if name != "date"})
        for one in found
    ]


def test_only_photos_under_the_maps_folder_are_shown(own_folder: Path, secrets: Path) -> None:
    """All others look the same, so that nobody learns which files there are."""
    names = hostile_names(own_folder, secrets)
    rename(own_folder / "street.gpkg", names)
    with street_client(own_folder / "street.gpkg") as client:
        told = answers(client, [*names, 9999])
        assert client.get("/photos/20/thumbnail").status_code == 200
    assert {status for status, _, _ in told} == {404}
    assert [one for one in told if one != told[0]] == []
    assert told[0][2]["content-type"] == "application/problem+json"


def test_folders_that_the_operator_adds_are_shown(own_folder: Path, secrets: Path) -> None:
    names = hostile_names(own_folder, secrets)
    rename(own_folder / "street.gpkg", names)
    with street_client(own_folder / "street.gpkg", config=ServeConfig(photos=(secrets,))) as client:
        shown = [i for i, (status, _, _) in zip(names, answers(client, list(names)), strict=True) if status == 200]
    assert shown == [1, 2, 3, 4, 5]


def test_a_map_reached_by_a_link_shows_its_photos(own_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own_folder)
    with street_client(tmp_path / "link" / "street.gpkg") as client:
        assert client.get("/photos/1/thumbnail").status_code == 200


def test_what_is_not_a_folder_is_reported(own_folder: Path) -> None:
    with pytest.raises(ArgumentError, match="--photos"):
        make_app(own_folder / "street.gpkg", street_model(), config=ServeConfig(photos=(own_folder / "absent",)))


def test_photos_that_cannot_be_shown_are_counted_with_the_folder_to_add(own_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "maps" / "street.gpkg"
    moved.parent.mkdir()
    copy_map(own_folder / "street.gpkg", moved, progress=False)
    files = PlaceMap(moved).files
    hidden = hidden_photos(files, moved.parent, [moved.parent])
    assert (hidden.count, hidden.folders) == (90, (str(own_folder / "photos"),))
    assert hidden_photos(files, moved.parent, [moved.parent, own_folder]).count == 0
    assert hidden_photos(PlaceMap(own_folder / "street.gpkg").files, own_folder, [own_folder]).count == 0


def test_photos_in_many_places_are_counted_with_their_commonest_folders() -> None:
    files = ["/a/b/1.jpg", "/c/d/1.jpg", "/c/d/2.jpg", "e/1.jpg", "/c/x/../d/3.jpg"]
    hidden = hidden_photos(files, Path("/maps"), [Path("/maps")])
    assert (hidden.count, hidden.folders) == (4, ("/c/d", "/a/b"))


DAMAGE = {
    "UPDATE photos SET heading_deg = 9e999 WHERE fid = 3": 200,
    "UPDATE photos SET heading_deg = x'00ff' WHERE fid = 3": 200,
    "UPDATE photos SET heading_deg = 'north' WHERE fid = 3": 200,
    "UPDATE photos SET time = x'00ff' WHERE fid = 3": 200,
    "UPDATE photos SET time = 12.5 WHERE fid = 3": 200,
    "UPDATE photos SET file = x'00ff' WHERE fid = 3": 404,
    "UPDATE photos SET file = 'a' || char(0) || 'b' WHERE fid = 3": 404,
    "UPDATE photos SET geom = x'0001' WHERE fid = 3": 404,
    "DROP TABLE manifest": 503,
}


def test_damage_that_comes_while_the_map_is_served(own_folder: Path) -> None:
    """A row that cannot be read is one photo less; a map that cannot be read is a 503."""
    path = own_folder / "street.gpkg"
    sound = path.read_bytes()
    photo = (own_folder / "queries" / "q05.jpg").read_bytes()
    with street_client(path) as client:
        for damage, status in DAMAGE.items():
            with gis(path) as connection:
                connection.execute(damage)
            connection.close()
            statuses = [
                client.get("/map").status_code,
                client.get("/health").status_code,
                client.get("/photos/3/thumbnail").status_code,
                client.post("/localize", content=photo).status_code,
            ]
            assert max(statuses) == status, damage
            assert set(statuses) <= {200, status}, damage
            (own_folder / "sound.gpkg").write_bytes(sound)
            (own_folder / "sound.gpkg").replace(path)
            assert client.get("/map").status_code == 200


def test_a_view_of_a_link_that_leaves_the_folder_is_not_shown(tmp_path: Path) -> None:
    inside, outside = tmp_path / "photos", tmp_path / "private"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.jpg").write_bytes(b"")
    (inside / "own.jpg").write_bytes(b"")
    (inside / "link.jpg").symlink_to(outside / "secret.jpg")
    folders = (Path(os.path.realpath(inside)),)
    view = "#yaw=0&pitch=0&fov=60&size=640x480"
    assert allowed_path(inside / f"link.jpg{view}", folders) is None
    assert allowed_path(inside / f"own.jpg{view}", folders) == folders[0] / f"own.jpg{view}"
