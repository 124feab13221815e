"""Degrees, UTM, local metres; who lies within a radius. Pure functions.

Frames, named in every function: `wgs84` is (N, 2) latitude, longitude in degrees; `utm` is (N, 2) east, north in
metres of one zone, given by its EPSG code (32601..32660 north, 32701..32760 south); `ecef` is (N, 3) earth-centred
metres on the ellipsoid (height 0); `enu` is (N, 2) metres east and north of an origin.

Neighbours are asked in ECEF (or in the planar metres of one UTM zone): the chord of 1 km is 1 µm shorter than its arc,
and neither the antimeridian nor the edge of a zone exists there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sareloc.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Frame = Literal["ecef", "utm", "local"]


@dataclass(frozen=True, eq=False)
class Positions:
    """Where N photos stand.

    `metres` (N, 2 or 3) float64: Euclidean distances between near rows are distances on the ground, in metres.
    `frame`: "ecef" (from WGS84, any place on Earth), "utm" (planar, one zone, `epsg` says which) or "local" (planar,
    no place on Earth is known).
    """

    metres: Floats
    frame: Frame
    epsg: int | None = None

    @staticmethod
    def from_wgs84(latlon: npt.ArrayLike) -> Positions:
        """Positions from (N, 2) latitude, longitude in degrees."""
        return Positions(ecef_from_wgs84(latlon), "ecef")

    @staticmethod
    def from_utm(east_north: npt.ArrayLike, epsg: int) -> Positions:
        """Positions from (N, 2) east, north in metres, all in the UTM zone of this EPSG code."""
        return Positions(np.asarray(east_north, dtype=np.float64).reshape(-1, 2), "utm", epsg)

    @staticmethod
    def from_local(xy_m: npt.ArrayLike) -> Positions:
        """Positions from (N, 2) metres in a frame of the dataset's own."""
        return Positions(np.asarray(xy_m, dtype=np.float64).reshape(-1, 2), "local")

    def __len__(self) -> int:
        return len(self.metres)

    def __getitem__(self, rows: npt.ArrayLike | slice) -> Positions:
        index = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        return Positions(self.metres[index], self.frame, self.epsg)

    def latlon(self) -> Floats:
        """(N, 2) latitude, longitude in degrees; raises PositionError in a local frame."""
        if self.frame == "ecef":
            return wgs84_from_ecef(self.metres)
        if self.frame == "utm" and self.epsg is not None:
            return wgs84_from_utm(self.metres, self.epsg)
        raise PositionError("these positions are local metres without a place on Earth: give lat and lon instead")
