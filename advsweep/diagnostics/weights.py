"""Weight space: the singular values of the change of a matrix by training.

D = W_tuned - W_base with singular values s₁ ≥ s₂ ≥ ...; the sign of D does not matter here.

    ‖D‖_F = √Σ sᵢ²        r₁ = s₁² / ‖D‖_F²
    srank_δ = least k with (s₁ + ... + s_k) / Σ sᵢ ≥ 1 - δ

All singular values are computed from the eigenvalues of the smaller Gram matrix, DᵀD or DDᵀ,
which is summed in float64 over strips of D. The leading values alone are computed by subspace
iteration, with a bound on their error. D is never held in float64, and in float32 only if it is
small.

Source: FADE (arXiv:2607.01490), Fig. 5, sec. 15.1; srank: Kumar et al. 2020
(arXiv:2010.14498), Eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

DELTA = 0.01
"""The share of Σ sᵢ that srank leaves out; the paper does not print its value."""

SUBSPACE = 16
"""Number of directions of the subspace iteration."""
PASSES = 40
"""Largest number of passes over D that the iteration makes."""
TOLERANCE = 1e-3
"""Relative error of s₁ and s₂ at which the iteration stops earlier."""

_STRIP = 1 << 22
"""Elements of D per strip, if D is not held in memory."""
_HELD = 1 << 27
"""Largest number of elements of D that is held in memory: 512 MiB in float32."""


@dataclass(frozen=True)
class Matrix:
    """A matrix that is read when it is needed.

    Attributes:
        rows, columns: its shape.
        read: gives the rows from the first number up to the second, in any dtype of floats.
    """

    rows: int
    columns: int
    read: Callable[[int, int], Float[Tensor, "some columns"]]


@dataclass(frozen=True)
class Spectrum:
    """All singular values of a matrix, or the leading ones with bounds on their errors.

    Attributes:
        norm: ‖D‖_F, exact.
        values: singular values, descending: all of them, or the leading ones.
        errors: bounds on the errors of the first two; 0 where all values are known.
        energy_error: a bound on the error of s₁².
        left, right: the singular vectors of s₁, of length 1; zeros where D is zero.
        count: how many singular values there are.
    """

    norm: float
    values: Float[Tensor, " known"]
    errors: tuple[float, float]
    energy_error: float
    left: Float[Tensor, " rows"]
    right: Float[Tensor, " columns"]
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether all singular values are known."""
        return len(self.values) == self.count

    @property
    def s1(self) -> float:
        return self.values[0].item()

    @property
    def s2(self) -> float:
        """NaN for a matrix of one row or column."""
        return self.values[1].item() if self.count > 1 else math.nan

    @property
    def gap(self) -> float:
        """s₁ / s₂; infinite for a matrix of rank 1, NaN for zero."""
        if self.norm == 0 or math.isnan(self.s2):
            return math.nan
        return self.s1 / self.s2 if self.s2 else math.inf

    @property
    def r1(self) -> float:
        """The share of ‖D‖_F² that lies along s₁; NaN for zero."""
        return min(1.0, self.s1**2 / self.norm**2) if self.norm else math.nan

    @property
    def r1_error(self) -> float:
        """A bound on the error of r₁."""
        return self.energy_error / self.norm**2 if self.norm else 0.0

    def srank(self, delta: float = DELTA) -> tuple[int, int]:
        """Return the least and greatest possible srank_δ; equal if all values are known."""
        if self.is_whole:
            found = effective_rank(self.values, delta)
            return found, found
        return effective_rank_bounds(self.values, self.norm, self.count, delta)


def effective_rank(values: Float[Tensor, " values"], delta: float = DELTA) -> int:
    """srank_δ of singular values in descending order; 0 where all are 0."""
    cumulated = values.double().cumsum(0)
    if not cumulated[-1]:
        return 0
    # Without the slack, rounding could keep even the last sum below its own share.
    reached = cumulated >= (1 - delta) * cumulated[-1] * (1 - 1e-12)
    return int(reached.nonzero()[0]) + 1


def effective_rank_bounds(
    values: Float[Tensor, " known"], norm: float, count: int, delta: float = DELTA
) -> tuple[int, int]:
    """Return the least and greatest possible srank_δ if only the leading k values are known.

    With T = ‖D‖_F² - Σ_{i≤k} sᵢ², the other n - k values, none above s_k, sum to a number between
    T/s_k and √((n-k) T). srank is least if these values are as large as possible, and greatest
    if they are as equal as possible.

    Args:
        values: s₁ ... s_k, taken as exact.
        norm: ‖D‖_F.
        count: n.
    """
    values = values.double()
    known, others = len(values), count - len(values)
    first, last = values.sum().item(), values[-1].item()
    energy = max(0.0, norm**2 - values.square().sum().item())
    if not energy or not last:
        found = effective_rank(values, delta)
        return found, found
    least_sum, most_sum = energy / last, math.sqrt(others * energy)
    cumulated = values.cumsum(0)

    def among_known(total: float) -> int | None:
        reached = (cumulated >= (1 - delta) * total).nonzero()
        return int(reached[0]) + 1 if len(reached) else None

    low = among_known(first + least_sum)
    if low is None:
        low = known + math.ceil(((1 - delta) * (first + least_sum) - first) / last - 1e-9)
    high = among_known(first + most_sum)
    if high is None:
        spared = math.floor(others * min(1.0, delta * (first + most_sum) / most_sum) + 1e-9)
        high = count - spared
    return min(low, count), max(high, min(low, count))


def alignment(a: Float[Tensor, " features"], b: Float[Tensor, " features"]) -> float:
    """|cos| of two directions; NaN where one is zero."""
    a, b = a.double(), b.double()
    length = (a.norm() * b.norm()).item()
    return abs(a.dot(b).item()) / length if length else math.nan


def whole_spectrum(matrix: Matrix) -> Spectrum:
    """Compute all singular values from the eigenvalues of the smaller Gram matrix.

    This takes one pass over D, a second pass for the other side's vector, and O(n³) operations
    for the shorter side n. Values below about 1e-8 s₁ are rounding error.
    """
    strips = _Strips(matrix)
    gram = torch.zeros(strips.short, strips.short, dtype=torch.float64)
    for strip in strips:
        part = strip.double()
        gram.addmm_(part.T, part)
    norm = math.sqrt(gram.trace().item())
    if norm == 0 or not math.isfinite(norm):
        return _without_directions(matrix, norm, torch.zeros(strips.short))
    energies = _eigenvalues(gram)
    right = _leading_vector(gram, energies[0].item())
    long, right = strips.other_side(right), right.float()
    left, right = (right, long) if strips.wide else (long, right)
    return Spectrum(norm, energies.sqrt(), (0.0, 0.0), 0.0, left, right, strips.short)


def leading_spectrum(matrix: Matrix) -> Spectrum:
    """Compute the leading singular values by subspace iteration from a random start.

    Each pass maps an orthonormal Q to DᵀD Q and gives the Ritz values θᵢ of DᵀD on Q and their
    residuals ρᵢ = ‖DᵀD vᵢ - θᵢ vᵢ‖. An eigenvalue of DᵀD lies within ρᵢ of θᵢ, and √θᵢ never
    exceeds sᵢ; the error bounds follow from that. That this eigenvalue is the i-th one is almost
    certain for a random start.

    Source: Halko, Martinsson and Tropp 2011 (arXiv:0909.4061), Alg. 4.4; Parlett 1998, "The
    Symmetric Eigenvalue Problem", Theorem 4.5.1.
    """
    strips = _Strips(matrix)
    width = min(SUBSPACE, strips.short)
    start = torch.randn(strips.short, width, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(start.double()).Q
    norm = math.nan
    for number in range(PASSES):
        image = torch.zeros_like(basis)
        energy = 0.0
        for strip in strips:
            if number == 0:
                energy += strip.double().square().sum().item()
            image += (strip.T @ (strip @ basis.float())).double()
        if number == 0:
            norm = math.sqrt(energy)
            if norm == 0 or not math.isfinite(norm):
                return _without_directions(matrix, norm, torch.zeros(width))
        small = basis.T @ image
        thetas, turn = torch.linalg.eigh((small + small.T) / 2)
        thetas, turn = thetas.flip(0).clamp(min=0), turn.flip(1)
        ritz = basis @ turn
        residuals = (image @ turn - ritz * thetas).norm(dim=0)
        values = thetas.sqrt()
        errors = residuals / values.clamp(min=1e-30)
        if (errors[:2] <= TOLERANCE * values[:2]).all():
            break
        basis = torch.linalg.qr(image).Q
    long, right = strips.other_side(ritz[:, 0]), ritz[:, 0].float()
    left, right = (right, long) if strips.wide else (long, right)
    both = (errors[0].item(), errors[1].item() if width > 1 else 0.0)
    return Spectrum(norm, values, both, residuals[0].item(), left, right, strips.short)


class _Strips:
    """D, or its transpose if D is wide, in strips whose rows have the length of the shorter side.

    Wide and small matrices are held in memory in float32; others are read strip by strip.

    Attributes:
        short: the length of the shorter side.
    """

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self.wide = matrix.columns > matrix.rows
        self.short = min(matrix.rows, matrix.columns)
        self._long = max(matrix.rows, matrix.columns)
        self._height = max(1, _STRIP // self.short)
        self._held: Tensor | None = None
        if self.wide or matrix.rows * matrix.columns <= _HELD:
            self._held = torch.empty(matrix.rows, matrix.columns)
            height = max(1, _STRIP // matrix.columns)
            for start in range(0, matrix.rows, height):
                stop = min(start + height, matrix.rows)
                self._held[start:stop] = matrix.read(start, stop)

    def __iter__(self) -> Iterator[Float[Tensor, "some short"]]:
        for start in range(0, self._long, self._height):
            stop = min(start + self._height, self._long)
            if self._held is None:
                yield self._matrix.read(start, stop).float()
            else:
                yield self._held[:, start:stop].T if self.wide else self._held[start:stop]

    def other_side(self, vector: Float[Tensor, " short"]) -> Float[Tensor, " long"]:
        """The singular vector of the longer side to one of the shorter side."""
        found: Tensor = torch.cat([strip @ vector.float() for strip in self])
        found /= found.norm()
        return found


def _without_directions(matrix: Matrix, norm: float, values: Tensor) -> Spectrum:
    return Spectrum(
        norm=norm,
        values=values.double(),
        errors=(0.0, 0.0),
        energy_error=0.0,
        left=torch.zeros(matrix.rows),
        right=torch.zeros(matrix.columns),
        count=min(matrix.rows, matrix.columns),
    )


def _eigenvalues(gram: Float[Tensor, "short short"]) -> Float[Tensor, " short"]:
    """Return the eigenvalues in descending order, clamped at 0."""
    # eigvalsh is slower on several threads, ten times if the cores have other work.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ascending: Tensor = torch.linalg.eigvalsh(gram)
    finally:
        torch.set_num_threads(threads)
    return ascending.flip(0).clamp(min=0)


def _leading_vector(gram: Float[Tensor, "short short"], energy: float) -> Float[Tensor, " short"]:
    """Compute the eigenvector of the largest eigenvalue by inverse iteration.

    Computing all eigenvectors would take six times as long.
    """
    size = len(gram)
    shift = energy * (1 + 4 * size * torch.finfo(torch.float64).eps)
    factors = torch.linalg.lu_factor(gram - shift * torch.eye(size, dtype=gram.dtype))
    start = torch.Generator().manual_seed(0)
    vector: Tensor = torch.randn(size, 1, dtype=gram.dtype, generator=start)
    for _ in range(3):
        vector = F.normalize(torch.linalg.lu_solve(*factors, vector), dim=0)
    return vector[:, 0]
