"""A drive through the drawn city: a video of a car's camera, and the GPX track of a receiver with another clock.

The receiver's clock is UTC. `clock_offset_s` is added to the camera's clock to get UTC: -3.2 if it is 3.2 s fast. The
video's `creation_time` is what the camera's clock says at the first frame; hence the frame at `time_s` was taken at the
UTC time creation_time + time_s + clock_offset_s. Other traffic stands still.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from sareloc.arrays import Floats
from sareloc.arrays import Image as Pixels
from sareloc.city.dataset import claim
from sareloc.city.geometry import Poses
from sareloc.city.moment import Moment, make_moment
from sareloc.city.render import draw_scene
from sareloc.city.route import make_route
from sareloc.city.scene import make_scene
from sareloc.city.town import Town, make_town, split_seed
from sareloc.errors import ArgumentError, need
from sareloc.files import replacing, write_atomically
from sareloc.geo import wgs84_from_enu

CAMERA_HEIGHT_M, CAMERA_PITCH, CAMERA_ANGLE = 1.4, np.deg2rad(2.0), np.deg2rad(70.0)
FRAME_SIZE = (270, 480)
TRACK_MARGIN_S = 30
"""Seconds of the track before the first frame and after the last."""
GPS_CORRELATION_S = 20.0
A_YEAR_S = 365 * 86400
FRAMES_AT_ONCE = 32
VIDEO, TRACK, TRUTH, RECORD = "drive.mp4", "drive.gpx", "truth.csv", "drive.json"


@dataclass(frozen=True, eq=False)
class Drive:
    """A drive: N frames with exact poses, and a track of M points. Times of day are seconds since 1970, UTC."""

    town: Town
    moment: Moment
    """Its time is that of the first frame."""
    poses: Poses
    """(N,) pose of the camera at each frame; the heading is the direction of travel."""
    times_s: Floats
    """(N,) seconds since the first frame."""
    latlon: Floats
    """(N, 2) degrees."""
    headings_deg: Floats
    """(N,) compass headings."""
    fps: float
    """Frames per second."""
    clock_offset_s: float
    """What is added to the camera's clock to get UTC: negative if it is fast."""
    track_latlon: Floats
    """(M, 2) degrees, with the receiver's noise."""
    track_times: Floats
    """(M,) whole seconds, in UTC."""
    arguments: Mapping[str, object]
    """What `make_drive` was called with."""

    @property
    def creation_time(self) -> float:
        """What the camera's clock says at the first frame: a whole second."""
        return float(round(self.moment.time - self.clock_offset_s))


def make_drive(
    seed: int = 0,
    size: str = "small",
    split: str = "test",
    *,
    number: int = 0,
    seconds: float = 60.0,
    fps: float = 10.0,
    weather: str = "clear",
    clock_offset_s: float = -3.2,
    gps_noise_m: float = 1.5,
) -> Drive:
    """A drive through the town of a split, in the year after that of the database; deterministic.

    `number`: another number is another route and another day. `gps_noise_m`: standard deviation of the track's error to
    the east and to the north, which changes within GPS_CORRELATION_S seconds; 0: none. Raises ArgumentError for invalid
    arguments.
    """
    _check(number, seconds, fps, clock_offset_s, gps_noise_m)
    town = make_town(split_seed(seed, split), size)
    route_rng, moment_rng, noise_rng = np.random.default_rng([61, town.seed, number]).spawn(3)
    route = make_route(route_rng, town.streets, seconds + 2 * TRACK_MARGIN_S)
    moment = make_moment(moment_rng, weather, town.origin[0], town.rotation)
    start = math.ceil(moment.time) + A_YEAR_S + clock_offset_s  # the camera writes whole seconds
    times_s = np.arange(max(1, round(seconds * fps))) / fps
    xy, yaw = route.at(times_s + TRACK_MARGIN_S)
    n = len(times_s)
    track_times = np.arange(math.ceil(start - TRACK_MARGIN_S), math.floor(start + times_s[-1] + TRACK_MARGIN_S) + 1.0)
    track_xy, _ = route.at(track_times - start + TRACK_MARGIN_S)
    return Drive(
        town=town,
        moment=replace(moment, time=start),
        poses=Poses(
            eye=np.column_stack([xy, np.full(n, CAMERA_HEIGHT_M)]),
            yaw=yaw,
            pitch=np.full(n, CAMERA_PITCH),
            roll=np.zeros(n),
            width_angle=np.full(n, CAMERA_ANGLE),
            moment=np.zeros(n, dtype=np.int64),
            seed=moment_rng.integers(1 << 30, size=n),
        ),
        times_s=times_s,
        latlon=wgs84_from_enu(town.enu(xy), town.origin),
        headings_deg=town.heading_deg(yaw),
        fps=fps,
        clock_offset_s=clock_offset_s,
        track_latlon=wgs84_from_enu(
            town.enu(track_xy) + gps_noise_m * _gps_noise(noise_rng, len(track_xy)), town.origin
        ),
        track_times=track_times,
        arguments={
            "seed": seed, "size": size, "split": split, "number": number, "seconds": seconds, "fps": fps,
            "weather": weather, "clock_offset_s": clock_offset_s, "gps_noise_m": gps_noise_m,
        },
    )  # fmt: skip


def _check(number: int, seconds: float, fps: float, clock_offset_s: float, gps_noise_m: float) -> None:
    if number < 0:
        raise ArgumentError(f"the number of a drive must be at least 0: found {number}")
    for name, value in (("seconds", seconds), ("fps", fps)):
        if not 0 < value < math.inf:
            raise ArgumentError(f"{name} must be greater than 0: found {value}")
    if not math.isfinite(clock_offset_s):
        raise ArgumentError(f"the clock offset must be a number of seconds: found {clock_offset_s}")
    if not 0 <= gps_noise_m < math.inf:
        raise ArgumentError(f"the GPS noise must be at least 0 metres: found {gps_noise_m}")


def _gps_noise(rng: np.random.Generator, n: int) -> Floats:
    """(n, 2) first-order autoregressive noise of standard deviation 1, one value per second."""
    kept = math.exp(-1 / GPS_CORRELATION_S)
    noise = rng.normal(size=(n, 2))
    for i in range(1, n):
        noise[i] = kept * noise[i - 1] + math.sqrt(1 - kept**2) * noise[i]
    return noise


def draw_frames(drive: Drive, height: int, width: int, device: torch.device | str = "cpu") -> Iterator[Pixels]:
    """Render the frames (height, width, 3) of a drive in order, in batches."""
    scene = make_scene(drive.town, [drive.moment], device)
    for start in range(0, len(drive.poses), FRAMES_AT_ONCE):
        rows = np.arange(start, min(start + FRAMES_AT_ONCE, len(drive.poses)))
        yield from draw_scene(scene, drive.poses.take(rows), height, width).permute(0, 2, 3, 1).cpu().numpy()


def draw_drive(
    drive: Drive,
    out: str | Path,
    *,
    frame_size: tuple[int, int] = FRAME_SIZE,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> None:
    """Write a drive (see `make_drive`) to a folder: drive.mp4 (H.264), drive.gpx, truth.csv and drive.json.

    truth.csv has the columns frame, time_s (in the video), lat, lon, heading_deg; drive.json records the arguments.
    `frame_size`: height and width, even numbers. Files that exist are kept, so that a run can be repeated. Raises
    ArgumentError if the folder contains another drive, MissingExtraError without the extra `video`.
    """
    need("av", "video")
    height, width = frame_size
    if height % 2 or width % 2:
        raise ArgumentError(f"height and width of a video frame must be even: found {height}x{width}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file: give a folder to write the drive to")
    claim(folder / RECORD, {"format": 1, "frame": [height, width], **drive.arguments}, "drive")
    for name, content in ((TRACK, gpx_of(drive)), (TRUTH, truth_of(drive))):
        if not (folder / name).exists():
            write_atomically(folder / name, content)
    if not (folder / VIDEO).exists():
        frames = draw_frames(drive, height, width, device)
        _write_video(
            folder / VIDEO,
            tqdm(frames, total=len(drive.poses), desc=VIDEO, unit="frame", disable=not progress),
            frame_size,
            Fraction(drive.fps).limit_denominator(1001),
            drive.creation_time,
        )


def _write_video(
    path: Path, frames: Iterable[Pixels], size: tuple[int, int], fps: Fraction, creation_time: float
) -> None:
    av = need("av", "video")
    with (
        replacing(path) as temporary,
        av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        container.metadata["creation_time"] = f"{datetime.fromtimestamp(creation_time, UTC):%Y-%m-%dT%H:%M:%S}.000000Z"
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20"})
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        for k, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = k, 1 / fps
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def gpx_of(drive: Drive) -> bytes:
    """The track of a drive as GPX 1.1, one point per second."""
    from gpxpy import gpx as files

    points = [
        files.GPXTrackPoint(round(latitude, 8), round(longitude, 8), time=datetime.fromtimestamp(round(time), UTC))
        for (latitude, longitude), time in zip(drive.track_latlon.tolist(), drive.track_times.tolist(), strict=True)
    ]
    document = files.GPX()
    document.creator = "sareloc"
    document.tracks.append(files.GPXTrack())
    document.tracks[0].segments.append(files.GPXTrackSegment(points))
    return f"{document.to_xml('1.1')}\n".encode()


def truth_of(drive: Drive) -> bytes:
    """The exact pose of every frame as CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["frame", "time_s", "lat", "lon", "heading_deg"])
    for k, (time, (latitude, longitude), heading) in enumerate(
        zip(drive.times_s, drive.latlon, drive.headings_deg, strict=True)
    ):
        table.writerow([k, f"{time:.6f}", f"{latitude:.8f}", f"{longitude:.8f}", f"{heading:.3f}"])
    return text.getvalue().encode()
