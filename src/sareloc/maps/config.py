"""The options of building a map and of adding photos to it, which few people change."""

from __future__ import annotations

from dataclasses import dataclass

from sareloc.config_files import check_options
from sareloc.errors import ArgumentError
from sareloc.maps.notes import check_keypoints
from sareloc.maps.records import Storage
from sareloc.models.preprocess import Precision
from sareloc.photos import ViewOptions


@dataclass(frozen=True)
class MapConfig:
    """How `build_map`, `add_photos`, `sync_map` and `build_map_on_cluster` compute and store a map.

    Raises ArgumentError if a value has the wrong type or is out of range.
    """

    dim: int | None = None
    """Dimensions of the descriptors; default: all. A model with a whitening keeps its first ones; for another model,
    such as SALAD, BoQ and MegaLoc, a whitening is fitted on up to 4,096 of the photos and stored in the map."""
    storage: Storage = "float16"
    """Type of the numbers of a descriptor in a file."""
    keypoints: int | None = None
    """Keypoints of each photo whose local features are stored, up to 4096: matches are then verified without the
    photos. 0: no local features; default: those of the map, 1024 if it has none. A server stores up to 1404."""
    views: ViewOptions | None = None
    """How 360° photos, which have GPano tags, are cut into views; default: as before in this map, else twelve
    around."""
    trust_estimates: bool = False
    """Also use positions that sareloc estimated, as `sareloc geotag` writes them: they are left out by default, so that
    a map holds no errors of earlier ones."""
    batch: int = 8
    """Photos in one transaction, and on a GPU in one forward pass."""
    workers: int = 0
    """Processes that read photos (of a cluster: for each of its workers); 0: this one."""
    device: str | None = None
    """Where a model that is loaded here runs: cpu, cuda, mps, openvino, ...; default: the GPU if there is one."""
    precision: Precision = "auto"
    """Number format of a model that is loaded here; auto: that of the environment variable SARELOC_PRECISION if it is
    set, else bfloat16 where the device is fast in it and float32 elsewhere."""
    restore: bool = False
    """Take the positions of the files again where another program has changed them in the map, and add photos again
    that were removed from it."""
    packet: int = 256
    """Photos that a worker of a cluster gets at a time, and that are processed again if the worker is lost."""
    progress: bool = True
    """Show progress bars, on a terminal."""

    def __post_init__(self) -> None:
        if isinstance(self.keypoints, int):
            check_keypoints(self.keypoints)
        check_options(self)
        for name in ("dim", "batch", "packet"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be 1 or more, found {getattr(self, name)}")
