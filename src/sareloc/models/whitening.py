"""PCA whitening: decorrelate descriptors, give every direction the same weight, keep the strongest ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sareloc.errors import ArgumentError

EIGENVALUE_EPS = 1e-9
CHUNK = 1024  # columns or rows that are in double precision at a time: 10,000 x 32,768 doubles never exist at once


class Whitening(nn.Module):
    """`y = L2(projection (x - mean))`; the first k coordinates, scaled to unit length again, are the k-D whitening.

    `mean` (D,) and `projection` (dim, D), rows ordered from the strongest direction to the weakest. The projection is
    frozen unless its `requires_grad_` says otherwise.
    """

    mean: Tensor

    def __init__(self, mean: Tensor, projection: Tensor) -> None:
        super().__init__()
        if mean.ndim != 1 or projection.ndim != 2 or projection.shape[1] != len(mean):
            raise ArgumentError(
                f"whitening wants mean (D,) and projection (dim, D), "
                f"got {tuple(mean.shape)} and {tuple(projection.shape)}"
            )
        self.register_buffer("mean", mean)
        self.projection = nn.Parameter(projection, requires_grad=False)

    @property
    def dim(self) -> int:
        """Length of the whitened descriptor."""
        return len(self.projection)

    def forward(self, descriptors: Tensor, dim: int | None = None) -> Tensor:
        """Descriptors (B, D) -> unit rows (B, dim); a smaller `dim` keeps the first coordinates."""
        if descriptors.ndim != 2 or descriptors.shape[1] != len(self.mean):
            raise ArgumentError(f"this whitening wants (B, {len(self.mean)}), got {tuple(descriptors.shape)}")
        if dim is not None and not 1 <= dim <= self.dim:
            raise ArgumentError(f"this whitening gives 1 to {self.dim} dimensions, {dim} were asked for")
        with torch.autocast(descriptors.device.type, enabled=False):
            return F.normalize(F.linear(descriptors - self.mean, self.projection[:dim]), dim=1)


def fit_whitening(
    descriptors: Tensor | npt.NDArray[np.floating], dim: int, *, power: float = 1.0, weights: Tensor | None = None
) -> Whitening:
    """The whitening of these descriptors (n, D) to `dim` dimensions; randomness none, so equal input, equal answer.

    With U, lambda the eigenvectors and eigenvalues of the covariance (divided by n - 1, double precision), the rows of
    the projection are `u_i / (lambda_i + 1e-9)^(power / 2)`: with power 1 all directions weigh the same, with 0 they
    keep their weights (PCA). `weights` (n,), positive: how much each descriptor counts in mean and covariance, by
    default all the same; a factor common to all of them changes nothing. Where D > n the eigenvectors come from the
    n x n Gram matrix instead of the D x D covariance: the same numbers, without the D x D matrix. An eigenvector's sign
    is free: its largest entry is made positive. n descriptors span at most n - 1 directions: asking for more is an
    error.
    """
    x = torch.as_tensor(descriptors)
    if x.ndim != 2 or not x.is_floating_point():
        raise ArgumentError(f"whitening is fitted on floats (n, D), got {x.dtype} {tuple(x.shape)}")
    n, d = x.shape
    if not 1 <= dim <= min(n - 1, d):
        raise ArgumentError(
            f"{n} descriptors of {d} dimensions can be whitened to at most {max(0, min(n - 1, d))}, not {dim}: "
            f"ask for fewer dimensions or give more descriptors"
        )
    shares = _shares(weights, x)
    parts = zip(torch.split(x, CHUNK), torch.split(shares, CHUNK), strict=True)
    mean = torch.stack([share @ part.double() for part, share in parts]).sum(dim=0)
    if not mean.isfinite().all():
        raise ArgumentError("whitening is fitted on finite numbers: some descriptors hold NaN or infinity")
    projection = (_from_gram if d > n else _from_covariance)(x, shares, mean, dim, power)
    signs = projection.gather(1, projection.abs().argmax(dim=1, keepdim=True)).sign()
    return Whitening(mean.float(), projection * signs)


def in_order(whitening: Whitening, descriptors: Tensor) -> Whitening:
    """The same whitening with its coordinates turned so that the first ones hold the most of `descriptors` (n, D).

    A rotation changes no distance; it makes the first k coordinates of a learned projection worth keeping by
    themselves.
    """
    with torch.no_grad():
        found = torch.cat([whitening(rows.float()).double() for rows in torch.split(descriptors, CHUNK)])
    _, vectors = torch.linalg.eigh(torch.cov(found.T))
    return Whitening(whitening.mean, (vectors.flip(1).T @ whitening.projection.double()).float())


def _shares(weights: Tensor | None, x: Tensor) -> Tensor:
    """How much each of the descriptors counts, (n,) in double precision, 1 in all."""
    if weights is None:
        return torch.full((len(x),), 1 / len(x), dtype=torch.float64, device=x.device)
    if weights.shape != x.shape[:1] or not (weights.isfinite() & (weights > 0)).all():
        raise ArgumentError(
            f"weights are one positive number for each of the {len(x)} descriptors, got {tuple(weights.shape)}"
            + ("" if weights.shape != x.shape[:1] else f" from {float(weights.min())} to {float(weights.max())}")
        )
    shares = weights.to(x.device, torch.float64)
    return shares / shares.sum()


def _from_covariance(x: Tensor, shares: Tensor, mean: Tensor, dim: int, power: float) -> Tensor:
    """The projection (dim, D), float32, by the D x D covariance."""
    n, d = x.shape
    covariance = torch.zeros(d, d, dtype=torch.float64, device=x.device)
    for rows, share in zip(torch.split(x, CHUNK), torch.split(shares, CHUNK), strict=True):
        centred = (rows.double() - mean) * share.sqrt()[:, None]
        covariance.addmm_(centred.T, centred)
    eigenvalues, vectors = _strongest(covariance * (n / (n - 1)), dim, n)  # (dim,), (D, dim)
    return (vectors / (eigenvalues + EIGENVALUE_EPS) ** (power / 2)).T.float().contiguous()


def _from_gram(x: Tensor, shares: Tensor, mean: Tensor, dim: int, power: float) -> Tensor:
    """The same by the n x n Gram matrix: an eigenvector v of it gives the covariance's `X^T v / sqrt(lambda)`, where X
    holds the centred descriptors, each times the root of its share of n / (n - 1)."""
    n, d = x.shape
    roots = (shares * n / (n - 1)).sqrt()[:, None]
    gram = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    for columns, centre in zip(torch.split(x, CHUNK, dim=1), torch.split(mean, CHUNK), strict=True):
        centred = (columns.double() - centre) * roots
        gram.addmm_(centred, centred.T)
    eigenvalues, vectors = _strongest(gram, dim, n)  # (dim,), (n, dim)
    vectors *= roots / (eigenvalues.sqrt() * (eigenvalues + EIGENVALUE_EPS) ** (power / 2))
    projection = torch.empty(dim, d, dtype=torch.float32, device=x.device)
    for start in range(0, d, CHUNK):
        part = slice(start, start + CHUNK)
        projection[:, part] = vectors.T @ (x[:, part].double() - mean[part])
    return projection


def _strongest(symmetric: Tensor, dim: int, n: int) -> tuple[Tensor, Tensor]:
    """The `dim` largest eigenvalues, largest first, and their eigenvectors as columns."""
    eigenvalues, vectors = torch.linalg.eigh(symmetric)
    eigenvalues, vectors = eigenvalues.flip(0), vectors.flip(1)
    noise = eigenvalues[0] * max(n, len(symmetric)) * torch.finfo(torch.float64).eps
    rank = int((eigenvalues > noise).sum())
    if dim > rank:
        raise ArgumentError(
            f"{n} descriptors span only {rank} directions (many are equal?), they cannot be whitened to {dim}: "
            f"ask for fewer dimensions or give more varied descriptors"
        )
    return eigenvalues[:dim], vectors[:, :dim]
