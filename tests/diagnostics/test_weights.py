"""Singular values of changes, against dense SVD and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.diagnostics import weights
from advsweep.diagnostics.weights import (
    Matrix,
    alignment,
    effective_rank,
    effective_rank_bounds,
    leading_spectrum,
    whole_spectrum,
)

BOTH = pytest.mark.parametrize("spectrum_of", [whole_spectrum, leading_spectrum])


def matrix(dense: torch.Tensor) -> Matrix:
    return Matrix(*dense.shape, lambda start, stop: dense[start:stop])


def noisy(rows: int, columns: int, signal: float = 3.0, seed: int = 0) -> torch.Tensor:
    """A rank-1 matrix plus noise."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randn(rows, generator=generator), torch.randn(columns, generator=generator)
    return signal * torch.outer(u, v) / math.sqrt(min(rows, columns)) + torch.randn(
        rows, columns, generator=generator
    )


@BOTH
def test_a_diagonal_by_hand(spectrum_of):
    # s = 4, 2, 1, 1: the squares sum to 16 + 4 + 1 + 1 = 22.
    found = spectrum_of(matrix(torch.diag(torch.tensor([1.0, 4.0, 1.0, 2.0]))))
    assert found.norm == pytest.approx(math.sqrt(22))
    assert found.values.tolist() == pytest.approx([4, 2, 1, 1])
    assert found.gap == pytest.approx(2)
    assert found.r1 == pytest.approx(16 / 22)
    # Of a sum of 8, 4 + 2 are 0.75, and 4 + 2 + 1 are 0.875.
    assert found.srank(0.25) == (2, 2)
    assert found.srank(0.2) == (3, 3)
    assert found.srank(0.01) == (4, 4)
    assert found.left.abs().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)


@BOTH
def test_a_matrix_of_rank_one_has_no_second_value(spectrum_of):
    u, v = torch.tensor([3.0, 4.0, 0.0]), torch.tensor([1.0, -1.0])
    found = spectrum_of(matrix(torch.outer(u, v)))
    assert found.s1 == pytest.approx(5 * math.sqrt(2), rel=1e-6)
    assert found.r1 == pytest.approx(1)
    assert found.gap > 1e6
    assert found.srank() == (1, 1)
    assert alignment(found.left, u) == pytest.approx(1)
    assert alignment(found.right, v) == pytest.approx(1)


@BOTH
@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_no_change_has_neither_shape_nor_direction(spectrum_of, shape):
    found = spectrum_of(matrix(torch.zeros(shape)))
    assert (found.norm, found.s1, found.srank()) == (0, 0, (0, 0))
    assert math.isnan(found.gap)
    assert math.isnan(found.r1)
    assert (found.left.shape, found.right.shape) == ((shape[0],), (shape[1],))
    assert math.isnan(alignment(found.left, found.left))


@BOTH
@pytest.mark.parametrize("shape", [(1, 6), (6, 1)])
def test_a_single_row_or_column_has_one_value(spectrum_of, shape):
    found = spectrum_of(matrix(torch.full(shape, 2.0)))
    assert found.s1 == pytest.approx(2 * math.sqrt(6), rel=1e-6)
    assert math.isnan(found.gap)
    assert found.r1 == pytest.approx(1)
    assert found.srank() == (1, 1)


@BOTH
@pytest.mark.parametrize("shape", [(300, 70), (70, 300), (90, 90)])
@pytest.mark.parametrize("held", [0, 1 << 27])
def test_as_a_dense_svd_has_it(spectrum_of, shape, held, monkeypatch):
    # Strips of 7 rows or less, so that there are many of them and the last is shorter.
    monkeypatch.setattr(weights, "_STRIP", 500)
    monkeypatch.setattr(weights, "_HELD", held)
    dense = noisy(*shape)
    u, s, v = torch.linalg.svd(dense.double(), full_matrices=False)
    found = spectrum_of(matrix(dense))
    assert found.norm == pytest.approx(s.norm().item())
    for value, error, exact in zip((found.s1, found.s2), found.errors, s.tolist(), strict=False):
        assert abs(value - exact) <= error + 1e-6 * exact
        assert error <= 2e-3 * exact
    assert abs(found.r1 - (s[0] / s.norm()).item() ** 2) <= found.r1_error + 1e-6
    low, high = found.srank()
    assert low <= effective_rank(s) <= high
    assert alignment(found.left, u[:, 0]) == pytest.approx(1, abs=1e-6)
    assert alignment(found.right, v[0]) == pytest.approx(1, abs=1e-6)
    if spectrum_of is whole_spectrum:
        assert low == high
        assert found.values.tolist() == pytest.approx(s.tolist(), rel=1e-9)


def test_half_precision_is_compared_in_single():
    dense = noisy(40, 20).bfloat16()
    s = torch.linalg.svdvals(dense.double())
    assert whole_spectrum(matrix(dense)).values.tolist() == pytest.approx(s.tolist(), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@BOTH
def test_what_is_not_finite_shows_in_the_norm(spectrum_of, bad):
    dense = torch.ones(5, 4)
    dense[2, 2] = bad
    assert not math.isfinite(spectrum_of(matrix(dense)).norm)


def test_leading_values_without_a_gap_say_how_little_is_known(monkeypatch):
    # All values of an orthogonal matrix are 1, so that 30 of 40 are needed for 0.74 of the sum.
    q = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0))).Q
    found = leading_spectrum(matrix(q))
    assert (found.s1, found.s2) == pytest.approx((1, 1), rel=1e-5)
    low, high = found.srank(0.26)
    assert low <= 30 <= high
    # With one pass the values of a noisy matrix are far off, and the errors say so.
    monkeypatch.setattr(weights, "PASSES", 1)
    dense = noisy(300, 70, signal=0)
    early = leading_spectrum(matrix(dense))
    exact = torch.linalg.svdvals(dense.double())[0].item()
    assert early.errors[0] > 0.01 * exact
    assert early.s1 < exact


spectra = st.lists(st.floats(0.001, 10), min_size=2, max_size=30)


@given(spectra, st.integers(1, 29), st.sampled_from([0.001, 0.01, 0.1, 0.5]))
def test_bounds_of_srank_hold_for_every_spectrum(values, known, delta):
    s = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    known = min(known, len(s))
    low, high = effective_rank_bounds(s[:known], s.norm().item(), len(s), delta)
    assert 1 <= low <= effective_rank(s, delta) <= high <= len(s)


def test_bounds_of_srank_by_hand():
    # s = 4 is known of 5 values with ‖D‖² = 16 + 4, δ = 0.25: the others sum to 4/4 = 1 at
    # least, when 4 is 0.8 of 5 and enough; and to √(4·4) = 4 at most, four times 1, when 0.75
    # of 8 takes 4 + 1 + 1.
    known = torch.tensor([4.0])
    assert effective_rank_bounds(known, math.sqrt(20), 5, 0.25) == (1, 3)
    assert effective_rank(torch.tensor([4.0, 1, 1, 1, 1]), 0.25) == 3


def test_alignment_of_known_vectors():
    # cos = (3·4 + 4·3) / 25
    assert alignment(torch.tensor([3.0, 4.0]), torch.tensor([-4.0, -3.0])) == pytest.approx(0.96)
    assert alignment(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])) == 0
