"""Tracks: read from GPX and NMEA, merged, and asked where one was at a time."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sareloc.errors import ArgumentError, DatasetError, SarelocError
from sareloc.geo import distance_m, enu_from_wgs84, wgs84_from_enu
from sareloc.photos import Track, merge_tracks, read_track, read_tracks
from sareloc.photos import tracks as module

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC).timestamp()
ZURICH = (47.3769, 8.5417)


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def point(time: float | str | None, latitude: float, longitude: float) -> str:
    text = time if isinstance(time, str | None) else stamp(time)
    return f'<trkpt lat="{latitude}" lon="{longitude}">' + (f"<time>{text}</time>" if text else "") + "</trkpt>"


def gpx(*tracks: str, head: str = "") -> str:
    body = "".join(f"<trk><trkseg>{points}</trkseg></trk>" for points in tracks)
    namespace = "http://www.topografix.com/GPX/1/1"
    return f'<?xml version="1.0" encoding="UTF-8"?>{head}<gpx version="1.1" xmlns="{namespace}">{body}</gpx>'


def north(count: int, start: float = NOON, step_s: float = 1.0, latitude: float = 47.0, longitude: float = 8.0) -> str:
    """Points every `step_s` seconds, 0.0001° (11 m) further north each."""
    return "".join(point(start + i * step_s, latitude + i * 1e-4, longitude) for i in range(count))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def straight(speed: float = 10.0, seconds: int = 60, start: float = NOON) -> Track:
    """North-east of Zurich at this speed in m/s."""
    times = np.arange(seconds + 1.0)
    return Track(start + times, wgs84_from_enu(np.outer(times, [speed, speed]) / np.sqrt(2), ZURICH))


# positions and headings


def test_between_two_points_the_position_is_in_proportion_to_the_time() -> None:
    track = Track(np.array([0.0, 10.0]), wgs84_from_enu([(0, 0), (100, 0)], ZURICH))
    found = track.at([0, 2.5, 9, 10])
    assert enu_from_wgs84(found.latlon, ZURICH) == pytest.approx(
        np.array([(0, 0), (25, 0), (90, 0), (100, 0)]), abs=1e-3
    )
    assert found.heading_deg == pytest.approx(90, abs=0.01)
    assert found.nearest_s == pytest.approx([0, 2.5, 1, 0])
    assert found.nearest_m == pytest.approx([0, 25, 10, 0], abs=1e-3)
    assert found.gap_s == pytest.approx([0, 10, 10, 10])


def test_a_track_crosses_the_antimeridian_on_the_short_way() -> None:
    track = Track(np.array([0.0, 10.0]), np.array([(10.0, 179.9999), (10.0, -179.9998)]))
    found = track.at([5, 2])
    assert found.latlon[0] == pytest.approx([10, -179.99995], abs=1e-8)
    assert found.latlon[1] == pytest.approx([10, 179.99996], abs=1e-8)
    assert found.heading_deg == pytest.approx(90, abs=0.01)


def test_outside_and_in_gaps_there_is_no_position_but_at_points_there_is() -> None:
    track = Track(np.array([0.0, 10.0, 50.0, 60.0]), wgs84_from_enu([(0, 0), (0, 10), (0, 50), (0, 60)], ZURICH))
    found = track.at([-0.001, 0, 10, 10.001, 30, 49.999, 50, 60, 60.001], max_gap_s=30)
    assert found.found.tolist() == [False, True, True, False, False, False, True, True, False]
    assert found.gap_s[[0, 4, 8]].tolist() == [np.inf, 40, np.inf]
    assert track.at([30], max_gap_s=40).found.all()
    assert track.at([]).latlon.shape == (0, 2)
    alone = Track(np.array([5.0]), np.array([ZURICH])).at([4, 5, 6])
    assert alone.found.tolist() == [False, True, False]
    assert np.isnan(alone.heading_deg).all()


def test_the_heading_stays_undefined_while_standing_still() -> None:
    rng = np.random.default_rng(0)
    jitter = Track(NOON + np.arange(60.0), wgs84_from_enu(rng.normal(0, 0.3, (60, 2)), ZURICH))
    assert np.isnan(jitter.at(NOON + np.arange(60)).heading_deg).all()
    assert straight(1.4).at(NOON + np.arange(61)).heading_deg == pytest.approx(45, abs=0.5)


def test_a_heading_is_not_taken_across_a_gap() -> None:
    """North until 10 s, then at 100 s, 500 m to the east: the heading at 10 s is still north."""
    enu = [(0, 10.0 * i) for i in range(11)] + [(500, 100.0), (510, 100.0)]
    track = Track(np.array([*range(11), 100.0, 101.0]), wgs84_from_enu(enu, ZURICH))
    found = track.at([10, 100], max_gap_s=30)
    assert (found.heading_deg + 1) % 360 == pytest.approx([1, 91], abs=0.1)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_a_slow_twin_agrees(seed: int, count: int) -> None:
    """Positions of a loop over pairs of points in local metres."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.1, 20, count))
    enu = np.cumsum(rng.normal(0, 30, (count, 2)), axis=0)
    wanted = rng.uniform(times[0] - 5, times[-1] + 5, 8)
    found = Track(times, wgs84_from_enu(enu, ZURICH)).at(wanted, max_gap_s=10)
    for row, when in enumerate(wanted):
        expected = [np.nan, np.nan]
        for i in range(count - 1):
            if times[i] <= when <= times[i + 1] and times[i + 1] - times[i] <= 10:
                share = (when - times[i]) / (times[i + 1] - times[i])
                expected = (1 - share) * enu[i] + share * enu[i + 1]
        if np.isnan(expected[0]):
            assert not found.found[row]
        else:
            assert enu_from_wgs84(found.latlon[row], ZURICH)[0] == pytest.approx(expected, abs=0.01)
        assert found.nearest_s[row] == pytest.approx(np.abs(times - when).min())


def test_times_must_ascend() -> None:
    with pytest.raises(ArgumentError, match="ascending"):
        Track(np.array([1.0, 1.0]), np.zeros((2, 2)))
    with pytest.raises(ArgumentError, match="at least 1"):
        Track(np.zeros(0), np.zeros((0, 2)))


# GPX


def test_tracks_and_segments_of_a_gpx_are_one_track(tmp_path: Path) -> None:
    two = gpx(north(3) + "</trkseg><trkseg>" + north(2, NOON + 100), north(2, NOON - 50))
    track = read_track(write(tmp_path / "a.gpx", two))
    assert (track.times - NOON).tolist() == [-50, -49, 0, 1, 2, 100, 101]
    assert track.latlon[3] == pytest.approx([47.0001, 8])
    assert track.files == (tmp_path / "a.gpx",)
    assert track.notes == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-31T12:00:00Z", 0),
        ("2024-05-31T12:00:00.25Z", 0.25),
        ("2024-05-31T14:00:00+02:00", 0),
        ("2024-05-31T08:30:00-03:30", 0),
        ("2024-05-31T12:00:00", 0),
    ],
)
def test_times_of_a_gpx(text: str, seconds: float, tmp_path: Path) -> None:
    track = read_track(write(tmp_path / "a.gpx", gpx(point(text, 47, 8))))
    assert track.times[0] - NOON == pytest.approx(seconds, abs=1e-6)


def test_points_without_times_or_positions_are_left_out_and_counted(tmp_path: Path) -> None:
    points = north(3) + point(None, 47, 8) + point("yesterday", 47, 8) + point("2024-05-31T12:00:00+99:00", 47, 8)
    points += point(NOON + 9, 97, 8) + point(NOON + 8, 0, 0)
    track = read_track(write(tmp_path / "a.gpx", gpx(points)))
    assert len(track) == 3
    assert [note.partition("a.gpx: ")[2] for note in track.notes] == [
        "3 of 8 points left out: no time",
        "2 points without a valid position or year left out",
    ]


def test_points_out_of_order_are_sorted_and_double_times_left_out(tmp_path: Path) -> None:
    points = north(3, NOON + 10) + north(3) + point(NOON + 1, 47.5, 8) + point(NOON + 2, 47.0002, 8)
    track = read_track(write(tmp_path / "a.gpx", gpx(points)))
    assert (track.times - NOON).tolist() == [0, 1, 2, 10, 11, 12]
    assert track.latlon[1, 0] == pytest.approx(47.0001)
    assert "2 points are earlier" in track.notes[0]
    assert "1 point has the time of another point at another place" in track.notes[1]


def test_a_gpx_without_times_is_an_error_that_says_so(tmp_path: Path) -> None:
    route = "".join(point(None, 47 + i / 1e4, 8) for i in range(4))
    with pytest.raises(DatasetError, match="4 track points and none has a time"):
        read_track(write(tmp_path / "a.gpx", gpx(route)))
    planned = gpx().replace("</gpx>", '<rte><rtept lat="47" lon="8"/></rte><wpt lat="47" lon="8"/></gpx>')
    with pytest.raises(DatasetError, match="no track points: it has 2 waypoints and route points"):
        read_track(write(tmp_path / "b.gpx", planned))


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.999])
def test_of_a_truncated_gpx_all_complete_points_are_read(kept: float, tmp_path: Path) -> None:
    whole = gpx(north(20), north(20, NOON + 60))
    text = whole[: int(len(whole) * kept)]
    track = read_track(write(tmp_path / "cut.gpx", text))
    assert len(track) == text.count("</trkpt>") > 5
    assert len(track.notes) == 1
    assert "truncated or damaged (no element found" in track.notes[0] or "unclosed token" in track.notes[0]
    assert f"the {len(track)} points before that were read" in track.notes[0]


def test_of_a_damaged_gpx_the_points_before_the_damage_are_read(tmp_path: Path) -> None:
    points = north(4) + "<trkpt lat=" + north(5, NOON + 60)
    text = gpx(points).replace("<trk>", "<trk><name>Zürich</name>", 1)
    track = read_track(write(tmp_path / "a.gpx", text))
    assert len(track) == 4
    assert "the 4 points before that were read, 6 after it were not" in track.notes[0]
    with pytest.raises(DatasetError, match="before the first complete track point"):
        read_track(write(tmp_path / "b.gpx", gpx(north(4))[:150]))


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16", "utf-8-sig"])
def test_a_gpx_in_another_encoding(encoding: str, tmp_path: Path) -> None:
    declared = "utf-8" if encoding == "utf-8-sig" else encoding
    text = gpx(north(3)).replace("UTF-8", declared).replace("<trk>", "<trk><name>Zürich</name>")
    (tmp_path / "a.gpx").write_bytes(text.encode(encoding))
    assert len(read_track(tmp_path / "a.gpx")) == 3


ENTITIES = '<!DOCTYPE gpx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_document_type_is_refused(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.gpx").write_bytes(gpx(north(3), head=ENTITIES).replace("UTF-8", encoding).encode(encoding))
    with pytest.raises(DatasetError, match="document type"):
        read_track(tmp_path / "a.gpx")


@pytest.mark.parametrize("encoding", ["nonsense", "zlib", "hex", "rot13", "base64", "utf-7"])
def test_an_unknown_encoding_is_reported(encoding: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"encoding is '{encoding}'"):
        read_track(write(tmp_path / "a.gpx", gpx(north(3)).replace("UTF-8", encoding)))


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = gpx("<a>" * 200 + "</a>" * 200)
    with pytest.raises(DatasetError, match="100 levels"):
        read_track(write(tmp_path / "deep.gpx", deep))
    with pytest.raises(DatasetError, match="0 track points and more than 100,000 other elements"):
        read_track(write(tmp_path / "empty.gpx", gpx("<a/>" * 200_000)))
    with pytest.raises(DatasetError, match=r"0 track points and 1,0.* characters of text"):
        read_track(write(tmp_path / "text.gpx", gpx("\n" * 2_000_000)))
    path = write(tmp_path / "a.gpx", gpx(north(5)))
    monkeypatch.setattr(module, "MOST_POINTS", 4)
    with pytest.raises(DatasetError, match="more than 4 points"):
        read_track(path)
    monkeypatch.setattr(module, "LARGEST_BYTES", 100)
    with pytest.raises(DatasetError, match="more than 100 bytes"):
        read_track(path)


def test_files_that_are_no_tracks(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\.gpx"):
        read_track(write(tmp_path / "a.kml", "<kml/>"))
    with pytest.raises(DatasetError, match="No such file"):
        read_track(tmp_path / "missing.gpx")
    with pytest.raises(DatasetError, match="not valid GPX"):
        read_track(write(tmp_path / "a.gpx", "no xml"))
    with pytest.raises(DatasetError, match="not valid GPX"):
        read_track(write(tmp_path / "b.gpx", gpx(north(2) + '<trkpt lat="x" lon="8"/>')))
    with pytest.raises(DatasetError, match="no track points"):
        read_track(write(tmp_path / "c.gpx", "<html></html>"))
    with pytest.raises(ArgumentError, match="no track was given"):
        read_tracks([])


@given(seed=st.integers(0, 2**32 - 1))
def test_a_file_changed_at_random_is_a_track_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    logged = "\n".join([rmc("120000.00"), gga("120000.00"), gga("120001.00"), rmc("120002.00")])
    for name, whole in (("a.gpx", gpx(north(4), north(3, NOON + 60))), ("a.nmea", logged)):
        content = bytearray(whole.encode())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            put = rng.choice([b"", bytes([rng.randrange(256)]), b"9" * 30, b"nan", b"&#0;", b"</trk>", b"<!DOCTYPE a>"])
            content[at : at + rng.choice([0, 1, 20])] = put
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(content)
        try:
            track = read_track(path)
        except SarelocError:
            continue
        assert track.at(track.times).found.all()


# NMEA


def nmea(body: str) -> str:
    return f"${body}*{reduce(lambda total, letter: total ^ ord(letter), body, 0):02X}"


def rmc(clock: str, day: str = "310524", latitude: str = "4722.6140,N", longitude: str = "00832.5020,E") -> str:
    return nmea(f"GPRMC,{clock},A,{latitude},{longitude},10.0,45.0,{day},,,A")


def gga(clock: str, latitude: str = "4722.6140,N", quality: int = 1) -> str:
    return nmea(f"GNGGA,{clock},{latitude},00832.5020,E,{quality},08,0.9,400.0,M,47.0,M,,")


def test_an_nmea_log(tmp_path: Path) -> None:
    lines = [gga("115959.00"), rmc("120000.00"), gga("120000.00"), gga("120000.20", "4722.6260,N"), rmc("120001.00")]
    track = read_track(write(tmp_path / "a.nmea", "\r\n".join(lines)))
    assert track.times - NOON == pytest.approx([-1, 0, 0.2, 1])
    assert track.latlon[0] == pytest.approx([47 + 22.614 / 60, 8 + 32.502 / 60])
    assert track.latlon[2, 0] == pytest.approx(47 + 22.626 / 60)
    assert track.notes == ()


def test_southern_and_western_hemispheres(tmp_path: Path) -> None:
    track = read_track(write(tmp_path / "a.log", rmc("120000", latitude="3352.0000,S", longitude="07040.0000,W")))
    assert track.latlon[0] == pytest.approx([-(33 + 52 / 60), -(70 + 40 / 60)])


def test_the_date_changes_at_midnight(tmp_path: Path) -> None:
    lines = [
        rmc("235959.00", "311224"),
        gga("235959.50"),
        gga("000000.00"),
        gga("000000.50"),
        rmc("000001.00", "010125"),
    ]
    track = read_track(write(tmp_path / "a.txt", "\n".join(lines)))
    midnight = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
    assert track.times - midnight == pytest.approx([-1, -0.5, 0, 0.5, 1])


def test_sentences_with_bad_checksums_or_without_a_fix_are_left_out(tmp_path: Path) -> None:
    good = rmc("120000.00")
    broken = good.replace("4722", "4822")
    void = nmea("GPRMC,120002.00,V,,,,,,,310524,,,N")
    lines = [good, broken, good.partition("*")[0], void, gga("120003.00", quality=0), rmc("126100.00"), "$GPGSV,3,1"]
    track = read_track(write(tmp_path / "a.nmea", "\n".join(lines)))
    assert len(track) == 1
    assert [note.partition("a.nmea: ")[2] for note in track.notes] == [
        "3 sentences with a wrong or missing checksum or field left out",
        "2 sentences without a fix left out",
    ]


def test_sentences_after_a_prefix_of_the_logger(tmp_path: Path) -> None:
    text = f"[1717156800000]{rmc('120000.00')}\nNMEA,{rmc('120001.00')}\n"
    assert len(read_track(write(tmp_path / "a.nmea", text))) == 2


def test_nmea_logs_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no positions in NMEA"):
        read_track(write(tmp_path / "a.log", "server started"))
    with pytest.raises(DatasetError, match="1 sentence with a wrong or missing checksum"):
        read_track(write(tmp_path / "b.log", rmc("120000").replace("4722", "4822")))
    with pytest.raises(DatasetError, match="no date"):
        read_track(write(tmp_path / "c.log", gga("120000.00")))


# several tracks


def test_tracks_that_follow_each_other(tmp_path: Path) -> None:
    later, earlier = (write(tmp_path / f"{name}.gpx", gpx(north(3, NOON + at))) for name, at in (("b", 100), ("a", 0)))
    track = read_tracks([later, earlier])
    assert (track.times - NOON).tolist() == [0, 1, 2, 100, 101, 102]
    assert track.files == (later, earlier)
    assert track.notes == ()


def test_the_same_track_twice_is_that_track(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.gpx", gpx(north(30))) for name in "ab"]
    track = read_tracks(paths)
    assert len(track) == 30
    assert track.notes == ()


def test_tracks_that_overlap_and_agree_are_merged_with_a_note(tmp_path: Path) -> None:
    """Two receivers 4 m apart: the first is used where both tell, the second where the first does not."""
    one = gpx(north(10) + north(10, NOON + 40, latitude=47.004))
    two = gpx(north(60, NOON + 0.5, longitude=8 + 4 / 75_900))
    track = read_tracks([write(tmp_path / "one.gpx", one), write(tmp_path / "two.gpx", two)])
    assert len(track.notes) == 1
    assert "one.gpx and" in track.notes[0]
    assert "overlap from 2024-05-31 12:00:00 to 2024-05-31 12:00:48 UTC" in track.notes[0]
    assert "m apart (median" in track.notes[0]
    seconds = track.times - NOON
    assert (seconds[(seconds <= 9) | ((seconds >= 40) & (seconds <= 49))] % 1 == 0).all()
    assert (seconds[(seconds > 9) & (seconds < 40)] % 1 == 0.5).all()
    assert seconds[-1] == 59.5
    assert track.at(NOON + np.arange(60), max_gap_s=5).found.all()


def test_tracks_that_were_elsewhere_at_the_same_time_are_an_error(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.gpx", gpx(north(60))), write(tmp_path / "two.gpx", gpx(north(60, longitude=8.02)))
    with pytest.raises(DatasetError, match=r"one\.gpx and .*two\.gpx overlap from .* and are 1,5\d\d m apart") as error:
        read_tracks([one, two])
    assert "give the track of the camera alone" in str(error.value)


def test_one_outlier_does_not_make_tracks_disagree() -> None:
    first, second = straight(), straight()
    latlon = second.latlon.copy()
    latlon[30] += 0.01
    merged = merge_tracks([first, Track(second.times + 0.5, latlon)])
    assert len(merged.notes) == 1
    assert distance_m(merged.at([NOON + 30.5]).latlon, first.at([NOON + 30.5]).latlon) < 0.1


@pytest.mark.data
def test_a_real_track(shared_data: Path) -> None:
    track = read_track(shared_data / "inputs" / "sf_30km_h.gpx")
    assert (len(track), track.notes) == (49, ())
    speeds = distance_m(track.latlon[1:], track.latlon[:-1]) / np.diff(track.times)
    assert np.median(speeds) * 3.6 == pytest.approx(30, abs=0.5)
    found = track.at(np.arange(track.times[0], track.times[-1], 0.5))
    assert found.found.all()
    assert not np.isnan(found.heading_deg).any()
    assert found.nearest_s.max() < 3.2
