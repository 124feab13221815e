"""Finding the files of a published set in the folder that a user has, and saying how the set is laid out if not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sareloc.errors import DatasetError


def find_file(root: Path, names: Sequence[str], layout: str) -> Path:
    """The first of these files that is in `root`; where none is, the error says what was looked for and `layout`."""
    found = next((root / name for name in names if (root / name).is_file()), None)
    if found is None:
        raise not_found(root, " or ".join(names), layout)
    return found


def not_found(root: Path, wanted: str, layout: str) -> DatasetError:
    """The error for a set whose `wanted` files are not in `root`."""
    state = "" if root.is_dir() else " (no such folder)"
    return DatasetError(f"looked in {root}{state} and found no {wanted}. The set is laid out so:\n{layout}")


def find_folder(root: Path, names: Sequence[str], first_file: str) -> Path:
    """The first of these folders of `root` that holds `first_file`, else the first name: photos may come later."""
    holders = (root / name for name in names if (root / name / first_file).is_file())
    return next(holders, root / names[0])


def read_mat(path: Path, key: str) -> Any:
    """The variable `key` of a MATLAB file (version 5)."""
    from scipy.io import loadmat

    try:
        content = loadmat(path)
    except Exception as broken:  # a damaged file raises a dozen unrelated types, zlib's and numpy's among them
        raise DatasetError(f"{path} cannot be read as a MATLAB file: {broken}") from broken
    if key not in content:
        found = ", ".join(name for name in content if not name.startswith("__")) or "nothing"
        raise DatasetError(f"{path} holds no variable {key!r}, only {found}: it is another file")
    return content[key]
