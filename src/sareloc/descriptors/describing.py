"""Many photo files to descriptors: a stream of batches, and all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from sareloc.descriptors.encoding import COMPILE_FROM, Pixels, Vectors, encode_batches
from sareloc.descriptors.store import Store
from sareloc.errors import PhotoError
from sareloc.loading import Loaded, load_images
from sareloc.models.place_model import PlaceModel

Ints = npt.NDArray[np.int64]
Tag = tuple[Ints, dict[int, PhotoError]]

WINDOW_BATCHES = 4  # so many batches of images wait for others of their size


class Described(NamedTuple):
    """What became of some photos, by their row in the list: their descriptors, or why they have none."""

    rows: Ints
    """(n,) rows of the photos described."""
    descriptors: Vectors
    """(n, dim) unit vectors."""
    errors: dict[int, PhotoError]
    """Rows of photos that could not be decoded, and why."""


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of N photos, in their order."""

    vectors: Vectors
    """(N, dim) unit vectors; zeros in the rows of `failures`. A memory map where they are stored."""
    failures: Mapping[int, PhotoError] = field(default_factory=dict)
    """Rows of photos that could not be decoded, and why."""


def describe(
    model: PlaceModel,
    paths: Sequence[Path],
    *,
    batch: int = 8,
    workers: int = 0,
    dim: int | None = None,
    progress: bool = True,
    compiled: bool | None = None,
) -> Iterator[Described]:
    """Describe photo files, batch by batch, holding a few batches of images at a time however many photos there are.

    Images of equal size are described together: each photo comes once, but the rows come in another order than the
    files where sizes differ. `workers` processes decode; `dim` cuts the descriptors to their first `dim` coordinates.
    `progress` shows photos per second and the time left, on a terminal. `compiled`: by torch.compile; None: on a GPU,
    where there are photos enough to be worth it.
    """
    if compiled is None:
        compiled = len(paths) >= COMPILE_FROM
    with tqdm(total=len(paths), desc="describe", unit="photo", disable=None if progress else True) as bar:
        groups = _groups(load_images(paths, model.preprocess.size, workers=workers), batch)
        for (rows, errors), vectors in encode_batches(model, groups, batch=batch, dim=dim, compiled=compiled):
            bar.update(len(rows) + len(errors))
            yield Described(rows, vectors, errors)


def _groups(loaded: Iterator[tuple[int, Loaded]], batch: int) -> Iterator[tuple[Tag, list[Pixels]]]:
    """Images of one size each, with their rows and the errors met so far, each once; errors may come without images."""
    waiting: dict[tuple[int, ...], list[tuple[int, Pixels]]] = {}
    errors: dict[int, PhotoError] = {}

    def finish(size: tuple[int, ...]) -> tuple[Tag, list[Pixels]]:
        group = waiting.pop(size)
        met = errors.copy()
        errors.clear()
        return (np.array([row for row, _ in group], dtype=np.int64), met), [image for _, image in group]

    for row, image in loaded:
        if isinstance(image, PhotoError):
            errors[row] = image
            continue
        group = waiting.setdefault(image.shape, [])
        group.append((row, image))
        if len(group) == batch or sum(map(len, waiting.values())) >= WINDOW_BATCHES * batch:
            yield finish(max(waiting, key=lambda size: len(waiting[size])))
    for size in list(waiting):
        yield finish(size)
    if errors:
        yield (np.zeros(0, dtype=np.int64), errors), []


def describe_all(
    model: PlaceModel,
    paths: Sequence[Path],
    *,
    store: Path | None = None,
    batch: int = 8,
    workers: int = 0,
    dim: int | None = None,
    progress: bool = True,
) -> Descriptors:
    """The descriptors of all photos, in memory or, with `store`, in a folder that an interrupted run goes on from.

    With `store`, photos described before are skipped unless their file has changed since; photos that failed are
    tried again. A folder that another model, dimension or list of photos has filled is refused.
    """
    kept = None if store is None else Store.open(store, model.fingerprint(), dim or model.dim, paths)
    vectors = np.zeros((len(paths), dim or model.dim), dtype=np.float32) if kept is None else kept.vectors
    todo = np.arange(len(paths)) if kept is None else kept.todo()
    failures: dict[int, PhotoError] = {}
    wanted = [paths[int(row)] for row in todo]
    for part in describe(model, wanted, batch=batch, workers=workers, dim=dim, progress=progress):
        failed = {int(todo[row]): error for row, error in part.errors.items()}
        failures.update(failed)
        if kept is None:
            vectors[todo[part.rows]] = part.descriptors
        else:
            kept.put(todo[part.rows], part.descriptors)
            kept.forget(list(failed))
    if kept is not None:
        kept.mark()
    return Descriptors(vectors, failures)
