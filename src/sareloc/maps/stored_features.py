"""StoredFeatures: what verification reads of a map file, local features and headings, without loading its index."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import MapError
from sareloc.maps.file import MapFile, SharedFile
from sareloc.maps.notes import read_keypoints
from sareloc.maps.records import MapManifest
from sareloc.maps.store import Address

if TYPE_CHECKING:
    from sareloc.geometry.local_features import LocalFeatures


class StoredFeatures:
    """The local features and headings of a map's photos, read from its file when they are needed.

    One connection to the file is held, which follows changes (see `SharedFile`) and ends with the object or by `close`.
    Safe from several threads.
    """

    path: Path
    manifest: MapManifest
    """The model that the descriptors come from, dimensions and storage of the search vectors."""

    def __init__(self, path: Address) -> None:
        self.path = Path(path)
        self._file = SharedFile(self.path)
        weakref.finalize(self, self._file.close)
        self._features_checked = 0  # version of the file
        with self._file.use() as file:
            self.manifest = file.manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the map; that to a file is opened again if it is needed."""
        self._file.close()

    def features_and_headings(
        self, ids: npt.ArrayLike, best: int | None = None
    ) -> tuple[dict[int, LocalFeatures], Floats]:
        """What verification needs of these photos (n,), as they are in the map now, by one query of the file.

        Args:
            ids: of the photos.
            best: read only the best keypoints of each photo, so many; their bytes are then not compared with the
                checksum of all. Default: all keypoints.

        Returns:
            The local features of those that have them, by id, and the headings (n,) in degrees, clockwise from north;
            NaN if unknown.

        Raises:
            MapError: if local features are damaged, or of another extractor than this sareloc has.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        with self._reading() as file:
            if self._features_checked != self._file.version:
                read_keypoints(file)  # raises MapError if they are of another extractor
                self._features_checked = self._file.version
            rows = file.feature_rows(wanted, best)
        features: dict[int, LocalFeatures] = {}
        for row in rows:
            try:
                if not row.is_empty:
                    features[row.photo_id] = row.unpack()
            except ValueError as wrong:
                raise row.damage(self.path, wrong) from wrong
        known = {row.photo_id: row.heading_deg for row in rows if row.heading_deg is not None}
        headings = [known.get(photo_id, np.nan) for photo_id in wanted.tolist()]
        return features, np.array(headings, dtype=np.float64)

    def local_features(self, ids: npt.ArrayLike) -> dict[int, LocalFeatures]:
        """The local features of those of these photos (n,) that have them; see `features_and_headings`."""
        return self.features_and_headings(ids)[0]

    def headings_deg(self, ids: npt.ArrayLike) -> Floats:
        """The headings (n,) of these photos (n,), NaN if unknown; see `features_and_headings`."""
        return self.features_and_headings(ids)[1]

    def photo_path(self, file: str) -> Path:
        """The path of a photo on this disk, from its name in the map."""
        return self.path.parent / file

    @contextmanager
    def _reading(self) -> Iterator[MapFile]:
        """The file, for this thread alone. Raises MapError if another map has its name now."""
        with self._file.use() as file:
            if replace(file.manifest, format=self.manifest.format) != self.manifest:  # it may have been upgraded
                raise MapError(f"{self.path} was replaced since it was opened: open it again")
            yield file
