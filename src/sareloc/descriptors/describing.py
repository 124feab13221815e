"""Many photo files to descriptors: a stream of batches, and all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from sareloc.descriptors.store import Store
from sareloc.errors import PhotoError
from sareloc.loading import load_images
from sareloc.models.place_model import PlaceModel

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]

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
) -> Iterator[Described]:
    """Describe photo files, batch by batch, holding a few batches of images at a time however many photos there are.

    Images of equal size are described together: each photo comes once, but the rows come in another order than the
    files where sizes differ. `workers` processes decode; `dim` cuts the descriptors to their first `dim` coordinates.
    `progress` shows photos per second and the time left, on a terminal.
    """
    waiting: dict[tuple[int, ...], list[tuple[int, Pixels]]] = {}
    errors: dict[int, PhotoError] = {}
    with tqdm(total=len(paths), desc="describe", unit="photo", disable=None if progress else True) as bar:

        def finish(group: list[tuple[int, Pixels]]) -> Described:
            rows = np.array([row for row, _ in group], dtype=np.int64)
            images = torch.from_numpy(np.stack([image for _, image in group])).permute(0, 3, 1, 2)
            done = Described(rows, model.encode(images, dim=dim, batch=batch).numpy(), errors.copy())
            errors.clear()
            bar.update(len(done.rows) + len(done.errors))
            return done

        for row, image in load_images(paths, model.preprocess.size, workers=workers):
            if isinstance(image, PhotoError):
                errors[row] = image
                continue
            group = waiting.setdefault(image.shape, [])
            group.append((row, image))
            if len(group) == batch or sum(map(len, waiting.values())) >= WINDOW_BATCHES * batch:
                yield finish(waiting.pop(max(waiting, key=lambda size: len(waiting[size]))))
        for size in list(waiting):
            yield finish(waiting.pop(size))
        if errors:
            bar.update(len(errors))
            yield Described(np.zeros(0, dtype=np.int64), np.zeros((0, dim or model.dim), dtype=np.float32), errors)


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
