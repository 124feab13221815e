"""Localize a stream of frames, as a robot does: python examples/stream_of_frames.py MAP VIDEO [--model CHECKPOINT]

The frames of a video stand for those of a camera. Each is localized near the last position that was found, and the time
that it took is printed; frames that come while another is localized are left out, so that answers are never late.
"""

from __future__ import annotations

import argparse
import time

from sareloc import open_localizer
from sareloc.errors import PhotoError
from sareloc.localize import Fix
from sareloc.photos import longest_side, read_video, video_frames
from sareloc.photos.videos import frames

FORGET_AFTER = 5  # frames without a position, after which the whole map is searched again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map")
    parser.add_argument("video")
    parser.add_argument("--model")
    parser.add_argument("--every-s", type=float, default=0.5)
    given = parser.parse_args()
    localizer = open_localizer(given.map, given.model)
    video = read_video(given.video)
    print(f"{given.video}: {video.width} x {video.height} px")
    last: Fix | None = None
    missed, free_at, left_out = 0, 0.0, 0
    _, times = video_frames(given.video, given.every_s)
    for time_s, image in frames(given.video, times.tolist(), size=longest_side(800)):
        if time_s < free_at:
            left_out += 1
            continue
        if isinstance(image, PhotoError):
            print(image)
            continue
        began = time.perf_counter()
        fix = localizer.localize(image, near=last)
        took_s = time.perf_counter() - began
        free_at = time_s + took_s
        missed = 0 if fix.latlon is not None else missed + 1
        last = fix if fix.latlon is not None else None if missed >= FORGET_AFTER else last
        where = fix.reason if fix.latlon is None else f"{fix.latlon[0]:.6f}, {fix.latlon[1]:.6f}"
        print(f"{time_s:7.2f} s: {where}, confidence {fix.confidence:.2f}, {1000 * took_s:.0f} ms")
    print(f"{left_out} of {len(times)} frames were left out")


if __name__ == "__main__":
    main()
