"""The tuple losses as modules, for training loops that expect one: `SARE()(query, positive, negatives)`.

Thin twins of the functions: no parameters, no state, the same (B, D), (B, D), (B, N, D) -> (B,).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sareloc.losses.named import make_loss


class TupleLossModule(nn.Module):
    """The loss of a name and its knobs (see `make_loss`) as a module; its twins below name theirs."""

    def __init__(self, name: str, **knobs: Any) -> None:
        super().__init__()
        self.name, self.knobs = name, knobs
        self.loss = make_loss(name, **knobs)

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """One value per tuple, (B,): reduce with `mean_over_pairs` or `mean_over_tuples`."""
        return self.loss(query, positive, negatives)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return ", ".join([repr(self.name), *(f"{knob}={value!r}" for knob, value in self.knobs.items())])


class SARE(TupleLossModule):
    """`sare_joint` if `joint`, else `sare_ind`; kernel gaussian, cauchy or exponential, of any width."""

    def __init__(self, kernel: str = "gaussian", joint: bool = False, width: float = 1.0) -> None:
        super().__init__("sare-joint" if joint else "sare-ind", kernel=kernel, width=width)


class Triplet(TupleLossModule):
    """`triplet` as a module."""

    def __init__(self, margin: float = 0.1) -> None:
        super().__init__("triplet", margin=margin)


class Contrastive(TupleLossModule):
    """`contrastive` as a module."""

    def __init__(self, margin: float = 0.7) -> None:
        super().__init__("contrastive", margin=margin)


class NPair(TupleLossModule):
    """`n_pair` as a module."""

    def __init__(self) -> None:
        super().__init__("n-pair")


class Angular(TupleLossModule):
    """`angular` as a module; the angle in degrees."""

    def __init__(self, angle_deg: float = 45.0) -> None:
        super().__init__("angular", angle_deg=angle_deg)


class Lifted(TupleLossModule):
    """`lifted` as a module."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__("lifted", margin=margin)


class Ratio(TupleLossModule):
    """`ratio` as a module."""

    def __init__(self) -> None:
        super().__init__("ratio")
