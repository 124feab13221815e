"""`sareloc data draw`: a city from a seed, as photos on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sareloc.city import draw_places
from sareloc.datasets import DATASETS, load_dataset
from sareloc.datasets.check import Check, check_places
from sareloc.devices import TORCH_DEVICES, find_device
from sareloc.errors import ArgumentError
from sareloc.figures import draw_dataset, save_figure

# `sareloc data check`: what is in a dataset, and what is wrong with it.

LISTED = 5


def check(
    dataset: str,
    *,
    root: Path | None = None,
    split: str = "test",
    figure: Path | None = None,
    decode: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Count a dataset's photos, say how far it reaches and which queries can be answered, and try every file.

    The exit status is 1 where a file is missing or cannot be read.

    Parameters
    ----------
    dataset
        A published set's name, a folder of photos, or a CSV file.
    root
        The folder that holds a published set, or that a CSV file's names are relative to.
    split
        Which part of the dataset: train, val or test.
    figure
        Draw a map of database and queries into this file (png, svg or pdf).
    decode
        Decode every photo instead of reading its header: finds truncated files, and takes longer.
    as_json
        Print one JSON object instead of a table.
    """
    places = load_dataset(dataset, root, split)
    if figure is not None:
        save_figure(draw_dataset(places), figure)
    found = check_places(places, decode=decode, progress=True)
    print(json.dumps(found.to_json()) if as_json else table(found, decoded=decode))
    return 1 if found.missing or found.unreadable else 0


def table(found: Check, *, decoded: bool = False) -> str:
    """A check for people to read."""
    lines = [("dataset", f"{found.name}, split {found.split}"), ("database", f"{found.database:,} photos")]
    lines.append(("queries", _queries(found)))
    lines += [("", published) for published in _published(found)]
    if found.extent is not None:
        lines.append(
            ("extent", f"{found.extent.east_west_m:,.0f} m east-west, {found.extent.south_north_m:,.0f} m north-south")
        )
        if found.extent.south is not None:
            e = found.extent
            lines.append(("", f"latitude {e.south:.5f} to {e.north:.5f}, longitude {e.west:.5f} to {e.east:.5f}"))
    how = "decoded" if decoded else "opened (--decode tries the pixels too)"
    lines.append(("files", f"{found.photos - len(found.missing) - len(found.unreadable):,} of {found.photos:,} {how}"))
    lines += _listed("missing", found.missing)
    lines += _listed("unreadable", [f"{file}: {reason}" for file, reason in found.unreadable])
    lines += _listed("left out", [f"{file}: no geotag" for file in found.left_out])
    lines += [("note", note) for note in found.notes]
    return "\n".join(f"{name:<12}{value}" for name, value in lines)


def _queries(found: Check) -> str:
    if not found.queries:
        return "none: it can be mapped, not evaluated"
    how = f" within {found.hit_radius_m:g} m" if found.protocol in ("radius", "panorama", "time") else ""
    share = 100 * found.queries_with_positive / found.queries
    return f"{found.queries:,}, of which {found.queries_with_positive:,} ({share:.1f} %) have a positive{how}"


def _published(found: Check) -> list[str]:
    counts = DATASETS[found.name].splits.get(found.split) if found.name in DATASETS else None
    if counts is None or counts == (found.database, found.queries):
        return []
    return [f"(the published set has {counts[0]:,} database photos and {counts[1]:,} queries)"]


def _listed(name: str, values: tuple[str, ...] | list[str]) -> list[tuple[str, str]]:
    if not values:
        return []
    rest = [("", f"and {len(values) - LISTED:,} more (--json lists all)")] if len(values) > LISTED else []
    return [(name, f"{len(values):,}"), *(("", value) for value in values[:LISTED]), *rest]


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
