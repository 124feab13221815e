"""Models: from photos to descriptors. Preprocess, backbone, aggregation, whitening; checkpoints; published weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sareloc import lazy_names
from sareloc.models.aggregation import AGGREGATIONS, CRN, Aggregation, GeM, NetVLAD, make_aggregation
from sareloc.models.backbones import BACKBONES, Backbone, init_weights, make_backbone
from sareloc.models.checkpoint import (
    PACKAGED,
    CheckpointManifest,
    find_checkpoint,
    find_packaged,
    is_checkpoint,
    load_model,
    open_checkpoint,
    read_checkpoint_manifest,
    save_checkpoint,
)
from sareloc.models.place_model import (
    RUNTIMES,
    ModelSpec,
    PlaceModel,
    RuntimeModel,
    Whitening,
    evaluating,
    make_model,
    run_on,
)
from sareloc.models.preprocess import Precision, Preprocess, Resize, number_format
from sareloc.photos import Image

if TYPE_CHECKING:
    from sareloc.models.dinov2 import DINOv2
    from sareloc.models.heads import SALAD
    from sareloc.models.netvlad_init import init_netvlad, off_the_shelf
    from sareloc.models.published import load_backbone_weights, load_published
    from sareloc.models.whitening import fit_whitening

__all__ = [
    "AGGREGATIONS",
    "BACKBONES",
    "CRN",
    "PACKAGED",
    "RUNTIMES",
    "SALAD",
    "Aggregation",
    "Backbone",
    "CheckpointManifest",
    "DINOv2",
    "GeM",
    "Image",
    "ModelSpec",
    "NetVLAD",
    "PlaceModel",
    "Precision",
    "Preprocess",
    "Resize",
    "RuntimeModel",
    "Whitening",
    "evaluating",
    "find_checkpoint",
    "find_packaged",
    "fit_whitening",
    "init_netvlad",
    "init_weights",
    "is_checkpoint",
    "load_backbone_weights",
    "load_model",
    "load_published",
    "make_aggregation",
    "make_backbone",
    "make_model",
    "number_format",
    "off_the_shelf",
    "open_checkpoint",
    "read_checkpoint_manifest",
    "run_on",
    "save_checkpoint",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dinov2": "DINOv2",
        "heads": "SALAD",
        "netvlad_init": "init_netvlad off_the_shelf",
        "published": "load_backbone_weights load_published",
        "whitening": "fit_whitening",
    },
)
