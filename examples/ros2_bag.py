"""A map from a ROS 2 bag with images and GPS fixes, read by rosbags (pure Python, no ROS needed).

    pip install rosbags
    python examples/ros2_bag.py drive_bag/ city.gpkg --images /camera/image/compressed --fixes /gps/fix

`read_bag` yields an `ImageRecord` for each image: its position is interpolated between the fixes before and after it,
its heading is the direction of movement. Images of sensor_msgs/CompressedImage and of sensor_msgs/Image (rgb8, bgr8,
mono8) are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from sareloc import build_map, load_model
from sareloc.arrays import Image
from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos import ImageRecord, Track

NO_FIX = -1  # status of sensor_msgs/NavSatFix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bag", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", required=True, help="topic of the images")
    parser.add_argument("--fixes", required=True, help="topic of the positions (sensor_msgs/NavSatFix)")
    parser.add_argument("--every", type=int, default=1, help="use every n-th image")
    args = parser.parse_args()
    report = build_map(read_bag(args.bag, args.images, args.fixes, every=args.every), args.out, load_model("fast"))
    print(f"{args.out}: {report.added} images added, {len(report.untagged)} without a position")


def read_bag(bag: Path, images: str, fixes: str, *, every: int = 1, max_gap_s: float = 5.0) -> Iterator[ImageRecord]:
    """The images of a bag, those without a fix within `max_gap_s` before and after them without a position."""
    with AnyReader([bag], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as reader:
        track = read_track(reader, fixes)
        for number, (connection, _, raw) in enumerate(reader.messages(_topic(reader, images))):
            if number % every:
                continue
            message = reader.deserialize(raw, connection.msgtype)
            name, time = f"{bag.name}{images}/{number:06d}", _seconds(message)
            at = track.at([time], max_gap_s=max_gap_s)
            known = not np.isnan(at.latlon[0]).any()
            heading = float(at.heading_deg[0])
            yield ImageRecord(
                name,
                pixels_of(message, name),
                (float(at.latlon[0, 0]), float(at.latlon[0, 1])) if known else None,
                None if np.isnan(heading) else heading,
                time,
            )


def read_track(reader: AnyReader, fixes: str) -> Track:
    """The positions of a topic, without messages that have no fix."""
    found = []
    for connection, _, raw in reader.messages(_topic(reader, fixes)):
        message: Any = reader.deserialize(raw, connection.msgtype)
        if message.status.status > NO_FIX and np.isfinite([message.latitude, message.longitude]).all():
            found.append((_seconds(message), message.latitude, message.longitude))
    if not found:
        raise ArgumentError(f"topic {fixes} has no fix: is it the topic of sensor_msgs/NavSatFix?")
    rows = np.unique(np.array(sorted(found)), axis=0)
    first = np.unique(rows[:, 0], return_index=True)[1]
    return Track(rows[first, 0], rows[first, 1:])


def pixels_of(message: Any, name: str) -> bytes | Image:
    """The content of a compressed image, or RGB pixels (H, W, 3)."""
    if hasattr(message, "format"):
        return bytes(message.data)
    channels = {"rgb8": 3, "bgr8": 3, "mono8": 1}.get(message.encoding)
    if channels is None:
        raise PhotoError(name, f"encoding {message.encoding}: expected rgb8, bgr8, mono8 or compressed images")
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    pixels = rows[:, : channels * message.width].reshape(message.height, message.width, channels)
    if message.encoding == "bgr8":
        pixels = pixels[..., ::-1]
    return np.ascontiguousarray(np.repeat(pixels, 3 // channels, axis=2))


def _topic(reader: AnyReader, topic: str) -> list[Any]:
    found = [connection for connection in reader.connections if connection.topic == topic]
    if not found:
        known = ", ".join(sorted({connection.topic for connection in reader.connections}))
        raise ArgumentError(f"the bag has no topic {topic}: it has {known}")
    return found


def _seconds(message: Any) -> float:
    return float(message.header.stamp.sec + 1e-9 * message.header.stamp.nanosec)


if __name__ == "__main__":
    main()
