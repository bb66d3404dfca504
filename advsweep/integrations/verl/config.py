"""The key `policy_loss.advsweep` of verl's actor, which describes an objective."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from verl.workers import config as verl_config

from advsweep.errors import ConfigError
from advsweep.integrations.objectives import build_objective, lacks_length
from advsweep.integrations.verl.spec import NAME, read_spec
from advsweep.objectives.base import Objective

KEY = f"actor_rollout_ref.actor.policy_loss.{NAME}"


@dataclass
class PolicyLossConfig(verl_config.PolicyLossConfig):  # type: ignore[misc]
    """verl's settings of a policy loss, with an objective.

    verl builds them before it loads a model, so that what does not fit is refused in time.

    Raises:
        ConfigError: the objective does not fit, or needs what verl's losses do not get.
    """

    advsweep: Any = None

    def __post_init__(self) -> None:
        if self.loss_mode == NAME:
            objective_of(self)


# verl's YAML files name the class by its place.
verl_config.PolicyLossConfig = PolicyLossConfig


def objective_of(policy_loss: Any) -> Objective:
    """Return the objective of a section `policy_loss`.

    Raises:
        ConfigError: as `PolicyLossConfig`.
    """
    return _shared_objective(json.dumps(read_spec(policy_loss, KEY, "objective"), sort_keys=True))


@functools.cache
def _shared_objective(spec: str) -> Objective:
    objective = build_objective(json.loads(spec), where=KEY)
    theirs = {
        "the reference's log-probabilities": (objective.needs_reference, "actor.use_kl_loss"),
        "entropies": (
            objective.needs_entropy,
            "actor.entropy_coeff (top_entropy_quantile has no equivalent)",
        ),
        "the sampler's log-probabilities": (
            objective.needs_sampler,
            "algorithm.rollout_correction",
        ),
    }
    for what, (is_needed, setting) in theirs.items():
        if is_needed:
            raise ConfigError(
                f"{KEY}: objective '{objective.name}' as set needs {what}, which verl hands over "
                f"to no policy loss; expected one without, and {setting} of verl"
            )
    if lacks_length(objective):
        raise ConfigError(
            f"{KEY}.max_tokens: expected a number with aggregation=constant, got null; give verl's "
            f"data.max_response_length"
        )
    return objective
