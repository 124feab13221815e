"""An ONNX graph under construction: operators are added one after the other, each gives its output's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sareloc.errors import need

OPSET = 18
SMALLEST = 1e-30  # instead of a step of 0
IR_VERSION = 10  # the oldest that has what the graph uses, so that older runtimes open the file


class Graph:
    """Operators and weights; every value has a name."""

    def __init__(self) -> None:
        self._onnx = need("onnx", "onnx")
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._rounded: set[str] = set()

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Apply an operator of ONNX's own set; the name of its output."""
        output = f"{op.lower()}_{len(self._nodes)}"
        if op == "DequantizeLinear" or (op == "MaxPool" and inputs[0] in self._rounded):
            self._rounded.add(output)
        self._nodes.append(self._onnx.helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def floats(self, numbers: Tensor | float, name: str = "number") -> str:
        """A float32 constant, of any shape."""
        return self._constant(torch.as_tensor(numbers).detach().cpu().float().contiguous().numpy(), name)

    def ints(self, *numbers: int) -> str:
        """An int64 constant (n,), such as axes or a shape."""
        return self._constant(np.array(numbers, dtype=np.int64), "ints")

    def rounded(self, x: str, lowest: float, highest: float) -> str:
        """The value rounded to 8 bits: 255 steps from 0 to `highest`, or 127 to each side where some are below 0."""
        kind, top = (np.uint8, 255) if lowest >= 0 else (np.int8, 127)
        scale = self.floats(max(-lowest, highest, SMALLEST) / top)
        zero = self._constant(np.zeros((), dtype=kind), "zero")
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, scale, zero), scale, zero)

    def kernel(self, weight: Tensor, x: str) -> str:
        """A convolution's weights (out, ...): where its input `x` is rounded, to 255 steps for each output channel."""
        if x not in self._rounded:
            return self.floats(weight, "weight")
        steps = weight.detach().flatten(1).abs().amax(dim=1).clamp(min=SMALLEST) / 127
        integers = (weight.detach() / steps.view(-1, *[1] * (weight.ndim - 1))).round().to(torch.int8)
        zeros = self._constant(np.zeros(len(steps), dtype=np.int8), "zeros")
        given = self._constant(integers.cpu().numpy(), "weight")
        return self.add("DequantizeLinear", given, self.floats(steps, "steps"), zeros, axis=0)

    def _constant(self, numbers: np.ndarray[Any, Any], name: str) -> str:
        unique = f"{name}_{len(self._weights)}"
        self._weights.append(self._onnx.numpy_helper.from_array(numbers, unique))
        return unique

    def build(self, name: str, given: Any, wanted: Any, found: str, about: dict[str, str]) -> Any:
        """The finished ModelProto: `given` and `wanted` declare input and output, `found` is the value to give."""
        helper = self._onnx.helper
        self._nodes.append(helper.make_node("Identity", [found], [wanted.name]))
        model = helper.make_model(
            helper.make_graph(self._nodes, name, [given], [wanted], self._weights),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sareloc",
        )
        helper.set_model_props(model, about)
        return model
