"""Heat maps to lay over a photo."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.localize.street import view
from tests.serve.running import street_client

from sareloc.serve import ServeConfig
from sareloc.serve.pictures import heatmap_png, heatmap_size


def test_a_heat_map_has_the_photos_shape_and_shows_through(client: httpx.Client, street_folder: Path) -> None:
    photo = io.BytesIO()
    Image.fromarray(view(5, 99)).rotate(90, expand=True).save(photo, "JPEG")  # 64 x 96, upright
    answer = client.post("/heatmap", content=photo.getvalue())
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as shown:
        assert (shown.mode, shown.size) == ("RGBA", (341, 512))
        alpha = np.asarray(shown)[..., 3]
    assert alpha.min() == 0
    assert 200 < alpha.max() < 255


def test_it_is_opaque_where_most_mattered() -> None:
    heat = np.zeros((40, 60), dtype=np.float32)
    heat[5:15, 40:55] = 1.0
    with Image.open(io.BytesIO(heatmap_png(heat))) as shown:
        pixels = np.asarray(shown).astype(int)
    row, column = np.unravel_index(pixels[..., 3].argmax(), pixels.shape[:2])
    assert (5 <= row * 40 / pixels.shape[0] < 15, 40 <= column * 60 / pixels.shape[1] < 55) == (True, True)
    assert pixels[-1, 0, 3] == 0
    assert pixels[row, column, :3].sum() > pixels[-1, 0, :3].sum()  # brighter as well as redder


def test_where_nothing_mattered_all_is_transparent() -> None:
    with Image.open(io.BytesIO(heatmap_png(np.zeros((40, 60), dtype=np.float32)))) as shown:
        assert np.asarray(shown)[..., 3].max() == 0


@pytest.mark.parametrize(("height", "width"), [(480, 640), (640, 480), (64, 64), (64, 10_000), (3000, 4000)])
def test_the_model_sees_a_small_copy(height: int, width: int) -> None:
    small = heatmap_size(height, width)
    assert max(small) == 224
    assert min(small) >= 64


def test_heat_maps_can_be_off(street_folder: Path) -> None:
    with street_client(street_folder / "street.gpkg", config=ServeConfig(heatmap=False)) as client:
        assert client.get("/settings").json()["heatmap"] is False
        answer = client.post("/heatmap", content=(street_folder / "queries" / "q05.jpg").read_bytes())
        assert answer.status_code == 404
        assert "switched off" in answer.json()["detail"]
