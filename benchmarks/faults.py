"""What kills, damaged files, restored backups and hostile maps do to sareloc, as one tally.

    python -m benchmarks.faults                             # 120 kills, 600 damaged files: a few minutes on 2 cores
    python -m benchmarks.faults --kills 24 --damaged 60     # a quick look

Each case runs in a process of its own, which either gives the right answer, or says in one of our errors what is wrong.
What must never happen is counted: lost rows (acknowledged, then not in the map), silently wrong answers (an answer that
differs from that of the file before the damage, and neither an error nor `map verify` says so), tracebacks (any other
exception), crashes (a signal that we did not send) and hangs. The exit status is 1 if any of these happened.

- kills: builds, copies, index caches and checkpoints; a process kills itself before its n-th SQL statement or file
  operation, or is killed from outside after its n-th acknowledged batch. The same call then completes the work, and the
  result equals that of a process which was not killed.
- damaged files: maps, index caches, checkpoints, photos and geotag tables, with bytes flipped, blocks zeroed or
  swapped, or the end cut off. A damaged photo or table can look right: for these only errors other than ours count.
- restored backup: a map is backed up, grows, is searched, is restored and grows otherwise.
- hostile maps: tables replaced by views, values out of range, names with NUL, absurd manifests.
- hostile inputs (`benchmarks/fault_cases`): XMP, GPX, videos, telemetry, weights, tables, pipes and devices in place of
  files, features of other photos, photos that change meanwhile, world-wide maps, aborted requests, a service that is
  stopped; with the seconds and the memory of the worst case of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from benchmarks.fault_cases import maps as fault_maps
from benchmarks.fault_cases import photos as fault_photos
from benchmarks.fault_cases import service as fault_service
from benchmarks.fault_cases import weights as fault_weights
from benchmarks.map import drawn_photo
from benchmarks.measuring import about
from tests.kills import before_file_operations, before_statements, die_at
from tests.maps.kill_builds import enough_photos, kill_builds
from tests.maps.small_town import geotag_of, tiny_model, write_town

from sareloc.errors import SarelocError
from sareloc.index import sharded as approximate
from sareloc.maps import (
    MapConfig,
    MapManifest,
    PlaceMap,
    build_map,
    copy_map,
    create_map_file,
    map_info,
    open_map_file,
    remove_photos,
    verify_map,
)
from sareloc.models import load_model, make_model, save_checkpoint
from sareloc.photos import decode, read_geotag, read_geotag_table

DIM = 64
INDEXED = 3000
"""Photos of a map that is searched by an index: the threshold is lowered, so that a small map has one."""
HANG_S = 120
MEMORY_BYTES, FILE_BYTES = 8 * 2**30, 2**29
BAD = {
    "lost rows": "lost rows",
    "silently wrong": "silently wrong answers",
    "traceback": "tracebacks",
    "crash": "crashes",
    "hang": "hangs",
}


COSTS: list[tuple[float, float]] = []
"""Seconds and peak memory in MB, with what this process had loaded, of each process of `in_a_process`."""


# -- processes ---------------------------------------------------------------------------------------------------------


def in_a_process(work: Callable[[], str]) -> str:
    """The word that `work` returns in a process of its own; else "error" (one of ours), "traceback", "crash", "hang",
    or "killed" where it was killed by SIGKILL.
    """
    start, (read, write) = time.monotonic(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(HANG_S)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))  # sparse files may be larger
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            said = work()
        except SarelocError:
            said = "error"
        except BaseException:
            said = "traceback\n" + traceback.format_exc()
        os.write(write, said.encode()[:60_000])
        os._exit(0)
    os.close(write)
    received = b""
    while part := os.read(read, 65536):
        received += part
    os.close(read)
    _, status, used = os.wait4(child, 0)
    COSTS.append((time.monotonic() - start, used.ru_maxrss / 1024))
    if os.WIFSIGNALED(status):
        return {int(signal.SIGKILL): "killed", int(signal.SIGALRM): "hang"}.get(os.WTERMSIG(status), "crash")
    return received.decode()


class Tally:
    """How often each kind of case had each outcome."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.costs: dict[str, tuple[tuple[float, str], tuple[float, str]]] = {}
        self.examples: list[str] = []
        self.kills = 0

    def add_cost(self, kind: str, case: str, seconds: float, megabytes: float) -> None:
        """Seconds and memory of a case."""
        slowest, largest = self.costs.get(kind, ((0.0, ""), (0.0, "")))
        self.costs[kind] = max(slowest, (seconds, case)), max(largest, (megabytes, case))

    def costs_table(self) -> str:
        """The worst case of each kind, in seconds and in memory."""
        rows = [
            f"| {kind} | {slow:.1f} ({case}) | {large:,.0f} ({largest}) |"
            for kind, ((slow, case), (large, largest)) in self.costs.items()
        ]
        return "\n".join(["| kind | worst seconds | worst peak in MB |", "|---|---|---|", *rows])

    def add(self, kind: str, outcome: str, case: str) -> None:
        word = outcome.partition("\n")[0]
        self.counts.setdefault(kind, Counter())[word] += 1
        self.kills += "kill " in case
        if word in BAD:
            lines = outcome.strip().splitlines()
            self.examples.append(f"{kind}, {case}: {'; '.join([word, *lines[1:][-3:]])}")

    def total(self, *words: str) -> int:
        return sum(count[word] for count in self.counts.values() for word in words)

    def line(self) -> str:
        damaged = sum(sum(count.values()) for kind, count in self.counts.items() if kind.startswith("damaged"))
        bad = ", ".join(f"{self.total(word)} {name}" for word, name in BAD.items())
        return f"{self.kills} kills, {damaged} damaged files: {bad}"

    def table(self) -> str:
        words = sorted({word for count in self.counts.values() for word in count})
        rows = [["", "cases", *words]]
        rows += [
            [kind, str(sum(count.values())), *(str(count[word] or "-") for word in words)]
            for kind, count in self.counts.items()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


# -- maps --------------------------------------------------------------------------------------------------------------


def drawn_vectors(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def add_drawn(path: Path, numbers: range, seed: int) -> None:
    """Put photos of these numbers into a map, with descriptors that the seed draws."""
    if not path.exists():
        create_map_file(path, MapManifest("drawn", "0123456789abcdef", DIM))
    vectors = drawn_vectors(len(numbers), seed)
    with open_map_file(path, write=True) as file:
        for start in range(0, len(numbers), 256):
            some = numbers[start : start + 256]
            file.add([drawn_photo(n, np.array(geotag_of(n).latlon)) for n in some], vectors[start : start + 256])


def answers(path: Path, vectors: Any) -> list[tuple[str, tuple[float, float]]]:
    """The first match of each descriptor: file and position."""
    found = PlaceMap(path).search(vectors, 1)
    return [(files[0], tuple(latlon[0])) for files, latlon in zip(found.files, found.latlon.tolist(), strict=True)]


def compare(path: Path, vectors: Any, truth: list[Any]) -> str:
    """Whether a map answers as before: "right", "found by verify", or "silently wrong"."""
    if answers(path, vectors) == truth:
        return "right"
    return "found by verify" if verify_map(path) else "silently wrong"


def rows_of(path: Path) -> dict[str, tuple[Any, ...]]:
    """All that a map holds of each photo, by content, as `contents` of a straight build."""
    with open_map_file(path) as file:
        rows = file.query("SELECT sha256, file, geom, heading_deg, descriptor FROM photos JOIN descriptors USING (fid)")
    return {digest.hex(): tuple(rest) for digest, *rest in rows}


# -- kills -------------------------------------------------------------------------------------------------------------


def killed_builds(folder: Path, kills: int, seed: int) -> Iterator[tuple[str, str]]:
    photos, out = folder / "photos", folder / "killed" / "town.gpkg"
    write_town(photos, enough_photos(kills))
    for number, row in enumerate(kill_builds(photos, out, kills, seed)):
        yield f"kill {number}", "lost rows" if row["held"] < row["acknowledged"] else "nothing lost"
    build_map(photos, out, tiny_model(), config=MapConfig(batch=4, progress=False))
    build_map(photos, folder / "straight" / "town.gpkg", tiny_model(), config=MapConfig(batch=4, progress=False))
    same = rows_of(out).keys() == rows_of(folder / "straight" / "town.gpkg").keys() and not verify_map(out)
    yield "completed", "nothing lost" if same else "lost rows"


def killed_work(
    kills: int, rng: random.Random, work: Callable[[], None], check: Callable[[int], str], by_sql: bool
) -> Iterator[tuple[str, str]]:
    """Kill `work` before many SQL statements or file operations; `check` what each kill left, given its number."""
    done, most = 0, 64
    while done < kills:
        number = rng.randrange(1, most + 1)
        hook = before_statements if by_sql and rng.random() < 0.5 else before_file_operations

        def dying(number: int = number, hook: Callable[[Callable[[], None]], None] = hook) -> str:
            hook(die_at(number))
            work()
            return "ended"

        outcome = in_a_process(dying)
        if outcome == "ended" and number > 1:  # it does not do so many
            most = number - 1
            continue
        if outcome == "ended":  # nothing is left to do: check all, which begins again
            most = 64
            yield "completed", in_a_process(partial(check, 0))
            continue
        done += 1
        yield f"kill before {number}", in_a_process(partial(check, done)) if outcome == "killed" else outcome


def killed_copies(folder: Path, kills: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    source = folder / "source.gpkg"
    add_drawn(source, range(600), 1)
    expected = {digest: rest[2:] for digest, rest in rows_of(source).items()}
    target = folder / "target" / "copy.gpkg"

    def copy_it() -> None:
        copy_map(source, target, progress=False)

    def check(number: int) -> str:
        if number % 5 == 0:
            copy_it()
            found = {digest: rest[2:] for digest, rest in rows_of(target).items()}
            shutil.rmtree(target.parent)
            return "nothing lost" if found == expected else "lost rows"
        if target.exists() and verify_map(target):
            return "lost rows"
        return "nothing lost"

    yield from killed_work(kills, rng, copy_it, check, by_sql=True)


def killed_indexes(folder: Path, kills: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    path = folder / "indexed.gpkg"
    add_drawn(path, range(INDEXED), 2)
    vectors = drawn_vectors(INDEXED, 2)[::50]
    truth = answers(path, vectors)

    def open_it() -> None:
        shutil.rmtree(os.environ["SARELOC_CACHE"], ignore_errors=True)
        answers(path, vectors)

    yield from killed_work(kills, rng, open_it, lambda _: compare(path, vectors, truth), by_sql=False)


def killed_checkpoints(folder: Path, kills: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """A checkpoint that is replaced by another is one or the other at every moment."""
    models = [make_model("alexnet", "avg", size=(64, 64), rng=torch.Generator().manual_seed(n)) for n in (1, 2)]
    known = {model.fingerprint() for model in models}
    for kind in ("model.safetensors", "model"):
        path = folder / "checkpoints" / kind
        save_checkpoint(models[0], path)

        def save_it(path: Path = path) -> None:
            save_checkpoint(models[1], path)

        def check(_: int, path: Path = path) -> str:
            whole = load_model(path).fingerprint() in known
            save_checkpoint(models[0], path)
            return "nothing lost" if whole else "silently wrong"

        for case, outcome in killed_work(kills // 2, rng, save_it, check, by_sql=False):
            yield f"{kind}, {case}", "lost rows" if outcome == "error" else outcome


# -- damaged files -----------------------------------------------------------------------------------------------------


def damage(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The content with one thing wrong, and what that is."""
    data, where = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(("flip", "flip", "flip", "flips", "zeros", "noise", "cut", "swap"))
    if kind == "flip":
        data[where] ^= 1 << rng.randrange(8)
    elif kind == "flips":
        for _ in range(20):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind in ("zeros", "noise"):
        size = min(rng.choice((16, 512, 16_384)), len(data) - where)
        data[where : where + size] = bytes(size) if kind == "zeros" else rng.randbytes(size)
    elif kind == "cut":
        del data[where:]
    else:
        block = min(512, len(data) // 2)
        other = rng.randrange(len(data) - block + 1)
        where = rng.randrange(len(data) - block + 1)
        data[where : where + block], data[other : other + block] = (
            data[other : other + block],
            data[where : where + block],
        )
    return bytes(data), f"{kind} at {where} of {len(content)}"


def damaged_file(path: Path, count: int, rng: random.Random, work: Callable[[], str]) -> Iterator[tuple[str, str]]:
    """Damage a file so many times, each time another way, and say what `work` then does; restored at the end."""
    content = path.read_bytes()
    try:
        for _ in range(count):
            worse, how = damage(content, rng)
            path.write_bytes(worse)
            for beside in path.parent.glob(f"{path.name}-*"):
                beside.unlink()
            yield f"{path.name} {how}", in_a_process(work)
    finally:
        path.write_bytes(content)


def damaged_maps(folder: Path, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    path = folder / "damaged.gpkg"
    add_drawn(path, range(300), 3)
    vectors = drawn_vectors(300, 3)
    truth = answers(path, vectors)

    def use() -> str:
        map_info(path)
        return compare(path, vectors, truth)

    yield from damaged_file(path, count, rng, use)


def damaged_caches(folder: Path, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Whatever is in the cache, answers are those of the map."""
    path = folder / "cached.gpkg"
    add_drawn(path, range(INDEXED), 4)
    vectors = drawn_vectors(INDEXED, 4)[::50]
    truth = answers(path, vectors)
    with open_map_file(path) as opened:
        cache = Path(os.environ["SARELOC_CACHE"]) / "index" / opened.manifest.map_id
    files = sorted(cache.iterdir())
    assert len(files) > 1, "there is no index to damage"
    good = {file: file.read_bytes() for file in files}
    for number in range(count):
        worse, how = damage(good[files[number % len(files)]], rng)
        for file, content in good.items():
            file.write_bytes(content)
        files[number % len(files)].write_bytes(worse)
        outcome = in_a_process(lambda: "right" if answers(path, vectors) == truth else "silently wrong")
        yield f"{files[number % len(files)].name} {how}", outcome
        for file in cache.iterdir():
            file.unlink()


def damaged_checkpoints(folder: Path, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    model = make_model("alexnet", "netvlad", size=(64, 64), rng=torch.Generator().manual_seed(3), clusters=4)
    model.backbone.load_state_dict(model.backbone.state_dict())
    for kind in ("damaged.safetensors", "damaged"):
        path = folder / kind
        save_checkpoint(model, path)
        known = model.fingerprint()
        files = [path] if path.is_file() else sorted(path.iterdir())

        def use(path: Path = path, known: str = known) -> str:
            return "right" if load_model(path).fingerprint() == known else "silently wrong"

        for file in files:
            yield from damaged_file(file, count // (2 * len(files)), rng, use)


def damaged_photos(folder: Path, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    from PIL import Image

    first = write_town(folder / "damaged photos", 1)[0]
    image = Image.open(first).convert("RGB").resize((400, 300))
    paths = [first]
    for suffix in ("jpg", "png", "webp", "tiff"):
        paths.append(folder / f"photo.{suffix}")
        image.save(paths[-1])
    for path in paths:

        def use(path: Path = path) -> str:
            read_geotag(path)
            decode(path)
            return "right"

        yield from damaged_file(path, count // len(paths), rng, use)


def damaged_tables(folder: Path, count: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    csv, geojson = folder / "geotags.csv", folder / "geotags.geojson"
    tags = [(f"{number}.jpg", *geotag_of(number).latlon) for number in range(30)]
    csv.write_text("file,lat,lon\n" + "".join(f"{name},{lat},{lon}\n" for name, lat, lon in tags))
    features = [
        {
            "type": "Feature",
            "properties": {"file": name},
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
        }
        for name, lat, lon in tags
    ]
    geojson.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    for path in (csv, geojson):

        def use(path: Path = path) -> str:
            read_geotag_table(path)
            return "right"

        yield from damaged_file(path, count // 2, rng, use)


# -- restored backups and hostile maps ---------------------------------------------------------------------------------


def restored_backups(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    for number in range(count):
        path = folder / f"restored{number}.gpkg"
        add_drawn(path, range(INDEXED), 5)
        answers(path, drawn_vectors(1, 5))
        backup = path.read_bytes()
        if number % 2:
            remove_photos(path, files=["00000007.jpg", "00000008.jpg"])
        add_drawn(path, range(INDEXED, INDEXED + 700), 6)
        answers(path, drawn_vectors(1, 5))
        path.write_bytes(backup)
        add_drawn(path, range(INDEXED + 1000, INDEXED + 1700), 7)
        truth = [(f"{n:08d}.jpg", geotag_of(n).latlon) for n in range(INDEXED + 1000, INDEXED + 1700)]

        def use(path: Path = path, truth: list[Any] = truth) -> str:
            found = [(file, tuple(np.round(latlon, 9))) for file, latlon in answers(path, drawn_vectors(700, 7))]
            return "right" if found == [(file, tuple(np.round(at, 9))) for file, at in truth] else "silently wrong"

        yield f"backup {number}", in_a_process(use)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
_POINT = "UPDATE photos SET geom = substr(geom, 1, 13) || x'{0}{0}' WHERE fid = 7"
HOSTILE = {
    "photos is an endless view": (
        f"ALTER TABLE photos RENAME TO other; CREATE VIEW photos AS {ENDLESS} SELECT i AS fid, geom, file, time, "
        "heading_deg, width, height, sha256, size_bytes, modified_ns FROM n, other"
    ),
    "descriptors is an endless view": (
        f"ALTER TABLE descriptors RENAME TO other; CREATE VIEW descriptors AS {ENDLESS} SELECT i AS fid, "
        "zeroblob(128) AS descriptor FROM n"
    ),
    "manifest is a view": ("ALTER TABLE manifest RENAME TO other; CREATE VIEW manifest AS SELECT * FROM other"),
    "infinite heading": "UPDATE photos SET heading_deg = 9e999 WHERE fid = 7",
    "heading is a blob": "UPDATE photos SET heading_deg = zeroblob(9) WHERE fid = 7",
    "name with NUL": "UPDATE photos SET file = 'a' || char(0) || 'b.jpg' WHERE fid = 7",
    "name is a blob": "UPDATE photos SET file = x'ff00' WHERE fid = 7",
    "name is not UTF-8": "UPDATE photos SET file = CAST(x'ff41' AS TEXT) WHERE fid = 7",
    "geometry is text": "UPDATE photos SET geom = 'here' WHERE fid = 7",
    "geometry is short": "UPDATE photos SET geom = x'4750' WHERE fid = 7",
    "geometry is empty": "UPDATE photos SET geom = x'' WHERE fid = 7",
    "geometry is NaN": _POINT.format("000000000000f87f"),
    "geometry is far": _POINT.format("0000000000006940"),
    "time is no time": "UPDATE photos SET time = 'yesterday' WHERE fid = 7",
    "time is a blob": "UPDATE photos SET time = x'ff' WHERE fid = 7",
    "hash is short": "UPDATE photos SET sha256 = x'00' WHERE fid = 7",
    "hash is text": "UPDATE photos SET sha256 = 'hash' WHERE fid = 7",
    "size is text": "UPDATE photos SET size_bytes = 'large', modified_ns = x'00' WHERE fid = 7",
    "width is negative": "UPDATE photos SET width = -1, height = 'x' WHERE fid = 7",
    "descriptor is text": "UPDATE descriptors SET descriptor = 'x' WHERE fid = 7",
    "descriptor is short": "UPDATE descriptors SET descriptor = x'00' WHERE fid = 7",
    "descriptor is NaN": "UPDATE descriptors SET descriptor = substr(zeroblob(126) || x'007e', 1) WHERE fid = 7",
    "descriptor is gone": "DELETE FROM descriptors WHERE fid = 7",
    "local features is an endless view": (
        f"DROP TABLE local_features; CREATE VIEW local_features AS {ENDLESS} SELECT i AS fid, x'' AS features, "
        "1 AS checksum FROM n"
    ),
    "local features are gone": "DROP TRIGGER photos_forget_features; DROP TABLE local_features",
    "local features are text": "INSERT INTO local_features VALUES (7, 'x', 1)",
    "local features of 20 MB": "INSERT INTO local_features VALUES (7, zeroblob(20000000), 1)",
    "local features of no photo": "INSERT INTO local_features VALUES (7000, x'00', 1)",
    "local features of many keypoints": (
        "INSERT INTO manifest (key, value) VALUES ('note local features', '{\"keypoints\": 1e400}')"
    ),
    "dim 0": "UPDATE manifest SET value = '0' WHERE key = 'dim'",
    "dim 1e12": "UPDATE manifest SET value = '1000000000000' WHERE key = 'dim'",
    "dim is no number": "UPDATE manifest SET value = 'many' WHERE key = 'dim'",
    "format superscript": "UPDATE manifest SET value = '²' WHERE key = 'format'",
    "format of 6,000 digits": "UPDATE manifest SET value = printf('%06000d', 1) WHERE key = 'format'",
    "format is a blob": "UPDATE manifest SET value = x'31' WHERE key = 'format'",
    "storage unknown": "UPDATE manifest SET value = 'float1' WHERE key = 'storage'",
    "map id leads elsewhere": "UPDATE manifest SET value = '../../../tmp/elsewhere' WHERE key = 'map_id'",
    "no manifest": "DELETE FROM manifest",
    "photos without file": "DROP TRIGGER photos_edited; ALTER TABLE photos DROP COLUMN file",
    "trigger that never ends": (
        f"CREATE TRIGGER evil AFTER INSERT ON photos BEGIN INSERT INTO manifest (key, value) {ENDLESS} "
        "SELECT 'x' || i, 'y' FROM n; END"
    ),
}


def hostile_uses(path: Path) -> dict[str, Callable[[], object]]:
    """Every way to read or write a map."""
    copied = path.with_name("copied") / path.name
    return {
        "info": lambda: map_info(path),
        "verify": lambda: verify_map(path),
        "search": lambda: answers(path, drawn_vectors(20, 8)),
        "local features": lambda: PlaceMap(path).local_features(range(1, 21)),
        "copy": lambda: copy_map(path, copied, progress=False),
        "add": lambda: add_drawn(path, range(20, 22), 9),
    }


def quietly(work: Callable[[], object]) -> str:
    work()
    return "no error"


def hostile_maps(folder: Path) -> Iterator[tuple[str, str]]:
    """A map from an unknown source is an error, or works."""
    for number, (name, script) in enumerate(HOSTILE.items()):
        path = folder / f"hostile{number}.gpkg"
        add_drawn(path, range(20), 8)
        with closing(sqlite3.connect(path)) as connection:
            for (trigger,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE name GLOB 'rtree_*' AND type = 'trigger'"
            ).fetchall():
                connection.execute(f'DROP TRIGGER "{trigger}"')  # those of the R-tree need functions of a GIS
            connection.executescript(script)
        for what, work in hostile_uses(path).items():
            yield f"{name}, {what}", in_a_process(partial(quietly, work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--damaged", type=int, default=600)
    parser.add_argument("--every", type=int, default=1, help="run one of so many hostile inputs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # processes are forked
    faiss.omp_set_num_threads(1)
    approximate.EXACT_NUMBERS = 500 * DIM  # so that a small map is searched by an index
    rng, tally = random.Random(options.seed), Tally()
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        os.environ["SARELOC_CACHE"] = str(folder / "cache")
        kills, each = options.kills // 4, options.damaged // 6
        sections: list[tuple[str, Iterator[tuple[str, str]]]] = [
            ("killed: build", killed_builds(folder, kills, options.seed)),
            ("killed: copy", killed_copies(folder, kills, rng)),
            ("killed: index cache", killed_indexes(folder, kills, rng)),
            ("killed: checkpoint", killed_checkpoints(folder, kills, rng)),
            ("damaged: map", damaged_maps(folder, 2 * each, rng)),
            ("damaged: index cache", damaged_caches(folder, each, rng)),
            ("damaged: checkpoint", damaged_checkpoints(folder, each, rng)),
            ("damaged: photo", damaged_photos(folder, each, rng)),
            ("damaged: table", damaged_tables(folder, each, rng)),
            ("restored backup", restored_backups(folder, 4)),
            ("hostile map", hostile_maps(folder)),
        ]
        for kind, cases in sections:
            for case, outcome in cases:
                tally.add(kind, outcome, case)
            print(f"{kind}: {dict(tally.counts.get(kind, {}))}", file=sys.stderr, flush=True)
        for module in (fault_maps, fault_photos, fault_weights, fault_service):
            own = folder / module.__name__
            own.mkdir()
            for number, (kind, case, work) in enumerate(module.cases(own)):
                if number % options.every == 0:
                    before = set(own.iterdir())
                    tally.add(kind, in_a_process(work), case)
                    tally.add_cost(kind, case, *COSTS[-1])
                    for made in set(own.iterdir()) - before:
                        shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink()
            print(f"{module.__name__}: done", file=sys.stderr, flush=True)
    print(json.dumps(about()))
    print(tally.table())
    print(tally.line())
    print(tally.costs_table())
    for example in tally.examples[:20]:
        print(example)
    return 1 if tally.total(*BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
