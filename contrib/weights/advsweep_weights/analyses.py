"""Analyses of a run's weights and hidden states, made once and then read from the store."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from advsweep.errors import ConfigError
from advsweep.store import NewAnalysis
from advsweep_weights.changes import (
    DELTA,
    MatrixChange,
    WeightChange,
    head_direction,
    weight_changes,
)
from advsweep_weights.hidden_states import (
    Direction,
    GroupStates,
    HiddenStates,
    analyse_hidden_states,
    sample_tokens,
)
from advsweep_weights.model_files import StoredWeights

if TYPE_CHECKING:
    from advsweep.store import AnalysisRecord, RunRecord, Store
    from advsweep_weights.run_weights import RunWeights

_REVISION = 1
"""Raised when a fix changes results, so that earlier analyses are repeated."""


@dataclass(frozen=True)
class StepChange:
    """The changes to a base model's weights after `step` training steps.

    Attributes:
        base: names the base model; changes of runs that share it can be aligned.
    """

    run: RunRecord
    step: int
    base: str
    change: WeightChange


def ensure_weights(
    store: Store,
    weights: RunWeights,
    *,
    delta: float = DELTA,
    on_matrix: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> StepChange:
    """Return the analysis of a run's weights; make it if the store has none.

    Raises:
        CheckpointError: there is neither an analysis nor a sound checkpoint of that step.
        ConfigError: the backend has no weights to export.
    """
    record = weights.record
    step = weights.step
    base = weights.run.backend.base_key(weights.run)
    settings = {"base": base, "values": "auto", "delta": delta, "revision": _REVISION}
    if found := _find(store, weights, "weights", settings):
        return StepChange(record, step, base, _read_change(found))
    with weights.base().exported() as before, weights.exported() as after:
        change = weight_changes(
            _opened(before, 0), _opened(after, step), delta=delta, on_matrix=on_matrix
        )
    store.analyses.add(
        record.id,
        NewAnalysis(
            kind="weights",
            step=step,
            settings=settings,
            result={
                "matrices": [dataclasses.asdict(matrix) for matrix in change.matrices],
                "left_out": dict(change.left_out),
            },
            directions=torch.cat([change.left[m.name] for m in change.matrices]).numpy(),
        ),
    )
    return StepChange(record, step, base, change)


def steps_to_analyse(store: Store, record: RunRecord) -> list[int]:
    """Return the steps with a checkpoint or an analysis of the weights, ascending.

    Raises:
        ConfigError: there are none.
    """
    steps = {checkpoint.step for checkpoint in store.checkpoints.select(record.id)}
    steps |= {analysis.step for analysis in store.analyses.select([record.id], "weights")}
    if not steps - {0}:
        raise ConfigError(
            f"expected a checkpoint of run {record.id} to compare with its base model, got none; "
            "let it train on"
        )
    return sorted(steps - {0})


def ensure_hidden_states(
    store: Store, weights: RunWeights, *, direction: Direction, prompts: int
) -> HiddenStates:
    """Return the analysis of the hidden states of a run's weights; make it if there is none.

    Args:
        prompts: number of training problems, the first of the next step.

    Raises:
        CheckpointError: there is no sound checkpoint of that step.
        ConfigError: the backend has no language model, or there is no such direction.
    """
    settings = {"direction": direction.value, "prompts": prompts, "revision": _REVISION}
    if found := _find(store, weights, "hidden_states", settings):
        return _read_states(found.result)
    step = weights.step
    if direction is Direction.WEIGHTS and step == 0:
        raise ConfigError("--direction weights: expected a step above 0, as the base is unchanged")
    with weights.exported() as folder:
        advantages = direction is Direction.GRADIENT
        sampled = sample_tokens(weights, folder, prompts, advantages=advantages)
        changed = None
        if direction is Direction.WEIGHTS:
            with weights.base().exported() as base:
                changed = head_direction(_opened(base, 0), _opened(folder, step))
    states = analyse_hidden_states(sampled, direction, changed=changed)
    result = dataclasses.asdict(states)
    store.analyses.add(
        weights.record.id,
        NewAnalysis(kind="hidden_states", step=step, settings=settings, result=result),
    )
    return states


def _opened(folder: Path, step: int) -> StoredWeights:
    weights = StoredWeights(folder)
    weights.title = f"step {step}" if step else "the base"
    return weights


def _find(
    store: Store, weights: RunWeights, kind: str, settings: Mapping[str, Any]
) -> AnalysisRecord | None:
    wanted = NewAnalysis(kind=kind, step=weights.step, settings=settings, result={}).identity
    analyses = store.analyses.select([weights.record.id], kind)
    return next((found for found in analyses if found.identity == wanted), None)


def _read_change(record: AnalysisRecord) -> WeightChange:
    result = record.result
    fields = [f.name for f in dataclasses.fields(MatrixChange)]
    matrices = []
    for row in result["matrices"]:
        values = {name: _number(row[name]) for name in fields}
        # JSON has no infinity: the store keeps null for this ratio as well.
        if row["s2"] == 0 and row["s1"]:
            values["s1_over_s2"] = math.inf
        matrices.append(MatrixChange(**values))
    assert record.directions is not None
    # Copied, as torch requires writable memory and the database's buffer is read-only.
    directions = torch.from_numpy(record.directions.copy())
    parts = torch.split(directions, [matrix.rows for matrix in matrices])
    left = {matrix.name: part for matrix, part in zip(matrices, parts, strict=True)}
    return WeightChange(matrices=tuple(matrices), left=left, left_out=result["left_out"])


def _read_states(result: Mapping[str, Any]) -> HiddenStates:
    numbers = {name: _number(value) for name, value in result.items()}
    groups = {
        name: GroupStates(**{key: _number(value) for key, value in result[name].items()})
        for name in ("correct", "failed")
    }
    return HiddenStates(**numbers | groups)


def _number(value: Any) -> Any:
    return math.nan if value is None else value
