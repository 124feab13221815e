"""`sareloc data draw`: a city from a seed, as photos on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.datasets.city import draw_places
from sareloc.devices import TORCH_DEVICES, find_device
from sareloc.errors import ArgumentError

DRAWING_HELP = "Where to draw: cpu, cuda, cuda:N (the GPU of number N, from 0), mps. Default: cuda if there is a GPU."


def draw(
    out: Path,
    *,
    seed: int = 0,
    size: Literal["small", "medium", "large"] = "small",
    split: Literal["train", "val", "test", "all"] = "all",
    photo: str | None = None,
    device: Annotated[str | None, Parameter(help=DRAWING_HELP)] = None,
) -> None:
    """Draw a city and write it as a dataset, with the exact position of every photo in its name and its EXIF.

    A run that was interrupted goes on where it stopped.

    Parameters
    ----------
    out
        The folder to write images/{train,val,test}/{database,queries}/ into.
    seed
        Another number, another city.
    size
        Photos per split: small 150 + 50 queries, medium 3,000 + 1,000, large 10,008 + 7,000.
    split
        Which part; the three are different towns.
    photo
        Height and width in pixels, such as 480x640; by itself 240x320 for small, 480x640 for the others.
    """
    splits = ("train", "val", "test") if split == "all" else (split,)
    where = find_device(device, TORCH_DEVICES)
    written = draw_places(out, seed, size, splits=splits, photo_size=_photo_size(photo), device=where, progress=True)
    print(f"{written:,} photos written to {out / 'images'}")


def _photo_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ArgumentError(f"--photo is height x width in pixels, such as 480x640: found {text!r}")
    return int(height), int(width)
