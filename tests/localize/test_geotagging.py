"""Positions of fixes are planned and written without a map: what is localized, which files, and what stays as it is."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.maps.small_town import HERE, write_photo

from sareloc.errors import ArgumentError
from sareloc.localize import Fix, GeotagOptions, geotagging, plan_geotags, write_positions
from sareloc.photos import read_geotag

FIX = Fix(HERE, 20.0, 0.9, ())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos, of which the last has a position."""
    for number in range(3):
        write_photo(tmp_path / "photos" / f"{number}.jpg", number, tagged=number == 2)
    return tmp_path / "photos"


def test_copies_of_photos_with_a_fix_get_its_position(photos: Path, tmp_path: Path) -> None:
    plan = plan_geotags([photos], tmp_path / "out")
    assert (plan.photos, plan.images) == ((photos / "0.jpg", photos / "1.jpg"),) * 2
    assert plan.tagged == 1
    absent = replace(FIX, latlon=None, radius_m=None, reason="not in this map")
    report = write_positions(plan, {photos / "0.jpg": FIX, photos / "1.jpg": absent})
    assert (report.written, report.errors) == ({photos / "0.jpg": (tmp_path / "out" / "0.jpg",)}, ())
    tag = read_geotag(tmp_path / "out" / "0.jpg")
    assert tag is not None
    assert tag.latlon == pytest.approx(HERE, abs=1e-6)
    assert tag.estimated
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0.jpg"]


def test_a_video_is_localized_by_its_first_frame(tmp_path: Path) -> None:
    (tmp_path / "drive.mp4").write_bytes(b"no video")
    plan = plan_geotags([tmp_path / "drive.mp4"], tmp_path / "out")
    assert (plan.photos, plan.images) == ((tmp_path / "drive.mp4",), (tmp_path / "drive.mp4#t=0",))


@pytest.mark.parametrize("sidecar", [None, "xmp", "csv"])
def test_a_dry_run_names_the_files_and_writes_none(sidecar, photos: Path, tmp_path: Path) -> None:
    plan = plan_geotags([photos], tmp_path / "out", GeotagOptions(sidecar=sidecar, retag=True, dry_run=True))
    report = write_positions(plan, dict.fromkeys(plan.photos, FIX))
    names = {None: "2.jpg", "xmp": "2.jpg.xmp", "csv": "geotags.csv"}
    assert report.written[photos / "2.jpg"] == (tmp_path / "out" / names[sidecar],)
    assert not (tmp_path / "out").exists()


def test_what_exists_is_an_error_of_its_photo_alone(photos: Path, tmp_path: Path) -> None:
    taken = write_photo(tmp_path / "out" / "0.jpg", 9)
    before = taken.read_bytes()
    plan = plan_geotags([photos], tmp_path / "out")
    report = write_positions(plan, dict.fromkeys(plan.photos, FIX))
    assert list(report.written) == [photos / "1.jpg"]
    assert [str(error) for error in report.errors] == [f"{taken}: exists (--replace overwrites it)"]
    assert taken.read_bytes() == before


def test_a_full_disk_ends_the_writing(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(geotagging, "write_geotag", full)
    plan = plan_geotags([photos], tmp_path / "out")
    report = write_positions(plan, dict.fromkeys(plan.photos, FIX))
    assert (dict(report.written), len(report.errors)) == ({}, 1)


def test_plans_that_would_lose_a_file_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="replace the original"):
        plan_geotags([photos], photos)
    other = write_photo(tmp_path / "other" / "0.jpg", 5, tagged=False)
    with pytest.raises(ArgumentError, match="same file"):
        plan_geotags([photos / "0.jpg", other], tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "geotags.gpx").touch()
    with pytest.raises(ArgumentError, match=r"geotags\.gpx exists"):
        plan_geotags([photos], tmp_path / "out", GeotagOptions(sidecar="gpx"))
    with pytest.raises(ArgumentError, match="no photos"):
        plan_geotags([tmp_path / "out"], tmp_path / "elsewhere")
