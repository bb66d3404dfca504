"""The changes of a model's weights by a training: per matrix, per part and in total.

D = W_tuned - W_base with singular values s₁ ≥ s₂ ≥ ...; the sign of D does not matter here.

    ‖D‖_F = √Σ sᵢ²        r₁ = s₁² / ‖D‖_F²
    srank_δ = least k with (s₁ + ... + s_k) / Σ sᵢ ≥ 1 - δ

The singular values are computed from the eigenvalues of the smaller Gram matrix, DᵀD or DDᵀ,
summed in float64; values below about 1e-8 s₁ are rounding error. One matrix is in memory at a
time, in float32.

Source: FADE (arXiv:2607.01490), Fig. 5, sec. 15.1; srank: Kumar et al. 2020
(arXiv:2010.14498), Eq. 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from advsweep.errors import CheckpointError, ConfigError
from advsweep_weights.model_files import StoredWeights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

DELTA = 0.01
"""The share of Σ sᵢ that srank leaves out; the paper does not print its value."""

HEAD = "head"
EMBEDDING = "embedding"
LAYER = "layer "

_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "tok_embeddings.weight")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_STRIP = 1 << 22
"""Elements of D that are in float64 at once."""


@dataclass(frozen=True)
class Spectrum:
    """All singular values of a matrix.

    Attributes:
        norm: ‖D‖_F; NaN or infinite where D is.
        values: singular values, descending.
        left, right: the singular vectors of s₁, of length 1; zeros where D is zero.
    """

    norm: float
    values: Float[Tensor, " values"]
    left: Float[Tensor, " rows"]
    right: Float[Tensor, " columns"]

    def srank(self, delta: float) -> int:
        """Return srank_δ; 0 where all values are 0."""
        cumulated = self.values.double().cumsum(0)
        if not cumulated[-1]:
            return 0
        # Without the slack, rounding could keep even the last sum below its own share.
        reached = cumulated >= (1 - delta) * cumulated[-1] * (1 - 1e-12)
        return int(reached.nonzero()[0]) + 1


@dataclass(frozen=True, kw_only=True)
class MatrixChange:
    """The change of one matrix.

    Attributes:
        part: `head`, `embedding`, `layer N` (counted from 0) or `other`. A tied embedding counts
            as the head.
        share: share of Σ ‖D‖_F² over all matrices; NaN if nothing changed.
        s2: NaN for a matrix of one row or column.
        s1_over_s2: infinite for a matrix of rank 1, NaN for zero.
    """

    name: str
    part: str
    rows: int
    columns: int
    norm: float
    share: float
    s1: float
    s2: float
    s1_over_s2: float
    r1: float
    srank: int


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """The joint change of the matrices of one part of the model.

    Attributes:
        part: `all`, `head`, `embedding`, `layers` (all of them), `layer N` or `other`.
        norm: √Σ ‖D‖_F².
        share: share of Σ ‖D‖_F² over all matrices.
        s1_over_s2, srank: means over the matrices that changed.
        r1: Σ s₁² / Σ ‖D‖_F².
    """

    part: str
    matrices: int
    norm: float
    share: float
    s1_over_s2: float
    r1: float
    srank: float


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """The change of a whole model.

    Attributes:
        matrices: in the order of their names, layers by number.
        left: the left singular vector of s₁ of each matrix; zeros for an unchanged matrix.
        left_out: the reason for each tensor that was left out, by name.
    """

    matrices: tuple[MatrixChange, ...]
    left: Mapping[str, Float[Tensor, " rows"]] = field(repr=False)
    left_out: Mapping[str, str]

    @property
    def parts(self) -> list[PartChange]:
        """Return the changes of all matrices, the head, the embedding and the layers."""
        by_part: dict[str, list[MatrixChange]] = {}
        for matrix in self.matrices:
            by_part.setdefault(matrix.part, []).append(matrix)
        groups = {"all": list(self.matrices)}
        groups |= {part: by_part.pop(part) for part in (HEAD, EMBEDDING) if part in by_part}
        if layers := [matrix for matrix in self.matrices if matrix.part.startswith(LAYER)]:
            groups["layers"] = layers
        return [_together(part, members) for part, members in (groups | by_part).items()]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """|cos| of the leading left singular vectors of two changes; NaN if there are none.

    Attributes:
        layers: mean over the matrices of all layers.
        early, middle, late: means over the thirds of three layers or more.
        matrices: number of layer matrices that changed in both.
    """

    head: float
    layers: float
    early: float
    middle: float
    late: float
    matrices: int


def spectrum(change: Float[Tensor, "rows columns"]) -> Spectrum:
    """Compute all singular values of D, and the vectors of the first.

    This takes 2 m n² operations and an eigenvalue problem of the size of the shorter side n.
    """
    change = change.float()
    wide = change.shape[1] > change.shape[0]
    strips = (change.T if wide else change).split(max(1, _STRIP // min(change.shape)))
    short = strips[0].shape[1]
    gram = torch.zeros(short, short, dtype=torch.float64)
    for strip in strips:
        part = strip.double()
        gram.addmm_(part.T, part)
    norm = math.sqrt(gram.trace().item())
    if norm == 0 or not math.isfinite(norm):
        values = torch.zeros(short, dtype=torch.float64)
        return Spectrum(norm, values, *(torch.zeros(size) for size in change.shape))
    # eigvalsh is slower on several threads, ten times if the cores have other work.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        energies = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    finally:
        torch.set_num_threads(threads)
    vector = _leading_vector(gram, energies[0].item()).float()
    other = F.normalize(torch.cat([strip @ vector for strip in strips]), dim=0)
    left, right = (vector, other) if wide else (other, vector)
    return Spectrum(norm, energies.sqrt(), left, right)


def _leading_vector(gram: Float[Tensor, "short short"], energy: float) -> Float[Tensor, " short"]:
    """Return the eigenvector of the largest eigenvalue by inverse iteration.

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


def weight_changes(
    base: StoredWeights,
    tuned: StoredWeights,
    *,
    delta: float = DELTA,
    on_matrix: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> WeightChange:
    """Compare two models, matrix by matrix.

    Args:
        on_matrix: called before each matrix with the number done, the total and its name.

    Raises:
        ConfigError: the models have no matrix of the same name and shape.
        CheckpointError: weights are not finite, or cannot be read.
    """
    parts, left_out = _common(base, tuned)
    found: dict[str, Spectrum] = {}
    for done, name in enumerate(parts):
        on_matrix(done, len(parts), name)
        found[name] = spectrum(_change(base, tuned, name))
        if not math.isfinite(found[name].norm):
            raise CheckpointError(f"{tuned.title}: expected finite weights, got others in {name}")
    total = sum(each.norm**2 for each in found.values())
    matrices = []
    for name, each in found.items():
        s1, s2 = each.values[0].item(), math.nan
        if len(each.values) > 1:
            s2 = each.values[1].item()
        gap = math.nan
        if each.norm and not math.isnan(s2):
            gap = s1 / s2 if s2 else math.inf
        matrices.append(
            MatrixChange(
                name=name,
                part=parts[name],
                rows=len(each.left),
                columns=len(each.right),
                norm=each.norm,
                share=each.norm**2 / total if total else math.nan,
                s1=s1,
                s2=s2,
                s1_over_s2=gap,
                r1=min(1.0, s1**2 / each.norm**2) if each.norm else math.nan,
                srank=each.srank(delta),
            )
        )
    left = {name: each.left for name, each in found.items()}
    return WeightChange(matrices=tuple(matrices), left=left, left_out=left_out)


def head_direction(base: StoredWeights, tuned: StoredWeights) -> Float[Tensor, " columns"]:
    """Return the right singular vector of s₁ of the head's change; zeros if it did not change.

    Raises:
        ConfigError: the models have no common head.
    """
    parts, _ = _common(base, tuned)
    heads = [name for name, part in parts.items() if part == HEAD]
    if not heads:
        raise ConfigError(
            f"expected two models with the same output head, got {base.title} and {tuned.title}"
        )
    return spectrum(_change(base, tuned, heads[0])).right


def align(a: WeightChange, b: WeightChange) -> Alignment:
    """Compare the leading directions of two changes of one model.

    Source: FADE (arXiv:2607.01490), sec. 15.3, Table 12: left vectors, those of layers averaged
    as |cos|, in thirds. Departures: the paper does not say which matrices of a layer it
    averages; here all of them count.
    """
    layers = [int(m.part.removeprefix(LAYER)) for m in a.matrices if m.part.startswith(LAYER)]
    count = 1 + max(layers, default=-1)
    head = math.nan
    every: list[float] = []
    thirds: tuple[list[float], ...] = ([], [], [])
    for matrix in a.matrices:
        ours, theirs = a.left[matrix.name].double(), b.left.get(matrix.name)
        if theirs is None or theirs.shape != ours.shape:
            continue
        length = (ours.norm() * theirs.double().norm()).item()
        if not length:
            continue
        cosine = abs(ours.dot(theirs.double()).item()) / length
        if matrix.part == HEAD:
            head = cosine
        elif matrix.part.startswith(LAYER):
            every.append(cosine)
            thirds[3 * int(matrix.part.removeprefix(LAYER)) // count].append(cosine)
    early, middle, late = (mean(third if count > 2 else []) for third in thirds)
    return Alignment(
        head=head, layers=mean(every), early=early, middle=middle, late=late, matrices=len(every)
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN of no values."""
    return sum(values) / len(values) if values else math.nan


def _common(base: StoredWeights, tuned: StoredWeights) -> tuple[dict[str, str], dict[str, str]]:
    """Return the part of each matrix that both have, by name, and why others are left out."""
    ours, theirs = (
        {name: shape for name, shape in weights.shapes.items() if len(shape) == 2}
        for weights in (base, tuned)
    )
    tied = _is_tied(base) and _is_tied(tuned)
    if tied:  # some libraries save a tied head a second time
        ours, theirs = (
            {name: shape for name, shape in shapes.items() if not name.endswith(_HEADS)}
            for shapes in (ours, theirs)
        )
    left_out = {
        name: f"of {len(shape)} dimensions" for name, shape in base.shapes.items() if len(shape) > 2
    }
    left_out |= {name: f"in {base.title} alone" for name in ours if name not in theirs}
    left_out |= {name: f"in {tuned.title} alone" for name in theirs if name not in ours}
    for name in ours.keys() & theirs:
        if ours[name] != theirs[name]:
            left_out[name] = f"of shape {ours[name]} in the base, {theirs[name]} in the other"
    kept = sorted((name for name in ours if name not in left_out), key=_by_number)
    if not kept:
        raise ConfigError(
            f"expected two models with matrices of the same names and shapes, got {base.title} and "
            f"{tuned.title}, which share none"
        )
    return {name: _part_of(name, tied) for name in kept}, left_out


def _change(base: StoredWeights, tuned: StoredWeights, name: str) -> Tensor:
    return tuned.matrix(name).float() - base.matrix(name).float()


def _is_tied(weights: StoredWeights) -> bool:
    if weights.tied is not None:
        return weights.tied
    return not any(name.endswith(_HEADS) for name in weights.shapes)


def _part_of(name: str, tied: bool) -> str:
    if match := _LAYER.search(name):
        return f"{LAYER}{int(match[1])}"
    if name.endswith(_EMBEDDINGS):
        return HEAD if tied else EMBEDDING
    return HEAD if name.endswith(_HEADS) else "other"


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers inside names numerically."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p]


def _together(part: str, matrices: Sequence[MatrixChange]) -> PartChange:
    changed = [matrix for matrix in matrices if matrix.norm]
    energy = sum(matrix.norm**2 for matrix in matrices)
    return PartChange(
        part=part,
        matrices=len(matrices),
        norm=math.sqrt(energy),
        share=sum(matrix.share for matrix in matrices),
        s1_over_s2=mean([m.s1_over_s2 for m in changed if not math.isnan(m.s1_over_s2)]),
        r1=sum(m.s1**2 for m in changed) / energy if energy else math.nan,
        srank=mean([m.srank for m in changed]),
    )
