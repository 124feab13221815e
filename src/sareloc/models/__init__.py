"""From photos to descriptors: preprocess, backbone, aggregation, whitening, and the model they make."""

from __future__ import annotations

from sareloc.models.aggregation import AGGREGATIONS, make_aggregation
from sareloc.models.backbones import BACKBONES, make_backbone
from sareloc.models.netvlad_init import init_netvlad
from sareloc.models.place_model import ModelSpec, PlaceModel, make_model
from sareloc.models.preprocess import Preprocess
from sareloc.models.whitening import Whitening, fit_whitening

__all__ = [
    "AGGREGATIONS",
    "BACKBONES",
    "ModelSpec",
    "PlaceModel",
    "Preprocess",
    "Whitening",
    "fit_whitening",
    "init_netvlad",
    "make_aggregation",
    "make_backbone",
    "make_model",
]
