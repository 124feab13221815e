from __future__ import annotations

import io
import os
import random
import struct
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.photos.video_files import HEIGHT, WIDTH, number_in, numbered, write_video

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import wgs84_from_enu
from sareloc.photos import videos
from sareloc.photos.decoding import Resizing, longest_side
from sareloc.photos.photo_file import Turn
from sareloc.photos.record import is_video
from sareloc.photos.video_reader import VideoReader
from sareloc.photos.videos import (
    decode_frame,
    frame_times,
    frames,
    missing_end,
    read_video,
    times_every_m,
    video_frames,
)

pytest.importorskip("av")

STEADY = [40 * i for i in range(60)]
VARIABLE = np.cumsum([0, *random.Random(3).choices([10, 33, 40, 200, 900], k=59)]).tolist()
FASTSTART = {"movflags": "faststart"}
KINDS: dict[str, dict[str, object]] = {
    "steady.mp4": {"times_ms": STEADY, "codec_options": {"bf": "0"}},
    "b_frames.mp4": {"times_ms": STEADY, "codec_options": {"bf": "3"}},
    "b_frames.mkv": {"times_ms": STEADY, "codec_options": {"bf": "3"}},
    "one_keyframe.mp4": {"times_ms": STEADY, "gop": 600, "codec_options": {"bf": "2"}},
    "variable.mp4": {"times_ms": VARIABLE, "codec_options": {"bf": "2"}},
    "variable.mkv": {"times_ms": VARIABLE, "codec_options": {"bf": "2"}},
    "late.mp4": {"times_ms": [700 + time for time in STEADY], "codec_options": {"bf": "2"}},
    "open_gop.mp4": {"times_ms": STEADY, "codec_options": {"x264-params": "open-gop=1:bframes=3:keyint=12"}},
    "intra_refresh.mp4": {"times_ms": STEADY, "codec_options": {"x264-params": "intra-refresh=1:keyint=12"}},
    "hevc.mp4": {
        "times_ms": STEADY,
        "codec": "libx265",
        "codec_options": {"x265-params": "open-gop=1:bframes=3:keyint=12:log-level=none"},
    },
    "mpeg4.avi": {"times_ms": STEADY, "codec": "mpeg4"},
    "mpeg4.mp4": {"times_ms": STEADY, "codec": "mpeg4", "codec_options": {"bf": "2"}},
    "pictures.mov": {"times_ms": STEADY, "codec": "mjpeg"},
    "vp9.webm": {"times_ms": STEADY, "codec": "libvpx-vp9", "codec_options": {"deadline": "realtime", "cpu-used": "8"}},
    "stream.ts": {"times_ms": STEADY, "codec_options": {"bf": "2"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def video(folder: Path) -> Callable[[str], Path]:
    """The video of this name in `KINDS`, written once."""

    def get(name: str) -> Path:
        return folder / name if (folder / name).exists() else write_video(folder / name, **KINDS[name])  # type: ignore[arg-type]

    return get


@pytest.mark.parametrize("name", KINDS)
def test_times_are_those_of_the_frames_that_were_written(video: Callable[[str], Path], name: str) -> None:
    written = np.array(KINDS[name]["times_ms"]) / 1000
    np.testing.assert_allclose(frame_times(video(name)), written - written[0], atol=6e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_time_gives_the_frame_shown_then_in_any_order(video: Callable[[str], Path], name: str) -> None:
    path = video(name)
    times = frame_times(path)
    middles = [*((times[:-1] + times[1:]) / 2), times[-1]]
    expected = {float(time): number for number, time in enumerate(times)} | {
        float(time): number for number, time in enumerate(middles)
    }
    orders = [
        sorted(expected),
        sorted(expected, reverse=True),
        random.Random(0).sample(sorted(expected), len(expected)),
    ]
    for order in orders:
        found = {time: number_in(decode_frame(path, time)) for time in order}
        assert {time: (found[time], expected[time]) for time in order if found[time] != expected[time]} == {}


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.mp4", "hevc.mp4", "variable.mkv"])
def test_pixels_do_not_depend_on_the_order(video: Callable[[str], Path], name: str) -> None:
    path = video(name)
    times = frame_times(path).tolist()
    in_order = dict(frames(path, times))
    every_third = dict(frames(path, times[::3]))  # skips frames that no other one needs
    for time in random.Random(1).sample(times, len(times)):
        np.testing.assert_array_equal(decode_frame(path, time), in_order[time])
    for time, image in every_third.items():
        np.testing.assert_array_equal(image, in_order[time])


def test_frames_agree_with_plain_decoding(video: Callable[[str], Path]) -> None:
    import av

    path = video("b_frames.mp4")
    with av.open(str(path)) as container:
        plain = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(plain) == 60
    for image, (_, found) in zip(plain, frames(path, frame_times(path)), strict=True):
        np.testing.assert_array_equal(found, image)


def test_a_time_in_milliseconds_means_its_frame(tmp_path: Path) -> None:
    thirds = write_video(tmp_path / "thirds.mp4", [round(1000 * i / 29.97) for i in range(30)])
    for number, time in enumerate(frame_times(thirds)):
        assert number_in(decode_frame(thirds, float(f"{time:.3f}"))) == number


def test_reading_in_order_decodes_each_packet_once(
    video: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, sought = [], []
    decode, seek = VideoReader._decoded, VideoReader._seek
    monkeypatch.setattr(VideoReader, "_decoded", lambda self, *given: decoded.append(given) or decode(self, *given))
    monkeypatch.setattr(VideoReader, "_seek", lambda self, target: sought.append(target) or seek(self, target))
    path = video("one_keyframe.mp4")
    assert [number_in(image) for _, image in frames(path, frame_times(path))] == list(range(60))  # type: ignore[arg-type]
    assert sum(packet[0] is not None for packet in decoded) <= 60 + 1 + 60  # once here; once at most for the times
    assert sought == []


def test_a_keyframe_far_ahead_is_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode = VideoReader._decoded
    monkeypatch.setattr(VideoReader, "_decoded", lambda self, *given: decoded.append(given) or decode(self, *given))
    path = write_video(tmp_path / "long.mp4", [40 * i for i in range(250)], gop=10, codec_options={"bf": "0"})
    assert [number_in(decode_frame(path, time)) for time in (0.0, 4.0, 8.0)] == [0, 100, 200]
    assert len(decoded) < 80


TURNED = {
    (1, 0, 0, 1): None,
    (0, 1, -1, 0): Turn.ROTATE_90,  # the display turns clockwise, so the sensor saw it turned the other way
    (-1, 0, 0, -1): Turn.ROTATE_180,
    (0, -1, 1, 0): Turn.ROTATE_270,
    (-1, 0, 0, 1): Turn.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Turn.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Turn.TRANSPOSE,
    (0, -1, -1, 0): Turn.TRANSVERSE,
}


@pytest.mark.parametrize("matrix", TURNED)
def test_the_display_matrix_makes_frames_upright(tmp_path: Path, matrix: tuple[int, int, int, int]) -> None:
    from PIL import Image

    turn, (a, b, c, d) = TURNED[matrix], (value << 16 for value in matrix)
    seen = [numbered(n) if turn is None else np.array(Image.fromarray(numbered(n)).transpose(turn)) for n in (5, 77)]
    path = write_video(tmp_path / "turned.mp4", [0, 40], images=seen, display_matrix=[a, b, 0, c, d, 0, 0, 0, 1 << 30])
    video = read_video(path)
    assert (video.height, video.width) == (HEIGHT, WIDTH)
    image = decode_frame(path, 0.04)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert number_in(image) == 77
    assert np.abs(image.astype(int) - numbered(77)).mean() < 8
    assert number_in(decode_frame(path, 0.0, size=longest_side(48))) == 5


def test_rotation_is_clockwise(tmp_path: Path) -> None:
    one = 1 << 16
    path = write_video(tmp_path / "portrait.mov", [0, 40], display_matrix=[0, one, 0, -one, 0, 0, 0, 0, 1 << 30])
    video = read_video(path)
    assert (video.rotation_deg, video.height, video.width) == (90, WIDTH, HEIGHT)


def test_pixels_that_are_not_square_are_stretched(tmp_path: Path) -> None:
    path = write_video(tmp_path / "anamorphic.mkv", [0, 40], aspect=Fraction(4, 3))
    assert (read_video(path).height, read_video(path).width) == (HEIGHT, 128)
    assert decode_frame(path, 0).shape == (HEIGHT, 128, 3)


def test_a_size_rule_resizes_as_photos_are(video: Callable[[str], Path]) -> None:
    from PIL import Image

    path = video("steady.mp4")
    small = decode_frame(path, 0.4, size=lambda height, width: (height // 2, width // 3))
    full = Image.fromarray(decode_frame(path, 0.4))
    np.testing.assert_array_equal(small, full.resize((WIDTH // 3, HEIGHT // 2), Image.Resampling.BILINEAR))
    bicubic = decode_frame(path, 0.4, size=Resizing(lambda height, width: (height // 2, width // 3), "bicubic"))
    np.testing.assert_array_equal(bicubic, full.resize((WIDTH // 3, HEIGHT // 2), Image.Resampling.BICUBIC))
    assert (bicubic != small).any()

    def refuse(height: int, width: int) -> tuple[int, int]:
        raise ArgumentError("too small")

    with pytest.raises(PhotoError, match="too small"):
        decode_frame(path, 0.4, size=refuse)


def test_colours_of_a_large_video_without_a_mark_are_bt709(tmp_path: Path) -> None:
    """Green by BT.709; read by BT.601 its red would be off by 20."""
    import av

    yuv = np.empty((1080, 1280), np.uint8)
    yuv[:720], yuv[720:900], yuv[900:] = 133, 90, 60  # Y; U and V of one row are half as long
    with av.open(str(tmp_path / "hd.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "10", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(yuv, format="yuv420p")))
        container.mux(stream.encode(None))
    luma, blue, red = 255 / 219 * (133 - 16), 255 / 224 * (90 - 128), 255 / 224 * (60 - 128)
    expected = [luma + 1.5748 * red, luma - 0.1873 * blue - 0.4681 * red, luma + 1.8556 * blue]
    np.testing.assert_allclose(decode_frame(tmp_path / "hd.mp4", 0)[300, 600], expected, atol=3)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_the_start_is_the_creation_time(tmp_path: Path, suffix: str) -> None:
    tags = {"creation_time": "2024-05-01T10:00:00Z"}
    video = read_video(write_video(tmp_path / f"clock{suffix}", STEADY[:5], metadata=tags))
    assert video.start == 1714557600.0
    assert (video.fps, video.duration_s) == (pytest.approx(25, abs=1), pytest.approx(0.2, abs=0.01))


@pytest.mark.parametrize("moment", [None, "1904-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "yesterday", "9999999-01-01"])
def test_a_video_without_a_clock_has_no_start(tmp_path: Path, moment: str | None) -> None:
    tags = {} if moment is None else {"creation_time": moment}
    assert read_video(write_video(tmp_path / "no_clock.mkv", STEADY[:5], metadata=tags)).start is None


def test_apples_date_goes_before_the_time_of_an_export(tmp_path: Path) -> None:
    tags = {"creation_time": "2024-06-01T10:00:00Z", "com.apple.quicktime.creationdate": "2024-05-01T12:00:00+0200"}
    options = {"movflags": "use_metadata_tags"}
    video = read_video(write_video(tmp_path / "exported.mov", STEADY[:5], metadata=tags, options=options))
    assert video.start == 1714557600.0


def test_an_edit_list_hides_the_beginning(tmp_path: Path) -> None:
    """The same frames, the first three of which an edit list takes away: times count from the first one shown."""
    path = write_video(tmp_path / "edited.mp4", STEADY, codec_options={"bf": "0"}, gop=30)
    content = bytearray(path.read_bytes())
    at = content.index(b"elst")
    entry = at + 4 + 4 + 4  # version and flags, number of entries; then duration, media time, rate
    units_per_frame = 16000 * 40 // 1000
    content[entry + 4 : entry + 8] = (3 * units_per_frame).to_bytes(4, "big")
    path.write_bytes(content)
    times = frame_times(path)
    assert times[0] == 0
    assert len(times) == 57
    assert [number_in(decode_frame(path, time)) for time in times[[0, 1, 40, 2]]] == [3, 4, 43, 5]


def cut(path: Path, fraction: float) -> Path:
    """A copy without its end."""
    content = path.read_bytes()
    shorter = path.with_name(f"cut_{path.name}")
    shorter.write_bytes(content[: int(len(content) * fraction)])
    return shorter


def test_a_video_without_its_index_is_an_error(tmp_path: Path) -> None:
    path = cut(write_video(tmp_path / "whole.mp4", STEADY), 0.6)
    for read in (read_video, frame_times, lambda path: decode_frame(path, 0)):
        with pytest.raises(PhotoError, match="index"):
            read(path)


@pytest.mark.parametrize("name", ["video.mp4", "video.mkv", "video.ts"])
def test_of_a_truncated_video_the_beginning_is_read(tmp_path: Path, name: str) -> None:
    options = FASTSTART if name.endswith(".mp4") else {}
    times_ms = [40 * i for i in range(200)]
    whole = write_video(tmp_path / name, times_ms, options=options, codec_options={"bf": "2"})
    path = cut(whole, 0.6)
    times = frame_times(path)
    assert 30 < len(times) < 190
    images = dict(frames(path, times))
    readable = [time for time, image in images.items() if not isinstance(image, PhotoError)]
    assert len(readable) >= len(times) - 6  # the frames around the cut need what is missing
    assert [number_in(images[time]) for time in readable] == [round(25 * time) for time in readable]
    with pytest.raises(PhotoError, match=r"ends at|damaged"):
        decode_frame(path, 7.9)
    note = missing_end(read_video(path), times)
    assert (note is not None and "truncated" in note) or name.endswith(".ts")  # a stream does not say how long it is
    assert missing_end(read_video(whole), frame_times(whole)) is None


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.mp4", "mpeg4.mp4"])
def test_a_hole_in_a_video_loses_the_frames_up_to_the_next_keyframe(tmp_path: Path, name: str) -> None:
    kind = {**KINDS[name], "times_ms": [40 * i for i in range(200)], "options": FASTSTART}
    whole = write_video(tmp_path / "whole.mp4", **kind)  # type: ignore[arg-type]
    content = bytearray(whole.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 1000] = bytes(1000)
    path = tmp_path / "hole.mp4"
    path.write_bytes(content)
    times = frame_times(path)
    assert len(times) == 200
    found = [image for _, image in frames(path, times)]
    damaged = [number for number, image in enumerate(found) if isinstance(image, PhotoError)]
    assert 5 < len(damaged) < 80
    assert all("damaged" in found[number].reason for number in damaged)  # type: ignore[union-attr]
    for image, (_, sound) in zip(found, frames(whole, times), strict=True):
        assert isinstance(image, PhotoError) or (image == sound).all()
    core = damaged[8:-8]  # whether frames just before the hole come out depends on what the decoder had begun
    for number in random.Random(2).sample(range(200), 60):
        if number in core:
            with pytest.raises(PhotoError, match="damaged"):
                decode_frame(path, times[number])
        elif number not in damaged:
            assert number_in(decode_frame(path, times[number])) == number


def test_files_that_are_not_videos_are_errors(tmp_path: Path) -> None:
    import av

    (tmp_path / "text.mp4").write_text("this is not a video" * 100)
    (tmp_path / "empty.mp4").write_bytes(b"")
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    reasons = {"text.mp4": "not a video", "empty.mp4": "empty", "sound.mp4": "no video stream", "gone.mp4": "no such"}
    for name, reason in reasons.items():
        with pytest.raises(PhotoError, match=reason):
            decode_frame(tmp_path / name, 0)
        with pytest.raises(PhotoError, match=reason):
            frame_times(tmp_path / name)
    with pytest.raises(PhotoError, match="folder"):
        decode_frame(tmp_path, 0)


def test_a_playlist_named_like_a_video_opens_no_other_file(tmp_path: Path, video: Callable[[str], Path]) -> None:
    (tmp_path / "video.mp4").write_bytes(video("steady.mp4").read_bytes())
    lists = {
        "hls.mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{video('steady.mp4')}\n#EXT-X-ENDLIST\n",
        "concat.mp4": "ffconcat version 1.0\nfile video.mp4\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(PhotoError, match="not a video"):
            decode_frame(tmp_path / name, 0)
    with pytest.raises(PhotoError, match="no such file"):
        decode_frame(f"concat:{video('steady.mp4')}", 0)


def test_a_codec_that_is_not_listed_is_an_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "flv.avi", STEADY[:5], codec="flv")
    with pytest.raises(PhotoError, match="codec"):
        decode_frame(path, 0)


def test_a_video_with_too_many_pixels_is_an_error(video: Callable[[str], Path]) -> None:
    with pytest.raises(PhotoError, match="megapixels"):
        decode_frame(video("steady.mp4"), 0, max_pixels=HEIGHT * WIDTH - 1)
    decode_frame(video("steady.mp4"), 0, max_pixels=HEIGHT * WIDTH)


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf"), 60.0])
def test_a_time_outside_the_video_is_an_error(video: Callable[[str], Path], time: float) -> None:
    with pytest.raises(PhotoError, match=r"time|ends"):
        decode_frame(video("steady.mp4"), time)


def test_the_last_frame_is_shown_for_its_duration(video: Callable[[str], Path]) -> None:
    assert number_in(decode_frame(video("steady.mp4"), 59 * 0.04 + 0.039)) == 59


def test_few_videos_stay_open_and_a_changed_file_is_opened_again(tmp_path: Path) -> None:
    def open_files() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(link) and str(tmp_path) in os.readlink(link) for link in links)

    paths = [write_video(tmp_path / f"{n}.mp4", STEADY[:8], codec_options={"bf": "0"}) for n in range(5)]
    for path in paths:
        assert number_in(decode_frame(path, 0.04)) == 1
        assert [time for time, _ in frames(path, [0.0])] == [0]
        frame_times(path)
        if os.path.isdir("/proc/self/fd"):
            assert open_files() <= 2
    write_video(paths[-1], STEADY[:8], images=[numbered(100 + n) for n in range(8)])
    assert number_in(decode_frame(paths[-1], 0.04)) == 101


def test_threads_read_the_same_video_at_the_same_time(video: Callable[[str], Path]) -> None:
    path, wrong = video("variable.mp4"), list[object]()
    times = frame_times(path)

    def read(seed: int) -> None:
        for number in random.Random(seed).sample(range(60), 30):
            if (found := number_in(decode_frame(path, times[number]))) != number:
                wrong.append((seed, number, found))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_videos_are_known_by_their_extension() -> None:
    assert all(map(is_video, ["drive.mp4", Path("a/DRIVE.MOV"), "x.mkv", "y.insv", "z.M4V"]))
    assert not any(map(is_video, ["photo.jpg", "mp4", "drive.mp4.jpg", "track.gpx"]))


@pytest.mark.data
def test_a_real_video(shared_data: Path) -> None:
    path = shared_data / "inputs" / "sample-5s.mp4"
    video = read_video(path)
    assert (video.width, video.height, video.fps, video.start) == (1920, 1080, 30, None)
    times = frame_times(path)
    assert len(times) == 171
    assert missing_end(video, times) is None
    small = longest_side(192)
    in_order = [image for _, image in frames(path, times[::10], size=small)]
    for number in (12, 3):
        np.testing.assert_array_equal(decode_frame(path, times[10 * number], size=small), in_order[number])


def straight(metres: list[float]) -> np.ndarray:
    """Positions so many metres east of a point."""
    return wgs84_from_enu(np.array([[east, 0.0] for east in metres]), (46.0, 7.0))


def test_times_on_paper() -> None:
    """10 m/s for 4 s, at rest for 3 s, 5 m/s for 4 s; the video starts 1 s after the track."""
    times = [100.0, 104.0, 107.0, 111.0]
    found = times_every_m(times, straight([0, 40, 40, 60]), start=101.0, duration_s=60.0, every_m=10.0)
    np.testing.assert_allclose(found, [0, 1, 2, 3, 8, 10], atol=1e-4)
    short = times_every_m(times, straight([0, 40, 40, 60]), start=101.0, duration_s=2.5, every_m=10.0)
    np.testing.assert_allclose(short, [0, 1, 2], atol=1e-4)


def test_a_gap_of_the_track_has_no_times() -> None:
    times, metres = [0.0, 2.0, 30.0, 32.0], [0.0, 20.0, 300.0, 320.0]
    found = times_every_m(times, straight(metres), start=0.0, duration_s=60.0, every_m=10.0, max_gap_s=10.0)
    np.testing.assert_allclose(found, [0, 1, 2, 30, 31, 32], atol=1e-4)


def test_noise_at_rest_takes_no_frames() -> None:
    noise = np.random.default_rng(0).uniform(-1.2, 1.2, (600, 2))
    found = times_every_m(
        np.arange(600.0), wgs84_from_enu(noise, (46.0, 7.0)), start=0.0, duration_s=600.0, every_m=5.0
    )
    assert found.tolist() == [0.0]


@pytest.mark.parametrize("start", [-1000.0, 1000.0])
def test_a_video_outside_the_track_has_no_times(start: float) -> None:
    found = times_every_m([0.0, 10.0], straight([0, 100]), start=start, duration_s=60.0, every_m=5.0)
    assert found.shape == (0,)
    assert times_every_m([], np.empty((0, 2)), start=0.0, duration_s=60.0, every_m=5.0).shape == (0,)


@given(st.lists(st.tuples(st.floats(0.1, 8), st.floats(-40, 40), st.floats(-40, 40)), min_size=1, max_size=12))
def test_times_are_the_first_ones_so_far_away(steps: list[tuple[float, float, float]]) -> None:
    times = np.cumsum([0.0, *(step[0] for step in steps)])
    metres = np.cumsum([(0.0, 0.0), *(step[1:] for step in steps)], axis=0)
    end = min(times[-1], 20.0)
    found = times_every_m(times, wgs84_from_enu(metres, (46, 7)), start=0.0, duration_s=20.0, every_m=7.0)

    def at(moments: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(moments, times, metres[:, axis]) for axis in (0, 1)], axis=1)

    assert found[0] == 0
    for now, then in zip(found, [*found[1:], end], strict=True):
        away = np.hypot(*(at(np.linspace(now, then, 200)[:-1]) - at(np.array([now]))).T)
        assert away.max() < 7.001
    assert np.hypot(*np.diff(at(found), axis=0).T).min(initial=7.0) > 6.999


@pytest.mark.parametrize("bad", [{"every_m": 0.0}, {"every_m": -1.0}, {"every_m": 5.0, "max_gap_s": 0.0}])
def test_invalid_steps_are_errors(bad: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="positive"):
        times_every_m([0.0, 1.0], straight([0, 1]), start=0.0, duration_s=1.0, **bad)


def with_times(path: Path, times_s: list[float]) -> Path:
    """A small video whose frames are at these times, which no encoder would write."""
    import av

    source = write_video(path.with_name("source.mkv"), [40 * row for row in range(len(times_s))], codec="mpeg4")
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet, time_s in zip([one for one in read.demux() if one.size], times_s, strict=True):
            packet.stream = stream
            packet.pts = packet.dts = int(time_s / packet.time_base)
            written.mux(packet)
    return path


def test_frames_that_are_aeons_apart_are_an_error_before_their_span_is_listed(tmp_path: Path) -> None:
    path = with_times(tmp_path / "a.mkv", [0, 0.04, 3e9])
    for read in (frame_times, video_frames):
        with pytest.raises(PhotoError, match=r"time stamps are damaged.*3,000,000,000 s after the first"):
            read(path)
    assert number_in(decode_frame(path, 0.04)) == 1


def test_frames_far_apart_are_listed_once_each_whatever_the_step(tmp_path: Path) -> None:
    path = with_times(tmp_path / "a.mkv", [0, 0.04, 900_000, 900_000.04])
    addresses, times = video_frames(path, 1e-7)
    assert (len(addresses), times.tolist()) == (4, [0, 0.04, 900_000, 900_000.04])


@given(
    gaps=st.lists(st.sampled_from([0.001, 0.033, 0.04, 0.5, 1.0, 1.5, 7.0]), min_size=1, max_size=12),
    every_s=st.sampled_from([0.001, 0.04, 0.1, 0.5, 1.0, 3.0]),
)
def test_the_frames_every_so_often_are_those_shown_at_each_step(gaps: list[float], every_s: float) -> None:
    times = np.round(np.concatenate([[0.0], np.cumsum(gaps)]), 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(videos, "frame_times", lambda _: times)
        found = video_frames("a.mp4", every_s)[1]
    wanted = np.arange(0.0, times[-1] + 0.001, every_s)
    shown = np.unique(np.searchsorted(times, wanted + 0.001, side="right") - 1)
    np.testing.assert_array_equal(found, times[shown])


def claimed(path: Path, samples: int) -> Path:
    """An MP4 of three frames whose tables claim this many of one byte."""
    content = bytearray(write_video(path, [0, 40, 80], codec="mpeg4").read_bytes())
    for kind, at, values in ((b"stsz", 8, (1, samples)), (b"stsc", 12, (1, samples, 1)), (b"stts", 8, (1, samples))):
        struct.pack_into(f">{len(values)}I", content, content.index(kind) + at, *values)
    path.write_bytes(content)
    return path


def test_samples_that_an_index_claims_are_counted_before_they_are_listed(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="claims 170,000,000 samples"):
        read_video(claimed(tmp_path / "a.mp4", 170_000_000))
    path = write_video(tmp_path / "b.mp4", [0, 40, 80], codec="mpeg4", options={"movflags": "frag_keyframe+empty_moov"})
    content = bytearray(path.read_bytes())
    struct.pack_into(">II", content, content.index(b"trun") + 4, 1, 170_000_000)
    path.write_bytes(content)
    with pytest.raises(PhotoError, match="claims 170,000,000 samples"):
        read_video(path)


def boxes(*kinds: bytes, inside: bytes = b"") -> bytes:
    """Boxes in each other."""
    for kind in reversed(kinds):
        inside = struct.pack(">I", len(inside) + 8) + kind + inside
    return inside


SIZES = boxes(b"stsz", inside=struct.pack(">III", 0, 1, 170_000_000))
SOUND = boxes(b"hdlr", inside=bytes(8) + b"soun") + boxes(b"stts", inside=struct.pack(">IIII", 0, 1, 9, 1))


@pytest.mark.parametrize(
    "content",
    [
        boxes(b"ftyp") + boxes(b"moov", b"trak", b"mdia", b"minf", b"stbl", inside=SIZES),
        boxes(b"ftyp") + boxes(b"moov", b"trak", inside=SOUND + boxes(b"trak", inside=SIZES) + SOUND),
        boxes(b"ftyp") + boxes(b"moov", b"trak", inside=SOUND + SOUND + SIZES),
        boxes(b"ftyp") + boxes(b"free", b"moov", b"trak", inside=SIZES),
        boxes(b"ftyp") + boxes(b"moof", b"traf", b"trun", inside=struct.pack(">II", 1, 170_000_000)),
        boxes(b"ftyp") + boxes(*[b"moov"] * 2000),
        boxes(b"ftyp") + boxes(b"moov", b"cmov"),
        boxes(b"ftyp") + boxes(b"moov", b"hdlr", inside=bytes(8) + b"trak") + boxes(b"moov", b"trak", inside=SIZES),
        struct.pack(">I4sQ", 1, b"moov", 16 + len(boxes(b"trak", inside=SIZES))) + boxes(b"trak", inside=SIZES),
    ],
)
def test_tables_that_hide_what_they_claim_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(PhotoError, match="not read as a video"):
        read_video(tmp_path / "a.mp4")


def test_uncompressed_sound_has_many_samples_and_is_read(tmp_path: Path) -> None:
    import av

    path = tmp_path / "a.mov"
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=25)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=48_000)
        container.mux(video.encode(av.VideoFrame.from_ndarray(numbered(1), format="rgb24")))
        container.mux(video.encode(None))
        for start in range(0, 480_000, 48_000):
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 2 * 48_000), np.int16), format="s16", layout="stereo")
            samples.sample_rate, samples.pts = 48_000, start
            container.mux(sound.encode(samples))
        container.mux(sound.encode(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sareloc.photos.boxes.MOST_SAMPLES", 1000)  # it has 480,000 samples, in 480 packets
        assert read_video(path).width == 96


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", [".mkv", ".avi", ".ts", ".mp4"])
def test_a_sparse_file_is_an_error_at_once(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"a{suffix}", [0, 40, 80], codec="mpeg4")
    with path.open("r+b") as file:
        file.truncate(10**12)
    if os.stat(path).st_blocks * 512 > 10**9:
        pytest.skip("this file system stores zeros")
    for read in (read_video, frame_times, lambda path: decode_frame(path, 0.04)):
        with pytest.raises(PhotoError, match="sparse file"):
            read(path)


def test_frames_are_at_most_100_megapixels(tmp_path: Path) -> None:
    import av

    jpeg = io.BytesIO()
    Image.new("L", (12_000, 9_000)).save(jpeg, "JPEG", quality=5)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"  # the header says so
        packet = av.Packet(jpeg.getvalue())
        packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, 0, 0, True
        container.mux(packet)
    with pytest.raises(PhotoError, match="100 megapixels"):
        read_video(tmp_path / "a.mkv")


def test_a_track_of_absurd_speed_takes_no_endless_list_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(videos, "MOST_TAKEN", 1000)
    with pytest.raises(ArgumentError, match="more than 1,000 frames"):
        times_every_m([0, 1, 2], [(0, 0), (0, 90), (0, 0)], start=0, duration_s=2, every_m=5)
