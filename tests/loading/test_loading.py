from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sareloc.errors import ArgumentError, PhotoError, SarelocError
from sareloc.loading import AHEAD, read_images
from sareloc.photos import Resizing, SizeRule, decode

DEADLINE_S = 300.0  # ends a test that hangs

linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks up child processes in /proc")


def children() -> set[int]:
    """The living child processes of this one."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def load_images(
    paths: Iterable[Path], size: SizeRule | None, *, workers: int = 0
) -> Iterator[tuple[int, np.ndarray | PhotoError]]:
    """The pixels of each photo at one size."""
    loaded = read_images(paths, (size,), workers=workers)
    return ((row, image if isinstance(image, PhotoError) else image.pixels[0]) for row, image in loaded)


def save(path: Path, height: int = 48, width: int = 64, seed: int = 0) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=90)
    return path


def half(height: int, width: int) -> tuple[int, int]:
    return height // 2, width // 2


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Thirty photos, some large and slow, with six bad ones among them."""
    folder = tmp_path_factory.mktemp("photos")
    good = [save(folder / f"{n:02d}.jpg", 900 if n % 5 == 0 else 48, 64 + n, seed=n) for n in range(30)]
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no photo")
    cut = folder / "cut.jpg"
    cut.write_bytes(good[0].read_bytes()[: good[0].stat().st_size // 2])
    odd = folder / os.fsdecode(b'caf\xe9 "1".jpg')
    save(odd)
    bad = [folder / "none.jpg", folder, folder / "empty.jpg", folder / "text.jpg", cut, Path("a\0b.jpg")]
    return [good[0], *bad[:3], *good[1:20], *bad[3:], odd, *good[20:]]


def test_workers_give_what_this_process_gives_in_order(photos: list[Path]) -> None:
    here = list(load_images(photos, half))
    there = list(load_images(photos, half, workers=3))
    assert [row for row, _ in here] == [row for row, _ in there] == list(range(len(photos)))
    failed = 0
    for photo, (_, expected), (_, found) in zip(photos, here, there, strict=True):
        if isinstance(expected, PhotoError):
            failed += 1
            assert isinstance(found, PhotoError)
            assert (found.photo, found.reason) == (str(photo), expected.reason) == (expected.photo, expected.reason)
        else:
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(expected, decode(photo, size=half))
            assert isinstance(found, np.ndarray)
            assert found.flags.writeable
    assert failed == 6


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "pipes"])
def test_images_of_all_sizes_come_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Small, larger, small again: what one left in shared memory shows in no other."""
    if not shared:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    sizes = [(48, 64), (300, 200), (10, 10), (700, 900), (48, 64), (64, 48)] * 3
    paths = [save(tmp_path / f"{n}.png", *size, seed=n) for n, size in enumerate(sizes)]
    for row, image in load_images(paths, None, workers=2):
        np.testing.assert_array_equal(image, decode(paths[row]))


def test_a_worker_asks_once_for_each_size(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{n}.jpg", 40 + n % 2, 64) for n in range(20)]
    asked: list[tuple[int, int]] = []

    def rule(height: int, width: int) -> tuple[int, int]:
        asked.append((height, width))
        return half(height, width)

    assert {image.shape for _, image in load_images(paths, rule, workers=1) if not isinstance(image, PhotoError)} == {
        (20, 32, 3)
    }
    assert sorted(asked) == [(40, 64), (41, 64)]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_interpolation_of_a_rule_reaches_the_workers(photos: list[Path], workers: int) -> None:
    good = photos[4:7]
    for row, image in load_images(good, Resizing(half, "bicubic"), workers=workers):
        full = decode(good[row])
        expected = Image.fromarray(full).resize((full.shape[1] // 2, full.shape[0] // 2), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(image, np.asarray(expected))


@linux
def test_shared_memory_is_given_back(photos: list[Path]) -> None:
    gc.collect()  # what earlier tests left may be closed at any time
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert len(list(load_images(photos, half, workers=2))) == len(photos)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_size_rule_photos_keep_their_size(photos: list[Path], workers: int) -> None:
    ((row, image),) = load_images([str(photos[0])], None, workers=workers)
    assert row == 0
    assert isinstance(image, np.ndarray)
    assert image.shape == (900, 64, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_no_photos(workers: int) -> None:
    assert list(load_images([], half, workers=workers)) == []


def test_a_negative_number_of_workers_is_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"workers must be 0 .* or more, found -1"):
        load_images([], half, workers=-1)


@pytest.mark.parametrize("workers", [0, 2])
def test_photos_that_the_size_rule_refuses_are_errors_like_others(tmp_path: Path, workers: int) -> None:
    def refuse_small(height: int, width: int) -> tuple[int, int]:
        if height < 40:
            raise ArgumentError(f"{height} x {width} is too small")
        return height, width

    paths = [save(tmp_path / "a.jpg"), save(tmp_path / "icon.jpg", 20, 30), save(tmp_path / "b.jpg")]
    (_, first), (_, icon), (_, last) = load_images(paths, refuse_small, workers=workers)
    assert isinstance(icon, PhotoError)
    assert str(icon) == f"{paths[1]}: 20 x 30 is too small"
    np.testing.assert_array_equal(first, last)


@linux
@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_size_rule_is_raised(photos: list[Path], workers: int) -> None:
    before = children()
    with pytest.raises(ZeroDivisionError):
        list(load_images(photos, lambda height, width: (height // 0, width), workers=workers))
    assert children() <= before


@linux
@pytest.mark.parametrize("workers", [1, 3])
def test_few_photos_are_ahead_of_the_caller(photos: list[Path], workers: int) -> None:
    taken = []

    def paths() -> Iterator[Path]:
        for photo in photos:
            taken.append(photo)
            yield photo

    before = children()
    images = load_images(paths(), half, workers=workers)
    for row in range(5):
        assert next(images)[0] == row
        assert len(taken) == row + workers * AHEAD
    assert len(children() - before) <= workers
    images.close()
    assert children() <= before


@linux
def test_few_photos_start_few_workers(photos: list[Path]) -> None:
    before = children()
    images = load_images(photos[:1], half, workers=8)
    next(images)
    assert len(children() - before) == 1
    images.close()


@linux
def test_workers_never_see_ctrl_c(photos: list[Path]) -> None:
    """From their first instruction on: SIGINT is blocked in the process that starts."""
    before = children()
    images = load_images(photos[:1], half, workers=1)
    next(images)
    (worker,) = children() - before
    status = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
    assert int(status["SigBlk"], 16) & (1 << (signal.SIGINT - 1))
    images.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@linux
def test_a_worker_killed_once_costs_nothing(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{n}.jpg", 48, 64 + n, seed=n) for n in range(6)]
    before, killed = children(), []

    def kill_once(height: int, width: int) -> tuple[int, int]:
        if width == 67 and not killed:
            killed.extend(children() - before)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return height, width

    images = [image for _, image in load_images(paths, kill_once, workers=1)]
    assert len(killed) == 1
    for path, image in zip(paths, images, strict=True):
        np.testing.assert_array_equal(image, decode(path))


@linux
def test_a_photo_that_kills_its_decoder_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{n}.jpg", 48, 64 + n, seed=n) for n in range(6)]
    before = children()

    def kill(height: int, width: int) -> tuple[int, int]:
        if width == 67:
            for pid in children() - before:
                os.kill(pid, signal.SIGSEGV)
        return height, width

    images = [image for _, image in load_images(paths, kill, workers=1)]
    assert isinstance(images[3], PhotoError)
    assert str(images[3]) == f"{paths[3]}: decoding it killed the worker process, twice (signal 11)"
    for row in (0, 1, 2, 4, 5):
        np.testing.assert_array_equal(images[row], decode(paths[row]))


def test_workers_that_cannot_start_say_so(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        SarelocError, match=r"a worker process did not start \(exit status 1.*workers=0 decodes in this"
    ):
        next(load_images(photos, half, workers=2))


# A signal may arrive just before a blocking read, which then goes on: a caller that is interrupted sleeps in a loop.
SCRIPT = """
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would its children
from sareloc.loading import read_images
print("script runs", flush=True)
for row, image in read_images([sys.argv[1]] * 100, [lambda height, width: (height, width)], workers=2):
    if row == 3:
        print("loading", flush=True)
        {then}
print("end", flush=True)
"""


@contextlib.contextmanager
def started(then: str, photo: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process group of a script and its workers; whatever the test finds, none of it is left behind."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(then=then))
    with subprocess.Popen(
        [sys.executable, str(script), str(photo)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    pytest.fail(f"never printed {word}: {process.communicate()}")


def wait_for_end_of(group: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.01)
        pytest.fail("workers outlived their caller")


def test_a_script_without_a_guard_runs_once(photos: list[Path], tmp_path: Path) -> None:
    with started("break", photos[0], tmp_path) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out.split("\n") == ["script runs", "loading", "end", ""]
    assert err == ""


def test_ctrl_c_ends_caller_and_workers_quietly(photos: list[Path], tmp_path: Path) -> None:
    with started("while True: time.sleep(0.01)", photos[0], tmp_path) as process:
        wait_for(process, "loading")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody
        process.wait(DEADLINE_S)
        assert process.stderr is not None
        err = process.stderr.read()
        assert err.count("Traceback") == 1
        assert err.strip().endswith("KeyboardInterrupt")
        wait_for_end_of(process.pid)


def test_ctrl_c_is_the_callers_to_answer(photos: list[Path], tmp_path: Path) -> None:
    """A caller that goes on after Ctrl-C, as one that saves its work first, still has its workers."""
    then = """
        signal.signal(signal.SIGINT, lambda *_: heard.append(True))
        print("ready", flush=True)
        while not heard:
            time.sleep(0.01)
        print("heard", flush=True)
        input()
    """
    with started(then, photos[0], tmp_path) as process:
        wait_for(process, "ready")
        os.killpg(process.pid, signal.SIGINT)
        wait_for(process, "heard")
        out, err = process.communicate("go on\n", timeout=DEADLINE_S)
    assert out.split() == ["end"]
    assert err == ""


def test_workers_do_not_outlive_a_killed_caller(photos: list[Path], tmp_path: Path) -> None:
    with started("sys.stdin.read()", photos[0], tmp_path) as process:
        wait_for(process, "loading")
        process.kill()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert err == ""
        wait_for_end_of(process.pid)
