"""PCA whitening: decorrelate descriptors, scale directions to equal variance, keep those of largest variance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.models.place_model import Whitening

EIGENVALUE_EPS = 1e-9
CHUNK = 1024  # columns or rows in double precision at a time: bounds the memory for 10,000 x 32,768 descriptors


def fit_whitening(
    descriptors: Tensor | npt.NDArray[np.floating],
    dim: int,
    *,
    power: float = 1.0,
    weights: Tensor | None = None,
    at_most: bool = False,
) -> Whitening:
    """The whitening of these descriptors to `dim` dimensions; deterministic.

    With U, lambda the eigenvectors and eigenvalues of the covariance (divided by n - 1, double precision), the rows
    of the projection are `u_i / (lambda_i + 1e-9)^(power / 2)`. If D > n the eigenvectors come from the n x n Gram
    matrix instead of the D x D covariance, with the same result. The sign of an eigenvector is arbitrary: its largest
    entry is made positive.

    Args:
        descriptors: (n, D).
        dim: dimensions after whitening.
        power: 1 is full whitening, 0 is PCA.
        weights: (n,) positive weights of the descriptors in mean and covariance, up to a common factor; default:
            equal.
        at_most: keep as many dimensions as the descriptors span, if that is fewer.

    Raises:
        ArgumentError: if the descriptors span fewer than `dim` directions: n of them span at most n - 1.
    """
    x = torch.as_tensor(descriptors)
    if x.ndim != 2 or not x.is_floating_point():
        raise ArgumentError(f"whitening: expected floats (n, D), found {x.dtype} {tuple(x.shape)}")
    n, d = x.shape
    dim = min(dim, n - 1, d) if at_most else dim
    if not 1 <= dim <= min(n - 1, d):
        raise ArgumentError(
            f"{n} descriptors of {d} dimensions can be whitened to at most {max(0, min(n - 1, d))}, not {dim}: "
            f"choose fewer dimensions or give more descriptors"
        )
    shares = _shares(weights, x)
    parts = zip(torch.split(x, CHUNK), torch.split(shares, CHUNK), strict=True)
    mean = torch.stack([share @ part.double() for part, share in parts]).sum(dim=0)
    if not mean.isfinite().all():
        raise ArgumentError("whitening needs finite numbers: some descriptors contain NaN or infinity")
    projection = (_from_gram if d > n else _from_covariance)(x, shares, mean, dim, power, at_most)
    signs = projection.gather(1, projection.abs().argmax(dim=1, keepdim=True)).sign()
    return Whitening(mean.float(), projection * signs)


def sort_by_variance(whitening: Whitening, descriptors: Tensor) -> Whitening:
    """The same whitening, rotated so that its first coordinates have the largest variance over `descriptors` (n, D).

    A rotation changes no distance; after it the first k coordinates of a learned projection are a good k-D descriptor.
    """
    with torch.no_grad():
        found = torch.cat([whitening(rows.float()).double() for rows in torch.split(descriptors, CHUNK)])
    _, vectors = torch.linalg.eigh(torch.cov(found.T))
    return Whitening(whitening.mean, (vectors.flip(1).T @ whitening.projection.double()).float())


def _shares(weights: Tensor | None, x: Tensor) -> Tensor:
    """The weights of the descriptors, (n,) in double precision, with sum 1."""
    if weights is None:
        return torch.full((len(x),), 1 / len(x), dtype=torch.float64, device=x.device)
    if weights.shape != x.shape[:1] or not (weights.isfinite() & (weights > 0)).all():
        raise ArgumentError(
            f"weights: expected {len(x)} positive numbers, one for each descriptor, found {tuple(weights.shape)}"
            + ("" if weights.shape != x.shape[:1] else f" from {float(weights.min())} to {float(weights.max())}")
        )
    shares = weights.to(x.device, torch.float64)
    return shares / shares.sum()


def _from_covariance(x: Tensor, shares: Tensor, mean: Tensor, dim: int, power: float, at_most: bool) -> Tensor:
    """The projection (dim, D), float32, by the D x D covariance."""
    n, d = x.shape
    covariance = torch.zeros(d, d, dtype=torch.float64, device=x.device)
    for rows, share in zip(torch.split(x, CHUNK), torch.split(shares, CHUNK), strict=True):
        centred = (rows.double() - mean) * share.sqrt()[:, None]
        covariance.addmm_(centred.T, centred)
    eigenvalues, vectors = _strongest(covariance * (n / (n - 1)), dim, n, at_most)  # (dim,), (D, dim)
    return (vectors / (eigenvalues + EIGENVALUE_EPS) ** (power / 2)).T.float().contiguous()


def _from_gram(x: Tensor, shares: Tensor, mean: Tensor, dim: int, power: float, at_most: bool) -> Tensor:
    """The same by the n x n Gram matrix: an eigenvector v of it gives the covariance's `X^T v / sqrt(lambda)`, where X
    holds the centred descriptors, each times the root of its share of n / (n - 1)."""
    n, d = x.shape
    roots = (shares * n / (n - 1)).sqrt()[:, None]
    gram = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    for columns, centre in zip(torch.split(x, CHUNK, dim=1), torch.split(mean, CHUNK), strict=True):
        centred = (columns.double() - centre) * roots
        gram.addmm_(centred, centred.T)
    eigenvalues, vectors = _strongest(gram, dim, n, at_most)  # (dim,), (n, dim)
    vectors *= roots / (eigenvalues.sqrt() * (eigenvalues + EIGENVALUE_EPS) ** (power / 2))
    projection = torch.empty(len(eigenvalues), d, dtype=torch.float32, device=x.device)
    for start in range(0, d, CHUNK):
        part = slice(start, start + CHUNK)
        projection[:, part] = vectors.T @ (x[:, part].double() - mean[part])
    return projection


def _strongest(symmetric: Tensor, dim: int, n: int, at_most: bool) -> tuple[Tensor, Tensor]:
    """The `dim` largest eigenvalues, largest first, and their eigenvectors as columns; see `fit_whitening`."""
    eigenvalues, vectors = torch.linalg.eigh(symmetric)
    eigenvalues, vectors = eigenvalues.flip(0), vectors.flip(1)
    noise = eigenvalues[0] * max(n, len(symmetric)) * torch.finfo(torch.float64).eps
    rank = int((eigenvalues > noise).sum())
    if at_most:
        dim = min(dim, max(rank, 1))
    if dim > rank:
        raise ArgumentError(
            f"{n} descriptors span only {rank} directions (many are equal?), they cannot be whitened to {dim}: "
            f"choose fewer dimensions or give more varied descriptors"
        )
    return eigenvalues[:dim], vectors[:, :dim]
