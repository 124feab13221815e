"""What the tests of datasets share: tiny photos, written where a format wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from sareloc.photos import Geotag, exif_bytes

MakePhoto = Callable[..., Path]


@pytest.fixture
def make_photo() -> MakePhoto:
    """make_photo(path, geotag=None): an 8 x 8 photo in that file, its folders made."""

    def make(path: Path, geotag: Geotag | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        extra = {} if geotag is None else {"exif": exif_bytes(geotag)}
        Image.new("RGB", (8, 8), "green").save(path, **extra)
        return path

    return make
