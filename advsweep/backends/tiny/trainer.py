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

from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.step_changes import KL_STEP, ChangeMeter, peak_memory
from advsweep.backends.tiny.network import Continuations, fuse
from advsweep.backends.tiny.sampling import Rollouts, TinySampler, sample
from advsweep.backends.tiny.tokens import Encoded, decode, encode
from advsweep.backends.tiny.update import Experience, PolicyUpdate
from advsweep.backends.tiny.weights import (
    Weights,
    from_bytes,
    last_layers,
    to_bytes,
)
from advsweep.backends.training_loop import (
    LanguageSource,
    Scores,
    TokenStatistics,
    base_solve_rate,
    collect_and_weigh,
    score,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.models import TinyModel
    from advsweep.backends.tiny.backend import TinyBackend
    from advsweep.backends.tiny.network import Network
    from advsweep.tasks.base import Problem, SymbolTask

WEIGHTS_FILE = "model.safetensors"
_OPTIMIZER_FILE = "optimizer.safetensors"
_ESTIMATOR_FILE = "estimator.json"
_REFERENCE_FILE = "reference.safetensors"
_HISTORY_FILE = "history.safetensors"
_PENALTY_FILE = "penalty.safetensors"
_CHANGE_FILE = "change.safetensors"


class TinyTrainer:
    """The state of a training in memory; see `training_loop.Trainer`."""

    def __init__(
        self, run: Run, options: TinyBackend, model: TinyModel, task: SymbolTask, base: Weights
    ) -> None:
        self._run = run
        self._model = model
        self._task = task
        # A copy, as planned runs share their components and each training has a memory.
        self._estimator = copy.deepcopy(run.estimator)
        self._estimator.reset()
        # Sorted, as the optimizer keeps moments by position and bases may differ in their order.
        self._weights = {name: base[name].clone() for name in sorted(base)}
        self._history = WeightHistory(options.stale_steps)
        self._base = base
        self._renewed: Weights | None = None
        self._penalty: Weights | None = None
        self._options = options
        # It trains these tensors in place; what is to stay as it was has to be a copy.
        self._update = PolicyUpdate(run, options, model, self._weights, base)
        self._meter = ChangeMeter(self._weights)

    def step(self, step: int) -> Mapping[str, float]:
        run = self._run
        sampling = self._history.sampling(self._weights)
        reference = self._base if self._renewed is None else self._renewed
        anchor = self._base if self._penalty is None else self._penalty
        source = _Source(
            run, self._task, self._model, sampling, reference, anchor, step, self._base_rate
        )
        collected, advantages, metrics = collect_and_weigh(
            run, source, self._estimator, self._base_rate
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
                update["entropy/change"] = self._update.entropy_change(experience)
        # After the update: the reference of the next step is what this one has made.
        if run.rollout.renews_reference(step):
            self._renewed = self._copy()
        changes = self._meter.measure()
        self._reset(step)
        return {
            **metrics,
            **update,
            **changes,
            **peak_memory(),
            "time/rollout": source.rollout_seconds,
            "time/reward": source.reward_seconds,
            "time/update": updated - started,
        }

    @functools.cached_property
    def _base_rate(self) -> float:
        # The base stays in memory, so a resumed run finds the same rate.
        return base_solve_rate(self._run, TinySampler(self._base, self._model, self._task))

    def _copy(self) -> Weights:
        return {name: w.detach().clone() for name, w in self._weights.items()}

    def _reset(self, step: int) -> None:
        """Make the resets that are due after a step; the next step's metrics have their effect."""
        run, options = self._run, self._options
        if run.objective.renews_reference(step):
            self._penalty = self._copy()
            self._update.renew_reference(self._penalty)
        if run.optimizer.resets(step):
            self._update.reset_moments()
        if options.reset_layers and step % options.reset_layers_every == 0:
            with torch.no_grad():
                for name in last_layers(self._model, options.reset_layers):
                    self._weights[name].copy_(self._base[name])
            self._meter.begin()

    def sampler(self) -> TinySampler:
        top_p = self._run.evaluation.top_p
        return TinySampler(self._weights, self._model, self._task, self._base, top_p)

    @torch.no_grad()
    def change_norm(self) -> float:
        changes = [w - self._base[name] for name, w in self._weights.items()]
        return torch.nn.utils.get_total_norm(changes).item()

    def state(self) -> Mapping[str, bytes]:
        # No generators: all randomness of a step follows from the seed and its number.
        always = {
            WEIGHTS_FILE: self._weights,
            _OPTIMIZER_FILE: self._update.state(),
            _CHANGE_FILE: self._meter.state(),
        }
        sometimes = {
            _REFERENCE_FILE: self._renewed,
            _HISTORY_FILE: self._history.state(),
            _PENALTY_FILE: self._penalty,
        }
        files = always | {name: weights for name, weights in sometimes.items() if weights}
        memory = json.dumps(self._estimator.state_dict()).encode()
        return {_ESTIMATOR_FILE: memory, **{name: to_bytes(own) for name, own in files.items()}}

    def restore(self, files: Mapping[str, bytes]) -> None:
        kept = {n: from_bytes(files[n]) for n in files if n.endswith(".safetensors")}
        with torch.no_grad():
            for name, weight in kept[WEIGHTS_FILE].items():
                self._weights[name].copy_(weight)
        self._update.restore(kept[_OPTIMIZER_FILE])
        self._estimator.load_state_dict(json.loads(files[_ESTIMATOR_FILE]))
        self._renewed = kept.get(_REFERENCE_FILE)
        self._history.restore(kept.get(_HISTORY_FILE, {}))
        self._penalty = kept.get(_PENALTY_FILE)
        if self._penalty is not None:
            self._update.renew_reference(self._penalty)
        # Checkpoints of earlier versions lack it.
        self._meter.restore(kept.get(_CHANGE_FILE, {}))


class WeightHistory:
    """The weights before the last steps.

    Args:
        lag: how many steps older than the current weights those are that sample.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._kept: deque[Weights] = deque(maxlen=lag + 1)

    def sampling(self, current: Weights) -> Weights:
        """Return the weights of `lag` steps ago, or the first ones; call this once per step.

        Args:
            current: the weights before the step, which it will change in place.
        """
        if self._lag == 0:
            return current
        self._kept.append({name: weight.detach().clone() for name, weight in current.items()})
        return self._kept[0]

    def state(self) -> Weights:
        """Return what the next steps need, by `PLACE/WEIGHT`; empty without a lag."""
        return {
            f"{place}/{name}": weight
            for place, weights in enumerate(self._kept)
            for name, weight in weights.items()
        }

    def restore(self, state: Weights) -> None:
        """Load what `state` returned."""
        by_place: dict[int, Weights] = {}
        for key, weight in state.items():
            place, name = key.split("/", 1)
            by_place.setdefault(int(place), {})[name] = weight
        self._kept = deque((by_place[place] for place in sorted(by_place)), self._lag + 1)


class _Source(LanguageSource):
    """Draws groups of one step and scores them.

    Args:
        reference: weights of reference rollouts.
        anchor: weights from which the KL of rollouts is.
        base_rate: the base's solve rate, for a control that needs it.

    Attributes:
        rollout_seconds, reward_seconds: total time of sampling and of scoring.
    """

    def __init__(
        self,
        run: Run,
        task: SymbolTask,
        model: TinyModel,
        weights: Weights,
        reference: Weights,
        anchor: Weights,
        step: int,
        base_rate: float,
    ) -> None:
        super().__init__(run, step)
        self._task = task
        self._model = model
        self._weights = weights
        self._base_rate = base_rate
        self._reference = reference
        self._anchor = anchor
        self._read = run.estimator.needs | run.estimator.uses
        # A stream for each purpose: a policy that draws more references, or a control that takes
        # more random numbers, leaves the rollouts as they are.
        self._generator = torch_generator(run.rollout_seed, Stream.ROLLOUTS, step)
        self._reference_generator = torch_generator(run.rollout_seed, Stream.REFERENCE, step)
        self._control_rng = numpy_generator(run.seed, Stream.CONTROL, step)
        self._rollouts: list[Rollouts] = []
        self.rollout_seconds = self.reward_seconds = 0.0

    def draw(self, prompts: int) -> Float[Tensor, "prompts rollouts"]:
        return self._draw(list(self._task.draw(prompts, self._rng)))

    def draw_again(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        return self._draw([self._problems[group] for group in groups.tolist()])

    def _draw(self, problems: list[Problem]) -> Float[Tensor, "prompts rollouts"]:
        rollouts, scores = self._sample(self._network, problems, self._generator)
        self._rollouts.append(rollouts)
        tokens = {}
        if "token_entropies" in self._read:
            tokens["token_entropies"] = rollouts.entropies
        if "token_grad_norms" in self._read:
            tokens["token_grad_norms"] = 1 - 2 * rollouts.log_probs.exp() + rollouts.squares
        if "token_kl" in self._read:
            prompts = encode([problem.prompt for problem in problems], self._task)
            of_anchor = self._log_probs(self._anchor, prompts, rollouts)
            tokens["token_kl"] = rollouts.log_probs - of_anchor
        statistics = TokenStatistics(
            lengths=rollouts.lengths.float(),
            surprisal=(-rollouts.log_probs).sum(dim=1),
            entropy=rollouts.entropies.sum(dim=1),
            certainty=rollouts.certainties.sum(dim=1),
            tokens={name: values.where(rollouts.mask, 0.0) for name, values in tokens.items()},
        )
        return self._add(problems, scores, statistics)

    def draw_references(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, "groups rollouts"]:
        problems = [self._problems[group] for group in groups.tolist()]
        with torch.no_grad():
            network = fuse(self._reference, self._model)
        _, scores = self._sample(network, problems, self._reference_generator)
        self.references += len(scores.rewards)
        return scores.rewards.view(len(problems), -1)

    def draw_greedy(self, groups: Int[Tensor, " groups"]) -> Float[Tensor, " groups"]:
        problems = [self._problems[group] for group in groups.tolist()]
        _, scores = self._sample(self._network, problems, self._reference_generator, greedy=True)
        self.references += len(problems)
        return scores.rewards

    def prompts(self, groups: Int[Tensor, " groups"]) -> Encoded:
        return encode([self._problems[group].prompt for group in groups.tolist()], self._task)

    def rollouts(self) -> Rollouts:
        """Return all rollouts drawn, group by group."""
        return Rollouts.concatenate(self._rollouts)

    @functools.cached_property
    def _network(self) -> Network:
        # Fused once: the weights change only after the last draw of a step.
        with torch.no_grad():
            return fuse(self._weights, self._model)

    def _log_probs(
        self, weights: Weights, prompts: Encoded, rollouts: Rollouts
    ) -> Float[Tensor, "rows tokens"]:
        """Return log π of the tokens of groups of rollouts, arbitrary past their ends."""
        owner = np.arange(len(prompts.lengths)).repeat(self._run.drawn_size)
        tokens, lengths = rollouts.tokens.numpy(), rollouts.lengths.numpy()
        continuations = Continuations.lay_out(prompts, owner, tokens, lengths)
        with torch.no_grad():
            network = fuse(weights, self._model)
            return continuations.log_probs(network, self._run.generation.temperature)[0]

    def _sample(
        self,
        network: Network,
        problems: Sequence[Problem],
        generator: torch.Generator,
        *,
        greedy: bool = False,
    ) -> tuple[Rollouts, Scores]:
        """Sample a group for each problem, or a greedy rollout, and score them."""
        started = time.perf_counter()
        rollouts = sample(
            network,
            self._task,
            encode([problem.prompt for problem in problems], self._task),
            1 if greedy else self._run.drawn_size,
            temperature=0.0 if greedy else self._run.generation.temperature,
            generator=generator,
            squares="token_grad_norms" in self._read,
        )
        sampled = time.perf_counter()
        last = rollouts.tokens.gather(1, rollouts.lengths[:, None] - 1)[:, 0]
        scores = score(
            self._run,
            problems if greedy else self._repeated(problems),
            decode(rollouts.tokens.numpy(), self._task),
            rollouts.lengths,
            last != self._task.eos_id,
            self._control_rng,
            self._base_rate,
        )
        self.rollout_seconds += sampled - started
        self.reward_seconds += time.perf_counter() - sampled
        return rollouts, scores
