"""Stored weights: what each format keeps, and how far the others may be off."""

from __future__ import annotations

import pytest
import torch

from sareloc.errors import ArgumentError
from sareloc.models.checkpoint import SMALL, pack_weights, unpack_weights


def weights() -> dict[str, torch.Tensor]:
    return {
        "conv.weight": torch.randn(64, 128, 3, 3) * torch.logspace(-4, 2, 64)[:, None, None, None],
        "conv.bias": torch.randn(64),
        "small": torch.randn(8, 8),
        "long": torch.randn(2 * SMALL),
        "centres": torch.randn(64, SMALL // 64),
        "counter": torch.tensor(5),
        "whitening.projection": torch.randn(128, 600) * 300,
    }


def test_float32_keeps_every_bit() -> None:
    given = weights()
    found = unpack_weights(pack_weights(given, "float32"))
    assert found.keys() == given.keys()
    assert all(found[n].equal(given[n]) for n in given)


def test_float16_rounds_the_large_tensors_only() -> None:
    given = weights()
    packed = pack_weights(given, "float16")
    halved = {n for n, t in packed.items() if t.dtype == torch.float16}
    assert halved == {"conv.weight", "whitening.projection"}
    found = unpack_weights(packed)
    for name, tensor in given.items():
        expected = tensor.half().float() if name in halved else tensor
        assert found[name].equal(expected)


def test_float16_keeps_what_is_beyond_its_range() -> None:
    large = torch.randn(256, 256)
    large[3, 4] = 1e6
    assert unpack_weights(pack_weights({"w": large}, "float16"))["w"].equal(large)


def test_int8_is_off_by_half_a_step_of_its_row_at_most() -> None:
    given = weights()
    packed = pack_weights(given, "int8")
    assert {n for n, t in packed.items() if t.dtype == torch.int8} == {"conv.weight", "whitening.projection"}
    found = unpack_weights(packed)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        if name in ("conv.weight", "whitening.projection"):
            rows, back = tensor.flatten(1), found[name].flatten(1)
            step = rows.abs().amax(dim=1, keepdim=True) / 127
            assert ((rows - back).abs() <= step * 0.5001).all()
            assert (rows - back).abs().max() > 0
            assert back.shape == rows.shape
        else:
            assert found[name].equal(tensor)


def test_int8_rows_of_zeros_and_of_tiny_numbers() -> None:
    given = torch.randn(256, 256)
    given[0] = 0
    given[1] *= 1e-42
    found = unpack_weights(pack_weights({"w": given}, "int8"))["w"]
    assert found.isfinite().all()
    assert not found[0].any()
    assert found[1].abs().max() <= given[1].abs().max() * 1.01


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_packing_what_was_unpacked_changes_nothing_more(storage: str) -> None:
    once = unpack_weights(pack_weights(weights(), storage))
    twice = unpack_weights(pack_weights(once, storage))
    for name, tensor in once.items():
        torch.testing.assert_close(twice[name], tensor, rtol=1e-6, atol=0)


def test_sizes() -> None:
    def stored(storage: str) -> int:
        return sum(
            t.numel() * t.element_size() for n, t in pack_weights({"w": torch.randn(512, 512, 3, 3)}, storage).items()
        )

    assert stored("float32") == 2 * stored("float16")
    assert stored("float32") / stored("int8") > 3.99


def test_other_precisions_and_layouts_become_contiguous_float32() -> None:
    given = torch.randn(64, 128, 3, 3).to(memory_format=torch.channels_last)
    packed = pack_weights({"w": given, "d": given.double(), "b": given.bfloat16()}, "float32")
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in packed.values())
    assert packed["w"].equal(given)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="known are float32, float16, int8"):
        pack_weights({}, "int4")  # type: ignore[arg-type]
