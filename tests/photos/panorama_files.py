"""360° photos for tests: an analytic scene, drawn as an equirectangular image, and files with GPano tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.spatial.transform import Rotation

from sareloc.photos import Geotag, Panorama, exif_bytes

NAMES = {
    "full_width": "FullPanoWidthPixels",
    "full_height": "FullPanoHeightPixels",
    "crop_width": "CroppedAreaImageWidthPixels",
    "crop_height": "CroppedAreaImageHeightPixels",
    "left": "CroppedAreaLeftPixels",
    "top": "CroppedAreaTopPixels",
    "heading": "PoseHeadingDegrees",
    "pitch": "PosePitchDegrees",
    "roll": "PoseRollDegrees",
    "projection": "ProjectionType",
}


def scene(directions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Colours (..., 3), 0 to 255, that change smoothly with the direction (..., 3): right, ahead, up."""
    x, y, z = np.moveaxis(directions / np.linalg.norm(directions, axis=-1, keepdims=True), -1, 0)
    return 127.5 + 120 * np.stack([np.sin(2 * x + y), np.cos(1.5 * y - 2 * z), np.sin(2.5 * z + x * y)], axis=-1)


def camera(yaw_deg: float, pitch_deg: float, roll_deg: float = 0.0) -> Rotation:
    """From a camera (right, ahead, up) to the world: rolled clockwise, then raised, then turned to the right."""
    return Rotation.from_euler("ZXY", [-yaw_deg, pitch_deg, roll_deg], degrees=True)


def draw_panorama(panorama: Panorama) -> npt.NDArray[np.uint8]:
    """The scene as the image (H, W, 3) of this panorama; heading 0 is ahead."""
    yaw = np.radians(panorama.left_deg + panorama.width_deg * (np.arange(panorama.width) + 0.5) / panorama.width)
    pitch = np.radians(panorama.top_deg - panorama.height_deg * (np.arange(panorama.height) + 0.5) / panorama.height)
    yaw, pitch = np.meshgrid(yaw, pitch)
    own = np.stack([np.sin(yaw) * np.cos(pitch), np.cos(yaw) * np.cos(pitch), np.sin(pitch)], axis=-1)
    turn = camera(0.0, panorama.pitch_deg, panorama.roll_deg)
    world = turn.apply(own.reshape(-1, 3)).reshape(own.shape)
    return np.round(scene(world)).astype(np.uint8)


def gpano_xmp(**tags: Any) -> bytes:
    """An XMP packet with these GPano tags as attributes, by the short names of `NAMES`; default: a projection alone."""
    tags = {"projection": "equirectangular"} | tags
    listed = " ".join(f'GPano:{NAMES.get(name, name)}="{value}"' for name, value in tags.items() if value is not None)
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        f'<rdf:Description rdf:about="" xmlns:GPano="http://ns.google.com/photos/1.0/panorama/" {listed}/>'
        "</rdf:RDF></x:xmpmeta>"
    ).encode()


def save_panorama(
    path: Path, image: npt.NDArray[np.uint8], geotag: Geotag | None = None, xmp: bytes | None = None
) -> Path:
    """Write a 360° photo with an EXIF geotag and GPano tags; default tags: a full sphere without a heading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save = {"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {"lossless": True}
    exif = {} if geotag is None else {"exif": exif_bytes(geotag)}
    Image.fromarray(image).save(path, xmp=gpano_xmp() if xmp is None else xmp, **save, **exif)
    return path
