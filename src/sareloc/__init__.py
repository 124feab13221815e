"""Find where a photo was taken: visual place recognition in a map of geotagged photos.

Importing this package has no effect and imports neither torch nor any extra: each public name is fetched from its
module when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
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


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), which imports names at their first use.

    Args:
        package: its name.
        homes: the names, separated by spaces, by the module of the package that defines them.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def fetch(name: str) -> Any:
        if name not in home_of:
            known = ", ".join(sys.modules[package].__all__)
            raise AttributeError(f"module {package!r} has no attribute {name!r}: it has {known}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return fetch


_HOMES = {
    "datasets": "load_dataset",
    "datasets.places": "Places",
    "encode": "describe",
    "errors": "ArgumentError DatasetError MapError MissingExtraError PanoramaError PhotoError PositionError "
    "SarelocError WeightsError",
    "evaluation": "Report evaluate",
    "export": "export_onnx",
    "localize": "Fix Localizer open_localizer",
    "losses": "SARE make_loss",
    "maps": "MapConfig PlaceMap",
    "maps.build": "build_map",
    "models": "PlaceModel make_model",
    "models.checkpoint": "load_model save_checkpoint",
    "photos": "ImageRecord read_image",
    "training": "TrainingConfig train",
}
__all__ = ["__version__", *sorted(name for names in _HOMES.values() for name in names.split())]
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
