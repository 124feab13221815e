"""Runtimes other than torch for descriptors and local features on a CPU: OpenVINO (extra `openvino`).

`RUNTIMES` in `sareloc.models.place_model` names them; the device of a model or a command chooses one.
"""

from sareloc.runtimes.openvino import on_openvino, on_openvino_int8

__all__ = ["on_openvino", "on_openvino_int8"]
