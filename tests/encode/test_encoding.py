"""The encoder: the same image gives the same descriptor and local features to the last bit, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sareloc.encode import Encoded, Encoder
from sareloc.encode.encoder import WINDOW_BATCHES, group_by_size
from sareloc.errors import PhotoError
from sareloc.geometry import search_vector
from sareloc.models import PlaceModel, RuntimeModel, make_model
from sareloc.photos import ReadImage, read_image


def drawn(count: int, height: int, width: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8))


def read(encoder: Encoder, images: list[np.ndarray]) -> list[ReadImage]:
    return [read_image(image, encoder.sizes) for image in images]


@pytest.fixture(scope="module")
def model() -> PlaceModel:
    return make_model("resnet18", "gem", size=None, rng=torch.Generator().manual_seed(0))


IMAGES = [*drawn(3, 64, 80), *drawn(2, 80, 64), *drawn(3, 64, 80, 1)]


def test_images_come_back_in_order_with_their_errors(model: PlaceModel) -> None:
    encoder = Encoder(model, keypoints=0)
    loaded: list[tuple[int, ReadImage | PhotoError]] = list(enumerate(read(encoder, IMAGES)))
    loaded.insert(4, (99, PhotoError("a.jpg", "is missing")))
    found = list(encoder.encode_each(loaded))
    assert [tag for tag, _ in found] == [0, 1, 2, 3, 99, 4, 5, 6, 7]
    assert isinstance(found[4][1], PhotoError)
    vectors = [one.descriptor for _, one in found if isinstance(one, Encoded)]
    np.testing.assert_allclose(vectors, model.encode(IMAGES).numpy(), atol=2e-3)


@pytest.mark.parametrize("backbone", ["resnet18", "efficientnet-lite0"])
def test_an_image_has_the_same_bits_whatever_is_encoded_beside_it(backbone: str) -> None:
    model = make_model(backbone, "netvlad", clusters=4, size=(64, 96), rng=torch.Generator().manual_seed(0))
    encoder = Encoder(model, keypoints=50, aggregate_dim=7)
    images = read(encoder, drawn(7, 120, 160))
    together, alone = (
        encoder.encode(images),
        [Encoder(model, keypoints=50, aggregate_dim=7).encode([image])[0] for image in images],
    )
    for one, other in zip(together, alone, strict=True):
        assert one.descriptor.tobytes() == other.descriptor.tobytes()
        assert one.vector.tobytes() == other.vector.tobytes()
        assert one.vector.tobytes() == search_vector(one.descriptor, one.features, 7).tobytes()
        assert one.features is not None
        assert other.features is not None
        assert one.features.xy.tobytes() == other.features.xy.tobytes()
        assert one.features.descriptors.tobytes() == other.features.descriptors.tobytes()


def test_fewer_dimensions_are_those_of_the_model(model: PlaceModel) -> None:
    from sareloc.models import Whitening
    from sareloc.models.place_model import with_whitening

    whitened = with_whitening(model, Whitening(torch.zeros(model.dim), torch.eye(model.dim)[:8]))
    encoder = Encoder(whitened, dim=3, keypoints=0)
    found = [one.descriptor for one in encoder.encode(read(encoder, IMAGES[:2]))]
    np.testing.assert_allclose(found, whitened.encode(IMAGES[:2], dim=3).numpy(), atol=2e-3)


def test_a_runtime_encodes_also_where_batch_norms_could_be_folded(model: PlaceModel) -> None:
    ones = F.normalize(torch.ones(1, model.dim))
    marked = RuntimeModel(model, "ones", lambda images: ones.expand(len(images), -1))
    encoder = Encoder(marked, keypoints=0)
    for one in encoder.encode(read(encoder, IMAGES)):
        np.testing.assert_array_equal(one.descriptor, ones[0].numpy())


def test_equal_sizes_share_a_batch_and_few_wait() -> None:
    images = [ReadImage(str(n), (image,), 1, 1) for n, image in enumerate(drawn(4, 64, 80) + drawn(4, 80, 64))]
    mixed = [image for pair in zip(images[:4], images[4:], strict=True) for image in pair]
    assert [len(group) for group, _ in group_by_size(enumerate(mixed), 4)] == [4, 4]
    taken = 0

    def many() -> object:
        nonlocal taken
        for n in range(30):
            taken += 1
            yield n, ReadImage(str(n), (np.zeros((64 + n, 64, 3), np.uint8),), 1, 1)

    done = 0
    for group, _ in group_by_size(many(), 2):  # type: ignore[arg-type]
        assert taken - done <= WINDOW_BATCHES * 2
        done += len(group)
    assert done == 30


@pytest.mark.parametrize(("keypoints", "aggregate_dim"), [(50, 7), (50, 0), (0, 7)])
def test_batches_have_the_search_vectors_of_their_images(model: PlaceModel, keypoints: int, aggregate_dim: int) -> None:
    """As on a GPU, whose descriptors are fetched here from a CPU."""
    alone = Encoder(model, keypoints=keypoints, aggregate_dim=aggregate_dim)
    batched = Encoder(model, keypoints=keypoints, aggregate_dim=aggregate_dim, batch=2)
    images = read(alone, IMAGES)
    described = {id(image.pixels[0]): one.descriptor for image, one in zip(images, alone.encode(images), strict=True)}
    batched._on_gpu = True
    batched.__dict__["_launch"] = lambda pixels: lambda: np.stack([described[id(one)] for one in pixels])
    for one, other in zip(batched.encode(images), alone.encode(images), strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        assert len(one.vector) == model.dim + aggregate_dim


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_encodes_every_image_once() -> None:
    model = make_model("resnet18", "gem", size=None, rng=torch.Generator().manual_seed(0)).to("cuda")
    encoder = Encoder(model, keypoints=0, batch=3)
    found = dict(encoder.encode_each(enumerate(read(encoder, IMAGES))))
    assert sorted(found) == list(range(len(IMAGES)))
    vectors = [one.descriptor for _, one in sorted(found.items()) if isinstance(one, Encoded)]
    np.testing.assert_allclose(vectors, model.encode(IMAGES).numpy(), atol=1e-2)
