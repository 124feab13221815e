"""How large the numbers between a backbone's layers become, without any photo: on drawn images like streets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from sareloc.export import Ranges
from sareloc.models.folding import trace_layers
from sareloc.models.place_model import PlaceModel
from sareloc.models.precision import autocast

HEIGHT, WIDTH, IMAGES, LEAVES = 240, 320, 4, 1000
HEADROOM = 1.5  # photos hold stronger activations than the drawn images do


def find_ranges(model: PlaceModel) -> Ranges:
    """The range of what each convolution is given; before a pooling, of what the pooling is given, as it is the same.

    Not of what the first one is given: to round normalised pixels would cost more than all the rest. `model`: on the
    CPU, with its batch norms folded.
    """
    root, graph = trace_layers(model.backbone)
    layers = {node: root.get_submodule(node.target) for node in graph.nodes if node.op == "call_module"}
    pools = {node for node, layer in layers.items() if isinstance(layer, nn.MaxPool2d)}
    convolutions = {node for node, layer in layers.items() if isinstance(layer, nn.Conv2d)}
    wanted = {node for node in pools | convolutions if node.args[0] not in pools and node.args[0].op != "placeholder"}
    seen: dict[str, tuple[float, float]] = {}

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n in wanted:
                x = self.env[n.args[0]]  # type: ignore[index]
                top = 6.0 if isinstance(layers.get(n.args[0]), nn.ReLU6) else HEADROOM * float(x.max())
                seen[n.name] = (min(0.0, HEADROOM * float(x.min())), max(0.0, top))
            return super().run_node(n)

    with torch.no_grad(), autocast("cpu"):
        Watch(root, graph=graph).run(model.preprocess.normalise(draw_leaves()))
    return seen


def draw_leaves() -> Tensor:
    """Images (4, 3, 240, 320) of boxes of all sizes that hide each other, known as dead leaves.

    Sizes fall as a power law, as those of things in photos do; edges are smooth.
    """
    rng = np.random.default_rng(0)
    images = np.full((IMAGES, 2 * HEIGHT, 2 * WIDTH, 3), 127.0, dtype=np.float32)
    for image in images:
        sizes = np.minimum(8 / rng.uniform(0.01, 1, (LEAVES, 2)), image.shape[:2]).astype(int)
        corners = rng.integers((-100, -100), image.shape[:2], (LEAVES, 2))
        colours = rng.normal(127, 50, (LEAVES, 1)) + rng.normal(0, 15, (LEAVES, 3))
        for first, last, colour in zip(corners, corners + sizes, colours, strict=True):
            rows, columns = (slice(max(0, a), max(0, b)) for a, b in zip(first, last, strict=True))
            image[rows, columns] = colour
    halved = images.reshape(IMAGES, HEIGHT, 2, WIDTH, 2, 3).mean(axis=(2, 4))
    return torch.from_numpy(halved.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)
