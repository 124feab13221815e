"""Options that several commands share, and what several of them print.

Options have plain types, so that help is printed without numpy and torch; `test_help.py` compares them with the records
of the library that they become.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, overload

from cyclopts import Parameter
from tqdm import tqdm

from sareloc.errors import ArgumentError, PhotoError
from sareloc.wording import plural

if TYPE_CHECKING:
    from sareloc.geo import Area
    from sareloc.localize import Fix, Localizer, SeveralMaps, UsedCondition, VideoOptions
    from sareloc.photos import TrackOptions

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
"""An option without a value and without a --no- form."""
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON instead of text.")]
MAP = Parameter(name="map", help="The map: a file, or a server address such as milvus://host:19530/city.")
"""The argument MAP of every command."""
MapPath = Annotated[Path, MAP]
Root = Annotated[
    Path | None,
    Parameter(
        name="--root",
        help="Folder of a published dataset, or the folder that file names in a CSV file are relative to.",
    ),
]
Split = Annotated[str, Parameter(name="--split", help="Split of the dataset: train, val or test.")]
Model = Annotated[
    str | None,
    Parameter(
        help="A packaged model (default, fast), a checkpoint, or a published file. Default: fast.",
    ),
]
Workers = Annotated[int, Parameter(name="--workers", help="Processes that decode photos; 0: no other process.")]
MIN_CONFIDENCE = 0.5
"""`sareloc.localize.MIN_CONFIDENCE`."""
DEVICE_HELP = (
    "Device of the model: cpu, cuda, cuda:N (N from 0), mps (Apple), or a faster CPU runtime, openvino or "
    "openvino-int8 (extra openvino). Default: cuda if there is a GPU, else cpu."
)
Device = Annotated[str | None, Parameter(name="--device", help=DEVICE_HELP)]
"""The `--device` option of every command that runs a model."""
PRECISION_HELP = (
    "Number format of the model: float32, bfloat16, or auto: that of the environment variable SARELOC_PRECISION if "
    "it is set, else bfloat16 where the device is fast in it and float32 elsewhere."
)
Precision = Annotated[Literal["auto", "float32", "bfloat16"], Parameter(name="--precision", help=PRECISION_HELP)]
"""The `--precision` option of every command that computes descriptors."""


@dataclass(frozen=True)
class LocalizerOptions:
    """How a map is opened, with the options of `sareloc.localize.Search`, and queries are localized in it."""

    model: str | None = None
    """Checkpoint that the map was built with; default: the packaged model that the map was built with."""
    candidates: int | None = None
    """How many photos are retrieved by their search vectors. Default: 100 if matches are verified, else 20."""
    verify: int | None = None
    """Verify about N of them geometrically, by local features, and re-rank them; 0: do not verify. Default: 10 if the
    map holds local features, else 0."""
    batch: int = 8
    """Maximum number of photos encoded at once."""
    workers: Workers = 2
    device: Device = None
    precision: Precision = "auto"

    @overload
    def open(self, maps: Path, *, min_confidence: float = ..., panorama: bool = ...) -> Localizer: ...

    @overload
    def open(
        self, maps: list[Path], *, min_confidence: float = ..., panorama: bool = ...
    ) -> Localizer | SeveralMaps: ...

    def open(
        self, maps: Path | list[Path], *, min_confidence: float = MIN_CONFIDENCE, panorama: bool = False
    ) -> Localizer | SeveralMaps:
        """The localizer of one or several maps; panorama: 2:1 photos without GPano tags are 360° photos."""
        from sareloc.localize import Search, open_localizer
        from sareloc.photos import ViewOptions

        return open_localizer(
            maps[0] if isinstance(maps, list) and len(maps) == 1 else maps,
            self.model,
            Search(self.candidates, self.verify),
            min_confidence=min_confidence,
            views=ViewOptions(untagged=panorama),
            device=self.device,
            precision=self.precision,
            batch=self.batch,
            workers=self.workers,
        )


DEFAULT_LOCALIZER = LocalizerOptions()
Opened = Annotated[LocalizerOptions, Parameter(name="*")]
"""The options `--model`, `--candidates`, `--verify`, `--batch`, `--workers`, `--device` and `--precision`."""


@dataclass(frozen=True)
class ConditionOptions:
    """How photos that are asked together are centred on their condition, see `sareloc.localize.Condition`."""

    condition: str = "auto"
    """What 20 or more photos of many places have in common, such as night, is subtracted before they are searched
    (auto); none: each is searched alone; or a file of --save-condition, for any number of photos."""
    save_condition: Path | None = None
    """Estimate the condition of all photos together, write it to this file, and use it."""

    def choose(
        self, localizer: Localizer | SeveralMaps, photos: Sequence[Path], near: Area | None = None
    ) -> UsedCondition:
        """The condition of these photos, which is written to a file if that was asked for."""
        from sareloc.localize import open_condition, save_condition

        if self.condition != "auto" and self.save_condition is not None:
            raise ArgumentError(
                "--save-condition estimates a condition, which excludes --condition: choose one of them"
            )
        if self.condition == "none":
            return None
        if self.condition != "auto":
            return open_condition(self.condition)
        if self.save_condition is None:
            return "auto"
        found = localizer.estimate_condition(photos, near=near)
        if not found.weight:
            given = f"{plural(found.photos, 'photo')} of {plural(found.places, 'place')}"
            print_notes([f"{given}: too few for a condition, it has no effect"])
        save_condition(found, self.save_condition)
        return found


DEFAULT_CONDITION = ConditionOptions()
ConditionFlags = Annotated[ConditionOptions, Parameter(name="*")]
"""The options `--condition` and `--save-condition`."""


@dataclass(frozen=True)
class TrackFlags:
    """The options of `sareloc.photos.TrackOptions`."""

    track: Annotated[tuple[Path, ...], Parameter(show=True, show_default=False)] = ()
    """GPX files (.gpx), NMEA logs (.nmea, .log, .txt) or videos with positions inside: photos without a position get
    that of the track at their EXIF time. Default for videos: the positions inside them."""
    timezone: str | None = None
    """Time zone of the camera's clock: an IANA name such as Europe/Zurich, or an offset such as +02:00. Default: the
    photo's own (OffsetTimeOriginal), which takes precedence, else its GPS time, else UTC."""
    clock_offset: Annotated[float | str, Parameter(allow_leading_hyphen=True)] = 0.0
    """What to add to the camera's clock: -3.2s if it was 3.2 s fast; also 1h2m3s or +00:01:30."""
    max_gap_s: float = 30.0
    """Longest time in seconds between two points of the track; photos taken within a longer gap get no position."""
    estimate_offset: bool = False
    """Estimate the clock offset by the photos that have a position already. That of a video: see localize."""
    track_heading: Literal["movement", "none"] = "movement"
    """Heading of the photos: the direction of movement, right for a camera that faces forward, or none."""
    every_m: float = 5.0
    """Metres between two frames of a video that are used; none are used while the camera stands still."""
    video_start: str | None = None
    """When the first frame of a video was taken that has no clock, or a wrong one, such as 2024-05-31T12:00:00Z;
    without a zone in that of --timezone, default UTC."""

    def options(self) -> TrackOptions | None:
        """The record of the library; None if no option was given. Raises ArgumentError for invalid options."""
        from sareloc.photos import TrackOptions

        return None if self == NO_TRACK else TrackOptions(**vars(self))


NO_TRACK = TrackFlags()
Track = Annotated[TrackFlags, Parameter(name="*", negative=(), consume_multiple=True)]
"""The options `--track`, `--timezone`, `--clock-offset`, ... of a command that places photos on tracks."""


@dataclass(frozen=True)
class VideoFlags:
    """The options of `sareloc.localize.VideoOptions`."""

    every_s: float = 1.0
    """Seconds between two frames of a video that are localized. A frame is named as its file and time, such as
    drive.mp4#t=12."""
    track: Annotated[tuple[Path, ...], Parameter(negative=(), consume_multiple=True, show_default=False)] = ()
    """GPX files or NMEA logs that were recorded with the videos; default: the positions inside the videos. A note on
    standard error says how far from the track the positions are."""
    estimate_offset: Flag = False
    """Estimate the offset of a video's clock against the track, by the positions found. It is printed on standard
    error, as map build takes it (--clock-offset), and added to the times."""
    clock_offset: Annotated[float | str, Parameter(allow_leading_hyphen=True)] = 0.0
    """What to add to a video's clock, such as -3.2s if it was 3.2 s fast."""
    video_start: str | None = None
    """When the first frame of a video was taken that has no clock, or a wrong one, such as 2024-05-31T12:00:00Z."""

    def options(self) -> VideoOptions:
        """The record of the library. Raises ArgumentError for invalid options."""
        from sareloc.localize import VideoOptions

        return VideoOptions(**vars(self))


NO_VIDEO = VideoFlags()
Videos = Annotated[VideoFlags, Parameter(name="*")]
"""The options `--every-s`, `--track`, `--estimate-offset`, `--clock-offset` and `--video-start`."""


NOTES = 10
"""Notes of one kind that are printed; the others are counted."""


class ResumableStop(KeyboardInterrupt):
    """Ctrl-C in a command that the same command with --resume continues."""


def print_notes(notes: Iterable[str]) -> None:
    """Print notes on the input to standard error: ten, and how many more there are."""
    known = list(notes)
    more = [f"and {len(known) - NOTES:,} more"] if len(known) > NOTES else []
    for note in (*known[:NOTES], *more):
        print(f"sareloc: {note}", file=sys.stderr)


def localize_files(
    localizer: Localizer | SeveralMaps,
    files: Sequence[Path],
    walk_step_m: float | None = None,
    *,
    near: Area | None = None,
    top: int = 5,
    condition: UsedCondition = "auto",
) -> Iterator[tuple[str, Fix | PhotoError]]:
    """Each photo with its fix, as soon as it is known, with a progress bar on standard error.

    walk_step_m: the photos are one walk (see `Localizer.localize_walk`).
    """
    fixes: Iterable[Fix | PhotoError]
    if walk_step_m is None:
        each = localizer.localize_each(files, near=near, top=top, condition=condition)
        fixes = tqdm(each, total=len(files), desc="localize", unit="photo", disable=None)
    else:
        fixes = localizer.localize_walk(files, walk_step_m, near=near, top=top, condition=condition, progress=True)
    yield from zip(map(str, files), fixes, strict=True)


def report_unreadable(found: Iterable[tuple[str, Fix | PhotoError]]) -> Iterator[tuple[str, Fix]]:
    """The photos with a fix; errors of the others are printed to standard error."""
    for photo, fix in found:
        if isinstance(fix, PhotoError):
            tqdm.write(f"sareloc: {fix}", file=sys.stderr)
        else:
            yield photo, fix
