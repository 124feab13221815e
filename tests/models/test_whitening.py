"""Whitening: what it does to the data it was fitted on, by two routes that must agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sareloc.errors import ArgumentError
from sareloc.models import Whitening, fit_whitening, whitening
from sareloc.models.whitening import sort_by_variance


def correlated(n: int, d: int) -> Tensor:
    mixing = torch.randn(d, d) * torch.linspace(1.0, 0.05, d)[:, None]
    return torch.randn(n, d) @ mixing + torch.randn(d)


@pytest.mark.parametrize(("n", "d"), [(400, 30), (40, 90)], ids=["covariance", "gram"])
def test_whitened_training_data_is_uncorrelated_with_variance_one(n: int, d: int) -> None:
    data = correlated(n, d)
    fitted = fit_whitening(data, 20)
    projected = (data - fitted.mean).double() @ fitted.projection.double().T
    torch.testing.assert_close(projected.mean(dim=0), torch.zeros(20, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cov(projected.T), torch.eye(20, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(("n", "d"), [(90, 40), (50, 50)])
def test_gram_form_equals_covariance_form(monkeypatch: pytest.MonkeyPatch, n: int, d: int, power: float) -> None:
    """The Gram matrix is used if there are more dimensions than descriptors, as when zeros are appended."""
    monkeypatch.setattr(whitening, "CHUNK", 7)  # several parts, the last one smaller
    data, weights = correlated(n, d), torch.rand(n, dtype=torch.float64) + 0.1
    by_covariance = fit_whitening(data, 30, weights=weights, power=power).projection
    by_gram = fit_whitening(F.pad(data, (0, n - d + 1)), 30, weights=weights, power=power).projection
    assert not by_gram[:, d:].any()
    signs = (by_gram[:, :d] * by_covariance).sum(dim=1, keepdim=True).sign()
    torch.testing.assert_close(by_gram[:, :d] * signs, by_covariance, atol=1e-4, rtol=1e-4)


def test_equals_numpy_on_the_definition() -> None:
    data = correlated(200, 12)
    values, vectors = np.linalg.eigh(np.cov(data.double().numpy().T))
    expected = (vectors / np.sqrt(values + 1e-9)).T[::-1][:5]
    expected = expected * np.sign(expected[np.arange(5), np.abs(expected).argmax(axis=1)])[:, None]
    fitted = fit_whitening(data.numpy(), 5)
    np.testing.assert_allclose(fitted.projection.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fitted.mean.numpy(), data.double().mean(dim=0).numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("power", [0.5, 0.0])
def test_half_a_whitening_leaves_directions_half_of_their_weight(power: float) -> None:
    data = correlated(400, 30)
    fitted = fit_whitening(data, 20, power=power)
    projected = (data - fitted.mean).double() @ fitted.projection.double().T
    strongest = torch.linalg.eigvalsh(torch.cov(data.double().T)).flip(0)[:20]
    torch.testing.assert_close(torch.cov(projected.T), torch.diag(strongest ** (1 - power)), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("n", "d"), [(60, 20), (12, 40)], ids=["covariance", "gram"])
def test_a_weight_of_three_is_the_descriptor_three_times(n: int, d: int) -> None:
    data, weights = correlated(n, d), torch.randint(1, 4, (n,))
    repeated = data.repeat_interleave(weights, dim=0)
    fitted, expected = fit_whitening(data, 6, weights=weights * 0.1), fit_whitening(repeated, 6)
    torch.testing.assert_close(fitted.mean, expected.mean, atol=1e-5, rtol=1e-4)
    # the covariance is divided by the number of descriptors less one, whatever they weigh
    scale = ((n - 1) / n / ((len(repeated) - 1) / len(repeated))) ** 0.5
    signs = (fitted.projection * expected.projection).sum(dim=1, keepdim=True).sign()
    torch.testing.assert_close(fitted.projection * signs, expected.projection * scale, atol=1e-4, rtol=1e-3)


def test_in_order_keeps_every_distance_and_puts_the_most_into_the_first_coordinates() -> None:
    data = correlated(300, 40)
    learned = Whitening(data.mean(dim=0), torch.randn(12, 40, generator=torch.Generator().manual_seed(3)))
    turned = sort_by_variance(learned, data)
    before, after = learned(data), turned(data)
    torch.testing.assert_close(torch.cdist(after, after), torch.cdist(before, before), atol=1e-3, rtol=0)
    variance = after.var(dim=0)
    assert (variance[:-1] >= variance[1:] - 1e-6).all()
    assert variance[:6].sum() > before.var(dim=0)[:6].sum()


def test_weak_directions_are_held_back_by_1e_9() -> None:
    data = torch.randn(500, 3, dtype=torch.float64) * torch.tensor([1.0, 1e-4, 1e-6])
    variance = torch.cov(((data - data.mean(dim=0)) @ fit_whitening(data, 3).projection.double().T).T).diagonal()
    weak = data.var(dim=0)
    torch.testing.assert_close(variance, weak / (weak + 1e-9), rtol=0.02, atol=0)


def test_smaller_dimension_is_the_first_coordinates_made_unit_again() -> None:
    fitted = fit_whitening(correlated(100, 20), 12)
    descriptors = torch.randn(5, 20)
    whole = fitted(descriptors)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(fitted(descriptors, 7), torch.nn.functional.normalize(whole[:, :7], dim=1))


def test_fitting_fewer_dimensions_equals_cropping() -> None:
    data = correlated(60, 100)
    torch.testing.assert_close(fit_whitening(data, 9).projection, fit_whitening(data, 30).projection[:9])


@pytest.mark.parametrize(("n", "d"), [(400, 30), (40, 90)])
def test_signs_are_fixed_and_the_answer_repeats(n: int, d: int) -> None:
    data = correlated(n, d)
    fitted = fit_whitening(data, 10)
    largest = fitted.projection.gather(1, fitted.projection.abs().argmax(dim=1, keepdim=True))
    assert (largest > 0).all()
    assert fit_whitening(data.clone(), 10).projection.equal(fitted.projection)


def test_gradients_pass_through() -> None:
    fitted = fit_whitening(torch.randn(50, 6, dtype=torch.float64), 4).double()
    descriptors = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d: fitted(d, 3), (descriptors,))


def test_autocast_does_not_reach_in() -> None:
    fitted = fit_whitening(correlated(100, 20), 12)
    descriptors = torch.randn(5, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fitted(descriptors)
    assert inside.equal(fitted(descriptors))


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="at most 19"):
        fit_whitening(torch.randn(20, 64), 20)
    with pytest.raises(ArgumentError, match="at most 8"):
        fit_whitening(torch.randn(20, 8), 9)
    with pytest.raises(ArgumentError, match="at most 0"):
        fit_whitening(torch.randn(0, 8), 1)
    with pytest.raises(ArgumentError, match=r"only [1-4] directions"):
        fit_whitening(torch.randn(5, 64).repeat(4, 1), 9)
    with pytest.raises(ArgumentError, match="NaN"):
        fit_whitening(torch.full((20, 8), torch.nan), 3)
    with pytest.raises(ArgumentError, match=r"torch.int64 \(3,\)"):
        fit_whitening(torch.tensor([1, 2, 3]), 1)
    with pytest.raises(ArgumentError, match=r"positive numbers.*\(19,\)"):
        fit_whitening(torch.randn(20, 8), 3, weights=torch.ones(19))
    with pytest.raises(ArgumentError, match=r"positive numbers.*-1.0 to 18.0"):
        fit_whitening(torch.randn(20, 8), 3, weights=torch.arange(20) - 1.0)
    with pytest.raises(ArgumentError, match=r"\(4,\) and \(2, 5\)"):
        Whitening(torch.zeros(4), torch.zeros(2, 5))
    fitted = Whitening(torch.zeros(4), torch.zeros(2, 4))
    with pytest.raises(ArgumentError, match="1 to 2"):
        fitted(torch.zeros(1, 4), 3)
    with pytest.raises(ArgumentError, match=r"expected .*\(B, 4\), found \(1, 5\)"):
        fitted(torch.zeros(1, 5))
