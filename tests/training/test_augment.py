"""Augmentation of training images: crops, rotations, light, and mirrored tuples."""

from __future__ import annotations

import torch
from tests.training.tiny_dataset import tiny_pixels

from sareloc.training import augment


def test_mirrors_take_whole_tuples_and_leave_half_of_them() -> None:
    images = torch.zeros(600, 3, 64, 64, dtype=torch.uint8)
    images[..., :32] = 200  # bright on the left
    out = augment(images, torch.Generator().manual_seed(0), crop=1e-6, light=1e-6, tuple_sizes=torch.full((200,), 3))
    mirrored = (out[:, 0, :, 40:].mean(dim=(1, 2)) > 0.5).view(200, 3)
    assert (mirrored.all(dim=1) | ~mirrored.any(dim=1)).all()
    assert 70 < int(mirrored[:, 0].sum()) < 130
    alone = augment(images[:50], torch.Generator().manual_seed(0), crop=1e-6, light=1e-6)
    torch.testing.assert_close(alone, images[:50] / 255, atol=1e-3, rtol=0)


def test_turning_keeps_circles_round() -> None:
    """A bright disc in the middle of a wide image: crops stretch it, but what turning adds is no shear."""
    y, x = torch.meshgrid(torch.arange(64) - 31.5, torch.arange(128) - 63.5, indexing="ij")
    disc = ((x.square() + y.square() < 20**2) * 255).to(torch.uint8).expand(200, 3, 64, 128)
    out = augment(disc, torch.Generator().manual_seed(3), crop=1, light=1)
    bright = (out.mean(dim=1) > out.mean(dim=(1, 2, 3))[:, None, None]).double()
    total = bright.sum(dim=(1, 2))
    cx, cy = (bright * x).sum(dim=(1, 2)) / total, (bright * y).sum(dim=(1, 2)) / total
    dx, dy = x - cx[:, None, None], y - cy[:, None, None]
    xx, yy, xy = ((bright * m).sum(dim=(1, 2)) / total for m in (dx * dx, dy * dy, dx * dy))
    assert float((xx / yy).max()) > 1.15  # the two sides are cropped each by itself
    assert float((xx / yy).min()) < 0.87
    assert float((xy / (xx * yy).sqrt()).abs().max()) < 0.06


def test_strength_says_how_far_images_move() -> None:
    images = tiny_pixels(0)[:40]
    moved = [
        float((augment(images, torch.Generator().manual_seed(1), crop=s, light=s) - images / 255).abs().mean())
        for s in (0.1, 0.5, 1)
    ]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_crops_change_no_colour_and_light_moves_no_edge() -> None:
    grey = torch.full((8, 3, 64, 96), 90, dtype=torch.uint8)
    cropped = augment(grey, torch.Generator().manual_seed(0), crop=1, light=0)
    torch.testing.assert_close(cropped, grey / 255, atol=1e-4, rtol=0)
    edged = torch.full((8, 3, 64, 96), 40, dtype=torch.uint8)
    edged[..., 48:] = 220
    lit = augment(edged, torch.Generator().manual_seed(0), crop=0, light=1).mean(dim=(1, 2))
    assert (lit.diff(dim=1).abs().argmax(dim=1) == 47).all()


def test_light_differs_from_place_to_place_smoothly() -> None:
    grey = torch.full((32, 3, 64, 96), 90, dtype=torch.uint8)
    lit = augment(grey, torch.Generator().manual_seed(0), crop=0, light=1).mean(dim=1)
    patches = torch.nn.functional.avg_pool2d(lit[:, None], 8).flatten(1)
    assert float((patches.std(dim=1) / patches.mean(dim=1)).median()) > 0.2
    by_chance = torch.nn.functional.avg_pool2d((lit - lit.mean(dim=(1, 2), keepdim=True))[:, None], 2)
    steps = by_chance.diff(dim=3).abs().mean() / by_chance.abs().mean()
    assert float(steps) < 0.4  # neighbours are lit alike; of numbers drawn one by one it is 1.4


def test_augmented_images_stay_in_range_and_differ_from_one_another() -> None:
    images = tiny_pixels(0)[:1].repeat(8, 1, 1, 1)
    out = augment(images, torch.Generator().manual_seed(1), crop=1, light=1)
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1
    assert len({round(float(x.mean()), 5) for x in out}) == 8
    assert torch.equal(out, augment(images, torch.Generator().manual_seed(1), crop=1, light=1))
