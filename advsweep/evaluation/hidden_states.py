"""How hidden states of a run's correct and failed rollouts agree: computed once, then read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advsweep.diagnostics.hidden_states import (
    Direction,
    GroupStates,
    HiddenStates,
    analyse_hidden_states,
)
from advsweep.diagnostics.weight_changes import head_direction
from advsweep.diagnostics.weight_files import Adapter
from advsweep.errors import ConfigError
from advsweep.store import NewAnalysis

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import RunRecord, Store

KIND = "hidden_states"
_REVISION = 1
"""Raised when a fix changes results, so that earlier analyses are made anew."""


def ensure_hidden_states(
    store: Store, record: RunRecord, run: Run, step: int, *, direction: Direction, prompts: int
) -> HiddenStates:
    """The analysis of the weights after `step` steps, made now if the store has none.

    Args:
        prompts: how many of the training problems that the next step would begin with.

    Raises:
        CheckpointError: there is no sound checkpoint of that step.
        ConfigError: the backend has no hidden states, or there is no such direction.
        BatchError: the estimator cannot weigh the rollouts, which `GRADIENT` asks of it.
    """
    settings = {"direction": direction.value, "prompts": prompts, "revision": _REVISION}
    wanted = NewAnalysis(kind=KIND, step=step, settings=settings, result={}).identity
    for found in store.analyses.select([record.id], KIND):
        if found.identity == wanted:
            return _read(found.result)
    if direction is Direction.WEIGHTS and step == 0:
        raise ConfigError("--direction weights: expected a step above 0, as the base is unchanged")
    if direction is Direction.GRADIENT and "ref_rewards" in run.estimator.needs:
        raise ConfigError(
            f"--direction gradient: estimator '{run.estimator.name}' weighs rollouts by those of a "
            "reference model, which are not drawn here; expected hidden or weights"
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
    result = analyse_hidden_states(sampled, direction, changed=changed)
    store.analyses.add(
        record.id,
        NewAnalysis(kind=KIND, step=step, settings=settings, result=dataclasses.asdict(result)),
    )
    return result


def _read(result: Mapping[str, Any]) -> HiddenStates:
    numbers = {name: _number(value) for name, value in result.items()}
    groups = {
        name: GroupStates(**{key: _number(value) for key, value in result[name].items()})
        for name in ("correct", "failed")
    }
    return HiddenStates(**numbers | groups)


def _number(value: Any) -> Any:
    return math.nan if value is None else value
