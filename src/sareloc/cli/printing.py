"""What several commands print: notes, and fixes with a progress bar and errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from sareloc.errors import PhotoError

if TYPE_CHECKING:
    from sareloc.geo import Area
    from sareloc.localize import Fix, Localizer


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on the input to standard error."""
    for note in notes:
        print(f"sareloc: {note}", file=sys.stderr)


def localize_files(
    localizer: Localizer,
    files: Sequence[Path],
    walk_step_m: float | None = None,
    *,
    near: Area | None = None,
    top: int = 5,
) -> Iterator[tuple[str, Fix | PhotoError]]:
    """Each photo with its fix, as soon as it is known, with a progress bar on standard error.

    walk_step_m: the photos are one walk (see `Localizer.localize_walk`).
    """
    fixes: Iterable[Fix | PhotoError]
    if walk_step_m is None:
        each = localizer.localize_each(files, near=near, top=top)
        fixes = tqdm(each, total=len(files), desc="localize", unit="photo", disable=None)
    else:
        fixes = localizer.localize_walk(files, walk_step_m, near=near, top=top, progress=True)
    yield from zip(map(str, files), fixes, strict=True)


def report_unreadable(found: Iterable[tuple[str, Fix | PhotoError]]) -> Iterator[tuple[str, Fix]]:
    """The photos with a fix; errors of the others are printed to standard error."""
    for photo, fix in found:
        if isinstance(fix, PhotoError):
            tqdm.write(f"sareloc: {fix}", file=sys.stderr)
        else:
            yield photo, fix
