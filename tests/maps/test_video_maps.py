"""Maps of frames of videos along a track."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.maps.small_town import HERE, build_map, tiny_model, write_photo
from tests.photos.video_files import number_in, write_video

from sareloc.errors import ArgumentError, PhotoError
from sareloc.geo import distance_m, wgs84_from_enu
from sareloc.loading import read_images
from sareloc.maps import BuildReport, MapConfig, open_store, sync_map
from sareloc.photos import Address, Geotag, TrackOptions, decode, image_size, parse_address, read_time
from sareloc.photos.record import EPOCH
from sareloc.photos.track_geotags import frames_on_track
from sareloc.photos.videos import video_frames

pytest.importorskip("av")

START = 1714557600  # 2024-05-01T10:00:00Z
CLOCK = {"creation_time": "2024-05-01T10:00:00Z"}


def write_track(path: Path, positions: Sequence[tuple[float, float, float]]) -> Path:
    """A GPX file of (seconds after START, metres east, metres north)."""
    latlon = wgs84_from_enu([position[1:] for position in positions], HERE)
    points = "".join(
        f'<trkpt lat="{lat:.8f}" lon="{lon:.8f}"><time>{EPOCH + timedelta(seconds=START + time):%Y-%m-%dT%H:%M:%SZ}'
        "</time></trkpt>"
        for (time, *_), (lat, lon) in zip(positions, latlon, strict=True)
    )
    path.write_text(
        '<gpx version="1.1" creator="t" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>'
        f"{points}</trkseg></trk></gpx>"
    )
    return path


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """8 s at 25 frames a second: 5 m/s to the east for 4 s, then at rest."""
    folder = tmp_path / "drive"
    folder.mkdir()
    write_track(folder / "drive.gpx", [(0, 0, 0), (2, 10, 0), (4, 20, 0), (6, 20, 0), (8, 20, 0)])
    return write_video(folder / "drive.mp4", [40 * i for i in range(200)], metadata=CLOCK)


def on_track(video: Path, **options: object) -> TrackOptions:
    return TrackOptions((video.with_suffix(".gpx"),), **options)  # type: ignore[arg-type]


def in_map(path: Path) -> dict[str, Geotag]:
    with open_store(path) as store:
        names = [name for _, _, files in store.pages() for name in files]
        return {name: entry.geotag for name, entry in sorted(store.entries(names).items())}


def build(video: Path | list[Path], out: Path, **options: object) -> BuildReport:
    return build_map(video, out, tiny_model(), progress=False, **options)  # type: ignore[arg-type]


def test_a_frame_every_so_many_metres_with_its_position_heading_and_time(drive: Path) -> None:
    out = drive.parent / "map.gpkg"
    report = build(drive, out, track=on_track(drive))
    assert (report.added, report.unreadable, report.untagged) == (5, (), ())
    found = in_map(out)
    assert list(found) == ["drive.mp4#t=0", "drive.mp4#t=1", "drive.mp4#t=2", "drive.mp4#t=3", "drive.mp4#t=4"]
    for second, geotag in enumerate(found.values()):
        expected = wgs84_from_enu([(5.0 * second, 0.0)], HERE)[0]
        assert distance_m(geotag.latlon, expected) < 0.01
        assert geotag.time == START + second
        assert geotag.heading_deg == pytest.approx(90, abs=0.1)
    assert any("5 frames" in note for note in report.notes)


def test_the_stored_address_gives_the_frame(drive: Path) -> None:
    out = drive.parent / "map.gpkg"
    build(drive, out, track=on_track(drive, every_m=2.0))
    for name in in_map(out):
        frame = drive.parent / name
        assert number_in(decode(frame)) == round(25 * (parse_address(frame).time_s or 0))
        assert image_size(frame) == (96, 64)
        assert read_time(frame) == pytest.approx(START + (parse_address(frame).time_s or 0))


def test_frames_are_sampled_for_the_maps_own_whitening(drive: Path) -> None:
    out, model = drive.parent / "map.gpkg", tiny_model()
    assert build(drive, out, track=on_track(drive), dim=3, storage="float32").added == 5
    assert build(drive, out, track=on_track(drive, every_m=2.0), dim=3, storage="float32").added > 0
    with open_store(out) as store:
        stored = store.whitening()
        ((photos, vectors),) = store.records()
    assert stored is not None
    full = model.encode([decode(drive.parent / photo.file) for photo in photos]).numpy()
    expected = (full - stored[0]) @ stored[1].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-3)


def test_a_repeated_build_finds_all_frames_there_and_a_shorter_step_adds_some(drive: Path) -> None:
    out = drive.parent / "map.gpkg"
    build(drive, out, track=on_track(drive))
    again = build(drive, out, track=on_track(drive))
    assert (again.added, again.updated, again.already) == (0, 0, 5)
    more = build(drive, out, track=on_track(drive, every_m=2.5))
    assert (more.added, more.already) == (4, 5)


def test_a_clock_offset_moves_the_frames(drive: Path) -> None:
    """The camera's clock is 2 s fast: what it calls 10:00:02 was 10:00:00, where the track begins."""
    out = drive.parent / "map.gpkg"
    build(drive, out, track=on_track(drive, clock_offset="-2s"))
    found = in_map(out)
    assert [parse_address(name).time_s for name in found] == pytest.approx([2, 3, 4, 5, 6], abs=0.021)
    assert next(iter(found.values())).time == pytest.approx(START, abs=0.021)
    updated = build(drive, out, track=on_track(drive, clock_offset="-1.99s"))
    assert (updated.added, updated.updated) == (0, 5)


def test_a_video_without_a_clock_needs_its_start_and_nothing_is_lost(tmp_path: Path) -> None:
    video = write_video(tmp_path / "walk.mkv", [40 * i for i in range(60)])
    write_track(tmp_path / "walk.gpx", [(0, 0, 0), (2, 10, 0)])
    photo = write_photo(tmp_path / "0.jpg", 0)
    report = build([video, photo], tmp_path / "map.gpkg", track=on_track(video))
    assert report.added == 1
    assert [error.photo for error in report.unreadable] == [str(video)]
    assert "--video-start" in report.unreadable[0].reason
    placed = build([video, photo], tmp_path / "map.gpkg", track=on_track(video, video_start="2024-05-01T10:00:00Z"))
    assert (placed.added, placed.already) == (3, 1)
    local = on_track(video, video_start="2024-05-01 12:00", timezone="+02:00")
    assert build(video, tmp_path / "map.gpkg", track=local).already == 3
    with pytest.raises(ArgumentError, match="2024-05-31T12:00:00Z"):
        on_track(video, video_start="noon")


def test_one_start_is_not_for_two_videos(drive: Path) -> None:
    other = write_video(drive.with_name("other.mp4"), [0, 40, 80])
    report = build([drive, other], drive.parent / "map.gpkg", track=on_track(drive, video_start="2024-05-01T10:00:00"))
    assert report.added == 0
    assert all("--video-start" in error.reason for error in report.unreadable)


def test_a_video_outside_the_track_says_when_both_were(drive: Path) -> None:
    report = build(drive, drive.parent / "map.gpkg", track=on_track(drive, clock_offset="1h"))
    (error,) = report.unreadable
    assert "2024-05-01 11:00:00" in error.reason
    assert "2024-05-01 10:00:08" in error.reason
    assert "--clock-offset" in error.reason
    assert not (drive.parent / "map.gpkg").exists()


def test_videos_need_a_track(drive: Path) -> None:
    (error,) = build(drive, drive.parent / "map.gpkg").unreadable
    assert "--track" in error.reason
    write_photo(drive.parent / "0.jpg", 0)
    report = build(drive.parent, drive.parent / "map.gpkg")
    assert (report.added, report.unreadable) == (1, ())
    assert any("1 video" in note and "--track" in note for note in report.notes)
    with_track = build(drive.parent, drive.parent / "map.gpkg", track=on_track(drive))
    assert (with_track.added, with_track.already) == (5, 1)


def test_a_truncated_video_gives_what_can_be_read_and_a_note(drive: Path) -> None:
    times = [40 * i for i in range(200)]
    whole = write_video(drive.with_name("w.mp4"), times, metadata=CLOCK, options={"movflags": "faststart"})
    content = whole.read_bytes()
    drive.write_bytes(content[: int(0.5 * len(content))])
    whole.unlink()
    report = build(drive, drive.parent / "map.gpkg", track=on_track(drive, every_m=1.0))
    assert 2 <= report.added < 20
    assert any("truncated" in note for note in report.notes)


def test_sync_keeps_frames_of_videos_that_exist(drive: Path) -> None:
    out = drive.parents[1] / "map.gpkg"
    write_photo(drive.parent / "0.jpg", 0)
    build(drive.parent, out, track=on_track(drive))
    assert len(in_map(out)) == 6

    def sync(what: Path, **options: object) -> tuple[int, int, int]:
        report = sync_map(what, out, tiny_model(), config=MapConfig(progress=False), **options)  # type: ignore[arg-type]
        return report.added, report.already, len(report.removed)

    assert sync(drive.parent) == (0, 1, 0)  # without the track: neither added nor removed
    assert sync(drive.parent, track=on_track(drive)) == (0, 6, 0)
    assert sync(drive, track=on_track(drive, every_m=10.0)) == (0, 3, 2)  # frames that are no longer chosen
    assert sync(drive, track=on_track(drive), dry_run=True) == (2, 3, 0)
    drive.unlink()
    assert sync(drive.parent) == (0, 1, 3)
    assert list(in_map(out)) == ["drive/0.jpg"]


def test_a_moved_video_keeps_its_descriptors(drive: Path) -> None:
    out = drive.parent / "map.gpkg"
    build(drive, out, track=on_track(drive))
    moved = drive.rename(drive.with_name("moved.mp4"))
    report = build(moved, out, track=TrackOptions((drive.with_suffix(".gpx"),)))
    assert (report.added, report.updated) == (0, 5)
    assert {Path(name).name.split("#")[0] for name in in_map(out)} == {"moved.mp4"}


def test_frames_by_seconds(drive: Path) -> None:
    frames, times = video_frames(drive, 2.0)
    assert frames == [Address(drive, time_s=time).path for time in (0.0, 2.0, 4.0, 6.0)]
    np.testing.assert_allclose(times, [0, 2, 4, 6])
    every, _ = video_frames(drive, 0.001)
    assert len(every) == 200
    with pytest.raises(ArgumentError, match="seconds"):
        video_frames(drive, 0.0)
    with pytest.raises(PhotoError, match="no such file"):
        video_frames(drive.with_name("gone.mp4"))


def test_workers_decode_frames_as_this_process_does(drive: Path) -> None:
    frames, _ = video_frames(drive, 0.4)
    for row, image in read_images(frames, [None], workers=2):
        assert not isinstance(image, PhotoError)
        assert number_in(image.pixels[0]) == 10 * row


@pytest.mark.slow
@pytest.mark.city
def test_frames_of_a_drawn_drive_are_where_they_were_taken(tmp_path: Path) -> None:
    """The camera's clock is 3.2 s fast, the track is 1.5 m off: with the offset the frames are near the truth."""
    import csv

    from sareloc.city import draw_drive, make_drive

    draw_drive(make_drive(seed=1, seconds=30.0, fps=2.0), tmp_path / "drive", frame_size=(64, 112))
    with (tmp_path / "drive" / "truth.csv").open() as file:
        truth = {float(row["time_s"]): (float(row["lat"]), float(row["lon"])) for row in csv.DictReader(file)}

    def median_m(offset: str) -> float:
        video = tmp_path / "drive" / "drive.mp4"
        report = frames_on_track([video], on_track(video, clock_offset=offset))
        assert len(report.geotags) > 10
        times = [parse_address(frame).time_s or 0.0 for frame in report.geotags]
        found = [geotag.latlon for geotag in report.geotags.values()]
        return float(np.median(distance_m(found, [truth[time] for time in times])))

    assert median_m("-3.2s") < 4
    assert median_m("0s") > 15
