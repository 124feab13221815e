"""The options of maps: `MapConfig`, its TOML file, and calls as they were in version 0.1."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.maps.small_town import tiny_model, write_town

import sareloc
from sareloc.cli.map import CutOptions, PhotoOptions, RareOptions
from sareloc.config_files import options_text, read_options
from sareloc.errors import ArgumentError
from sareloc.maps import MapConfig, add_photos, build_map, map_info, sync_map
from sareloc.models.checkpoint import STANDARD
from sareloc.photos import ViewOptions

QUIET = MapConfig(keypoints=0, progress=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dim": 0}, "dim must be 1"),
        ({"batch": 0}, "batch must be 1"),
        ({"workers": -1}, "negative"),
        ({"workers": "2"}, "whole number"),
        ({"storage": "float64"}, "float16, float32, int8"),
        ({"keypoints": 5000}, "0 to 4096"),
        ({"views": 4}, "table of options"),
        ({"progress": 1}, "true or false"),
    ],
)
def test_a_config_checks_itself(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        MapConfig(**options)  # type: ignore[arg-type]


def test_the_file_of_every_option_is_read_and_has_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "map.toml"
    text = options_text(MapConfig(), "Options of maps")
    file.write_text(text)
    assert read_options(file, MapConfig) == {}
    live = "\n".join(re.findall(r"^#(\w+ = \S.*)$", text, re.MULTILINE))
    assert tomllib.loads(live)["batch"] == 8
    file.write_text(live)
    assert MapConfig(**read_options(file, MapConfig)) == MapConfig()


def test_views_are_a_table_and_the_command_line_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "map.toml"
    file.write_text("dim = 64\nbatch = 4\n[views]\nyaw_deg = [0, 90]\npitch_deg = [-10]\nuntagged = true\n")
    options = PhotoOptions(config=file, rare=RareOptions(batch=2))
    config = options.map_config(CutOptions(view_yaw=(0.0, 180.0)), keypoints=5)
    views = ViewOptions((0.0, 180.0), (-10,), untagged=True)
    assert config == MapConfig(dim=64, batch=2, workers=2, keypoints=5, views=views)
    for text, reason in {"dims = 1": "did you mean 'dim'", "[views]\nyaw = [0]": "yaw_deg", "a": "not a TOML"}.items():
        file.write_text(text)
        with pytest.raises(ArgumentError, match=reason):
            read_options(file, MapConfig)


def test_without_a_model_a_map_is_built_with_the_packaged_one(tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    out = tmp_path / "town.gpkg"
    assert sareloc.build_map(tmp_path / "photos", out, config=QUIET).added == 2
    assert map_info(out).manifest.model == sareloc.load_model(STANDARD).name
    write_town(tmp_path / "photos", 3)
    assert sareloc.build_map(tmp_path / "photos", out, config=QUIET).added == 1  # continues with the map's model
    write_town(tmp_path / "photos", 4)
    assert add_photos(tmp_path / "photos", out, config=QUIET).added == 1
    assert sync_map(tmp_path / "photos", out, config=QUIET).already == 4


def test_calls_of_version_0_1_work_and_warn(tmp_path: Path) -> None:
    write_town(tmp_path / "photos", 2)
    photos, out, model = tmp_path / "photos", tmp_path / "town.gpkg", tiny_model()
    with pytest.warns(DeprecationWarning, match=r"\(photos, map, model\)"):
        assert build_map(model, photos, out, config=QUIET).added == 2  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="MapConfig"):
        assert build_map(photos, out, model, keypoints=0, progress=False).already == 2
    for change in (add_photos, sync_map):
        with pytest.warns(DeprecationWarning, match="map, model"):
            assert change(model, photos, out, config=QUIET).already == 2  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="map, model"):
        assert sync_map(None, photos, out, config=QUIET).already == 2  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key_points"):
        build_map(photos, out, model, key_points=0)
