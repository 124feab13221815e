"""360° photos of the drawn city: equirectangular images, resampled from the six faces of a cube.

Column c of a photo W pixels wide is the yaw 2π (c + 1/2) / W - π, which grows to the right and is 0, the heading of the
pose, in the middle; row r of H = W / 2 is the elevation π/2 - π (r + 1/2) / H, straight up at the upper edge. Every ray
is projected into the face that it passes through, as by `project`, and the face is interpolated bilinearly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sareloc.arrays import Floats, Ints
from sareloc.city.geometry import Poses, project
from sareloc.city.moment import Moment
from sareloc.city.render import draw_scene
from sareloc.city.scene import Scene
from sareloc.city.town import CAR_ANGLE, Views
from sareloc.errors import ArgumentError

FACE_YAWS = np.deg2rad([0.0, -90.0, 180.0, 90.0, 0.0, 0.0])  # ahead, right, back, left, up, down
FACE_PITCHES = np.deg2rad([0.0, 0.0, 0.0, 0.0, 90.0, -90.0])
FACES = len(FACE_YAWS)
FACE_SCALE = 1.25
"""Pixels per radian in the middle of a face, relative to the photo's: interpolation then costs little sharpness."""
FACE_MARGIN = 1
"""Pixels of a face beyond 90 degrees on each side, for the interpolation at its edges."""
SMALLEST_HEIGHT = 32
GPANO = "http://ns.google.com/photos/1.0/panorama/"


def panorama_poses(views: Views) -> Poses:
    """One level pose for each panorama of the database, in their order, with the yaw of its first view."""
    poses = views.database.take(np.flatnonzero(views.tiles == 0))
    return replace(poses, pitch=np.zeros(len(poses)), roll=np.zeros(len(poses)))


def panorama_height(width: int, width_angle: float = CAR_ANGLE) -> int:
    """The height of 360° photos with the resolution of perspective photos of this width and angle (radians).

    The resolution is that of the middle of the photo; rounded up to a multiple of 16 pixels.
    """
    pixels_per_radian = width / 2 / math.tan(width_angle / 2)
    return max(SMALLEST_HEIGHT, 16 * math.ceil(math.pi * pixels_per_radian / 16))


def without_camera_noise(moment: Moment) -> Moment:
    """The moment without the effects that depend on the pixel of one image: they would show the edges of the faces."""
    return replace(moment, grain=0.0, vignette=0.0)


def draw_spheres(scene: Scene, poses: Poses, height: int) -> Tensor:
    """Render equirectangular images (N, 3, height, 2 * height) uint8 on the scene's device.

    The poses must be level (pitch and roll are ignored, and so is the angle); `Poses.moment` are indices of the scene's
    moments, which should be those of `without_camera_noise`. Raises ArgumentError if `height` is less than 32.
    """
    if height < SMALLEST_HEIGHT:
        raise ArgumentError(f"a 360° photo must be at least {SMALLEST_HEIGHT} pixels high: found {height}")
    side = _face_side(height)
    faces = draw_scene(scene, _face_poses(poses, side), side, side)
    table = _lookup(height)
    at, right, down = (torch.from_numpy(x).to(scene.device) for x in (table.pixel, table.right, table.down))
    images = [_interpolate(some, at, right, down) for some in faces.view(-1, FACES, 3, side, side)]
    return torch.stack(images).view(-1, 3, height, 2 * height)


def sphere_rays(height: int) -> Floats:
    """(height * 2 * height, 3) unit vectors ahead, left and up through the pixel centres, row by row."""
    yaw = (np.arange(2 * height) + 0.5) * (np.pi / height) - np.pi
    up = (np.pi / 2 - (np.arange(height) + 0.5) * (np.pi / height))[:, None]
    rays = np.stack([np.cos(up) * np.cos(yaw), -np.cos(up) * np.sin(yaw), np.sin(up) + 0 * yaw], axis=-1)
    return rays.reshape(-1, 3)


def gpano_xmp(height: int, heading_deg: float) -> bytes:
    """The XMP packet of a whole equirectangular photo: GPano's projection, sizes, and heading of its middle."""
    width = 2 * height
    values = {
        "ProjectionType": "equirectangular",
        "UsePanoramaViewer": "True",
        "FullPanoWidthPixels": width,
        "FullPanoHeightPixels": height,
        "CroppedAreaImageWidthPixels": width,
        "CroppedAreaImageHeightPixels": height,
        "CroppedAreaLeftPixels": 0,
        "CroppedAreaTopPixels": 0,
        "PoseHeadingDegrees": f"{round(heading_deg, 6) % 360:.6f}",
        "PosePitchDegrees": "0.0",
        "PoseRollDegrees": "0.0",
    }
    tags = "".join(f"\n   <GPano:{name}>{value}</GPano:{name}>" for name, value in values.items())
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/">\n'
        ' <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n'
        f'  <rdf:Description rdf:about="" xmlns:GPano="{GPANO}">{tags}\n'
        "  </rdf:Description>\n </rdf:RDF>\n</x:xmpmeta>\n"
        '<?xpacket end="r"?>'
    ).encode()


@dataclass(frozen=True, eq=False)
class _Lookup:
    """Where the P pixels of a photo are in its faces (6, side, side)."""

    pixel: Ints
    """(P,) index of the upper left of the four pixels around the point."""
    right: Floats
    down: Floats
    """(P,) fractions of a pixel from its centre to the point."""


@lru_cache(maxsize=2)
def _lookup(height: int) -> _Lookup:
    side, rays = _face_side(height), sphere_rays(height)
    nearest = np.zeros(len(rays))
    found = np.zeros((3, len(rays)))  # face, column, row
    zero, none = np.zeros(1), np.zeros(1, dtype=np.int64)
    faces = _face_poses(Poses(np.zeros((1, 3)), zero, zero, zero, zero, none, none), side)
    for number in range(FACES):
        column, row, depth = project(faces.take([number]), rays, side, side)[0].T
        ahead = depth > nearest
        nearest[ahead] = depth[ahead]
        found[:, ahead] = np.stack([np.full(len(rays), number), column, row])[:, ahead]
    face, column, row = found
    left, top = np.floor(column - 0.5), np.floor(row - 0.5)
    pixel = ((face * side + top) * side + left).astype(np.int64)
    return _Lookup(pixel, (column - 0.5 - left).astype(np.float32), (row - 0.5 - top).astype(np.float32))


def _face_side(height: int) -> int:
    return math.ceil(FACE_SCALE * 2 * height / math.pi) + 2 * FACE_MARGIN


def _face_poses(poses: Poses, side: int) -> Poses:
    """The six faces of each pose: (6 * N,) square views of 90 degrees and the margin."""
    n = len(poses)
    every = poses.take(np.repeat(np.arange(n), FACES))
    angle = 2 * math.atan(side / (side - 2 * FACE_MARGIN))
    return replace(
        every,
        yaw=every.yaw + np.tile(FACE_YAWS, n),
        pitch=np.tile(FACE_PITCHES, n),
        roll=np.zeros(n * FACES),
        width_angle=np.full(n * FACES, angle),
    )


def _interpolate(faces: Tensor, pixel: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Bilinear interpolation (3, P) uint8 in faces (6, 3, side, side)."""
    side = faces.shape[-1]
    flat = faces.permute(1, 0, 2, 3).reshape(3, -1)
    upper, lower = (
        torch.lerp(flat[:, first].float(), flat[:, first + 1].float(), right) for first in (pixel, pixel + side)
    )
    return (torch.lerp(upper, lower, down) + 0.5).floor().to(torch.uint8)
