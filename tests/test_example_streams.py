"""The examples for a robot's frames and for ROS 2 bags, run as a user runs them."""

from __future__ import annotations

import io
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sareloc.city import city_places, draw_pixels, geotags
from sareloc.maps import PlaceMap

pytestmark = pytest.mark.city  # the frames are drawn

ROOT = Path(__file__).resolve().parents[1]
START_S = 1_700_000_000


def run(script: str, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", [script, *map(str, words)])
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")


@pytest.mark.slow
def test_a_stream_of_frames_is_mapped_and_localized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("robot_stream.py", monkeypatch, "--out", tmp_path / "robot.gpkg", "--frames", 24, "--queries", 2)
    first, *answers = capsys.readouterr().out.splitlines()
    assert "24 frames" in first
    assert len(answers) == 2
    assert all(re.search(r"confidence \d\.\d\d, \d+ ms", line) for line in answers)


@pytest.mark.parametrize("compressed", [True, False])
def test_a_bag_becomes_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compressed: bool
) -> None:
    pytest.importorskip("rosbags")
    bag = tmp_path / "drive_bag"
    latlon = write_bag(bag, compressed)
    topics = ("--images", "/camera/image", "--fixes", "/gps/fix")
    run("ros2_bag.py", monkeypatch, bag, tmp_path / "city.gpkg", *topics)
    assert "3 images added, 1 without a position" in capsys.readouterr().out
    place_map = PlaceMap(tmp_path / "city.gpkg")
    assert list(place_map.files) == [f"frame://drive_bag/camera/image/{i:06d}" for i in range(3)]
    np.testing.assert_allclose(place_map.latlon, (latlon[:-1] + latlon[1:]) / 2, atol=1e-7)
    with pytest.raises(Exception, match=r"no topic /other.*it has /camera/image, /gps/fix"):
        run("ros2_bag.py", monkeypatch, bag, tmp_path / "other.gpkg", "--images", "/other", "--fixes", "/gps/fix")


def write_bag(folder: Path, compressed: bool) -> np.ndarray:
    """Four fixes, one a second, and four images half a second after each, the last beyond the last fix."""
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    time_type, header_type = types["builtin_interfaces/msg/Time"], types["std_msgs/msg/Header"]
    image_type = f"sensor_msgs/msg/{'CompressedImage' if compressed else 'Image'}"
    town = city_places(0)
    frames = draw_pixels(town, 120, 160, rows=np.arange(4)).permute(0, 2, 3, 1).contiguous().numpy()
    latlon = np.array([tag.latlon for tag in geotags(town)[::12][:4]])

    def header(nanoseconds: int) -> object:
        return header_type(stamp=time_type(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9), frame_id="camera")

    with Writer(folder, version=9) as writer:
        images = writer.add_connection("/camera/image", image_type, typestore=store)
        fixes = writer.add_connection("/gps/fix", "sensor_msgs/msg/NavSatFix", typestore=store)
        for number in range(4):
            at = (START_S + number) * 10**9
            fix = types["sensor_msgs/msg/NavSatFix"](
                header=header(at),
                status=types["sensor_msgs/msg/NavSatStatus"](status=0, service=1),
                latitude=float(latlon[number, 0]),
                longitude=float(latlon[number, 1]),
                altitude=0.0,
                position_covariance=np.zeros(9),
                position_covariance_type=0,
            )
            writer.write(fixes, at, store.serialize_cdr(fix, "sensor_msgs/msg/NavSatFix"))
            at += 10**9 // 2
            if compressed:
                content = io.BytesIO()
                Image.fromarray(frames[number]).save(content, "JPEG")
                data = np.frombuffer(content.getvalue(), np.uint8)
                image = types[image_type](header=header(at), format="jpeg", data=data)
            else:
                flat = frames[number][..., ::-1].reshape(-1)
                sizes = {"height": 120, "width": 160, "step": 480, "is_bigendian": 0}
                image = types[image_type](header=header(at), encoding="bgr8", data=np.ascontiguousarray(flat), **sizes)
            writer.write(images, at, store.serialize_cdr(image, image_type))
    return latlon
