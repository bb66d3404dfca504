"""The changes of a model's weights by a training: per matrix, per part and in total."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch

from advsweep.diagnostics.weight_files import Adapter
from advsweep.diagnostics.weights import (
    DELTA,
    Matrix,
    Spectrum,
    alignment,
    leading_spectrum,
    whole_spectrum,
)
from advsweep.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.diagnostics.weight_files import ModelWeights

HEAD = "head"
EMBEDDING = "embedding"
OTHER = "other"
LAYER = "layer "

WHOLE_UP_TO = 2048
"""Largest shorter side for which `Values.AUTO` computes all singular values."""

_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "tok_embeddings.weight")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


class Values(Enum):
    """The singular values to compute.

    `AUTO`: all values of the head and of matrices whose shorter side is at most 2048, the leading
    ones of other matrices. `ALL` takes hours for a model of 7B parameters. `LEADING` gives only
    bounds on srank.
    """

    AUTO = "auto"
    ALL = "all"
    LEADING = "leading"


@dataclass(frozen=True, kw_only=True)
class MatrixChange:
    """The change of one matrix; see `weights` for the symbols.

    Attributes:
        part: `head`, `embedding`, `layer N` (counted from 0) or `other`. A tied embedding counts
            as the head.
        share: share of Σ ‖D‖_F² over all matrices; NaN if nothing changed.
        s1_error, s2_error, r1_error: error bounds; 0 if all singular values are known.
        srank, srank_most: the least and greatest possible srank.
    """

    name: str
    part: str
    rows: int
    columns: int
    norm: float
    share: float
    s1: float
    s1_error: float
    s2: float
    s2_error: float
    s1_over_s2: float
    r1: float
    r1_error: float
    srank: int
    srank_most: int


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """The joint change of the matrices of one part of the model.

    Attributes:
        part: `all`, `head`, `embedding`, `layers` (all of them), `layer N` or `other`.
        matrices: number of matrices.
        norm: √Σ ‖D‖_F².
        share: share of Σ ‖D‖_F² over all matrices.
        s1_over_s2: mean over the matrices that changed.
        r1: Σ s₁² / Σ ‖D‖_F².
        srank, srank_most: means over the matrices that changed.
    """

    part: str
    matrices: int
    norm: float
    share: float
    s1_over_s2: float
    r1: float
    srank: float
    srank_most: float


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """The change of a whole model.

    Attributes:
        matrices: in the order of their names, layers by number.
        left: the left singular vector of s₁ of each matrix; zeros for an unchanged matrix.
        left_out: the reason for each tensor that was left out, by name.
        vectors: number of vectors of the base, such as norms and biases, which do not count.
        tied: whether the head is the embedding.
        delta: the δ of srank.
    """

    matrices: tuple[MatrixChange, ...]
    left: Mapping[str, Float[Tensor, " rows"]] = field(repr=False)
    left_out: Mapping[str, str]
    vectors: int
    tied: bool
    delta: float

    @property
    def parts(self) -> tuple[PartChange, ...]:
        """Return the changes of all matrices, of the head, the embedding and the layers."""
        return tuple(parts_of(self.matrices))


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """|cos| of the leading left singular vectors of two changes; NaN if there are none.

    Attributes:
        head: that of the output head.
        layers: mean over the matrices of all layers.
        early, middle, late: means over the first, second and last third, for at least three
            layers.
        matrices: number of layer matrices that changed in both.
    """

    head: float
    layers: float
    early: float
    middle: float
    late: float
    matrices: int


def weight_changes(
    base: ModelWeights,
    tuned: ModelWeights | Adapter,
    *,
    values: Values = Values.AUTO,
    delta: float = DELTA,
    on_matrix: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> WeightChange:
    """Compare two models, matrix by matrix.

    Args:
        values: the singular values to compute.
        delta: the δ of srank.
        on_matrix: called before each matrix with the number done, the total and its name.

    Raises:
        ConfigError: the models have no matrix of the same name and shape.
        CheckpointError: weights are not finite, or cannot be read.
    """
    tied, pairs, left_out = _pair(base, tuned)
    found: list[tuple[str, str, Spectrum]] = []
    ordered = sorted(pairs, key=_by_number)
    for done, name in enumerate(ordered):
        on_matrix(done, len(ordered), name)
        part = _part_of(name, tied)
        matrix = pairs[name]
        short = min(matrix.rows, matrix.columns)
        whole = values is Values.ALL or (
            values is Values.AUTO and (part == HEAD or short <= WHOLE_UP_TO)
        )
        spectrum = whole_spectrum(matrix) if whole else leading_spectrum(matrix)
        if not math.isfinite(spectrum.norm):
            raise CheckpointError(f"{tuned.title}: expected finite weights, got others in {name}")
        found.append((name, part, spectrum))
    total = sum(spectrum.norm**2 for _, _, spectrum in found)
    return WeightChange(
        matrices=tuple(_change(*each, total, delta) for each in found),
        left={name: spectrum.left for name, _, spectrum in found},
        left_out=left_out,
        vectors=sum(len(shape) < 2 for shape in base.shapes.values()),
        tied=tied,
        delta=delta,
    )


def head_direction(base: ModelWeights, tuned: ModelWeights | Adapter) -> Float[Tensor, " columns"]:
    """Return the right singular vector of s₁ of the head's change; zeros if it did not change.

    Raises:
        ConfigError: the models have no common head.
    """
    tied, pairs, _ = _pair(base, tuned)
    heads = [name for name in pairs if _part_of(name, tied) == HEAD]
    if not heads:
        raise ConfigError(
            f"expected two models with the same output head, got {base.title} and {tuned.title}"
        )
    return whole_spectrum(pairs[heads[0]]).right


def parts_of(matrices: Sequence[MatrixChange]) -> Iterator[PartChange]:
    """Yield the changes of some matrices, grouped by the parts of the model."""
    yield _together("all", matrices)
    parts = {matrix.part: [m for m in matrices if m.part == matrix.part] for matrix in matrices}
    layers = [matrix for matrix in matrices if matrix.part.startswith(LAYER)]
    for part in (HEAD, EMBEDDING):
        if part in parts:
            yield _together(part, parts[part])
    if layers:
        yield _together("layers", layers)
    for part, members in parts.items():
        if part not in (HEAD, EMBEDDING):
            yield _together(part, members)


def align(
    matrices: Sequence[MatrixChange],
    a: Mapping[str, Float[Tensor, " rows"]],
    b: Mapping[str, Float[Tensor, " rows"]],
) -> Alignment:
    """Return the alignment of the leading directions of two changes of one model.

    Source: FADE (arXiv:2607.01490), sec. 15.3, Table 12: left vectors, those of layers averaged
    as |cos|, in thirds. Departures: the paper does not say which matrices of a layer it
    averages; here all of them count.

    Args:
        matrices: the matrices of one of the two changes, for their parts.
        a, b: left singular vectors by the name of their matrix.
    """
    count = 1 + max((_layer(m) for m in matrices if m.part.startswith(LAYER)), default=-1)
    head = math.nan
    every: list[float] = []
    by_third: list[list[float]] = [[], [], []]
    for matrix in matrices:
        if matrix.name not in a or matrix.name not in b:
            continue
        if a[matrix.name].shape != b[matrix.name].shape:
            continue
        cosine = alignment(a[matrix.name], b[matrix.name])
        if matrix.part == HEAD:
            head = cosine
        elif matrix.part.startswith(LAYER) and not math.isnan(cosine):
            every.append(cosine)
            by_third[3 * _layer(matrix) // count].append(cosine)
    early, middle, late = (_mean(third if count > 2 else []) for third in by_third)
    return Alignment(
        head=head, layers=_mean(every), early=early, middle=middle, late=late, matrices=len(every)
    )


def _pair(
    base: ModelWeights, tuned: ModelWeights | Adapter
) -> tuple[bool, dict[str, Matrix], dict[str, str]]:
    """Return whether the head is tied, the common matrices, and why others are left out."""
    ours, theirs = _matrices(base.shapes), _matrices(tuned.shapes)
    if isinstance(tuned, Adapter):
        tied = _is_tied(base, ours)
    else:
        tied = _is_tied(base, ours) and _is_tied(tuned, theirs)
        if tied:  # some libraries save a tied head a second time
            ours, theirs = (_without_head(shapes) for shapes in (ours, theirs))
    pairs: dict[str, Matrix] = {}
    stacked = {name: len(shape) for name, shape in base.shapes.items() if len(shape) > 2}
    left_out = {name: f"of {dimensions} dimensions" for name, dimensions in stacked.items()}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in ours or (name not in theirs and not isinstance(tuned, Adapter)):
            where = tuned.title if name in theirs else base.title
            left_out[name] = f"in {where} alone"
        elif name in theirs and ours[name] != theirs[name]:
            shapes = (" x ".join(map(str, shape)) for shape in (ours[name], theirs[name]))
            left_out[name] = "of shape {} in the base, {} in the other".format(*shapes)
        else:
            pairs[name] = Matrix(*ours[name], _reader(name, base, tuned))
    if not pairs:
        some = next(iter(left_out.items()), None)
        why = f"{some[0]} is {some[1]}" if some else "they have none"
        raise ConfigError(
            f"expected two models with matrices of the same names and shapes, got {base.title} and "
            f"{tuned.title}: {why}"
        )
    return tied, pairs, left_out


def _reader(
    name: str, base: ModelWeights, tuned: ModelWeights | Adapter
) -> Callable[[int, int], Tensor]:
    def added(start: int, stop: int) -> Tensor:
        if name in tuned.shapes:
            return tuned.rows(name, start, stop)
        return torch.zeros(stop - start, base.shapes[name][1])

    def changed(start: int, stop: int) -> Tensor:
        before = base.rows(name, start, stop).float()
        return tuned.rows(name, start, stop).float() - before

    return added if isinstance(tuned, Adapter) else changed


def _matrices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    return {name: (shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2}


def _is_tied(weights: ModelWeights, shapes: Mapping[str, tuple[int, int]]) -> bool:
    if weights.tied is not None:
        return weights.tied
    return not any(name.endswith(_HEADS) for name in shapes)


def _without_head(shapes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {name: shape for name, shape in shapes.items() if not name.endswith(_HEADS)}


def _part_of(name: str, tied: bool) -> str:
    if match := _LAYER.search(name):
        return f"{LAYER}{int(match[1])}"
    if name.endswith(_EMBEDDINGS):
        return HEAD if tied else EMBEDDING
    return HEAD if name.endswith(_HEADS) else OTHER


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers inside names numerically."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p]


def _layer(matrix: MatrixChange) -> int:
    return int(matrix.part.removeprefix(LAYER))


def _change(name: str, part: str, spectrum: Spectrum, total: float, delta: float) -> MatrixChange:
    low, high = spectrum.srank(delta)
    return MatrixChange(
        name=name,
        part=part,
        rows=len(spectrum.left),
        columns=len(spectrum.right),
        norm=spectrum.norm,
        share=spectrum.norm**2 / total if total else math.nan,
        s1=spectrum.s1,
        s1_error=spectrum.errors[0],
        s2=spectrum.s2,
        s2_error=spectrum.errors[1],
        s1_over_s2=spectrum.gap,
        r1=spectrum.r1,
        r1_error=spectrum.r1_error,
        srank=low,
        srank_most=high,
    )


def _together(part: str, matrices: Sequence[MatrixChange]) -> PartChange:
    changed = [matrix for matrix in matrices if matrix.norm]
    energy = sum(matrix.norm**2 for matrix in matrices)
    return PartChange(
        part=part,
        matrices=len(matrices),
        norm=math.sqrt(energy),
        share=sum(matrix.share for matrix in matrices),
        s1_over_s2=_mean([m.s1_over_s2 for m in changed if not math.isnan(m.s1_over_s2)]),
        r1=sum(m.s1**2 for m in changed) / energy if energy else math.nan,
        srank=_mean([m.srank for m in changed]),
        srank_most=_mean([m.srank_most for m in changed]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
