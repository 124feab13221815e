"""Other ways to compute a model's descriptors, faster on a CPU: 8-bit integers, OpenVINO. Same model, same maps."""

from __future__ import annotations

from collections.abc import Callable

from sareloc.errors import look_up
from sareloc.models.place_model import PlaceModel
from sareloc.runtimes.runtime_model import RuntimeModel

__all__ = ["RUNTIMES", "RuntimeModel", "run_on"]


def _int8(model: PlaceModel) -> RuntimeModel:
    from sareloc.runtimes.int8 import on_int8

    return on_int8(model)


def _openvino(model: PlaceModel) -> RuntimeModel:
    from sareloc.runtimes.openvino_cpu import on_openvino

    return on_openvino(model)


def _openvino_int8(model: PlaceModel) -> RuntimeModel:
    from sareloc.runtimes.openvino_cpu import on_openvino

    return on_openvino(model, int8=True)


RUNTIMES: dict[str, Callable[[PlaceModel], RuntimeModel]] = {
    "int8": _int8,
    "openvino": _openvino,
    "openvino-int8": _openvino_int8,
}


def run_on(model: PlaceModel, runtime: str) -> RuntimeModel:
    """The same model, its `encode` computed otherwise; for describing, not for training.

    "int8": convolutions in 8-bit integers, by torch alone (VGG16 and AlexNet, on processors with VNNI). "openvino":
    the backbone by OpenVINO (extra `openvino`), in bfloat16 where the processor is fast in it. "openvino-int8": that
    in 8-bit integers, with any backbone. Descriptors differ from torch's by less than photos of one place do, so that
    the fingerprint and all maps stay valid.
    """
    return look_up(RUNTIMES, runtime, "runtime")(model)
