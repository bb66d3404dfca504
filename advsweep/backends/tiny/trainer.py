"""One training of the tiny model: rollouts, rewards, advantages, update."""

from __future__ import annotations

import copy
import functools
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from advsweep.backends.seeded_source import SampledTokens, SeededSource
from advsweep.backends.step_changes import KL_STEP, ChangeMeter, peak_memory
from advsweep.backends.tiny.network import Continuations, Network
from advsweep.backends.tiny.sampling import Rollouts, TinySampler, TokenSampling, sample
from advsweep.backends.tiny.tokens import Encoded, decode, encode
from advsweep.backends.tiny.turn_values import TurnStarts
from advsweep.backends.tiny.update import Experience, PolicyUpdate
from advsweep.backends.tiny.weights import (
    Weights,
    flatten,
    from_bytes,
    last_layers,
    to_bytes,
    unflatten,
)
from advsweep.backends.training_loop import (
    Answers,
    Scores,
    base_solve_rate,
    collect_and_weigh,
)
from advsweep.names import ENTROPY_CHANGE, UPDATE_SECONDS
from advsweep.tasks.episodes import EpisodeTask

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.models import TinyModel
    from advsweep.backends.tiny.options import TinyOptions
    from advsweep.tasks.base import Problem, SymbolTask

WEIGHTS_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_REFERENCE_FILE = "reference.safetensors"
_HISTORY_FILE = "history.safetensors"
_PENALTY_FILE = "penalty.safetensors"
_CHANGE_FILE = "change.safetensors"
_WEIGHTS = "weights"


class TinyTrainer:
    """The state of a training in memory; see `training_loop.Trainer`."""

    def __init__(
        self, run: Run, options: TinyOptions, model: TinyModel, task: SymbolTask, base: Weights
    ) -> None:
        self.run = run
        self.model = model
        self.task = task
        # A copy, as planned runs share their components and each training has a memory.
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        self.base = flatten(base, model)
        self._weights = self.base.clone()
        # A view for what reads and copies the weights, without their gradient.
        self._values = self._weights.detach()
        self._history = WeightHistory(options.stale_steps)
        self.renewed: Tensor | None = None
        self.penalty: Tensor | None = None
        self._options = options
        # It trains the weights in place; what is to stay as it was has to be a copy.
        self._update = PolicyUpdate(run, options, model, self._weights, self.base)
        self._meter = ChangeMeter({_WEIGHTS: self._values})

    def step(self, step: int) -> Mapping[str, float]:
        run = self.run
        source = _Source(self, self._history.sampling(self._values), step)
        collected, advantages, metrics = collect_and_weigh(
            run, source, self._estimator, self.base_rate
        )
        started = updated = time.perf_counter()
        update: dict[str, float] = {KL_STEP: 0.0}
        if advantages.keep.any():
            rollouts = source.rollouts()[collected.rows(run.drawn_size)]
            values = advantages.values.flatten(0, 1)
            if advantages.per_token:
                values = F.pad(values, (0, rollouts.tokens.shape[1] - values.shape[1]))
            experience = Experience(
                prompts=source.prompts(collected.groups),
                rollouts=rollouts,
                group_size=run.group_size,
                advantages=values,
                keep=advantages.keep.flatten(),
                counted=advantages.in_denominators.flatten(),
            )
            update |= self._update.step(step, experience)
            # The clock stops here: what only measures the update is no part of its time.
            updated = time.perf_counter()
            update[KL_STEP] = self._update.kl_step(experience)
            if self._options.entropy_change:
                update[ENTROPY_CHANGE] = self._update.entropy_change(experience)
        # After the update: the reference of the next step is what this one has made.
        if run.rollout.renews_reference(step):
            self.renewed = self._values.clone()
        changes = self._meter.measure()
        self._reset(step)
        return {
            **metrics,
            **update,
            **changes,
            **peak_memory(),
            UPDATE_SECONDS: updated - started,
        }

    @functools.cached_property
    def base_rate(self) -> float:
        """The base's solve rate, for a control that needs it."""
        # The base stays in memory, so a resumed run finds the same rate.
        return base_solve_rate(self.run, TinySampler(self.base, self.model, self.task))

    def _reset(self, step: int) -> None:
        """Make the resets that are due after a step; the next step's metrics have their effect."""
        run = self.run
        options = self._options
        if run.objective.renews_reference(step):
            self.penalty = self._values.clone()
            self._update.renew_reference(self.penalty)
        if run.optimizer.resets(step):
            self._update.reset_moments()
        if options.reset_layers and step % options.reset_layers_every == 0:
            ours, base = (unflatten(flat, self.model) for flat in (self._values, self.base))
            for name in last_layers(self.model, options.reset_layers):
                ours[name].copy_(base[name])
            self._meter.begin()

    def sampler(self) -> TinySampler:
        top_p = self.run.evaluation.top_p
        return TinySampler(self._values, self.model, self.task, self.base, top_p)

    def change_norm(self) -> float:
        return float(torch.linalg.vector_norm(self._values - self.base))

    def state(self) -> Mapping[str, bytes]:
        # No generators: all randomness of a step follows from the seed and its number.
        vectors = {
            _OPTIMIZER_FILE: self._update.state(),
            _CHANGE_FILE: self._meter.state(),
            _HISTORY_FILE: self._history.state(),
            _REFERENCE_FILE: {} if self.renewed is None else {_WEIGHTS: self.renewed},
            _PENALTY_FILE: {} if self.penalty is None else {_WEIGHTS: self.penalty},
        }
        return {
            WEIGHTS_FILE: to_bytes(unflatten(self._values, self.model)),
            _ESTIMATOR_FILE: json.dumps(self._estimator.state_dict()).encode(),
            **{name: to_bytes(tensors) for name, tensors in vectors.items() if tensors},
        }

    def restore(self, files: Mapping[str, bytes]) -> None:
        kept = {n: from_bytes(files[n]) for n in files if n.endswith(".safetensors")}
        self._values.copy_(flatten(kept[WEIGHTS_FILE], self.model))
        self._update.restore(kept[_OPTIMIZER_FILE])
        self._estimator.load_state_dict(json.loads(files[_ESTIMATOR_FILE]))
        self.renewed = kept.get(_REFERENCE_FILE, {}).get(_WEIGHTS)
        self._history.restore(kept.get(_HISTORY_FILE, {}))
        self.penalty = kept.get(_PENALTY_FILE, {}).get(_WEIGHTS)
        if self.penalty is not None:
            self._update.renew_reference(self.penalty)
        self._meter.restore(kept.get(_CHANGE_FILE, {}))


class WeightHistory:
    """The weights before the last steps.

    Args:
        lag: how many steps older than the current weights those are that sample.
    """

    def __init__(self, lag: int) -> None:
        self._kept: deque[Tensor] = deque(maxlen=lag + 1)

    def sampling(self, current: Float[Tensor, " weights"]) -> Float[Tensor, " weights"]:
        """Return the weights of `lag` steps ago, or the first ones; call this once per step.

        Args:
            current: the weights before the step, which it will change in place.
        """
        if self._kept.maxlen == 1:
            return current
        self._kept.append(current.clone())
        return self._kept[0]

    def state(self) -> dict[str, Tensor]:
        """Return what the next steps need, by place; empty without a lag."""
        return {str(number): weights for number, weights in enumerate(self._kept)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        self._kept.extend(state[number] for number in sorted(state, key=int))


class _Source(SeededSource):
    """Draws groups of one step and scores them.

    Args:
        weights: those that sample.
    """

    def __init__(self, trainer: TinyTrainer, weights: Tensor, step: int) -> None:
        super().__init__(trainer.run, step, trainer.base_rate)
        self._task = trainer.task
        self._model = trainer.model
        self._weights = weights
        # The weights of reference rollouts, and those from which the KL of rollouts is.
        self._reference = trainer.base if trainer.renewed is None else trainer.renewed
        self._anchor = trainer.base if trainer.penalty is None else trainer.penalty
        self._rollouts: list[Rollouts] = []

    def _draw(self, problems: list[Problem]) -> Float[Tensor, "prompts rollouts"]:
        rollouts, scores = self._sample(self._weights, problems, self._generator)
        self._rollouts.append(rollouts)
        return self._add(problems, scores, self._statistics_of(problems, rollouts))

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        problems = self._problems_of(groups)
        _, scores = self._sample(self._reference, problems, self._reference_generator)
        self.references += len(scores.rewards)
        return scores.rewards.view(len(problems), -1)

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        problems = self._problems_of(groups)
        _, scores = self._sample(self._weights, problems, self._reference_generator, greedy=True)
        self.references += len(problems)
        return scores.rewards

    def draw_values(self, episodes: int, rollouts: int) -> None:
        assert isinstance(self._task, EpisodeTask)
        size = self._run.drawn_size
        drawn = self.rollouts()
        assert drawn.turns is not None
        rows = torch.arange(len(drawn.lengths)).view(-1, size)[:, :episodes].flatten()
        starts = TurnStarts.of(
            [self._problems[row // size] for row in rows.tolist()],
            decode(drawn.tokens[rows].numpy(), self._task),
            drawn.turns[rows],
            self._task.max_turns,
        )
        values = torch.full((len(drawn.lengths), self._task.max_turns), torch.nan)
        values[rows] = starts.values(self._continue(starts, rollouts), rollouts)
        self._values = values.view(len(self._problems), size, -1)

    def _continue(self, starts: TurnStarts, rollouts: int) -> Scores:
        """Sample rollouts from the beginnings of episodes, and score the whole episodes."""
        sampling = TokenSampling(
            temperature=self._run.generation.temperature, generator=self._reference_generator
        )
        network = Network.of(self._weights, self._model)
        endings = sample(network, self._task, starts.prompts, rollouts, sampling)
        assert endings.turns is not None
        self.references += len(endings.lengths)
        self.further_tokens += int(endings.generated.sum())
        self.further_turns += int((endings.turns.amax(dim=1) + 1).sum())
        owners = torch.arange(len(starts.texts)).repeat_interleave(rollouts)
        texts = decode(endings.tokens.numpy(), self._task)
        return self._score(
            [starts.problems[owner] for owner in owners.tolist()],
            Answers(
                texts=[starts.texts[o] + t for o, t in zip(owners.tolist(), texts, strict=True)],
                lengths=endings.generated + torch.tensor(starts.tokens)[owners],
                truncated=endings.truncated,
            ),
        )

    def prompts(self, groups: Int[Tensor, " groups"]) -> Encoded:
        return self._encode(self._problems_of(groups))

    def _encode(self, problems: Sequence[Problem]) -> Encoded:
        return encode([problem.prompt for problem in problems], self._task)

    def rollouts(self) -> Rollouts:
        """Return all rollouts drawn, group by group."""
        return Rollouts.concatenate(self._rollouts)

    def _anchor_log_probs(
        self, problems: Sequence[Problem], rollouts: SampledTokens
    ) -> Float[Tensor, "rows tokens"]:
        assert isinstance(rollouts, Rollouts)
        prompts = self._encode(problems)
        owner = np.arange(len(prompts.lengths)).repeat(self._run.drawn_size)
        tokens = rollouts.tokens.numpy()
        lengths = rollouts.lengths.numpy()
        continuations = Continuations.lay_out(prompts, owner, tokens, lengths)
        temperature = self._run.generation.temperature
        return continuations.log_probs(self._anchor, self._model, temperature)[0]

    def _sample(
        self,
        weights: Float[Tensor, " weights"],
        problems: Sequence[Problem],
        generator: torch.Generator,
        *,
        greedy: bool = False,
    ) -> tuple[Rollouts, Scores]:
        """Sample a group for each problem, or a greedy rollout, and score them."""
        sampling = TokenSampling(
            temperature=0.0 if greedy else self._run.generation.temperature,
            generator=generator,
            squares="token_grad_norms" in self._read,
        )
        rollouts = sample(
            Network.of(weights, self._model),
            self._task,
            [problem.prompt for problem in problems],
            1 if greedy else self._run.drawn_size,
            sampling,
        )
        scores = self._score(
            problems if greedy else self._repeated(problems),
            Answers(
                texts=decode(rollouts.tokens.numpy(), self._task),
                lengths=rollouts.generated,
                truncated=rollouts.truncated,
            ),
        )
        return rollouts, scores
