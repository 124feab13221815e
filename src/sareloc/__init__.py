"""Find where a photo was taken: visual place recognition in a map of geotagged photos.

Importing this package has no effect and imports neither torch nor any extra: each public name is fetched from its
module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sareloc.datasets import load_dataset as load_dataset
    from sareloc.datasets.places import Places as Places
    from sareloc.encode import describe as describe
    from sareloc.errors import ArgumentError as ArgumentError
    from sareloc.errors import DatasetError as DatasetError
    from sareloc.errors import MapError as MapError
    from sareloc.errors import MissingExtraError as MissingExtraError
    from sareloc.errors import PanoramaError as PanoramaError
    from sareloc.errors import PhotoError as PhotoError
    from sareloc.errors import PositionError as PositionError
    from sareloc.errors import SarelocError as SarelocError
    from sareloc.errors import WeightsError as WeightsError
    from sareloc.evaluation import Report as Report
    from sareloc.evaluation import evaluate as evaluate
    from sareloc.export import export_onnx as export_onnx
    from sareloc.localize import Fix as Fix
    from sareloc.localize import Localizer as Localizer
    from sareloc.localize import open_localizer as open_localizer
    from sareloc.losses import SARE as SARE
    from sareloc.losses import make_loss as make_loss
    from sareloc.maps import MapConfig as MapConfig
    from sareloc.maps import PlaceMap as PlaceMap
    from sareloc.maps.build import build_map as build_map
    from sareloc.models import PlaceModel as PlaceModel
    from sareloc.models import make_model as make_model
    from sareloc.models.checkpoint import load_model as load_model
    from sareloc.models.checkpoint import save_checkpoint as save_checkpoint
    from sareloc.photos import ImageRecord as ImageRecord
    from sareloc.photos.read_image import read_image as read_image
    from sareloc.training import TrainingConfig as TrainingConfig
    from sareloc.training import train as train

__version__ = "0.1.0"

_HOME = {
    "ArgumentError": "sareloc.errors",
    "DatasetError": "sareloc.errors",
    "Fix": "sareloc.localize",
    "ImageRecord": "sareloc.photos",
    "Localizer": "sareloc.localize",
    "MapConfig": "sareloc.maps",
    "MapError": "sareloc.errors",
    "MissingExtraError": "sareloc.errors",
    "PanoramaError": "sareloc.errors",
    "PhotoError": "sareloc.errors",
    "PlaceMap": "sareloc.maps",
    "PlaceModel": "sareloc.models",
    "Places": "sareloc.datasets.places",
    "PositionError": "sareloc.errors",
    "Report": "sareloc.evaluation",
    "SARE": "sareloc.losses",
    "SarelocError": "sareloc.errors",
    "TrainingConfig": "sareloc.training",
    "WeightsError": "sareloc.errors",
    "build_map": "sareloc.maps.build",
    "describe": "sareloc.encode",
    "evaluate": "sareloc.evaluation",
    "export_onnx": "sareloc.export",
    "load_dataset": "sareloc.datasets",
    "load_model": "sareloc.models.checkpoint",
    "make_loss": "sareloc.losses",
    "make_model": "sareloc.models",
    "open_localizer": "sareloc.localize",
    "read_image": "sareloc.photos",
    "save_checkpoint": "sareloc.models.checkpoint",
    "train": "sareloc.training",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'sareloc' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
