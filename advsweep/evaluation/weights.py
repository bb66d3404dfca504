"""What a run changed in its weights: computed from its checkpoints once, then read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from advsweep.diagnostics.weight_changes import (
    Alignment,
    MatrixChange,
    Values,
    WeightChange,
    align,
    weight_changes,
)
from advsweep.diagnostics.weight_files import Adapter
from advsweep.diagnostics.weights import DELTA
from advsweep.errors import ConfigError
from advsweep.store import NewAnalysis

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import AnalysisRecord, RunRecord, Store

KIND = "weights"
_REVISION = 1
"""Raised when a fix changes results, so that earlier analyses are made anew."""


@dataclass(frozen=True)
class StepChange:
    """What a run has changed in its base model's weights after `step` steps.

    Attributes:
        base: names the base model; changes of runs that share it can be aligned.
    """

    run: RunRecord
    step: int
    base: str
    change: WeightChange


def ensure_analysis(
    store: Store,
    record: RunRecord,
    run: Run,
    step: int,
    *,
    values: Values = Values.AUTO,
    delta: float = DELTA,
    on_matrix: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> StepChange:
    """The analysis of a run's weights after `step` steps, made now if the store has none.

    Raises:
        CheckpointError: it has none, and no sound checkpoint of that step either.
        ConfigError: the backend has no weights, or the base model cannot be read.
    """
    base = run.backend.base_key(run)
    settings = {"base": base, "values": values.value, "delta": delta, "revision": _REVISION}
    wanted = NewAnalysis(kind=KIND, step=step, settings=settings, result={}).identity
    for found in store.analyses.select([record.id], KIND):
        if found.identity == wanted:
            return StepChange(record, step, base, _read(found))
    before = run.backend.weights(run, record.directory, 0)
    after = run.backend.weights(run, record.directory, step)
    assert not isinstance(before, Adapter), "a base model is no adapter"
    change = weight_changes(before, after, values=values, delta=delta, on_matrix=on_matrix)
    store.analyses.add(
        record.id,
        NewAnalysis(
            kind=KIND,
            step=step,
            settings=settings,
            result={
                "matrices": [dataclasses.asdict(matrix) for matrix in change.matrices],
                "left_out": dict(change.left_out),
                "vectors": change.vectors,
                "tied": change.tied,
                "delta": change.delta,
            },
            directions=torch.cat([change.left[m.name] for m in change.matrices]).numpy(),
        ),
    )
    return StepChange(record, step, base, change)


def steps_to_analyse(store: Store, record: RunRecord) -> list[int]:
    """The steps whose weights are there, or were when they were analysed, ascending.

    Raises:
        ConfigError: there are none.
    """
    steps = {checkpoint.step for checkpoint in store.checkpoints.select(record.id)}
    steps |= {analysis.step for analysis in store.analyses.select([record.id], KIND)}
    if not steps - {0}:
        raise ConfigError(
            f"expected a checkpoint of run {record.id} to compare with its base model, and there "
            "is none; let it train on"
        )
    return sorted(steps - {0})


def align_steps(a: StepChange, b: StepChange) -> Alignment:
    """How the leading directions of two changes of one base model lie to each other."""
    return align(a.change.matrices, a.change.left, b.change.left)


def _read(record: AnalysisRecord) -> WeightChange:
    result = record.result
    matrices = tuple(_matrix(row) for row in result["matrices"])
    assert record.directions is not None
    # What the database gave cannot be written to, which torch asks for.
    directions = torch.from_numpy(record.directions.copy())
    parts = torch.split(directions, [matrix.rows for matrix in matrices])
    return WeightChange(
        matrices=matrices,
        left={matrix.name: part for matrix, part in zip(matrices, parts, strict=True)},
        left_out=result["left_out"],
        vectors=result["vectors"],
        tied=result["tied"],
        delta=result["delta"],
    )


def _matrix(row: Mapping[str, Any]) -> MatrixChange:
    values: dict[str, Any] = {k: math.nan if v is None else v for k, v in row.items()}
    if row["s2"] == 0 and row["s1"]:
        values["s1_over_s2"] = math.inf
    return MatrixChange(**values)
