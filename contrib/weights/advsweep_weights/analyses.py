"""Analyses of a run's weights and hidden states, made once and then read from the store."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    from advsweep.backends.base import Run
    from advsweep.store import AnalysisRecord, RunRecord, Store

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
    record: RunRecord,
    run: Run,
    step: int,
    *,
    delta: float = DELTA,
    on_matrix: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> StepChange:
    """Return the analysis of the weights after `step` steps; make it if the store has none.

    Raises:
        CheckpointError: there is neither an analysis nor a sound checkpoint of that step.
        ConfigError: the backend has no weights to export.
    """
    base = run.backend.base_key(run)
    settings = {"base": base, "values": "auto", "delta": delta, "revision": _REVISION}
    if found := _find(store, record, "weights", step, settings):
        return StepChange(record, step, base, _read_change(found))
    with _exported(run, record, 0) as before, _exported(run, record, step) as after:
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
    store: Store, record: RunRecord, run: Run, step: int, *, direction: Direction, prompts: int
) -> HiddenStates:
    """Return the analysis of the hidden states after `step` steps; make it if there is none.

    Args:
        prompts: number of training problems, the first of the next step.

    Raises:
        CheckpointError: there is no sound checkpoint of that step.
        ConfigError: the backend has no language model, or there is no such direction.
    """
    settings = {"direction": direction.value, "prompts": prompts, "revision": _REVISION}
    if found := _find(store, record, "hidden_states", step, settings):
        return _read_states(found.result)
    if direction is Direction.WEIGHTS and step == 0:
        raise ConfigError("--direction weights: expected a step above 0, as the base is unchanged")
    with _exported(run, record, step) as folder:
        advantages = direction is Direction.GRADIENT
        sampled = sample_tokens(run, record.directory, step, prompts, folder, advantages=advantages)
        changed = None
        if direction is Direction.WEIGHTS:
            with _exported(run, record, 0) as base:
                changed = head_direction(_opened(base, 0), _opened(folder, step))
    states = analyse_hidden_states(sampled, direction, changed=changed)
    result = dataclasses.asdict(states)
    store.analyses.add(
        record.id,
        NewAnalysis(kind="hidden_states", step=step, settings=settings, result=result),
    )
    return states


@contextmanager
def _exported(run: Run, record: RunRecord, step: int) -> Iterator[Path]:
    """Export a run's weights to a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="advsweep-weights-") as folder:
        run.backend.export(run, record.directory, step, Path(folder))
        yield Path(folder)


def _opened(folder: Path, step: int) -> StoredWeights:
    weights = StoredWeights(folder)
    weights.title = f"step {step}" if step else "the base"
    return weights


def _find(
    store: Store, record: RunRecord, kind: str, step: int, settings: Mapping[str, Any]
) -> AnalysisRecord | None:
    wanted = NewAnalysis(kind=kind, step=step, settings=settings, result={}).identity
    analyses = store.analyses.select([record.id], kind)
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
