"""Positions that sareloc estimated are not truth: maps leave them out, unless they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD
from tests.maps.small_town import build_map, geotag_of, tiny_model, write_photo, write_town

from sareloc.maps import MapConfig, PlaceMap, sync_map
from sareloc.models import PlaceModel
from sareloc.photos import (
    Estimate,
    Geotag,
    TrackOptions,
    find_geotagged,
    read_geotag,
    read_geotag_table,
    write_geotag,
    write_sidecar,
)
from sareloc.photos.record import METHOD

ESTIMATE = Estimate(12.0, f"{METHOD}, confidence 0.93")
WRONG = Geotag((10.0, 20.0))


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return tiny_model()


def into_exif(photo: Path) -> None:
    write_geotag(photo, photo, WRONG, ESTIMATE)


def into_sidecar(photo: Path) -> None:
    write_sidecar(photo, photo.with_name(f"{photo.name}.xmp"), WRONG, ESTIMATE)


def into_exif_as_before(photo: Path) -> None:
    """As earlier versions wrote it: the mark in GPSProcessingMethod."""
    into_exif(photo)
    with Image.open(photo) as image:
        image.load()
        exif = image.getexif()
        gps = exif.get_ifd(IFD.GPSInfo)
        gps[GPS.GPSProcessingMethod] = gps.pop(GPS.GPSAreaInformation)
        image.save(photo, exif=exif)


def into_sidecar_as_before(photo: Path) -> None:
    into_sidecar(photo)
    sidecar = photo.with_name(f"{photo.name}.xmp")
    text = sidecar.read_text().replace("<exif:GPSProcessingMethod>MANUAL</exif:GPSProcessingMethod>", "")
    sidecar.write_text(text.replace("GPSAreaInformation", "GPSProcessingMethod"))


def into_csv(photo: Path) -> None:
    table = "file,lat,lon,radius_m,confidence,heading_deg,time\n"
    (photo.parent / "geotags.csv").write_text(f"{table}{photo.name},10,20,12.0,0.93,,\n")


def into_geojson(photo: Path) -> None:
    point = '{"type": "Point", "coordinates": [20, 10]}'
    properties = f'{{"photo": "{photo.name}", "radius_m": 12.0, "confidence": 0.93}}'
    feature = f'{{"type": "Feature", "geometry": {point}, "properties": {properties}}}'
    (photo.parent / "geotags.geojson").write_text(f'{{"type": "FeatureCollection", "features": [{feature}]}}')


EXIF_WRITERS = [into_exif, into_exif_as_before]
WRITERS = [*EXIF_WRITERS, into_sidecar, into_sidecar_as_before, into_csv, into_geojson]
WAYS = pytest.mark.parametrize("write", WRITERS)


@WAYS
def test_an_estimate_is_left_out_unless_it_is_trusted(
    write: Callable[[Path], None], model: PlaceModel, tmp_path: Path
) -> None:
    folder, out = tmp_path / "photos", tmp_path / "town.gpkg"
    write_town(folder, 2)
    write(write_photo(folder / "lost.jpg", 7, tagged=False))
    report = build_map(folder, out, model)
    assert (report.added, report.untagged, report.unreadable) == (2, (), ())
    assert [Path(photo).name for photo in report.estimated] == ["lost.jpg"]
    dry = sync_map(folder, out, model, dry_run=True)
    assert (dry.added, len(dry.estimated)) == (0, 1)
    trusting = build_map(folder, out, model, trust_estimates=True)
    assert (trusting.added, trusting.already, trusting.estimated) == (1, 2, ())
    assert [10.0, 20.0] in PlaceMap(out).latlon.round(9).tolist()
    again = build_map(folder, out, model)  # it stays in the map
    assert again.already + len(again.estimated) == 3
    assert len(PlaceMap(out)) == 3


@WAYS
def test_an_estimate_counts_after_every_measured_position(
    write: Callable[[Path], None], model: PlaceModel, tmp_path: Path
) -> None:
    photo = write_photo(tmp_path / "photos" / "a.jpg", 1, tagged=write not in EXIF_WRITERS)
    write(photo)
    if write in EXIF_WRITERS:
        write_sidecar(photo, photo.with_name("a.jpg.xmp"), geotag_of(1))
    report = build_map(tmp_path / "photos", tmp_path / "town.gpkg", model)
    assert (report.added, report.estimated) == (1, ())
    assert PlaceMap(tmp_path / "town.gpkg").latlon[0].tolist() == pytest.approx(geotag_of(1).latlon)


def test_an_estimate_does_not_move_a_photo_of_the_map(model: PlaceModel, tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "photos" / "a.jpg", 1, tagged=False)
    true = {photo: geotag_of(1)}
    assert build_map(photo.parent, tmp_path / "town.gpkg", model, geotags=true).added == 1
    into_sidecar(photo)
    for report in (
        build_map(photo.parent, tmp_path / "town.gpkg", model),
        sync_map(photo.parent, tmp_path / "town.gpkg", model),
    ):
        assert (report.already, report.updated) == (1, 0)
    moved = sync_map(photo.parent, tmp_path / "town.gpkg", model, config=MapConfig(trust_estimates=True))
    assert moved.updated_photos == ("photos/a.jpg",)


def test_a_track_places_photos_whose_position_is_an_estimate(model: PlaceModel, tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "photos" / "a.jpg", 1)  # with a time
    (time,) = (read_geotag(photo).time,)
    write_geotag(photo, photo, Geotag((10.0, 20.0), None, time), ESTIMATE)
    points = "".join(
        f'<trkpt lat="48.{minute}" lon="2.0"><time>2023-11-14T22:{minute}:00Z</time></trkpt>'
        for minute in range(10, 16)
    )
    track = tmp_path / "walk.gpx"
    track.write_text(f'<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{points}</trkseg></trk></gpx>')
    report = build_map(photo.parent, tmp_path / "town.gpkg", model, track=TrackOptions(track=(track,), max_gap_s=120.0))
    assert (report.added, report.estimated) == (1, ())
    assert 48 < PlaceMap(tmp_path / "town.gpkg").latlon[0, 0] < 49


def test_a_true_position_takes_the_place_of_an_estimate(tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "a.jpg", 1, tagged=False)
    for write, target in ((write_geotag, photo), (write_sidecar, tmp_path / "a.jpg.xmp")):
        write(photo, target, WRONG, ESTIMATE)
        assert read_geotag(photo).estimated
        write(photo, target, geotag_of(1))
        assert not read_geotag(photo).estimated
        write_photo(photo, 1, tagged=False)


def test_datasets_leave_estimates_out_and_say_so(tmp_path: Path) -> None:
    write_town(tmp_path, 2)
    into_exif(write_photo(tmp_path / "lost.jpg", 7, tagged=False))
    found = find_geotagged(tmp_path)
    assert [path.name for path in found.untagged] == ["lost.jpg"]
    (note,) = found.notes
    assert "1 photo" in note
    assert "estimated" in note


def test_a_table_with_a_confidence_alone_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,lat,lon,confidence\na.jpg,10,20,0.5\n")
    assert not read_geotag_table(tmp_path / "t.csv").tags["a.jpg"].estimated
