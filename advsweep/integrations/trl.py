"""TRL's GRPOTrainer with an estimator's advantages, an objective's loss and a rollout policy.

    from advsweep.estimators import build_estimator
    from advsweep.integrations.trl import EstimatorGRPOTrainer

    trainer = EstimatorGRPOTrainer(..., estimator=build_estimator("fade"))

TRL computes advantages in the middle of a long method. The class leaves that method
unchanged: it records the rewards on the way, and replaces the advantages in the result. A rollout
policy has it called several times, and picks rows of the results.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import trl
from accelerate.utils import gather_object
from torch import Tensor

from advsweep.backends.training_loop import compute_advantages
from advsweep.backends.trl import releases
from advsweep.backends.trl.environments import EnvironmentGuard
from advsweep.backends.trl.episodes import TURN_ROWS, EpisodeRecorder
from advsweep.backends.trl.positions import needs_positions, with_positions
from advsweep.backends.trl.sampling import certainty, forward_statistic, square_sum
from advsweep.backends.trl.steps import fill_of, pick_rows, rows_of, whole_rows
from advsweep.diagnostics import rollout_metrics
from advsweep.errors import AdvsweepWarning, ConfigError, TrainingError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.estimators.batch import share_correct
from advsweep.integrations.objectives import build_objective
from advsweep.integrations.rows import MEMORY_FILE, load_memory, prompt_name, save_memory
from advsweep.integrations.trl_checks import (
    check_dataset,
    check_dropout,
    check_rewards,
    check_saves,
)
from advsweep.integrations.trl_log_probs import LogProbCheck, warn_of_defaults
from advsweep.integrations.trl_loss import (
    check_objective,
    images_of,
    objective_loss,
    warn_of_unread,
)
from advsweep.integrations.trl_source import Draw, TrlSource, check_rollout
from advsweep.rollouts import ROLLOUTS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.trl.padded_rows import PaddedRows
    from advsweep.estimators import Advantages, Estimator
    from advsweep.objectives.base import Choice, Objective
    from advsweep.rollouts.base import Collected, RolloutPolicy

_EXACT = frozenset({"token_entropy_exact", "token_entropies"})
_OF_TOKENS = _EXACT | {"token_entropy", "token_grad_norms", "token_kl"}
_OF_POLICY = _OF_TOKENS | {"self_certainty"}
_ALWAYS = frozenset({"lengths", "prompt_ids", "self_certainty", "step", "total_steps"})
_ALWAYS |= _OF_TOKENS - {"token_kl"}
# Where a trainer gets what estimators may need beyond that.
_SOURCES = {
    "ref_rewards": "`ref_rewards` may be a column of the dataset",
    "reward_parts": "`reward_parts` are several reward functions",
    "token_kl": "`token_kl` needs beta above 0 without mask_truncated_completions",
    "turn_of_token": "`turn_of_token` needs tools or an environment_factory",
    "turn_rewards": "`turn_rewards` need an environment with a property `reward_so_far`",
    "turn_states": "`turn_states` need a property `turn_state` of every environment",
}
# Metrics that need to know which rollouts succeeded.
_OF_SUCCESSES = ("mass/", "prompts/", "solved/", "update/", "weight/variance")


class EstimatorGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that trains on an estimator's advantages, in one or several processes.

    With `build_estimator("grpo", preset="trl")` it trains as TRL does, bit for bit. The memory of
    the estimator is part of TRL's checkpoints, as `estimator.json`. Evaluations do not change it.

    TRL's log gets the metrics of advsweep under their own names (`collapse/acr`, `mass/success`,
    `advantage/abs_mean`, `estimator/NAME`, ...; see `advsweep.diagnostics.rollout_metrics`).

    Departures: `scale_rewards` and `multi_objective_aggregation` have no effect; `grpo` with
    `scope=batch` and `gdpo` compute what they say. The reward is the sum of the reward functions
    by `reward_weights`; a rollout that no function can score is masked. Rollouts that the
    estimator drops leave the averages of the loss types "dapo" and "bnpo"; those of "grpo" and
    "dr_grpo" still count them. An objective counts neither dropped rollouts nor their tokens. A
    forward pass gets an equal share of the rollouts and tokens of the whole generation, as in
    TRL's "dapo". Models that embed positions (GPT-2) get those of padded rows, which TRL's loss
    leaves out.

    A rollout whose environment fails (`advsweep.backends.trl.environments`) cannot be scored.

    The first rollouts are checked: a model whose log-probabilities in the loss are not those that
    it was sampled with is refused (`advsweep.integrations.trl_log_probs`). Settings of the model's
    `generation_config` that TRL samples with get a warning.

    Args:
        arguments, named: the arguments of GRPOTrainer.
        estimator: an estimator, its name, or a mapping as `build_estimator` takes it.
        objective: likewise an objective, in place of `loss_type` and the other settings of TRL's
            loss; None leaves TRL's loss. A KL penalty needs `beta` above 0, with which TRL keeps a
            reference model; its weight is the objective's.
        rollout: likewise a rollout policy, such as "dynamic_sampling". The first prompts of a step
            are those that TRL hands over, further ones are drawn from the dataset. Any but
            "plain" needs a single process, and a dataset of texts that does not stream.
        success: name of the reward function that is 1 for a success, which masses and solve
            rates count, and by which rollout policies judge; by default the only one. With several
            functions and no name, metrics of successes are left out.
        log_prob_bound: nats that log π of a sampled token may differ by between sampling and loss;
            None: 0.01, and 0.1 in the mean of tokens where one of them computes with 16 bits.

    Raises:
        ConfigError: the estimator or the objective needs what the trainer does not have, or does
            not fit to `num_generations`, `loss_type` or `importance_sampling_level`; or the
            rollout policy cannot be used here. Or TRL would not do what its settings say: saves
            that fall inside a generation, fewer prompts than a generation has, dropout where the
            estimator reads the policy's numbers.
    """

    def __init__(
        self,
        *arguments: Any,
        estimator: Estimator | Mapping[str, Any] | str,
        objective: Objective | Mapping[str, Any] | str | None = None,
        rollout: RolloutPolicy | Mapping[str, Any] | str = "plain",
        success: str | None = None,
        log_prob_bound: float | None = None,
        **named: Any,
    ) -> None:
        _warn_of_release()
        if isinstance(estimator, str | Mapping):
            estimator = build_estimator(estimator)
        if objective is not None:
            objective = build_objective(objective)
        if isinstance(rollout, str | Mapping):
            rollout = ROLLOUTS.build(rollout)
        self.estimator = estimator
        self.objective = objective
        self.rollout = rollout
        self.choices_of_update: list[Choice] = []
        self._completion_lengths: list[int] = []
        self._guard = EnvironmentGuard()
        if named.get("environment_factory") is not None:
            named["environment_factory"] = self._guard.guard(named["environment_factory"])
        super().__init__(*arguments, **named)
        self._tool_masks: Sequence[Sequence[int]] | None = None
        self._episodes = EpisodeRecorder(self, self._guard)
        self._names_success = success is not None
        self.success = _place_of_success(self.reward_func_names, success)
        if objective is not None and self.max_completion_length is not None:
            self.objective = objective.for_completions(self.max_completion_length)
        self._check_estimator()
        if self.objective is not None:
            check_objective(self, self.objective)
            if self.objective.needs_entropy:
                releases.differentiate_entropies(self)
        check_rollout(self, self.rollout)
        check_saves(self.args)
        check_dataset(self.train_dataset, self.args)
        read = self.estimator.needs | self.estimator.uses
        label = f"estimator '{self.estimator.name}'"
        check_dropout(self.model, self.args, label, read & _OF_POLICY)
        warn_of_defaults(self)
        self._needs_positions = needs_positions(self.model)
        self._log_prob_check = LogProbCheck(self, log_prob_bound)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Float[Tensor, "rollouts functions"]:
        """Record what TRL computes: rewards of all processes, NaN where a function gave None."""
        self._episodes.end()
        rewards: Tensor = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        if self.environments is not None:
            rewards = self._without_failed(rewards)
        check_rewards(rewards, self.reward_func_names)
        self._rewards_per_function: Tensor = rewards
        self._completion_lengths = [len(tokens) for tokens in completion_ids_list]
        return rewards

    def _without_failed(
        self, rewards: Float[Tensor, "rollouts functions"]
    ) -> Float[Tensor, "rollouts functions"]:
        """Return the rewards of all processes, NaN for rollouts whose environment has failed.

        Raises:
            TrainingError: all have failed.
        """
        reasons = self._guard.take_failures(self.environments)
        failed = torch.tensor([reason is not None for reason in reasons], device=rewards.device)
        of_all = self.accelerator.gather(failed)
        if of_all.all():
            raise TrainingError(f"every environment of a generation has failed: {reasons[0]}")
        return rewards.masked_fill(of_all[:, None], torch.nan)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            evaluated: dict[str, Any] = super()._generate_and_score_completions(inputs)
            return evaluated
        source: Any = TrlSource(self, inputs)
        prompts = len(inputs) * self.accelerator.num_processes // self.num_generations
        collected = self.rollout.collect(source, prompts)
        outputs: dict[str, Any] = source.outputs(self._tokenizer.pad_token_id)
        self._completion_lengths = source.own_lengths
        mask = ~source.scored.isnan().all(dim=1)
        batch = self._group_batch(source.inputs, outputs, source.scored, mask)
        outputs = {name: rows for name, rows in outputs.items() if name not in TURN_ROWS}
        # The same on every process.
        advantages = compute_advantages(self.estimator, batch, collected)
        self._log_step(batch, advantages, collected, source, prompts)
        values = advantages.values.flatten(0, 1)
        keep = advantages.keep.flatten()
        assert batch.lengths is not None
        means = advantages.rollout_means(batch.lengths[collected.groups]).flatten()
        if advantages.per_token:
            # Numbers past the end of a rollout are 0, so a negative pad cuts nothing.
            width = outputs["completion_ids"].shape[1]
            values = F.pad(values, (0, width - values.shape[1]))
        rows = collected.rows(self.num_generations)
        is_selection = not torch.equal(rows, torch.arange(len(mask)))
        if is_selection:
            # TRL splits a step by its number of rows: others fill it up, and are dropped.
            missing = len(inputs) - len(rows)
            values = _fill(values, missing)
            keep = _fill(keep, missing)
            means = _fill(means, missing)
            mask = _fill(mask[rows.to(mask.device)], missing, True)
            rows = _fill(rows, missing)
            outputs = dict(pick_rows(rows_of(outputs), rows))
            table = self._table()
            for key, column in source.table(rows).items():
                table[key].extend(column)
        first = self.accelerator.process_index * len(inputs)
        of_process = slice(first, first + len(inputs))
        outputs["advantages"] = values[of_process]
        # The log keeps the last generation alone, so this pushes TRL's own advantages out.
        self._logs["advantages"].extend(means.tolist())
        dropped = mask & ~keep
        if is_selection or dropped.any():
            # Out of the loss, and of its counts.
            trained = outputs["completion_mask"] * ~dropped[of_process, None]
            outputs["completion_mask"] = trained
            tokens = (trained * outputs.get("tool_mask", 1)).sum()
            outputs["num_items_in_batch"] = self.accelerator.gather(tokens).sum()
            outputs["num_rollouts_in_batch"] = (~dropped).sum()
        return outputs

    def _log_step(
        self,
        batch: GroupBatch,
        advantages: Advantages,
        collected: Collected,
        source: TrlSource,
        prompts: int,
    ) -> None:
        """Log the metrics of a generation; those of successes only where these are known."""
        verdicts = batch.rewards
        if self.success is not None:
            verdicts = source.verdicts.to(verdicts.device)
        metrics = rollout_metrics(
            batch,
            advantages,
            groups=collected.groups,
            verdicts=verdicts,
            judged=self.rollout.judged(batch.rewards, verdicts),
            prompts=prompts,
            verifier_free=self.estimator.verifier_free,
        )
        for name, number in metrics.items():
            if self.success is not None or not name.startswith(_OF_SUCCESSES):
                self._metrics["train"][name].append(number)

    def roll_out(self, inputs: Sequence[dict[str, Any]]) -> Draw:
        """Make and score a rollout for each row of the dataset."""
        if self.environment_factories is not None:
            self._guard.forget_hanging(self._environment_pool)
        self._episodes.begin()
        outputs = super()._generate_and_score_completions(inputs)
        if self._tool_masks is not None:
            completions = outputs["completion_ids"]
            width = completions.shape[1]
            outputs |= self._episodes.rows(self._tool_masks, width, completions.device)
        self._log_prob_check.check(outputs, self._completion_lengths)
        scored = self._rewards_per_function
        table = {name: [*column][-len(scored) :] for name, column in self._table().items()}
        return Draw(outputs, scored, self._completion_lengths, table)

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        """Keep TRL's masks of tools, which it clears in truncated rollouts if it masks these."""
        generated = super()._generate(*arguments, **named)
        self._tool_masks = generated[2]
        return generated

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **named: Any) -> Any:
        self._episodes.before_turn()
        with self._log_prob_check.recording(prompt_ids) as recorder:
            completions, log_probs = super()._generate_single_turn(prompt_ids, *arguments, **named)
        self._log_prob_check.keep(recorder, completions)
        return completions, log_probs

    def _get_per_token_logps_and_entropies(self, model: Any, *arguments: Any, **named: Any) -> Any:
        scored = with_positions(model) if self._needs_positions else model
        return super()._get_per_token_logps_and_entropies(scored, *arguments, **named)

    def _table(self) -> dict[tuple[str, str], Any]:
        """Return the columns of TRL's table of completions; each keeps the last generation."""
        logs = self._logs
        columns = {("", name): logs[name] for name in ("prompt", "completion")}
        for kind in ("rewards", "extra"):
            columns |= {(kind, name): column for name, column in logs[kind].items()}
        return columns

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.objective is not None:
            return objective_loss(self, self.objective, model, inputs)
        loss: Tensor = super()._compute_loss(model, inputs)
        return loss

    def _group_batch(
        self,
        inputs: Sequence[Mapping[str, Any]],
        outputs: Mapping[str, Any],
        scored: Float[Tensor, "rollouts functions"],
        mask: Bool[Tensor, " rollouts"],
    ) -> GroupBatch:
        """Return the rollouts of all processes; only this process's inputs are known here."""
        wanted = self.estimator.needs | self.estimator.uses
        rewards = (scored * self.reward_weights.to(scored.device)).nansum(dim=1)
        of_rollouts = {"rewards": rewards, "mask": mask}
        for name, values in self._inputs_of_process(wanted, inputs, outputs).items():
            if values.ndim > 1:
                # Each process pads its completions to its longest.
                fill = fill_of(name)
                values = self.accelerator.pad_across_processes(values, dim=1, pad_index=fill)
            of_rollouts[name] = self.accelerator.gather(values.contiguous())
        groups = {
            name: values.view(-1, self.num_generations, *values.shape[1:])
            for name, values in of_rollouts.items()
        }
        if "solve_rates" in wanted and self._names_success and self.success is not None:
            solved = (scored[:, self.success] == 1).view(groups["mask"].shape)
            groups["solve_rates"] = share_correct(solved, groups["mask"])
        weights = None
        if "reward_parts" in wanted:
            groups["reward_parts"] = scored.view(-1, self.num_generations, scored.shape[1])
            weights = tuple(self.reward_weights.tolist())
        prompts = self._prompt_ids(inputs) if "prompt_ids" in wanted else None
        return GroupBatch(
            **groups,
            part_weights=weights,
            prompt_ids=prompts,
            step=self.state.global_step + 1,
            total_steps=self.state.max_steps,
        )

    def _inputs_of_process(
        self,
        wanted: frozenset[str],
        inputs: Sequence[Mapping[str, Any]],
        outputs: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Return what the estimator reads of this process's rollouts, in addition to rewards."""
        completions = outputs["completion_ids"]
        device = completions.device
        width = completions.shape[1]
        # Not TRL's mask, which is 0 for truncated rollouts with `mask_truncated_completions`.
        whole = torch.arange(width) < torch.tensor(self._completion_lengths)[:, None]
        whole = whole.to(device)
        generated = whole
        if "turn_of_token" in outputs:
            generated = outputs["turn_of_token"] >= 0
        lengths = generated.sum(dim=1)
        numbers = {"lengths": lengths.float()}
        numbers |= {name: outputs[name] for name in TURN_ROWS if name in outputs}

        def token_mean(values: Float[Tensor, "rows tokens"]) -> Float[Tensor, " rows"]:
            return values.where(generated, 0.0).sum(dim=1) / lengths.clamp(min=1)

        rows = whole_rows({**outputs, "completion_mask": whole.to(outputs["prompt_mask"])})

        if wanted & _OF_TOKENS:
            log_probs, entropies = self._token_statistics(wanted, rows, outputs)
            numbers["token_entropy"] = -token_mean(log_probs)
            if "token_kl" in wanted:
                gaps = log_probs - outputs["ref_per_token_logps"]
                numbers["token_kl"] = gaps.where(generated, 0.0)
            if "token_grad_norms" in wanted:
                squares = forward_statistic(self, rows, square_sum)
                norms = 1 - 2 * log_probs.exp() + squares
                numbers["token_grad_norms"] = norms.where(generated, 0.0)
            if entropies is not None:
                numbers["token_entropy_exact"] = token_mean(entropies)
            if entropies is not None and "token_entropies" in wanted:
                numbers["token_entropies"] = entropies.where(generated, 0.0)
        if "self_certainty" in wanted:
            numbers["self_certainty"] = token_mean(forward_statistic(self, rows, certainty))
        if "ref_rewards" in wanted:
            # A column of the dataset: each prompt's list of `num_generations` rewards.
            first = self.accelerator.process_index * len(inputs)
            references = [
                row["ref_rewards"][number % self.num_generations]
                for number, row in enumerate(inputs, first)
            ]
            numbers["ref_rewards"] = torch.tensor(references, dtype=torch.float32, device=device)
        return numbers

    def _token_statistics(
        self, wanted: frozenset[str], rows: PaddedRows, outputs: Mapping[str, Any]
    ) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
        """Return log-probabilities and exact entropies, at the temperature of sampling.

        Where TRL has computed all that is wanted, this takes no further pass.
        """
        computed: Tensor | None = outputs.get("old_per_token_logps")
        exact = bool(wanted & _EXACT)
        if computed is not None and not exact and not self.mask_truncated_completions:
            return computed, None
        with torch.no_grad():
            log_probs, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model,
                *rows,
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=exact,
                **images_of(outputs),
            )
        return log_probs, entropies

    def _prompt_ids(self, inputs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the column `prompt_id`, or a digest of each group's prompt."""
        if "prompt_id" in inputs[0]:
            names = [str(row["prompt_id"]) for row in inputs]
        elif inputs[0].keys() & {"image", "images"}:
            raise ConfigError(
                f"estimator '{self.estimator.name}' identifies prompts across steps: expected a "
                f"column prompt_id in a dataset with images, got {sorted(inputs[0])}"
            )
        else:
            names = [prompt_name(row["prompt"]) for row in inputs]
        return tuple(gather_object(names)[:: self.num_generations])

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            save_memory(folder / MEMORY_FILE, self.estimator)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint, MEMORY_FILE)
            # A checkpoint of TRL's own trainer has all that an estimator without memory needs.
            if path.exists() or self.estimator.stateful:
                load_memory(path, self.estimator)

    def _check_estimator(self) -> None:
        """Refuse at the start what the estimator would refuse at the first step."""
        estimator = self.estimator
        group = self.num_generations
        label = f"estimator '{estimator.name}'"
        missing = sorted(estimator.needs - self._available_inputs())
        if missing:
            sources = [_SOURCES.get(name, f"`{name}` is not known here") for name in missing]
            raise ConfigError(f"{label} needs {', '.join(missing)}; {'; '.join(sources)}")
        if group < estimator.minimum_group or group % estimator.group_multiple:
            raise ConfigError(
                f"num_generations: {label} expects at least {estimator.minimum_group} and a "
                f"multiple of {estimator.group_multiple}, got {group}"
            )
        if estimator.per_token and not self._takes_token_advantages():
            raise ConfigError(
                f"{label} gives every token its own advantage: expected importance_sampling_level "
                f"'token', a loss_type other than 'vespo' and 'luspo' and no "
                f"off_policy_mask_threshold, which read one advantage per rollout"
            )
        unread = ("scale_rewards", "multi_objective_aggregation")
        warn_of_unread(self.args, unread, f"{label} computes advantages")

    def _available_inputs(self) -> frozenset[str]:
        """Return the inputs of estimators that this trainer has, in addition to rewards."""
        # A dataset that streams may not know its columns.
        columns = getattr(self.train_dataset, "column_names", None)
        conditions = {
            "reward_parts": len(self.reward_func_names) > 1,
            # TRL's pass of the reference model does not see truncated rollouts that it masks.
            "token_kl": self.beta != 0 and not self.mask_truncated_completions,
            "ref_rewards": columns is None or "ref_rewards" in columns,
            "turn_of_token": self._episodes.has_turns,
            "turn_states": self._episodes.has_states,
            "turn_rewards": self._episodes.has_rewards,
        }
        return _ALWAYS | {name for name, is_met in conditions.items() if is_met}

    def _takes_token_advantages(self) -> bool:
        """Return whether the loss reads an advantage of each token."""
        if self.objective is not None:
            return True
        return (
            self.importance_sampling_level == "token"
            and self.loss_type not in ("vespo", "luspo")
            and self.off_policy_mask_threshold is None
        )


def _warn_of_release() -> None:
    misfit = releases.describe_misfits("trl", frozenset({"trl"}))
    if misfit:
        warnings.warn(
            f"this release of TRL is not tested and may compute advantages elsewhere; expected "
            f"{misfit}",
            AdvsweepWarning,
            stacklevel=3,
        )


def _place_of_success(names: Sequence[str], success: str | None) -> int | None:
    """Return which reward function says what a success is; None if no name says so.

    Raises:
        ConfigError: there is no function of the name.
    """
    if success is None:
        return 0 if len(names) == 1 else None
    if success not in names:
        raise ConfigError(f"success: expected a reward function of {names}, got {success!r}")
    return names.index(success)


def _fill(values: Tensor, missing: int, value: float = 0) -> Tensor:
    """Append rows of one value."""
    return torch.cat((values, values.new_full((missing, *values.shape[1:]), value)))
