"""One image, every way into the package: the same search vector and local features, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from tests.maps.small_town import HERE, tiny_model
from tests.photos.panorama_files import save_panorama
from tests.photos.video_files import write_video
from tests.serve.running import running

from sareloc import arrays
from sareloc.arrays import Vectors
from sareloc.cluster.worker import PacketEncoder, Work, packets_of, read_done
from sareloc.datasets.places import PhotoSet, Places
from sareloc.encode import Encoded, describe
from sareloc.evaluation import rank, rank_by_map
from sareloc.evaluation.ranking import extract_packed
from sareloc.geo import Positions
from sareloc.geometry import (
    KEYPOINTS,
    LocalFeatureExtractor,
    LocalFeatures,
    pack_features,
    search_vector,
    unpack_features,
)
from sareloc.localize import Localizer, calibrate
from sareloc.maps import MapConfig, MapManifest, PlaceMap, add_local_features, build_map, open_map_file
from sareloc.maps.records import with_aggregate
from sareloc.models import PlaceModel, make_model, save_checkpoint
from sareloc.photos import Geotag, ImageRecord, TrackOptions, ViewOptions, exif_bytes, read_image
from sareloc.serve import ServeConfig, make_app

FOCAL_35MM = 26.0
Stored = tuple[bytes, bytes | None]
"""A search vector in float32, and packed local features; None: this door gives none."""


def lite_model() -> PlaceModel:
    rng = torch.Generator().manual_seed(0)
    return make_model("efficientnet-lite0", "netvlad", clusters=4, size=(96, 128), rng=rng, name="lite")


MODELS: dict[str, Callable[[], PlaceModel]] = {"alexnet": tiny_model, "efficientnet-lite0": lite_model}


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PNG: its pixels are the same whoever decodes it, at any size."""
    path = tmp_path_factory.mktemp("doors") / "photo.png"
    exif = Image.Exif()
    exif.load(exif_bytes(Geotag(HERE)))
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.FocalLengthIn35mmFilm] = round(FOCAL_35MM)
    Image.fromarray(noise(3)).save(path, exif=exif)
    return path


def noise(seed: int, height: int = 240, width: int = 320) -> arrays.Image:
    """An image with corners."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def held(path: Path, photo_id: int = 1) -> Stored:
    """What a map stores of a photo."""
    with open_map_file(path) as file:
        (features,) = file.features(np.array([photo_id])).values()
        ((_, vectors),) = file.descriptors(np.array([photo_id]))
    return vectors[0].tobytes(), features


def build(model: PlaceModel, given: Path | list[ImageRecord], folder: Path, workers: int = 0) -> Stored:
    config = MapConfig(storage="float32", workers=workers, progress=False)
    report = build_map(given, folder / "town.gpkg", model, config=config)
    assert (report.added, report.features) == (1, 1)
    return held(folder / "town.gpkg")


def by_bytes(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    return build(model, [ImageRecord("front/1", photo.read_bytes(), HERE)], folder)


def by_pixels(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    with Image.open(photo) as image:
        return build(model, [ImageRecord("front/1", np.asarray(image), HERE, focal_35mm=FOCAL_35MM)], folder)


def by_pillow(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    with Image.open(photo) as image:
        return build(model, [ImageRecord("front/1", image, HERE)], folder)


def by_worker(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    return build(model, photo.parent, folder, workers=1)


def by_upgrade(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    """A map without local features, which are added later."""
    config = MapConfig(storage="float32", keypoints=0, progress=False)
    build_map(photo.parent, folder / "town.gpkg", model, config=config)
    report = add_local_features(folder / "town.gpkg", device="cpu", progress=False)
    assert (report.added, report.aggregated) == (1, 1)
    return held(folder / "town.gpkg")


def by_upload(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    build(model, [ImageRecord("first", noise(5), HERE)], folder)
    app = make_app(folder / "town.gpkg", model, config=ServeConfig(token="secret-of-this-test"))
    with running(app) as url, httpx.Client(base_url=url, timeout=300) as client:
        answer = client.post(
            "/photos",
            files={"photos": ("up.png", photo.read_bytes())},
            headers={"Authorization": "Bearer secret-of-this-test"},
        )
    (added,) = answer.raise_for_status().json()["photos"]
    return held(folder / "town.gpkg", added["id"])


def by_cluster(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    save_checkpoint(model, folder / "model.safetensors")
    manifest = with_aggregate(MapManifest(model.name, model.fingerprint(), model.dim, "float32"))
    work = Work(str(folder / "town.gpkg"), False, manifest, MapConfig(keypoints=KEYPOINTS, views=ViewOptions()))
    (packet,) = packets_of([ImageRecord(str(photo), photo)], 8)
    done = read_done(PacketEncoder((folder / "model.safetensors").read_bytes(), work)({"packet": packet}))
    ((_, (_, vector, features)),) = done.images
    return vector.tobytes(), features


def by_query(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    build(model, photo.parent, folder)
    localizer = Localizer(model, PlaceMap(folder / "town.gpkg"))
    ((encoded,),) = localizer.encode([read_image(photo, localizer.encoder.sizes, cut=ViewOptions())])
    return encoded.vector.tobytes(), pack_features(checked(encoded.features))


def checked(features: LocalFeatures | None) -> LocalFeatures:
    assert features is not None
    return features


def by_calibration(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    """The photo ten times, of two places: so many are needed. The map must not hold it."""
    records = [ImageRecord(str(seed), noise(seed), HERE) for seed in range(10, 14)]
    build_map(records, folder / "town.gpkg", model, config=MapConfig(storage="float32", progress=False))
    localizer, encoded = Localizer(model, PlaceMap(folder / "town.gpkg")), list[list[Encoded]]()
    encode = localizer.encode
    localizer.encode = lambda queries: encoded.extend(found := encode(queries)) or found  # type: ignore
    calibrate(localizer, [photo] * 10, [HERE] * 5 + [(HERE[0] + 0.01, HERE[1])] * 5)
    (one,) = {(found.vector.tobytes(), pack_features(checked(found.features))) for (found,) in encoded}
    return one


def by_describe(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    """The descriptor alone, joined here with the local features of the photo."""
    (features,) = extract_packed(LocalFeatureExtractor("cpu"), [photo], KEYPOINTS, 0, "features", False)
    return joined(describe([photo], model).vectors[0], features), None


def joined(descriptor: Vectors, features: bytes | None) -> bytes:
    assert features is not None
    return search_vector(descriptor, unpack_features(features), min(512, len(descriptor))).tobytes()


def by_search(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    """As `evaluate --map` does."""
    build(model, photo.parent, folder)
    place_map, asked = PlaceMap(folder / "town.gpkg"), list[Vectors]()
    search = place_map.search
    place_map.search = lambda vectors, *rest: asked.append(vectors) or search(vectors, *rest)  # type: ignore
    photos = PhotoSet(photo.parent, (photo.name,), Positions.from_wgs84([HERE]))
    rank_by_map(model, Places("doors", "all", photos, photos), place_map, progress=False)
    return asked[0][0].tobytes(), None


def by_evaluation(model: PlaceModel, photo: Path, folder: Path) -> Stored:
    """As `evaluate` does: descriptors in the folder of `store`, local features for `verify`."""
    photos = PhotoSet(photo.parent, (photo.name,), Positions.from_wgs84([HERE]))
    rank(model, Places("doors", "all", photos, photos), store=folder / "store", progress=False)
    (packed,) = extract_packed(LocalFeatureExtractor("cpu"), [photo], KEYPOINTS, 0, "features", False)
    return joined(np.load(folder / "store" / "vectors.npy")[0], packed), packed


DOORS = [
    by_bytes,
    by_pixels,
    by_pillow,
    by_worker,
    by_upgrade,
    by_upload,
    by_cluster,
    by_query,
    by_calibration,
    by_describe,
    by_search,
    by_evaluation,
]


@pytest.fixture(scope="module", params=MODELS)
def first(
    request: pytest.FixtureRequest, photo: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlaceModel, Stored]:
    """A model, and what `map build` of the file stores."""
    model = MODELS[request.param]()
    return model, build(model, photo.parent, tmp_path_factory.mktemp("map"))


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_every_door_gives_the_same_bits(
    door: Callable[[PlaceModel, Path, Path], Stored], first: tuple[PlaceModel, Stored], photo: Path, tmp_path: Path
) -> None:
    model, (vector, features) = first
    found_vector, found_features = door(model, photo, tmp_path)
    assert len(np.frombuffer(vector, dtype=np.float32)) == model.dim + min(512, model.dim)
    assert found_vector == vector
    assert found_features in (features, None)
    assert door in (by_describe, by_search) or found_features is not None


def write_sphere(folder: Path) -> tuple[Path, TrackOptions | None]:
    return save_panorama(folder / "sphere.webp", noise(7, 256, 512), Geotag(HERE)), None


def write_drive(folder: Path) -> tuple[Path, TrackOptions | None]:
    """10 m in 2 s, with its track."""
    pytest.importorskip("av")
    from tests.maps.test_video_maps import CLOCK, on_track, write_track

    video = write_video(
        folder / "drive.mp4", [0, 1000, 2000], images=[noise(seed) for seed in (7, 8, 9)], metadata=CLOCK
    )
    write_track(folder / "drive.gpx", [(0, 0, 0), (2, 10, 0)])
    return video, on_track(video)


@pytest.mark.parametrize("write", [write_sphere, write_drive], ids=["view", "frame"])
@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
def test_an_address_in_a_file_has_the_same_bits_in_a_map_and_as_a_query(
    make_model: Callable[[], PlaceModel], write: Callable[[Path], tuple[Path, TrackOptions | None]], tmp_path: Path
) -> None:
    """The views of a 360° photo, which is read once for all of them, and the frames of a video."""
    model, (file, track) = make_model(), write(tmp_path)
    config = MapConfig(storage="float32", views=ViewOptions(yaw_deg=(0, 90, 200)), progress=False)
    report = build_map(file, tmp_path / "town.gpkg", model, track=track, config=config)
    assert (report.added, report.features) == (3, 3)
    place_map = PlaceMap(tmp_path / "town.gpkg")
    localizer = Localizer(model, place_map)
    for photo_id, name in zip(place_map.ids.tolist(), place_map.files, strict=True):
        assert "#" in name
        ((encoded,),) = localizer.encode([read_image(place_map.photo_path(name), localizer.encoder.sizes)])
        found = encoded.vector.tobytes(), pack_features(checked(encoded.features))
        assert found == held(tmp_path / "town.gpkg", photo_id)
