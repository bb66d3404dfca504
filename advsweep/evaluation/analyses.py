"""Analyses of a run's checkpoints, made once and then read from the store.

`ensure_analysis` compares weights with the base model's; `ensure_hidden_states` compares the
hidden states of correct and failed rollouts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from advsweep.diagnostics.hidden_states import (
    Direction,
    GroupStates,
    HiddenStates,
    analyse_hidden_states,
)
from advsweep.diagnostics.weight_changes import (
    Alignment,
    MatrixChange,
    Values,
    WeightChange,
    align,
    head_direction,
    weight_changes,
)
from advsweep.diagnostics.weight_files import Adapter
from advsweep.diagnostics.weights import DELTA
from advsweep.errors import ConfigError
from advsweep.store import NewAnalysis

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.components import Plain
    from advsweep.store import AnalysisRecord, RunRecord, Store

WEIGHTS = "weights"
HIDDEN_STATES = "hidden_states"
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
    """Returns the analysis of the weights after `step` steps; makes it if the store has none.

    Raises:
        CheckpointError: there is neither an analysis nor a sound checkpoint of that step.
        ConfigError: the backend has no weights, or the base model cannot be read.
    """
    base = run.backend.base_key(run)
    settings = {"base": base, "values": values.value, "delta": delta, "revision": _REVISION}
    if found := _find(store, record, WEIGHTS, step, settings):
        return StepChange(record, step, base, _read_change(found))
    before = run.backend.weights(run, record.directory, 0)
    after = run.backend.weights(run, record.directory, step)
    assert not isinstance(before, Adapter), "a base model is no adapter"
    change = weight_changes(before, after, values=values, delta=delta, on_matrix=on_matrix)
    store.analyses.add(
        record.id,
        NewAnalysis(
            kind=WEIGHTS,
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
    """Returns the steps with a checkpoint or an analysis of the weights, ascending.

    Raises:
        ConfigError: there are none.
    """
    steps = {checkpoint.step for checkpoint in store.checkpoints.select(record.id)}
    steps |= {analysis.step for analysis in store.analyses.select([record.id], WEIGHTS)}
    if not steps - {0}:
        raise ConfigError(
            f"expected a checkpoint of run {record.id} to compare with its base model, and there "
            "is none; let it train on"
        )
    return sorted(steps - {0})


def align_steps(a: StepChange, b: StepChange) -> Alignment:
    """Compares the leading directions of two changes of one base model."""
    return align(a.change.matrices, a.change.left, b.change.left)


def ensure_hidden_states(
    store: Store, record: RunRecord, run: Run, step: int, *, direction: Direction, prompts: int
) -> HiddenStates:
    """Returns the analysis of the hidden states after `step` steps; makes it if there is none.

    Args:
        prompts: number of training problems, the first of the next step.

    Raises:
        CheckpointError: there is no sound checkpoint of that step.
        ConfigError: the backend has no hidden states, or there is no such direction.
        BatchError: the estimator cannot weigh the rollouts, which `GRADIENT` requires.
    """
    settings = {"direction": direction.value, "prompts": prompts, "revision": _REVISION}
    if found := _find(store, record, HIDDEN_STATES, step, settings):
        return _read_states(found.result)
    if direction is Direction.WEIGHTS and step == 0:
        raise ConfigError("--direction weights: expected a step above 0, as the base is unchanged")
    if direction is Direction.GRADIENT and "ref_rewards" in run.estimator.needs:
        raise ConfigError(
            f"--direction gradient: estimator '{run.estimator.name}' weighs rollouts by those of a "
            "reference model, which are not drawn here; expected hidden or weights"
        )
    if direction is Direction.GRADIENT and run.estimator.per_token:
        raise ConfigError(
            f"--direction gradient: estimator '{run.estimator.name}' gives every token an "
            "advantage, and the batch gradient is of one per rollout; expected hidden or weights"
        )
    run.task.check_consent()
    backend, folder = run.backend, record.directory
    sampled = backend.sampled_tokens(
        run, folder, step, prompts, advantages=direction is Direction.GRADIENT
    )
    changed = None
    if direction is Direction.WEIGHTS:
        base = backend.weights(run, folder, 0)
        assert not isinstance(base, Adapter), "a base model is no adapter"
        changed = head_direction(base, backend.weights(run, folder, step))
    states = analyse_hidden_states(sampled, direction, changed=changed)
    result = dataclasses.asdict(states)
    analysis = NewAnalysis(kind=HIDDEN_STATES, step=step, settings=settings, result=result)
    store.analyses.add(record.id, analysis)
    return states


def _find(
    store: Store, record: RunRecord, kind: str, step: int, settings: Plain
) -> AnalysisRecord | None:
    """Returns the run's analysis with these settings; None if the store has none."""
    identity = NewAnalysis(kind=kind, step=step, settings=settings, result={}).identity
    analyses = store.analyses.select([record.id], kind)
    return next((found for found in analyses if found.identity == identity), None)


def _read_change(record: AnalysisRecord) -> WeightChange:
    result = record.result
    matrices = tuple(_matrix(row) for row in result["matrices"])
    assert record.directions is not None
    # Copied, as torch requires writable memory and the database's buffer is read-only.
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
    values: dict[str, Any] = {name: _number(value) for name, value in row.items()}
    # JSON has no infinity: the store keeps null for this ratio as well.
    if row["s2"] == 0 and row["s1"]:
        values["s1_over_s2"] = math.inf
    return MatrixChange(**values)


def _read_states(result: Mapping[str, Any]) -> HiddenStates:
    numbers = {name: _number(value) for name, value in result.items()}
    groups = {
        name: GroupStates(**{key: _number(value) for key, value in result[name].items()})
        for name in ("correct", "failed")
    }
    return HiddenStates(**numbers | groups)


def _number(value: Any) -> Any:
    return math.nan if value is None else value
