"""The advantage function `advsweep` of verl, and what its trainers may give to it."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from advsweep.errors import BatchError
from advsweep.estimators import ESTIMATORS, GroupBatch
from advsweep.integrations.rows import Origin, TokenRows, refuse_single_rollouts
from advsweep.integrations.verl.spec import NAME, read_spec

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.estimators import Advantages, Estimator

KEY = f"algorithm.{NAME}"

_SEVERAL = "set actor_rollout_ref.rollout.n above 1"

# What estimators can read, in addition to rewards, in every trainer of verl, and in ours.
ALWAYS = frozenset({"lengths", "turn_of_token"})
IN_OUR_TRAINERS = ALWAYS | {
    "token_entropy",
    "token_entropy_exact",
    "token_entropies",
    "token_kl",
    "prompt_ids",
    "step",
    "total_steps",
}

# Of V1 (`padding_utils.py`): "pad" and a random number, instead of a random number.
_PADDING = re.compile("pad[0-9a-f]{32}")


@dataclass(kw_only=True)
class StepInputs:
    """What a trainer knows of a step and verl's call of the function leaves out.

    Attributes:
        estimator: the estimator, whose memory the trainer keeps.
        origins: where each row comes from.
        step: the training step, counted from 1.
        total_steps: the length of the training.
        log_probs: log π of the sampled tokens; None if they are not known.
        reference_log_probs: the same under the reference model, or None.
        entropies: exact entropies of the next-token distributions, in nats, or None.
        prompt_ids: a name of each row's prompt that is the same in every epoch, or None.
        result: receives the batch of the estimator and its advantages.
    """

    estimator: Estimator
    origins: Sequence[Origin]
    step: int
    total_steps: int
    log_probs: Float[Tensor, "rows tokens"] | None = None
    reference_log_probs: Float[Tensor, "rows tokens"] | None = None
    entropies: Float[Tensor, "rows tokens"] | None = None
    prompt_ids: Sequence[str] | None = None
    result: tuple[GroupBatch, Advantages] | None = None


_inputs: ContextVar[StepInputs | None] = ContextVar("advsweep_verl_inputs", default=None)


@contextlib.contextmanager
def provide(inputs: StepInputs) -> Iterator[None]:
    """Give the inputs to the calls of `compute_advantages` inside a `with` block."""
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


@register_adv_est(NAME)  # type: ignore[untyped-decorator]
def compute_advantages(
    token_level_rewards: Float[Tensor, "rows tokens"],
    response_mask: Int[Tensor, "rows tokens"],
    config: Any = None,
    index: Sequence[Any] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"]]:
    """Compute the advantages of the estimator that `algorithm.advsweep` describes.

    The signature is that of verl's own functions. The reward of a row is the sum over its
    tokens. All tokens that the policy generated get the advantage of their rollout, or their
    own from an estimator with one per token; all others get 0, and so do padding and the
    rollouts that the estimator drops. Rollouts without a generated token, which verl has
    rejected, enter no statistic.

    Args:
        config: the section `algorithm` of verl's configuration.
        index: the prompt of each row (`uid`).

    Returns:
        The advantages twice, as verl's functions without a critic return them.

    Raises:
        ConfigError: `algorithm.advsweep` does not describe an estimator.
        BatchError: the estimator needs an input that is not available, or cannot use the rewards,
            or compares the rollouts of a prompt and each prompt has one.

    Departures: verl counts a session with several outputs once in `grpo` alone, and does not say
    here which rows are of one session. Each row is a rollout unless one of our trainers runs.
    """
    inputs = _inputs.get()
    with torch.no_grad():
        if inputs is None:
            if index is None:
                raise BatchError("index: expected the prompt of each rollout (uid), got none")
            estimator = _shared_estimator(
                json.dumps(read_spec(config, KEY, ESTIMATORS.kind), sort_keys=True)
            )
            check_inputs(estimator, ALWAYS)
            rows = TokenRows(_origins(index, response_mask), response_mask)
            batch = _batch(rows, token_level_rewards)
        else:
            estimator = inputs.estimator
            rows = TokenRows(inputs.origins, response_mask)
            batch = _batch(rows, token_level_rewards, inputs)
        computed = estimator.compute(batch)
        refuse_single_rollouts(rows, batch, computed, estimator.name, _SEVERAL)
        if inputs is not None:
            inputs.result = batch, computed
        keep = computed.keep[..., None] if computed.per_token else computed.keep
        advantages = rows.spread(torch.where(keep, computed.values, 0.0))
    return advantages, advantages


def build_from(config: Any) -> Estimator:
    """Build the estimator that the section `algorithm` of verl's configuration describes.

    Raises:
        ConfigError: the key is missing, or a name, an option or a value does not fit.
    """
    return ESTIMATORS.build(read_spec(config, KEY, ESTIMATORS.kind), where=KEY)


@functools.cache
def _shared_estimator(spec: str) -> Estimator:
    # One for each configuration, as some have memory.
    return ESTIMATORS.build(json.loads(spec), where=KEY)


def check_inputs(estimator: Estimator, available: frozenset[str]) -> None:
    """Refuse an estimator that needs what is not available.

    Raises:
        BatchError: names what is missing, and the trainer that provides it if there is one.
    """
    missing = estimator.needs - available
    if not missing:
        return
    named = ", ".join(sorted(missing))
    if missing <= IN_OUR_TRAINERS:
        advice = "set trainer.v1.trainer_mode=advsweep_sync, which provides it"
    else:
        advice = "verl does not provide it; choose another estimator or option"
    raise BatchError(f"{KEY}: estimator '{estimator.name}' needs {named}; {advice}")


def _origins(index: Sequence[Any], response_mask: Tensor) -> list[Origin]:
    """Return a rollout for each row; padding has no generated token and another `uid`."""
    empty = (~response_mask.bool().any(dim=1)).tolist()
    return [
        Origin(uid, row, padding=empty[row] and bool(_PADDING.fullmatch(str(uid))))
        for row, uid in enumerate(index)
    ]


def _batch(rows: TokenRows, rewards: Tensor, inputs: StepInputs | None = None) -> GroupBatch:
    totals = rewards.sum(dim=-1)
    if totals.dtype not in (torch.float32, torch.float64):
        totals = totals.float()
    lengths = rows.lengths()
    # verl masks all tokens of a rollout that it rejects: that one enters no statistic.
    counted = rows.table(lengths > 0)
    fields: dict[str, Any] = {
        "rewards": rows.table(totals[rows.final]),
        "mask": None if counted.all() else counted,
        "lengths": rows.table(lengths),
        # Of agents: verl's mask is 0 at what tools and environments wrote.
        "turn_of_token": rows.turn_table(),
    }
    if inputs is not None:
        fields |= {"step": inputs.step, "total_steps": inputs.total_steps}
        tokens = lengths.clamp(min=1)
        if inputs.log_probs is not None:
            fields["token_entropy"] = rows.table(-rows.token_sums(inputs.log_probs) / tokens)
            if inputs.reference_log_probs is not None:
                gaps = inputs.log_probs - inputs.reference_log_probs
                fields["token_kl"] = rows.token_table(gaps)
        if inputs.entropies is not None:
            exact = inputs.entropies
            fields["token_entropy_exact"] = rows.table(rows.token_sums(exact) / tokens)
            if "token_entropies" in inputs.estimator.needs | inputs.estimator.uses:
                fields["token_entropies"] = rows.token_table(exact)
        if inputs.prompt_ids is not None:
            fields["prompt_ids"] = rows.per_group(inputs.prompt_ids)
    return GroupBatch(**fields)
