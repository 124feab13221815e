"""Maps that mislead or hang: local features of other photos, photos on both sides of the Earth, pipes and devices as
maps, formats that were set back, photos that are replaced while a map is built."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.localize.street import street_model
from tests.localize.town import world_position, write_world
from tests.maps.small_town import tiny_model, write_photo, write_town

from sareloc.errors import MapError
from sareloc.geo import distance_m
from sareloc.loading import read_images
from sareloc.localize import Fix, Localizer, Search
from sareloc.maps import MapConfig, PlaceMap, add_local_features, build_map, map_info, open_store, verify_map, writer
from sareloc.models import save_checkpoint

Work = Callable[[], str]
PLACE_M = 25.0
NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": lambda path: bind_socket(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}
USES: dict[str, Callable[[Path], object]] = {
    "open": PlaceMap,
    "info": map_info,
    "verify": verify_map,
    "upgrade": lambda path: add_local_features(path, progress=False),
    "build": lambda path: build_map(
        path.parent / "photos", path, tiny_model(), config=MapConfig(keypoints=0, progress=False)
    ),
}


def cases(folder: Path) -> Iterator[tuple[str, str, Work]]:
    """(kind, case, work) of every case; `work` makes what it needs in `folder`."""
    for name, answer in WORLD_WIDE.items():
        yield "world-wide maps", name, partial(in_folder, folder / f"world {name}", answer)
    for name, change in FOREIGN.items():
        yield "rotated features", name, partial(in_folder, folder / f"features {name}", partial(foreign, change))
    for kind, make in NO_FILES.items():
        for suffix in ("", "-wal", "-shm", "-journal"):
            case, work = f"{kind} as town.gpkg{suffix}", partial(no_file, make, suffix)
            yield "special map files", case, partial(in_folder, folder / case, work)
    for number in (1, 2, 3):
        yield "formats set back", f"to {number}", partial(in_folder, folder / f"format {number}", partial(back, number))
    for how in ("overwritten", "renamed"):
        yield "changing photos", how, partial(in_folder, folder / how, partial(changing, how == "renamed"))


def in_folder(folder: Path, work: Callable[[Path], str]) -> str:
    """What `work` returns, in a new folder; on one thread, since the process may be a fork."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    return work(folder)


def right_if(right: object) -> str:
    return "right" if right else "silently wrong"


# -- world-wide maps ---------------------------------------------------------------------------------------------------


def is_at(fix: Fix, place: int) -> bool:
    return fix.latlon is not None and float(distance_m(fix.latlon, world_position(place))) < PLACE_M


def localizer(folder: Path) -> Localizer:
    return Localizer(street_model(), PlaceMap(write_world(folder)), Search(verify=40), min_confidence=0)


def photo_on_the_other_side(folder: Path) -> str:
    return right_if(is_at(localizer(folder).localize(folder / "wall.jpg"), 3))


def sphere_on_the_other_side(folder: Path) -> str:
    return right_if(is_at(localizer(folder).localize(folder / "sphere.jpg"), 5))


def walk_around_the_world(folder: Path) -> str:
    fixes = localizer(folder).localize_walk([folder / "wall.jpg", folder / "wall.jpg"], 1e8)
    return right_if(all(isinstance(fix, Fix) and is_at(fix, 3) for fix in fixes))


def by_command(folder: Path) -> str:
    write_world(folder)
    save_checkpoint(street_model(), folder / "model.safetensors")
    command = [sys.executable, "-m", "sareloc", "localize", "world.gpkg", "wall.jpg", "sphere.jpg", "--verify", "40"]
    options = ["--model", "model.safetensors", "--workers", "0", "--device", "cpu"]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
    return "traceback" if "Traceback" in done.stderr else right_if(done.returncode == 0)


WORLD_WIDE: dict[str, Callable[[Path], str]] = {
    "a photo": photo_on_the_other_side,
    "a 360° photo": sphere_on_the_other_side,
    "a walk": walk_around_the_world,
    "the command line": by_command,
}


# -- local features ----------------------------------------------------------------------------------------------------


def small_map(folder: Path, count: int = 6, keypoints: int = 30) -> Path:
    """FOLDER/town.gpkg of the photos in FOLDER/photos."""
    write_town(folder / "photos", count)
    build_map(
        folder / "photos", folder / "town.gpkg", tiny_model(), config=MapConfig(keypoints=keypoints, progress=False)
    )
    return folder / "town.gpkg"


def change_map(path: Path, *statements: str) -> None:
    """As another program would."""
    with closing(sqlite3.connect(path)) as connection:
        for sql in statements:
            connection.execute(sql)
        connection.commit()


def rotate(path: Path) -> None:
    """Give the local features of each photo to the next one."""
    count = len(PlaceMap(path))
    change_map(path, f"UPDATE local_features SET fid = -1 - fid % {count}", "UPDATE local_features SET fid = -fid")


def swap(path: Path) -> None:
    change_map(
        path,
        "UPDATE local_features SET fid = -3 + fid WHERE fid IN (1, 2)",
        "UPDATE local_features SET fid = -fid WHERE fid < 0",
    )


def take_from_another_map(path: Path) -> None:
    folder = path.parent / "other"
    write_photo(folder / "photos" / "0000.jpg", 77)
    build_map(folder / "photos", folder / "town.gpkg", tiny_model(), config=MapConfig(keypoints=30, progress=False))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS other", (str(folder / "town.gpkg"),))
        connection.execute("INSERT OR REPLACE INTO main.local_features SELECT * FROM other.local_features")


def rename_extractor(path: Path) -> None:
    with open_store(path, write=True) as store:
        store.write_note("local features", '{"extractor": "superpoint", "weights": "v1", "keypoints": 30}')


FOREIGN = {
    "rotated": rotate,
    "swapped": swap,
    "of another map": take_from_another_map,
    "of another extractor": rename_extractor,
}


def foreign(change: Callable[[Path], None], folder: Path) -> str:
    """Local features that are not the photos' own are never used, and `map verify` lists them."""
    path = small_map(folder)
    change(path)
    if not verify_map(path):
        return "silently wrong"
    try:
        Localizer(tiny_model(), PlaceMap(path)).localize(folder / "photos" / "0000.jpg")
    except MapError:
        return "right"
    return "silently wrong"


# -- files -------------------------------------------------------------------------------------------------------------


def bind_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket may have some hundred bytes
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def no_file(make: Callable[[Path], object], suffix: str, folder: Path) -> str:
    """Every use is refused, with a sentence."""
    path = small_map(folder, count=2, keypoints=0)
    if not suffix:
        path.unlink()
    make(path.with_name(f"{path.name}{suffix}"))
    return right_if(all(is_refused(use, path) for use in USES.values()))


def back(number: int, folder: Path) -> str:
    path = small_map(folder, count=2, keypoints=0)
    change_map(path, f"UPDATE manifest SET value = '{number}' WHERE key = 'format'")
    return right_if(all(is_refused(use, path) for use in USES.values()))


def is_refused(use: Callable[[Path], object], path: Path) -> bool:
    try:
        use(path)
    except MapError:
        return True
    return False


# -- photos ------------------------------------------------------------------------------------------------------------


def changing(renamed: bool, folder: Path) -> str:
    """A photo has other content while it is described, and its own, with its time stamp, before and after."""
    wanted = PlaceMap(small_map(folder / "right", keypoints=0)).descriptors([3])[0]
    path = write_town(folder / "photos", 6)[2]
    own, status, read = path.read_bytes(), path.stat(), read_images

    def put(content: bytes) -> None:
        where = path.with_name("beside") if renamed else path
        where.write_bytes(content)
        os.replace(where, path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def swapped(*given: Any, **options: Any) -> Iterator[Any]:
        put(write_photo(folder / "other.jpg", 99).read_bytes())
        yield from read(*given, **options)
        put(own)

    setattr(writer, "read_images", swapped)  # noqa: B010
    first = build_map(
        folder / "photos", folder / "town.gpkg", tiny_model(), config=MapConfig(keypoints=0, progress=False)
    )
    setattr(writer, "read_images", read)  # noqa: B010
    build_map(folder / "photos", folder / "town.gpkg", tiny_model(), config=MapConfig(keypoints=0, progress=False))
    found = PlaceMap(folder / "town.gpkg")
    rows = [photo_id for photo_id, file in zip(found.ids, found.files, strict=True) if file.endswith("0002.jpg")]
    same = len(rows) == 1 and np.allclose(found.descriptors(rows)[0], wanted, atol=1e-3)
    return right_if(same and len(first.unreadable) == 1)
