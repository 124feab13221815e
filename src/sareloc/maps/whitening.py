"""A map's own whitening: fitted on its photos, where fewer dimensions are wanted than the model has.

The coordinates of a model without a whitening have no order, so that the first ones are no good smaller descriptor. The
whitening is written before the first descriptors, is never changed, and is applied to all photos and queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from sareloc.encode import Encoder
from sareloc.errors import ArgumentError, MapError, PhotoError
from sareloc.loading import read_images
from sareloc.maps.place_map import PlaceMap
from sareloc.maps.store import NO_WHITENING, MapStore
from sareloc.models.place_model import PlaceModel, with_whitening
from sareloc.models.whitening import Whitening, fit_whitening
from sareloc.photos import ImageRecord

if TYPE_CHECKING:
    from sareloc.maps.writer import MapWriter

SAMPLE = 4096
"""At most as many photos are described to fit a whitening."""
POWER = 0.25
"""Of `fit_whitening`, between PCA (0), which keeps the model's distances, and full whitening (1), which amplifies
directions that a small map determines badly."""


def map_model(model: PlaceModel, place: MapStore | PlaceMap) -> PlaceModel:
    """The model that computes descriptors as a map holds them: this one, with the map's own whitening if it needs one.

    Raises MapError if the map lacks it, or has that of another model.
    """
    dim = place.manifest.dim
    if not needs_whitening(model, dim):
        return model
    stored, name = place.whitening(), place.path if isinstance(place, PlaceMap) else place.name
    if stored is None:
        raise MapError(
            f"map {name} has descriptors of {dim} dimensions; model {model.name} has {model.dim} and no whitening, and "
            "the map holds none: build it again"
        )
    mean, projection = (torch.from_numpy(part) for part in stored)
    if len(mean) != model.dim:
        raise MapError(
            f"map {name} is damaged: its whitening is of {len(mean)} dimensions, those of model {model.name} are "
            f"{model.dim}. Restore a backup, or build it again"
        )
    return with_whitening(model, Whitening(mean, projection))


def needs_whitening(model: PlaceModel, dim: int) -> bool:
    """Whether a map of `dim` dimensions needs its own whitening of this model's descriptors."""
    return model.whitening is None and 1 <= dim < model.dim


def prepare_whitening(writer: MapWriter, model: PlaceModel, records: Sequence[ImageRecord] | None) -> tuple[str, ...]:
    """Fit a whitening on a sample of these images and write it to the map, if the map needs one and has no photos yet.

    The sample is spread over the list: every call takes the same one. Images that cannot be read are left out.

    Args:
        writer: of the map.
        model: the place model, without a whitening.
        records: all images; None if they are not known in advance.

    Returns:
        Warnings: if the images span fewer than the map's dimensions, the other numbers of each descriptor are 0.

    Raises:
        ArgumentError: if the images are not known, or all equal.
        MapError: if the map is on a server.
    """
    dim, store = writer.manifest.dim, writer.store
    if not needs_whitening(model, dim) or (store is not None and (store.count() or store.whitening() is not None)):
        return ()
    reduce = (
        f"{model.name} has no whitening: to reduce its {model.dim} dimensions to {dim}, one is fitted on the photos"
    )
    if not writer.store_class.is_file:
        raise MapError(f"{reduce} and stored in the map. {NO_WHITENING}")
    if not records:
        raise ArgumentError(
            f"{reduce}, which must be known in advance: build the map with a list of some of them first, or keep all "
            "dimensions"
        )
    rows = np.unique(np.linspace(0, len(records) - 1, SAMPLE).round().astype(np.int64))
    encoder = Encoder(model, keypoints=0, batch=writer.batch)
    loaded = read_images([records[row] for row in rows], encoder.sizes, cut=writer.views, workers=writer.workers)
    images = (image for _, read in loaded if not isinstance(read, PhotoError) for image in read.images)
    found = [one.descriptor for _, one in encoder.encode_each(enumerate(images)) if not isinstance(one, PhotoError)]
    vectors = np.stack(found) if found else np.zeros((0, model.dim), dtype=np.float32)
    try:
        fitted = fit_whitening(vectors, dim, power=POWER, at_most=True)
    except ArgumentError as error:
        raise ArgumentError(f"{reduce}. {error}") from error
    projection = np.zeros((dim, model.dim), dtype=np.float32)
    projection[: fitted.dim] = fitted.projection.numpy()
    writer.open().write_whitening(fitted.mean.numpy(), projection)
    if fitted.dim == dim:
        return ()
    return (
        f"the whitening was fitted on {len(vectors):,} photos, which span {fitted.dim:,} dimensions: the others of the "
        f"{dim:,} are 0, also for photos that are added later. With more photos, build the map again",
    )
