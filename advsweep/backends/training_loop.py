"""The loop around the steps of a training, and what every kind of step has in common.

A backend gives the loop a `Trainer`, which makes single steps. The loop resumes, evaluates, writes
checkpoints and stops. `train` runs one training; `train_together` runs a stack of them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from advsweep.backends.base import StackMember
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.diagnostics import StepRollouts, stacked_rollout_metrics
from advsweep.errors import ConfigError
from advsweep.estimators.batch import Advantages, GroupBatch, share_correct
from advsweep.names import ESTIMATOR_SECONDS, MATCH_FACTOR, REWARD_SECONDS, ROLLOUT_SECONDS
from advsweep.tasks.episodes import EpisodeTask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.reporter import Reporter
    from advsweep.estimators.base import Estimator
    from advsweep.rollouts.base import Collected
    from advsweep.tasks.base import Problem, Sampler


class Trainer(Protocol):
    """The state of a training in memory: weights, moments, the estimator's memory."""

    def step(self, step: int) -> Mapping[str, float]:
        """Make one training step (counted from 1) and return its metrics.

        Raises:
            TrainingError: a loss or a gradient is not finite; the message names the step.
        """

    def sampler(self) -> Sampler:
        """Return the current weights, for an evaluation; sampling does not change the training."""

    def state(self) -> Mapping[str, bytes]:
        """Return the files of a checkpoint: all that resuming needs."""

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Load what `state` returned."""


class TrainingStack(Protocol):
    """The states of several trainings in memory, which make their steps together.

    Runs are numbered from 0, in the given order.
    """

    def step(self, step: int) -> Sequence[Mapping[str, float] | BaseException]:
        """Make one step of every run; return the metrics or the error of each."""

    def sampler(self, index: int) -> Sampler:
        """Return the current weights of a run, as `Trainer.sampler` does."""

    def state(self, index: int) -> Mapping[str, bytes]:
        """Return the files of a checkpoint of a run."""

    def restore(self, index: int, files: Mapping[str, bytes]) -> None:
        """Load what `state` returned into a run."""

    def keep(self, indexes: Sequence[int]) -> None:
        """Drop all runs but these, which are numbered in this order from now on."""


def train(run: Run, trainer: Trainer, directory: Path, reporter: Reporter) -> None:
    """Train to the last step, or until the reporter asks to stop.

    Args:
        trainer: a trainer in the state of the base model.
        directory: the run's directory; training resumes from its newest sound checkpoint.
    """

    def save(checkpoints: Checkpoints, step: int) -> Path:
        return checkpoints.save(step, trainer.state())

    loop = Loop(run, directory, reporter, trainer.sampler, save)
    if loop.newest:
        trainer.restore(loop.newest.files)
    loop.begin()
    for step in range(loop.start + 1, run.steps + 1):
        if loop.end_step(step, trainer.step(step)):
            return


def train_together(
    members: Sequence[StackMember], make: Callable[[Sequence[Run]], TrainingStack]
) -> None:
    """Train several runs side by side, each as `train` does.

    Runs that resume from different steps form different stacks, one after another.

    Args:
        make: makes a stack of runs in the state of their base models.
    """
    # Runs of one stack are at the same step: schedules, draws and evaluations go by its number.
    slots_by_start: dict[int, list[_StackSlot]] = defaultdict(list)
    for member in members:
        with member.guard():
            slot = _StackSlot(member)
            slots_by_start[slot.loop.start].append(slot)
    for start, slots in sorted(slots_by_start.items()):
        _train_stack(slots, start, make)


def _train_stack(
    slots: list[_StackSlot], start: int, make: Callable[[Sequence[Run]], TrainingStack]
) -> None:
    stack = make([slot.member.run for slot in slots])
    for index, slot in enumerate(slots):
        slot.begin(stack, index)
    step = start
    while True:
        active = [slot for slot in slots if slot.is_active]
        # A finished run leaves the stack at once: the others' steps take less time and memory.
        if len(active) < len(slots):
            stack.keep([slot.index for slot in active])
            for index, slot in enumerate(active):
                slot.index = index
        slots = active
        step += 1
        if not slots:
            return
        for slot, result in zip(slots, stack.step(step), strict=True):
            slot.end_step(step, result)


class _StackSlot:
    """One run in a stack, with its loop.

    Attributes:
        index: number of the run in the stack.
        is_active: whether the run has a next step.
    """

    def __init__(self, member: StackMember) -> None:
        self.member = member
        self.loop = Loop(
            member.run,
            member.directory,
            member.reporter,
            lambda: self._stack.sampler(self.index),
            lambda checkpoints, step: checkpoints.save(step, self._stack.state(self.index)),
        )

    def begin(self, stack: TrainingStack, index: int) -> None:
        self._stack = stack
        self.index = index
        # Stays false if an error ends the guarded block: the guard swallows it.
        self.is_active = False
        with self.member.guard():
            if self.loop.newest:
                stack.restore(index, self.loop.newest.files)
            self.loop.begin()
            self.is_active = self.loop.start < self.member.run.steps

    def end_step(self, step: int, result: Mapping[str, float] | BaseException) -> None:
        self.is_active = False
        with self.member.guard():
            if isinstance(result, BaseException):
                raise result
            stopping = self.loop.end_step(step, result)
            self.is_active = not stopping and step < self.member.run.steps


@dataclass(eq=False)
class Loop:
    """The work before, between and after steps, for trainers that make their steps themselves.

    A step's evaluation comes before its checkpoint. A training that resumes evaluates the step it
    starts from again. So a process killed between the two repeats one evaluation, and no order of
    events leaves one out.

    Attributes:
        directory: the run's directory; training resumes from its newest sound checkpoint.
        sampler: returns the current weights, for an evaluation.
        save: writes the current state as the checkpoint of a step.
        newest: the checkpoint to resume from, which the trainer restores before `begin`.
        start: the step to resume from; 0 without a checkpoint.
    """

    run: Run
    directory: Path
    reporter: Reporter
    sampler: Callable[[], Sampler]
    save: Callable[[Checkpoints, int], Path]

    def __post_init__(self) -> None:
        if math.isnan(self.run.learning_rate_scale):
            raise ConfigError(
                "optimizer.match: expected a run whose learning rate a calibration has found, got "
                "one without; start it with `advsweep run` or `advsweep sweep`, which calibrate it"
            )
        self._evaluated = frozenset(self.run.evaluation.schedule(self.run.steps))
        self._checkpoints = Checkpoints(self.directory, self.run.identity)
        # The run's lease is this process's, so no other is writing a checkpoint now.
        self._checkpoints.discard_unfinished()
        self.newest = self._checkpoints.newest_sound(self.reporter.log)
        self.start = self.newest.step if self.newest else 0

    def begin(self) -> None:
        """Start the loop; call this once, before the first step."""
        if self.newest:
            self.reporter.resumed(self.start)
            # A process that is killed after it has written a checkpoint has not reported it.
            self.reporter.checkpoint(self.start, self._checkpoints.path(self.start))
        # Also when it resumes: it may have been killed between a checkpoint and its evaluation.
        if self.start in self._evaluated:
            self.reporter.evaluate(self.start, self.sampler())

    def end_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Report, evaluate and save after a step; return whether the training stops here."""
        backend = self.run.backend
        if self.run.optimizer.match != "none":
            metrics = {**metrics, MATCH_FACTOR: self.run.learning_rate_scale}
        self.reporter.metrics(step, metrics)
        if step in self._evaluated:
            self.reporter.evaluate(step, self.sampler())
        # Asked once a step: a checkpoint is only written where a step ends.
        stopping = self.reporter.stop_requested()
        every = backend.checkpoint_every
        if step == self.run.steps or stopping or (every > 0 and step % every == 0):
            self.reporter.checkpoint(step, self.save(self._checkpoints, step))
            # Only now: until the new one is complete, the old ones are all that a killed run has.
            for old in self._checkpoints.prune(backend.keep_last, backend.keep_every):
                self.reporter.pruned(old)
        return stopping


def base_solve_rate(run: Run, sampler: Sampler) -> float:
    """Estimate the base's solve rate on training problems; NaN if the run's control needs none.

    Args:
        sampler: the base model.
    """
    samples = run.control.base_samples
    if not samples:
        return math.nan
    problems = run.task.draw(samples, numpy_generator(run.seed, Stream.CONTROL))
    drawn = sampler.sample(problems, 1, temperature=run.generation.temperature, seed=run.seed)
    verdicts = drawn.verdicts_by(run.task, problems)
    return float((verdicts == 1).mean())


@dataclass(frozen=True)
class TokenStatistics:
    """What the sampling distribution says of each rollout: sums over its generated tokens.

    The end mark counts as a token.

    Attributes:
        lengths: number of generated tokens.
        surprisal: sum of -log π of the sampled tokens, in nats.
        entropy: sum of the exact entropies of the next-token distributions, in nats.
        certainty: sum of KL(uniform ‖ π) of the next-token distributions, in nats.
        tokens: numbers of each token that the estimator reads, 0 past the end, by their names in
            `GroupBatch`.
        kl: sum of the exact KLs of the next-token distributions from the base model's, in nats;
            NaN where it is not measured, None if it is nowhere.
        turns: the turn of each token, -1 for tokens of an environment and past the end; None if
            each rollout is one turn.
    """

    lengths: Float[Tensor, " rows"]
    surprisal: Float[Tensor, " rows"]
    entropy: Float[Tensor, " rows"]
    certainty: Float[Tensor, " rows"]
    tokens: Mapping[str, Float[Tensor, "rows tokens"]] = field(default_factory=dict)
    kl: Float[Tensor, " rows"] | None = None
    turns: Int[Tensor, "rows tokens"] | None = None

    def first(self, rows: int) -> TokenStatistics:
        """Return the statistics of the first rows; the KL is left out."""
        return TokenStatistics(
            lengths=self.lengths[:rows],
            surprisal=self.surprisal[:rows],
            entropy=self.entropy[:rows],
            certainty=self.certainty[:rows],
            tokens={name: values[:rows] for name, values in self.tokens.items()},
            turns=None if self.turns is None else self.turns[:rows],
        )

    @classmethod
    def join(cls, parts: Sequence[TokenStatistics]) -> TokenStatistics:
        """Return the statistics of all rows, on the CPU; those of tokens are padded to the longest.

        The KL is left out: it is measured once all answers are there.
        """
        tokens = {
            name: _stacked([part.tokens[name] for part in parts], 0.0) for name in parts[0].tokens
        }
        turns = [part.turns for part in parts if part.turns is not None]
        return cls(
            lengths=torch.cat([part.lengths.cpu() for part in parts]),
            surprisal=torch.cat([part.surprisal.cpu() for part in parts]),
            entropy=torch.cat([part.entropy.cpu() for part in parts]),
            certainty=torch.cat([part.certainty.cpu() for part in parts]),
            tokens=tokens,
            turns=_stacked(turns, -1) if turns else None,
        )


def _stacked(parts: Sequence[Tensor], filling: float) -> Tensor:
    """Return all rows on the CPU, filled up to the longest."""
    width = max(values.shape[1] for values in parts)
    return torch.cat(
        [
            torch.nn.functional.pad(values.cpu(), (0, width - values.shape[1]), value=filling)
            for values in parts
        ]
    )


@dataclass(frozen=True)
class Scores:
    """What the task says of each completion.

    Attributes:
        rewards: NaN for completions that the verifier could not score.
        verdicts: those of the verifier, from which the rewards are computed.
        truncated: whether the token limit ended the completion, and no end mark.
        answered: whether it has an answer; None if the estimator does not read it.
        parts: the parts of the reward, before their weights; None if the estimator does not read
            them.
        turn_states, turn_rewards: what the environment says of each turn; None if the task has no
            turns.
    """

    rewards: Float[Tensor, " rows"]
    verdicts: Float[Tensor, " rows"]
    truncated: Bool[Tensor, " rows"]
    answered: Bool[Tensor, " rows"] | None = None
    parts: Float[Tensor, "rows parts"] | None = None
    turn_states: Int[Tensor, "rows turns"] | None = None
    turn_rewards: Float[Tensor, "rows turns"] | None = None


@dataclass(frozen=True)
class Outcomes:
    """What environments of the user's say of the episodes that they have answered.

    Attributes:
        rewards: NaN where an environment has failed.
        verdicts: those of the task on the rewards.
        turn_states, turn_rewards: as in `Scores`; None where environments do not tell them.
    """

    rewards: Float[Tensor, " rows"]
    verdicts: Float[Tensor, " rows"]
    turn_states: Int[Tensor, "rows turns"] | None = None
    turn_rewards: Float[Tensor, "rows turns"] | None = None


@dataclass(frozen=True)
class Answers:
    """Completions to score.

    Attributes:
        lengths: tokens of each completion.
        truncated: as in `Scores`.
        outcomes: those of episodes with environments of the user's; None for other completions.
    """

    texts: Sequence[str]
    lengths: Sequence[float] | Float[Tensor, " rows"]
    truncated: Sequence[bool] | Bool[Tensor, " rows"]
    outcomes: Outcomes | None = None

    @classmethod
    def join(cls, parts: Sequence[Answers], rows: int) -> Answers:
        """Return the first rows of all parts, which have lists, and no outcomes."""
        texts: list[str] = []
        lengths: list[float] = []
        truncated: list[bool] = []
        for part in parts:
            texts += part.texts
            lengths += part.lengths
            truncated += part.truncated
        return cls(texts[:rows], lengths[:rows], truncated[:rows])


def score(
    run: Run,
    problems: Sequence[Problem],
    answers: Answers,
    *,
    rng: np.random.Generator,
    base_rate: float,
) -> Scores:
    """Verify completions, each of a problem, and compute their rewards.

    Args:
        rng, base_rate: randomness of the verdicts and the base's solve rate, for a control.
    """
    task = run.task
    read = run.estimator.needs | run.estimator.uses
    texts = answers.texts
    if answers.outcomes is not None:
        return _score_episodes(run, problems, answers, answers.outcomes)
    verdicts = run.control.verdicts(task.score(problems, texts), rng, base_rate)
    sizes = np.asarray(answers.lengths, dtype=np.float64)
    answered = _answered(run, problems, texts)
    parts = None
    if "reward_parts" in read:
        parts = torch.from_numpy(task.reward_parts(texts, verdicts, sizes)).float()
    rewards = task.rewards(texts, verdicts, sizes)
    states = turn_rewards = None
    if isinstance(task, EpisodeTask):
        transcript = task.follow([problem.prompt for problem in problems], texts)
        rewards = rewards + transcript.rewards.sum(axis=1)
        states = torch.from_numpy(transcript.states)
        if "turn_rewards" in task.provides:
            turn_rewards = torch.from_numpy(transcript.rewards).float()
    return Scores(
        rewards=torch.from_numpy(rewards).float(),
        verdicts=torch.from_numpy(verdicts).float(),
        truncated=torch.as_tensor(answers.truncated),
        answered=answered,
        parts=parts,
        turn_states=states,
        turn_rewards=turn_rewards,
    )


def _answered(
    run: Run, problems: Sequence[Problem], texts: Sequence[str]
) -> Bool[Tensor, " rows"] | None:
    """Return which completions have an answer; None if the estimator does not read it."""
    if "answered" not in run.estimator.needs | run.estimator.uses:
        return None
    parsed = run.task.answers(problems, texts)
    return torch.tensor([answer is not None for answer in parsed])


def _score_episodes(
    run: Run, problems: Sequence[Problem], answers: Answers, outcomes: Outcomes
) -> Scores:
    """Return the scores of episodes, which environments of the user's have rewarded."""
    return Scores(
        rewards=outcomes.rewards,
        verdicts=outcomes.verdicts,
        truncated=torch.as_tensor(answers.truncated),
        answered=_answered(run, problems, answers.texts),
        turn_states=outcomes.turn_states,
        turn_rewards=outcomes.turn_rewards,
    )


class LanguageSource:
    """Draws the groups of a step from a language model; rollout policies draw from it.

    Attributes:
        step: the training step, counted from 1.
        references: number of rollouts so far that are not trained on: of the reference model,
            greedy ones, or from states of episodes.
        further_tokens, further_turns: what was generated from states of episodes.
    """

    def __init__(self, run: Run, step: int) -> None:
        self._run = run
        self.step = step
        self.references = 0
        self.further_tokens = 0
        self.further_turns = 0
        self._values: Tensor | None = None
        self._rng = numpy_generator(run.seed, Stream.PROMPTS, step)
        self._problems: list[Problem] = []
        self._scores: list[Scores] = []
        self._statistics: list[TokenStatistics] = []

    def _repeated(self, problems: Sequence[Problem]) -> list[Problem]:
        repeated: list[Problem] = []
        for problem in problems:
            repeated += [problem] * self._run.drawn_size
        return repeated

    def _add(
        self, problems: Sequence[Problem], scores: Scores, statistics: TokenStatistics
    ) -> Float[Tensor, "prompts rollouts"]:
        """Add the groups of a draw; return their rewards."""
        self._problems += problems
        self._scores.append(scores)
        self._statistics.append(statistics)
        return scores.rewards.view(len(problems), -1)

    def _grouped(self, name: str) -> Tensor | None:
        """Return a field of the scores of all groups drawn; None if it is not read."""
        values = [getattr(scores, name) for scores in self._scores]
        if values[0] is None:
            return None
        rows = torch.cat(values)
        return rows.view(len(self._problems), -1, *rows.shape[1:])

    @property
    def group_size(self) -> int:
        """Rollouts of a group that the step trains on."""
        return self._run.group_size

    @property
    def lengths(self) -> Float[Tensor, "groups rollouts"]:
        """Lengths of the rollouts of each group drawn, in tokens."""
        lengths = torch.cat([statistics.lengths.cpu() for statistics in self._statistics])
        return lengths.view(len(self._problems), -1)

    @property
    def verdicts(self) -> Float[Tensor, "groups rollouts"]:
        """Verdicts of each group drawn, from which the rewards are computed."""
        verdicts = self._grouped("verdicts")
        assert verdicts is not None
        return verdicts

    @property
    def levels(self) -> list[int]:
        """Difficulty level of each group drawn."""
        return [problem.level for problem in self._problems]

    def batch(self) -> GroupBatch:
        """Return the groups drawn, as an estimator sees them."""
        statistics = TokenStatistics.join(self._statistics)
        rewards = self._grouped("rewards")
        assert rewards is not None
        scored = ~rewards.isnan()
        parts = self._grouped("parts")
        tokens: dict[str, Any] = {
            name: rows.view(*rewards.shape, -1) for name, rows in statistics.tokens.items()
        }

        turns = statistics.turns

        def token_mean(sums: Float[Tensor, " rows"]) -> Float[Tensor, "groups rollouts"]:
            return (sums / statistics.lengths).view(rewards.shape)

        return GroupBatch(
            rewards=rewards,
            mask=None if scored.all() else scored,
            lengths=self.lengths,
            token_entropy=token_mean(statistics.surprisal),
            token_entropy_exact=token_mean(statistics.entropy),
            **tokens,
            turn_of_token=None if turns is None else turns.view(*rewards.shape, -1),
            turn_states=self._grouped("turn_states"),
            turn_rewards=self._grouped("turn_rewards"),
            turn_values=self._values,
            self_certainty=token_mean(statistics.certainty),
            solve_rates=share_correct(self.verdicts == 1, scored),
            answered=self._grouped("answered"),
            reward_parts=parts,
            part_weights=None if parts is None else self._run.task.part_weights,
            truncated=self._grouped("truncated"),
            prompt_ids=tuple(problem.id for problem in self._problems),
            step=self.step,
            total_steps=self._run.total_steps,
        )


def collect_and_weigh(
    run: Run, source: Any, estimator: Estimator, base_rate: float
) -> tuple[Collected, Advantages, dict[str, float]]:
    """Let the rollout policy choose groups and the estimator weigh them; return the metrics too.

    Args:
        source: draws the groups; also has their `verdicts`, `levels`, `references` and `batch`,
            `further_tokens`, `further_turns` and the `reward_seconds` that the verifier took.
        base_rate: the base's solve rate, for a control that needs it.
    """
    started = time.perf_counter()
    collected = run.rollout.collect(source, run.prompts_per_step)
    drawn = source.batch()
    complete = time.perf_counter()
    advantages = compute_advantages(estimator, drawn, collected)
    weighed = time.perf_counter()
    if run.rollout.mask_truncated and drawn.truncated is not None:
        cut_off = drawn.truncated.flatten()[collected.rows(run.drawn_size)]
        advantages = _without(advantages, cut_off.view(advantages.keep.shape))
    (metrics,) = stacked_rollout_metrics(
        step_rollouts([run], source, collected, drawn, advantages),
        [advantages.info],
        verifier_free=[run.estimator.verifier_free],
    )
    if run.control.base_samples:
        metrics["control/rate"] = base_rate
    metrics |= {
        ROLLOUT_SECONDS: complete - started - source.reward_seconds,
        REWARD_SECONDS: source.reward_seconds,
        ESTIMATOR_SECONDS: weighed - complete,
    }
    return collected, advantages, metrics


def _without(advantages: Advantages, cut_off: Bool[Tensor, "groups rollouts"]) -> Advantages:
    """Leave rollouts out of the loss; they still count in means over rollouts."""
    whole = advantages.keep & ~cut_off
    # Metrics of advantages are of what the loss has; zeros stay in its means over rollouts.
    inside = whole[..., None] if advantages.per_token else whole
    values = torch.where(inside, advantages.values, 0.0)
    return replace(advantages, values=values, keep=whole, counted=advantages.keep)


def step_rollouts(
    runs: Sequence[Run],
    source: Any,
    collected: Collected,
    drawn: GroupBatch,
    advantages: Advantages,
) -> StepRollouts:
    """Return the rollouts of a step of a stack's runs, for its metrics.

    Args:
        source: drew the groups; also has their `verdicts`, `levels` and `references`.
        drawn: all groups drawn.
    """
    first = runs[0]
    return StepRollouts(
        batch=drawn,
        advantages=advantages,
        groups=collected.groups if len(runs) == 1 else None,
        rollouts=collected.rollouts,
        verdicts=source.verdicts,
        judged=first.rollout.judged(drawn.rewards, source.verdicts),
        levels=source.levels,
        prompts=first.prompts_per_step,
        references=source.references,
        further_tokens=source.further_tokens,
        further_turns=source.further_turns,
        attempts=collected.attempts,
        last_attempt=collected.last_attempt,
        graded=not all(run.task.is_binary for run in runs),
    )


def compute_advantages(estimator: Estimator, drawn: GroupBatch, collected: Collected) -> Advantages:
    """Return the advantages of the groups that a step trains on.

    A step without such groups has no advantages, and does not advance the estimator's memory.

    Args:
        drawn: all groups drawn.
        collected: the groups that the rollout policy chose.

    Raises:
        BatchError: the estimator refuses the groups.
    """
    groups = collected.groups
    everything = torch.arange(len(drawn.rewards), device=groups.device)
    if collected.rollouts is not None or not torch.equal(groups, everything):
        drawn = drawn.select(groups, collected.rollouts)
    batch = replace(drawn, **collected.inputs)
    if len(batch.rewards):
        return estimator.compute(batch)
    return Advantages(values=batch.rewards, keep=torch.ones_like(batch.rewards, dtype=torch.bool))
