"""Positions inside videos: GPMF, CAMM, NMEA logs and location tags, by bytes that the tests write, and by exiftool."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maps.small_town import build_map, tiny_model
from tests.maps.test_video_maps import in_map
from tests.photos.telemetry_files import SCALES, add_track, box, camm5, camm6, device, gps5, gps9, klv, nmea
from tests.photos.video_files import write_video

from sareloc.errors import ArgumentError, DatasetError, PhotoError
from sareloc.geo import distance_m
from sareloc.photos import (
    Estimate,
    Geotag,
    TrackOptions,
    frames_on_track,
    read_telemetry,
    read_track,
    read_video,
    write_sidecar,
)
from sareloc.photos.collect import collect_records, list_photos
from sareloc.photos.record import METHOD
from sareloc.photos.track_geotags import tracks_in_videos
from sareloc.photos.tracks import gpx_of_track

pytest.importorskip("av")

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()
SECONDS = range(5)
RATE = 5
"""Positions in a second."""


def at(second: float) -> tuple[float, float]:
    """North at 11 m/s."""
    return 48.85 + second * 1e-4, 2.29


def within(second: int) -> list[tuple[float, float]]:
    return [at(second + number / RATE) for number in range(RATE)]


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A video of five seconds, whose clock is ten seconds slow."""
    path = tmp_path_factory.mktemp("blank") / "blank.mp4"
    metadata = {"creation_time": "2024-05-01T11:59:50Z"}
    return write_video(path, [200 * i for i in range(26)], codec="mpeg4", metadata=metadata).read_bytes()


@pytest.fixture
def video(blank: bytes, tmp_path: Path) -> Path:
    (tmp_path / "drive.mp4").write_bytes(blank)
    return tmp_path / "drive.mp4"


FORMATS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "GPS5": (b"gpmd", lambda second: gps5(within(second), NOON + second)),
    "GPS9": (b"gpmd", lambda second: gps9([(*at(t), NOON + t, 1.5, 3) for t in second + np.arange(RATE) / RATE])),
    "CAMM (GPS)": (b"camm", lambda second: camm6(*at(second), NOON + second - 315_964_800 + 18)),
    "CAMM (positions)": (b"camm", lambda second: camm5(*at(second))),
}


def write(video: Path, name: str) -> Path:
    form, payload = FORMATS[name]
    return add_track(video, [(second, payload(second)) for second in SECONDS], form)


def write_log(video: Path) -> Path:
    """A log whose first sentence has no fix."""
    lines = [f"[{round(1000 * (NOON + t))}]{nmea(*at(t), NOON + t, status='AV'[t < 1])}\r\n" for t in SECONDS]
    lines[2] = lines[2].rstrip() + "[1714564802211]\r\n"  # some cameras write a second stamp
    video.write_bytes(video.read_bytes() + box(b"free", box(b"gps ", "".join(lines).encode())))
    return video


@pytest.mark.parametrize("name", FORMATS)
def test_positions_at_the_times_of_frames(video: Path, name: str) -> None:
    found = read_telemetry(write(video, name))
    assert name in found.kind
    assert found.start is not None
    seconds = np.array([0.0, 1.3, 3.9])
    positions = found.track.at(found.start + seconds)
    assert distance_m(positions.latlon, np.array([at(second) for second in seconds])).max() < 0.5


def test_the_receiver_says_when_the_first_frame_was_taken(video: Path) -> None:
    """The camera's clock is ten seconds slow; GPSU comes up to 0.1 s late."""
    late = (0.0, 0.1, 0.02, 0.08, 0.04)
    add_track(video, [(second, gps5(within(second), NOON + second + late[second])) for second in SECONDS])
    found, header = read_telemetry(video), read_video(video)
    assert header.start == NOON - 10
    assert found.start == pytest.approx(NOON, abs=0.2)
    assert "that of the GPS" in found.track.notes[0]
    assert "25 positions" in found.track.notes[0]
    assert "DOP 1.6" in found.track.notes[0]


def test_without_a_receivers_time_the_file_says_when(video: Path) -> None:
    found = read_telemetry(write(video, "CAMM (positions)"))
    assert found.start == NOON - 10
    assert "the file says" in found.track.notes[0]


def test_seconds_since_1970_in_camm(video: Path) -> None:
    add_track(video, [(second, camm6(*at(second), NOON + second)) for second in SECONDS], b"camm")
    assert read_telemetry(video).start == NOON


def test_packets_of_motion_in_a_camm_sample_are_passed(video: Path) -> None:
    motion = struct.pack("<2H3f", 0, 2, 1.0, 2.0, 3.0)
    samples = [(second + part, motion) for second in SECONDS for part in (0.2, 0.4)]
    samples += [(second, motion + camm5(*at(second)) + motion) for second in SECONDS]
    add_track(video, sorted(samples), b"camm")
    assert len(read_telemetry(video).track) == len(SECONDS)


def test_own_times_of_positions_are_used(video: Path) -> None:
    """GPS9 says the time of each position: irregular ones are not spread evenly."""
    times = [0.0, 0.1, 0.2, 0.9]
    payloads = [(second, gps9([(*at(second + t), NOON + second + t, 1, 3) for t in times])) for second in SECONDS]
    found = read_telemetry(add_track(video, payloads))
    assert found.start is not None
    moved = np.diff(found.track.times[:4])
    np.testing.assert_allclose(moved, np.diff(times), atol=0.002)


def test_a_log_of_nmea_sentences(video: Path) -> None:
    found = read_telemetry(write_log(video))
    assert found.start == pytest.approx(NOON)
    assert len(found.track) == 4
    assert distance_m(found.track.at(NOON + 2.0).latlon[0], at(2.0)) < 0.5


@pytest.mark.parametrize(
    ("tag", "latlon"),
    [
        ("+48.8566+002.3522/", (48.8566, 2.3522)),
        ("-33.8568+151.2153+012.3/", (-33.8568, 151.2153)),
        ("+4851.396-00221.132/", (48.8566, -2.3522)),
        ("+485123.76+0022107.92/", (48.8566, 2.3522)),
    ],
)
def test_the_location_tag_of_a_phone(tmp_path: Path, tag: str, latlon: tuple[float, float]) -> None:
    video = tmp_path / "phone.mov"
    metadata = {"creation_time": "2024-05-01T12:00:00Z", "com.apple.quicktime.location.ISO6709": tag}
    options = {"movflags": "use_metadata_tags"}
    write_video(video, [0, 200, 400], codec="mpeg4", metadata=metadata, options=options)
    found = read_telemetry(video)
    assert distance_m(found.track.latlon[0], latlon) < 1
    report = frames_on_track([video], TrackOptions())
    assert [str(frame) for frame in report.geotags] == [f"{video}#t=0"]


MARK = {"com.apple.quicktime.location.note": f"{METHOD}, confidence 0.93"}
PARIS, SYDNEY = "+48.8566+002.3522/", "-33.8568+151.2153/"
APPLE_TAG = "com.apple.quicktime.location.ISO6709"


@pytest.mark.parametrize(
    ("tags", "sidecar", "latlon", "estimated"),
    [
        ({APPLE_TAG: PARIS, **MARK}, None, (48.8566, 2.3522), True),
        ({APPLE_TAG: PARIS, "com.apple.quicktime.location.note": "a note of mine"}, None, (48.8566, 2.3522), False),
        ({APPLE_TAG: PARIS, "location": SYDNEY, **MARK}, None, (-33.8568, 151.2153), False),
        ({}, Estimate(40.0, METHOD), (10.0, 20.0), True),
        ({}, None, (10.0, 20.0), False),
        ({APPLE_TAG: PARIS}, Estimate(12.0, METHOD), (48.8566, 2.3522), False),
    ],
    ids=["tag", "another note", "measured tag first", "sidecar", "measured sidecar", "measured tag and sidecar"],
)
def test_an_estimate_of_sareloc_is_not_taken_for_a_measured_position(
    tmp_path: Path, tags: dict[str, str], sidecar: Estimate | None, latlon: tuple[float, float], estimated: bool
) -> None:
    video = tmp_path / "phone.mov"
    write_video(video, [0, 200, 400], codec="mpeg4", metadata=tags, options={"movflags": "use_metadata_tags"})
    if sidecar is not None or not tags:
        write_sidecar(video, tmp_path / "phone.mov.xmp", Geotag((10.0, 20.0)), sidecar)
    found = read_telemetry(video)
    assert found.estimated == estimated
    assert distance_m(found.track.latlon[0], latlon) < 1
    geotags = frames_on_track([video], TrackOptions()).geotags
    assert [(str(frame), geotag.estimated) for frame, geotag in geotags.items()] == [(f"{video}#t=0", estimated)]
    moment = TrackOptions(video_start="2024-05-01T12:00:00Z")
    if estimated:
        with pytest.raises(PhotoError, match="estimated by sareloc"):
            tracks_in_videos([video], moment)
    else:
        assert len(tracks_in_videos([video], moment)) == 1


# -- what is left out --------------------------------------------------------------------------------------------------


def payloads_with(second: int, other: bytes) -> list[tuple[float, bytes]]:
    """GPS5 payloads, one of which is another."""
    return [(number, other if number == second else gps5(within(number), NOON + number)) for number in SECONDS]


def jumped(second: int) -> bytes:
    return gps5([at(second), (48.95, 2.29), *within(second)[2:]], NOON + second)


def stream(*entries: bytes) -> bytes:
    return device(b"".join(entries))


def gps5_entry(count: int, size: int = 20) -> bytes:
    return b"GPS5l" + struct.pack(">BH", size, count)


NINE = [(*at(1), NOON + 1, 1.5, 3)]
DAMAGED: dict[str, tuple[bytes, str, int]] = {
    "no fix": (gps5(within(1), NOON + 1, fix=0), "5 without a fix", 20),
    "poor fix": (gps5(within(1), NOON + 1, dop=12), "5 with a poor fix", 20),
    "zeros": (gps5([(0.0, 0.0)] * 5, NOON + 1), "5 without a valid position", 20),
    "out of range": (gps5([(91.0, 2.29)] * 5, NOON + 1), "5 without a valid position", 20),
    "jump": (jumped(1), "1 after jumps", 24),
    "no scale": (gps5(within(1), NOON + 1, scales=b""), "GPS5 entries without a scale (SCAL): 1", 20),
    "zero scale": (gps5(within(1), NOON + 1, scales=klv(b"SCAL", b"l", 4, 1, bytes(4))), "does not fit", 20),
    "two scales": (gps5(within(1), NOON + 1, scales=klv(b"SCAL", b"l", 4, 2, b"\1" * 8)), "does not fit", 20),
    "text as scale": (gps5(within(1), NOON + 1, scales=klv(b"SCAL", b"c", 4, 5, bytes(20))), "not read", 20),
    "cut off": (gps5(within(1), NOON + 1)[:-40], "cut off or damaged: 1", 20),
    "repeat beyond the payload": (
        stream(SCALES, gps5_entry(65_535, 255)),
        "cut off or damaged: 1",
        20,
    ),
    "one number": (stream(SCALES, klv(b"GPS5", b"l", 4, 1, bytes(4))), "too few numbers", 20),
    "odd size": (stream(SCALES, klv(b"GPS5", b"l", 21, 1, bytes(21))), "does not fit their size", 20),
    "no size": (stream(SCALES, klv(b"GPS5", b"l", 0, 9, b"")), "does not fit their size", 20),
    "unknown type": (stream(SCALES, klv(b"GPS5", b"G", 16, 1, bytes(16))), "a type that is not read", 20),
    "no TYPE": (stream(SCALES, klv(b"GPS9", b"?", 32, 1, bytes(32))), "without a type", 20),
    "unknown TYPE": (gps9(NINE, b"lllllllUU"), "a type that is not read", 20),
    "long TYPE": (gps9(NINE, b"l[255]" * 20), "does not fit their size", 20),
    "other TYPE": (gps9(NINE, b"llll"), "does not fit their size", 20),
    "empty stream": (device(b""), "", 20),
    "no positions": (stream(SCALES, klv(b"GPS5", b"l", 20, 0, b"")), "", 20),
    "nothing": (bytes(40), "", 20),
    "nested": (b"DEVC\0" + b"\1\x7f\xf8" + (b"STRM\0\1\x7f\xf0" * 4095), "cut off", 20),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_the_other_positions_are_used(video: Path, name: str) -> None:
    payload, sentence, count = DAMAGED[name]
    found = read_telemetry(add_track(video, payloads_with(1, payload)))
    assert found.start == pytest.approx(NOON)
    assert sentence in " ".join(found.track.notes)
    assert len(found.track) == count
    assert len(found.track.notes) == (2 if sentence else 1)


@pytest.mark.parametrize("name", ["no fix", "poor fix", "no scale", "cut off", "zeros"])
def test_no_usable_position_is_one_sentence(video: Path, name: str) -> None:
    payload, sentence, _ = DAMAGED[name]
    add_track(video, [(0, payload)])
    with pytest.raises(PhotoError, match="without a usable position") as error:
        read_telemetry(video)
    assert sentence.split(" ", 1)[1] in error.value.reason


def test_a_jump_at_the_start_does_not_take_the_rest(video: Path) -> None:
    add_track(video, payloads_with(0, gps5([(10.0, 10.0), *within(0)[1:]], NOON)))
    found = read_telemetry(video)
    assert len(found.track) == 24
    assert found.track.latlon[0] == pytest.approx(at(1 / RATE))


def test_several_wrong_positions_at_once_are_a_jump(video: Path) -> None:
    """Of seven true positions, three before and four after, and four wrong ones."""
    true = [(0, gps5(within(0)[:3], NOON)), (2, gps5(within(2)[:4], NOON + 2))]
    add_track(video, [true[0], (1, gps5([(-48.0, 100.0)] * 4, NOON + 1)), true[1]])
    found = read_telemetry(video)
    assert len(found.track) == 7
    assert "4 after jumps" in found.track.notes[1]


def test_what_follows_after_a_gap_is_no_jump(video: Path) -> None:
    """A tunnel of three seconds at 100 m/s."""
    add_track(video, [(0, gps5(within(0), NOON)), (1, device(b"")), (4, gps5([at(30), at(30.2)], NOON + 4))])
    assert len(read_telemetry(video).track) == RATE + 2


@pytest.mark.parametrize("created", ["2015-01-01T00:00:10Z", None])
def test_a_clock_that_was_not_set_places_frames_without_times(tmp_path: Path, created: str | None) -> None:
    unset = datetime(2015, 1, 1, tzinfo=UTC).timestamp()
    video = tmp_path / "drive.mp4"
    write_video(
        video, [200 * i for i in range(26)], codec="mpeg4", metadata={"creation_time": created} if created else {}
    )
    add_track(video, [(second, gps5(within(second), unset + second)) for second in SECONDS])
    found = read_telemetry(video)
    assert found.start is None
    assert "not set: 2015-01-01" in found.track.notes[0]
    report = frames_on_track([video], TrackOptions())
    assert not report.errors
    for frame, geotag in report.geotags.items():
        assert geotag.time is None
        assert distance_m(geotag.latlon, at(float(str(frame).split("t=")[1]))) < 1
    with pytest.raises(PhotoError, match="no times"):
        read_track(video)
    said = frames_on_track([video], TrackOptions(video_start="2024-05-01T12:00:00Z"))
    assert next(iter(said.geotags.values())).time == pytest.approx(NOON)


@pytest.mark.parametrize(
    ("form", "handler", "name"),
    [
        (b"rtmd", b"meta", "rtmd"),
        (b"djmd", b"meta", "DJI"),
        (b"tx3g", b"sbtl", "subtitles"),
        (b"abcd", b"meta", "abcd"),
    ],
)
def test_telemetry_that_is_not_read_is_named(video: Path, form: bytes, handler: bytes, name: str) -> None:
    add_track(video, [(0, bytes(64))], form, handler=handler)
    with pytest.raises(PhotoError, match=name) as error:
        read_telemetry(video)
    assert "exiftool -ee -p gpx.fmt drive.mp4 > drive.gpx" in error.value.reason


def test_a_list_of_novatek_blocks_is_named(video: Path) -> None:
    content = video.read_bytes()
    index = content.rindex(b"moov") - 4
    video.write_bytes(content[:index] + box(b"moov", content[index + 8 :], box(b"gps ", bytes(16))))
    with pytest.raises(PhotoError, match="Novatek"):
        read_telemetry(video)


def test_a_video_without_telemetry(video: Path) -> None:
    with pytest.raises(PhotoError, match="holds no positions"):
        read_telemetry(video)


def test_samples_after_the_end_of_the_file_are_counted(video: Path) -> None:
    content = write(video, "GPS5").read_bytes()
    table = content.rindex(b"stco") + 12
    broken = bytearray(content)
    struct.pack_into(">I", broken, table, len(content) - 10)
    video.write_bytes(broken)
    found = read_telemetry(video)
    assert len(found.track) == 20
    assert "telemetry samples that are cut off or too large: 1" in " ".join(found.track.notes)


@pytest.mark.parametrize("last", [b"mdhd", b"stco"])
def test_an_index_that_is_cut_off_is_damage_and_not_a_video_without_positions(video: Path, last: bytes) -> None:
    content = write(video, "GPS5").read_bytes()
    video.write_bytes(content[: content.rindex(last) - 4])
    with pytest.raises(PhotoError, match="damaged: its index is cut off"):
        read_telemetry(video)


def test_a_track_without_samples(video: Path) -> None:
    with pytest.raises(PhotoError, match="holds no positions"):
        read_telemetry(add_track(video, []))


def test_an_index_that_lists_more_than_the_file(video: Path) -> None:
    content = bytearray(write(video, "GPS5").read_bytes())
    struct.pack_into(">5I", content, content.rindex(b"stsz") + 16, *[len(content)] * 5)
    video.write_bytes(content)
    with pytest.raises(PhotoError, match="more bytes of telemetry"):
        read_telemetry(video)


def test_too_many_entries(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.photos.telemetry_formats.MOST_ENTRIES", 1000)
    add_track(video, [(0, device(klv(b"TSMP", b"L", 0, 0, b"") * 2000))])
    with pytest.raises(PhotoError, match="more than 1,000 entries"):
        read_telemetry(video)


def test_too_many_positions(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sareloc.photos.telemetry_formats.MOST_POINTS", 20)
    with pytest.raises(PhotoError, match="more than 20 positions"):
        read_telemetry(write(video, "GPS5"))


@settings(max_examples=60)
@given(st.data())
def test_damaged_bytes_are_sentences(
    blank: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the bytes of one payload are: the others are used, or a sentence says why not."""
    name = data.draw(st.sampled_from(sorted(FORMATS)))
    form, make = FORMATS[name]
    payload = bytearray(make(1))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    video = tmp_path_factory.getbasetemp() / "damaged.mp4"
    video.write_bytes(blank)
    add_track(video, [(second, bytes(payload) if second == 1 else make(second)) for second in SECONDS], form)
    assert len(read_telemetry(video).track) >= 4


# -- maps and tracks ---------------------------------------------------------------------------------------------------


def test_frames_along_the_own_track(video: Path) -> None:
    write(video, "GPS5")
    report = frames_on_track([video], TrackOptions(every_m=10))
    assert not report.errors
    assert 4 <= len(report.geotags) <= 6
    for frame, geotag in report.geotags.items():
        second = float(str(frame).split("t=")[1])
        assert geotag.time == pytest.approx(NOON + second, abs=0.01)
        assert distance_m(geotag.latlon, at(second)) < 0.5
        assert geotag.heading_deg == pytest.approx(0, abs=1) or geotag.heading_deg == pytest.approx(360, abs=1)
    assert "no clock offset" in report.notes[0]


def test_a_single_frame_is_counted_as_one(video: Path) -> None:
    report = frames_on_track([write(video, "GPS5")], TrackOptions(every_m=1000))
    assert [note for note in report.notes if "1 frame of a video" in note]


def test_an_offset_of_the_own_track_is_not_estimated(video: Path) -> None:
    (error,) = frames_on_track([write(video, "GPS5")], TrackOptions(estimate_offset=True)).errors
    assert "own time" in error.reason


def test_videos_in_folders(blank: bytes, tmp_path: Path) -> None:
    """Used: with positions. Noted: without, and clips of photos. Named themselves: an error."""
    for name in ("with.mp4", "without.mp4", "IMG_1.mp4"):
        (tmp_path / name).write_bytes(blank)
    write(tmp_path / "with.mp4", "GPS5")
    write(tmp_path / "IMG_1.mp4", "GPS5")
    shutil.copy(tmp_path / "without.mp4", tmp_path / "IMG_1.jpg")
    found = collect_records(tmp_path, list_photos(tmp_path, videos=True), None)
    frames = [record.name for record in found.records if "#" in record.name]
    assert frames
    assert all("with.mp4#t=" in name for name in frames)
    assert not found.errors
    notes = "\n".join(found.notes)
    assert "without.mp4) not used: it holds no positions" in notes
    assert "IMG_1.mp4) not used: clips of photos" in notes
    alone = collect_records(tmp_path / "without.mp4", [tmp_path / "without.mp4"], None)
    assert "--track FILE" in alone.errors[0].reason
    clip = collect_records(tmp_path / "IMG_1.mp4", [tmp_path / "IMG_1.mp4"], None)
    assert clip.records


def test_an_estimate_that_is_given_counts_after_the_own_track(video: Path) -> None:
    write(video, "GPS5")
    for estimated in (True, False):
        table = {Path(f"{video}#t=0"): Geotag((10.0, 20.0), estimated=estimated)}
        (first, *others) = collect_records(video, [video], table).records
        assert not any(record.estimated for record in (first, *others))
        assert (first.position == (10.0, 20.0)) is not estimated


def test_options_without_a_track_and_without_videos(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no track"):
        collect_records(tmp_path / "a.jpg", [tmp_path / "a.jpg"], None, TrackOptions(timezone="+02:00"))


def test_a_video_as_track_of_other_photos_and_back_from_gpx(video: Path, tmp_path: Path) -> None:
    track = read_track(write(video, "GPS5"))
    (tmp_path / "drive.gpx").write_text(gpx_of_track(track))
    again = read_track(tmp_path / "drive.gpx")
    np.testing.assert_allclose(again.times, track.times, atol=0.001)
    np.testing.assert_allclose(again.latlon, track.latlon, atol=1e-7)
    with pytest.raises((PhotoError, DatasetError)):
        read_track(tmp_path / "absent.mp4")


# -- exiftool and real files -------------------------------------------------------------------------------------------


def exiftool(video: Path, name: str) -> list[str]:
    """The values of a tag that exiftool finds, in the order of the file."""
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed (Debian: libimage-exiftool-perl)")
    words = ["exiftool", "-ee", "-n", "-q", "-q", "-a", "-s3", f"-{name}", str(video)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def positions_by_exiftool(video: Path) -> np.ndarray:
    columns = [list(map(float, exiftool(video, name))) for name in ("GPSLatitude", "GPSLongitude")]
    return np.array(columns).T


@pytest.mark.parametrize("name", ["GPS5", "CAMM (GPS)", "CAMM (positions)", "log"])
def test_the_same_positions_as_exiftool(video: Path, name: str) -> None:
    found = read_telemetry(write_log(video) if name == "log" else write(video, name))
    assert distance_m(found.track.latlon, positions_by_exiftool(video)).max() < 0.5


@pytest.mark.data
def test_a_map_of_a_gopro_video_is_within_5_m_of_exiftool(shared_data: Path, tmp_path: Path) -> None:
    video = shared_data / "inputs" / "gopro_karma.mp4"
    if not video.exists():
        pytest.skip(f"no file {video}")
    said = [datetime.strptime(time, "%Y:%m:%d %H:%M:%S.%f") for time in exiftool(video, "GPSDateTime")]
    times, latlon = [time.replace(tzinfo=UTC).timestamp() for time in said], positions_by_exiftool(video)
    assert build_map(video, tmp_path / "gopro.gpkg", tiny_model(), progress=False).added == 17
    for geotag in in_map(tmp_path / "gopro.gpkg").values():
        expected = [np.interp(geotag.time, times, column) for column in latlon.T]
        assert distance_m(geotag.latlon, expected) < 5


@pytest.mark.data
@pytest.mark.parametrize(("name", "positions", "words"), [("hero5", 18, "DOP 6.1"), ("hero6", 0, "17 without a fix")])
def test_payloads_of_gopro_cameras(shared_data: Path, video: Path, name: str, positions: int, words: str) -> None:
    payload = shared_data / "inputs" / f"gopro_{name}.raw"
    if not payload.exists():
        pytest.skip(f"no file {payload}")
    add_track(video, [(0, payload.read_bytes())])
    if not positions:
        with pytest.raises(PhotoError, match=words):
            read_telemetry(video)
        return
    found = read_telemetry(video)
    assert len(found.track) == positions
    assert words in found.track.notes[0]
    assert found.start == datetime(2017, 4, 17, 17, 31, 3, tzinfo=UTC).timestamp()
    assert distance_m(found.track.latlon[0], (33.1265865, -117.3273542)) < 100
