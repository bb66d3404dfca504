"""Estimators for SkyRL, ms-swift, slime, prime-rl and NeMo-RL.

    from advsweep.integrations.adapters import use_in_swift

    use_in_swift("asym_grpo", delta=0.5)

Each function puts an estimator where the framework computes advantages; docs/frameworks.md shows
where the lines go and what is inexact there. A framework is imported inside its function. The
signatures are those of the commits that the page names.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.errors import ConfigError
from advsweep.integrations.rows import RowEstimator, prompt_name

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.integrations.rows import PerRow, Spec

    PerToken = Float[Tensor, "rows tokens"]


# SkyRL


class SkyrlAdvantages(RowEstimator):
    """A function of SkyRL's registry of advantage estimators; it can be pickled for Ray."""

    framework = "SkyRL"
    provides = frozenset({"lengths"})

    def __call__(
        self, token_level_rewards: PerToken, response_mask: PerToken, index: Sequence[Any], **_: Any
    ) -> tuple[PerToken, PerToken]:
        """Return advantages and returns, which are the same.

        Args:
            index: the uid of each row's prompt. Rows `pad0`, `pad1`, ... repeat the first row to
                fill the batch; they are left out.
        """
        uids = [str(uid) for uid in index]
        advantages = self.advantages(
            token_level_rewards.sum(dim=-1),
            uids,
            scorable=torch.tensor([re.fullmatch(r"pad\d+", uid) is None for uid in uids]),
            lengths=response_mask.sum(dim=-1),
        )
        spread = advantages[:, None] * response_mask
        return spread, spread


def use_in_skyrl(estimator: Spec, *, name: str = "advsweep", **fields: Any) -> SkyrlAdvantages:
    """Register an estimator for `trainer.algorithm.advantage_estimator=NAME`."""
    function = SkyrlAdvantages(estimator, **fields)
    utils = importlib.import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    utils.AdvantageEstimatorRegistry.register(name, function)
    return function


# ms-swift


class SwiftAdvantages(RowEstimator):
    """`compute_advantages` and `compute_advantages_dynamic` of ms-swift."""

    framework = "ms-swift"

    def grouped(
        self,
        rewards_per_func: Float[Tensor, "rows functions"],
        reward_weights: Float[Tensor, " functions"],
        num_generations: int,
        **settings: Any,
    ) -> tuple[PerRow, PerRow]:
        """Return advantages and rewards of rows that stand group by group."""
        groups = [row // num_generations for row in range(len(rewards_per_func))]
        return self.dynamic(rewards_per_func, reward_weights, groups, None, **settings)

    def dynamic(
        self,
        rewards_per_func: Float[Tensor, "rows functions"],
        reward_weights: Float[Tensor, " functions"],
        prompt_ids: Sequence[Hashable],
        request_ids: Sequence[Hashable] | None,
        **settings: Any,
    ) -> tuple[PerRow, PerRow]:
        """Return advantages and rewards of rows of which a request may have several."""
        rewards = (rewards_per_func * reward_weights).nansum(dim=1)
        if settings.get("kl_in_reward") and settings.get("kl_values") is not None:
            rewards = rewards - settings.get("beta", 0.0) * settings["kl_values"]
        scorable = ~rewards_per_func.isnan().all(dim=1)
        values = self.advantages(rewards, prompt_ids, sessions=request_ids, scorable=scorable)
        return values, rewards


def use_in_swift(estimator: Spec, **fields: Any) -> SwiftAdvantages:
    """Compute the advantages of ms-swift's GRPO trainers; call it in a file of external_plugins."""
    functions = SwiftAdvantages(estimator, **fields)
    _replace("swift.rl_core.advantage", "compute_advantages", functions.grouped)
    _replace("swift.rl_core.advantage", "compute_advantages_dynamic", functions.dynamic)
    return functions


# slime


class SlimeRewards(RowEstimator):
    """A function for slime's `--custom-reward-post-process-path`."""

    framework = "slime"
    provides = frozenset({"lengths", "prompt_ids", "token_entropy"})

    def __call__(self, args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
        """Return the raw rewards, and the advantages in the place of normalised ones.

        Args:
            samples: read are `group_index`, `rollout_id`, `prompt`, `response_length`,
                `loss_mask` and `rollout_log_probs`. Samples of one `rollout_id` are one rollout.
        """
        raw = [sample.get_reward_value(args) for sample in samples]
        masks = [sample.loss_mask or [1] * sample.response_length for sample in samples]
        advantages = self.advantages(
            torch.tensor([0.0 if reward is None else float(reward) for reward in raw]),
            [sample.group_index for sample in samples],
            sessions=_sessions(samples),
            scorable=torch.tensor([reward is not None for reward in raw]),
            lengths=torch.tensor([float(sum(mask)) for mask in masks]),
            surprisal=_surprisal(samples, masks),
            prompts=[prompt_name(sample.prompt) for sample in samples],
        )
        return raw, advantages.tolist()


def _sessions(samples: Sequence[Any]) -> list[Hashable]:
    """Return the rollout of each of slime's samples; one without an id is a rollout."""
    sessions: list[Hashable] = []
    for row, sample in enumerate(samples):
        has_id = sample.rollout_id is not None
        sessions.append(("id", sample.rollout_id) if has_id else ("row", row))
    return sessions


def _surprisal(samples: Sequence[Any], masks: Sequence[Sequence[int]]) -> PerRow | None:
    """Return the sum of -log π over the tokens that count; None if some sample lacks it."""
    sums = []
    for sample, mask in zip(samples, masks, strict=True):
        if sample.rollout_log_probs is None:
            return None
        counted = zip(sample.rollout_log_probs, mask, strict=True)
        sums.append(-sum(log_prob for log_prob, counts in counted if counts))
    return torch.tensor(sums, dtype=torch.float32)


# prime-rl


class PrimeEstimator(RowEstimator):
    """An estimator of single groups for prime-rl."""

    framework = "prime-rl"
    provides = frozenset({"lengths"})


def use_in_prime(estimator: Spec, *, name: str = "grpo", **fields: Any) -> type:
    """Replace the algorithm of a name by an estimator of single groups, and return its class.

    prime-rl scores one group at a time, as groups complete.

    Raises:
        ConfigError: the estimator reads more than one group, or needs more than lengths; a
            config of the algorithm has a length penalty.
    """
    rows = PrimeEstimator(estimator, **fields)
    if not rows.estimator.per_group:
        raise ConfigError(
            f"estimator '{rows.estimator.name}' reads the whole batch or has memory, and prime-rl "
            f"hands over one group at a time: expected an estimator that is `per_group`"
        )
    package = importlib.import_module("prime_rl.orchestrator.algo")
    base = importlib.import_module("prime_rl.orchestrator.algo.base")

    class GroupAlgorithm(package.Algorithm):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any, policy_pool: Any) -> None:
            super().__init__(config, policy_pool)
            if getattr(config, "length_penalty", None) is not None:
                raise ConfigError(
                    f"length_penalty: estimator '{rows.estimator.name}' computes the advantages; "
                    f"expected none, got {config.length_penalty!r}"
                )

        async def score_group(self, episodes: list[Any]) -> None:
            traces = [trace for _, trace in base.iter_trainable_traces(episodes)]
            if not traces:
                return
            lengths = []
            for trace in traces:
                lengths.append(float(sum(sum(node.mask) for node in trace.nodes)))
            advantages = rows.advantages(
                torch.tensor([float(trace.reward) for trace in traces]),
                [0] * len(traces),
                lengths=torch.tensor(lengths),
            )
            for trace, advantage in zip(traces, advantages.tolist(), strict=True):
                package.assign_advantages(trace, advantage)

    package.ALGORITHM_CLASSES[name] = GroupAlgorithm
    return GroupAlgorithm


# NeMo-RL


class NemoEstimator(RowEstimator):
    """An advantage estimator of NeMo-RL."""

    framework = "NeMo-RL"
    provides = frozenset({"lengths", "token_entropy"})

    @property
    def last_metrics(self) -> dict[str, float]:
        """The metrics, under the name that NeMo-RL's asynchronous trainer logs."""
        return self.metrics

    def compute_advantage(
        self,
        prompt_ids: Int[Tensor, "rows tokens"] | Int[Tensor, " rows"],
        rewards: PerRow,
        mask: PerToken,
        *_: Any,
        logprobs_policy: PerToken | None = None,
        **__: Any,
    ) -> PerToken:
        """Return advantages in the shape of the mask.

        Rows without a token in the mask are left out of all statistics.

        Args:
            prompt_ids: tokens of the prompts; equal ones are one group.
            logprobs_policy: zeros where NeMo-RL has skipped their computation.
        """
        lengths = mask.sum(dim=1)
        surprisal = None
        if logprobs_policy is not None and logprobs_policy.any():
            surprisal = -(logprobs_policy * mask).sum(dim=1)
        advantages = self.advantages(
            rewards,
            torch.unique(prompt_ids, dim=0, return_inverse=True)[1].tolist(),
            scorable=lengths > 0,
            lengths=lengths,
            surprisal=surprisal,
        )
        return advantages[:, None] * mask


def use_in_nemo(estimator: Spec, **fields: Any) -> NemoEstimator:
    """Make NeMo-RL's GRPO trainers take an estimator; call it before the training starts."""
    ours = NemoEstimator(estimator, **fields)
    _replace("nemo_rl.algorithms.grpo", "_create_advantage_estimator", lambda _: ours)
    return ours


def _replace(module: str, name: str, function: Callable[..., Any]) -> None:
    """Replace a function in its module, and where the package's modules have imported it.

    Raises:
        ConfigError: the module has no such function.
    """
    original = vars(importlib.import_module(module)).get(name)
    if original is None:
        raise ConfigError(
            f"{module}: expected a function {name}, got none; docs/frameworks.md names the "
            f"versions that are known"
        )
    package = module.split(".")[0]
    for loaded_name, loaded in [*sys.modules.items()]:
        if loaded_name.split(".")[0] == package and vars(loaded).get(name) is original:
            setattr(loaded, name, function)
