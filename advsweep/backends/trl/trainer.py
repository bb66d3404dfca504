"""TRL's GRPOTrainer with our estimators, objectives, rollout policies and metrics.

What is TRL's: prompts and completions as tokens, generation, log-probabilities, the shuffle
into minibatches, and of transformers' Trainer the updates. What is ours: which problems are
drawn and which groups are kept, advantages, loss, learning rate, metrics.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from advsweep.backends.training_loop import compute_advantages, reads_answers
from advsweep.backends.trl import batch_layout as rollout_rows
from advsweep.backends.trl.sampling import ModelSampler, prompt_of
from advsweep.backends.trl.source import StepSource
from advsweep.backends.trl.token_statistics import SignalRecorder, recording
from advsweep.backends.trl.updates import StepUpdates
from advsweep.config.settings import AdamW
from advsweep.diagnostics import rollout_metrics
from advsweep.errors import TrainingError
from advsweep.objectives.base import LossInputs

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.base import Run
    from advsweep.backends.trl.batch_layout import Layout, Rows
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem


class EstimatorTrainer(GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that takes what it trains on and the loss from a run.

    A step of the run is one generation of TRL's, which is `layout.updates` of its steps. The
    dataset it is given only sets that pace: problems are drawn by seed and step.

    Args:
        measures_change: whether steps have `entropy/change`, at the cost of two passes more.
        rollout_batch: the most rollouts that are generated together; None: all of a process.
        reference: answers with the reference model, for policies that draw with it.
        arguments: of GRPOTrainer.

    Attributes:
        estimator: a copy of the run's, with a memory of its own.
    """

    def __init__(
        self,
        run: Run,
        model: HfModel,
        layout: Layout,
        *,
        skip: bool,
        measures_change: bool = False,
        rollout_batch: int | None = None,
        reference: Callable[[], ModelSampler] | None = None,
        **arguments: Any,
    ) -> None:
        self._run = run
        self._model = model
        self._layout = layout
        self._skip = skip and run.objective.skips_exactly
        self._measures_change = measures_change
        self._rollout_batch = rollout_batch
        self._reference = reference
        self.estimator = copy.deepcopy(run.estimator)
        self.estimator.reset()
        self._scored: Float[Tensor, "rows functions"] | None = None
        self._outcomes: list[float] = []
        self._forged: tuple[int, int] | None = None  # of how many completions, in this step
        self._answered: list[float] = []
        self._signals: Float[Tensor, "rows 4"] | None = None
        self._shares: list[tuple[float, float]] = []
        self._rollout: dict[str, float] = {}
        self._update = StepUpdates()
        self._before: tuple[Rows, Float[Tensor, " rows"]] | None = None
        self._reward_seconds = 0.0
        self._generated = 0.0
        functions = [self._reward, *([self._outcome] if run.task.is_shaped else [])]
        # Gathered from all processes with the rewards, as the last column.
        functions += [self._has_answer] if reads_answers(run.estimator) else []
        super().__init__(model=model.location, reward_funcs=functions, **arguments)
        self.add_callback(_BeforeOptimizer(self))

    @property
    def pad_id(self) -> int:
        return int(self.processing_class.pad_token_id)

    @property
    def steps_done(self) -> int:
        """Steps of the run, of which each may be several of the trainer's."""
        return int(self.state.global_step) // self._layout.updates

    def step_metrics(self) -> dict[str, float]:
        """The metrics of the step that has just ended; to be asked for once."""
        update, self._update = self._update, StepUpdates()
        seconds = time.perf_counter() - self._generated
        # TRL's own, which are not used, would pile up.
        self._metrics["train"].clear()
        return {
            **self._rollout,
            **update.metrics,
            **self._entropy_change(),
            "time/update": seconds,
        }

    def answering(self, sampler: ModelSampler) -> ModelSampler:
        """How the weights in training answer, given how they do by transformers."""
        return sampler

    # Rollouts

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        run, step = self._run, self.steps_done + 1
        self._reward_seconds = 0.0
        self._forged = None
        source = StepSource(self, run, step)
        collected = run.rollout.collect(source, run.prompts_per_step)
        drawn = source.batch()
        started = time.perf_counter()
        advantages = compute_advantages(self.estimator, drawn, collected)
        estimated = time.perf_counter()
        self._rollout = rollout_metrics(
            drawn,
            advantages,
            groups=collected.groups,
            outcomes=source.outcomes,
            levels=source.levels,
            prompts=run.prompts_per_step,
            references=source.references,
            verifier_free=self.estimator.verifier_free,
        ) | {
            "time/rollout": source.seconds - self._reward_seconds,
            "time/reward": self._reward_seconds,
            "time/estimator": estimated - started,
            **self._forged_share(),
        }
        rows = source.rows(collected.groups)
        rows["advantages"] = self._own_share(advantages.values.flatten().float())
        rows["keep"] = self._own_share(advantages.keep.flatten())
        if self._measures_change:
            self._before = rows, self._entropies(rows)
        self._generated = time.perf_counter()
        return rows

    def _entropies(self, rows: Rows) -> Float[Tensor, " rows"]:
        """The mean token entropy of each of this process's rollouts, by the weights as they are."""
        completions, mask = rows["completion_ids"], rows["completion_mask"]
        with torch.no_grad():
            # Not a subclass's, which may take the next pass for its own.
            _, entropies, _ = GRPOTrainer._get_per_token_logps_and_entropies(
                self,
                self.model,
                torch.cat((rows["prompt_ids"], completions), dim=1),
                torch.cat((rows["prompt_mask"], mask), dim=1),
                completions.shape[1],
                self.args.per_device_train_batch_size,
                compute_entropy=True,
            )
        means: Tensor = entropies.where(mask.bool(), 0.0).sum(dim=1) / mask.sum(dim=1)
        return means

    def _entropy_change(self) -> dict[str, float]:
        """What the step did to the token entropies at the rollouts that took part in it."""
        if self._before is None:
            return {}
        rows, before = self._before
        self._before = None
        change = (self._entropies(rows) - before).where(rows["keep"], 0.0)
        sums = torch.stack((change.sum(), rows["keep"].sum()))
        total, kept = self.accelerator.reduce(sums, reduction="sum").tolist()
        return {"entropy/change": total / kept} if kept else {}

    def _own_share(self, values: Tensor) -> Tensor:
        """This process's part of one number per rollout; those that are missing are 0."""
        whole = torch.zeros(self._layout.rollouts, dtype=values.dtype)
        whole[: len(values)] = values
        parts = whole.view(self._layout.processes, -1)
        return parts[self.accelerator.process_index].to(self.accelerator.device)

    def roll_out(
        self, problems: Sequence[Problem]
    ) -> tuple[Rows, Float[Tensor, "rows functions"], Float[Tensor, "rows 4"]]:
        """One rollout for each of this process's problems.

        Returns:
            This process's rows, and of all processes' rollouts the rewards, with the verdicts
            beside them where they differ and whether there is an answer where the estimator
            reads that, and the signals, process by process, on the CPU.
        """
        inputs = [
            {"prompt": prompt_of(p, self._model, self.processing_class), "problem": p}
            for p in problems
        ]
        rows, _ = rollout_rows.split(super()._generate_and_score_completions(inputs))
        assert self._scored is not None
        assert self._signals is not None
        scored = self._scored.cpu()
        signals = self.accelerator.gather(self._signals).cpu()
        self._scored = self._signals = None
        return rows, scored, signals

    def refer(self, problems: Sequence[Problem], seed: int) -> Float[Tensor, " rows"]:
        """Rewards of one rollout of the reference model for each problem, of all processes."""
        assert self._reference is not None
        texts, answered = self._reference().complete(
            problems, self._run.generation.temperature, seed, cut=True
        )
        values, _ = self._judge(problems, texts, answered.lengths.tolist())
        rewards = torch.tensor(values, device=self.accelerator.device)
        gathered: Tensor = self.accelerator.gather(rewards)
        return gathered.cpu()

    def _generate_single_turn(self, prompts: Any, *arguments: Any, **named: Any) -> Any:
        completions, signals = [], []
        size = self._rollout_batch or len(prompts)
        for start in range(0, len(prompts), size):
            some, recorder = prompts[start : start + size], SignalRecorder(self.temperature)
            with recording(self.accelerator.unwrap_model(self.model_wrapped), recorder):
                part, _ = super()._generate_single_turn(some, *arguments, **named)
            completions += part
            signals.append(recorder.signals(part).stacked())
        self._signals = torch.cat(signals)
        return completions, None  # transformers gives no log-probabilities

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Tensor:
        self._scored = super()._calculate_rewards(*arguments, **named)
        return self._scored

    def _reward(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        problem: Sequence[Problem],
        **_: Any,
    ) -> list[float]:
        """The reward function that TRL calls."""
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        rewards, self._outcomes = self._judge(problem, texts, [*map(len, completion_ids)])
        return rewards

    def _outcome(self, **_: Any) -> list[float]:
        """The verdicts behind the rewards that TRL has just asked for."""
        return self._outcomes

    def _has_answer(self, **_: Any) -> list[float]:
        """1 for each of these rollouts in which an answer could be read."""
        return self._answered

    def _judge(
        self, problems: Sequence[Problem], texts: Sequence[str], lengths: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """The rewards of completions, and the verdicts that they are made of."""
        started = time.perf_counter()
        outcomes = self._run.task.score(problems, texts)
        forged = self._run.task.forged(problems, texts)
        if forged is not None:
            before = self._forged or (0, 0)
            self._forged = before[0] + sum(forged), before[1] + len(forged)
        if reads_answers(self._run.estimator):
            answers = self._run.task.answers(problems, texts)
            self._answered = [float(answer is not None) for answer in answers]
        rewards = self._run.task.rewards(texts, outcomes, np.array(lengths, dtype=np.float64))
        self._reward_seconds += time.perf_counter() - started
        return rewards.tolist(), outcomes.tolist()

    def _forged_share(self) -> dict[str, float]:
        """Share of the completions that are forged, of all processes; empty without a control."""
        if self._forged is None:
            return {}
        counts = torch.tensor(self._forged, device=self.accelerator.device)
        forged, judged = self.accelerator.reduce(counts, reduction="sum").tolist()
        return {"reward/forged": forged / judged}

    # Updates

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not before:
            self._count()
        inputs["share"] = self._shares[self._step % len(self._shares)]
        return inputs

    def _count(self) -> None:
        """Notes the rollouts and tokens that each minibatch trains on, of all processes.

        A forward pass gets an equal share of both, so that the mean over the passes and
        processes of an update is over its rollouts, wherever they are computed.
        """
        counts = torch.stack(
            [
                torch.stack([part["keep"].sum(), part["completion_mask"][part["keep"]].sum()])
                for part in self._buffered_inputs
            ]
        )
        passes = self._layout.passes
        whole = self.accelerator.reduce(counts, reduction="sum").view(-1, passes, 2).sum(dim=1)
        shares = (whole / (passes * self._layout.processes)).tolist()
        self._shares = [(rollouts, tokens) for rollouts, tokens in shares for _ in range(passes)]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        rollouts, tokens = inputs.pop("share")
        rows, _ = rollout_rows.split(inputs)
        used = rows["keep"] & (rows["advantages"] != 0) if self._skip else rows["keep"]
        count = int(used.sum())
        if count < len(used):
            # Every process takes part in every pass, so one row is computed in any case.
            rows = rollout_rows.pick(rows, used.nonzero()[:, 0] if count else torch.tensor([0]))
        objective = self._run.objective
        completions = rows["completion_ids"]
        log_probs, entropies, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat((rows["prompt_ids"], completions), dim=1),
            torch.cat((rows["prompt_mask"], rows["completion_mask"]), dim=1),
            completions.shape[1],
            compute_entropy=objective.needs_entropy,
        )
        old = rows.get("old_per_token_logps")
        reference = rows.get("ref_per_token_logps")
        nothing: Tensor = log_probs.sum() * 0
        if rollouts == 0:
            self._update.add({}, nothing)
            return nothing
        output = objective.loss(
            LossInputs(
                log_probs=log_probs[:count],
                old_log_probs=(log_probs.detach() if old is None else old)[:count],
                completion_mask=rows["completion_mask"].bool()[:count],
                advantages=rows["advantages"][:count],
                rollouts=rollouts,
                tokens=tokens,
                parts=self._layout.passes * self._layout.processes,
                reference_log_probs=None if reference is None else reference[:count],
                entropies=None if entropies is None else entropies[:count],
            )
        )
        self._update.add(output.metrics, output.loss.detach())
        loss: Tensor = output.loss / self._layout.passes
        return loss if count else loss + nothing

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._update.norm = float(norm)
        return norm

    def end_update(self) -> None:
        """Looks at an update before it is made.

        One in which no rollout takes part leaves weights and moments alone.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        names, values = self._update.means()
        if self._layout.processes > 1:
            values = self.accelerator.reduce(values.to(self.accelerator.device), reduction="mean")
        rollouts, _ = self._shares[(self._step - 1) % len(self._shares)]
        if rollouts == 0:
            for parameter in self.model_wrapped.parameters():
                parameter.grad = None
            self._update.begin()
            return
        loss, *numbers = values.tolist()
        self._check("loss", loss)
        self._check("gradient norm", self._update.norm)
        self._update.end(dict(zip(names, numbers, strict=True)), self._get_learning_rate())

    def _check(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"step {self.steps_done + 1}: expected a finite {what}, got {value}; the weights "
                f"are left as they were; a smaller optimizer.lr may help"
            )

    # Optimizer

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW over all weights that are trained, as on every backend."""
        if self.optimizer is None:
            settings = self._run.optimizer
            assert isinstance(settings, AdamW)
            trained = (self.model if model is None else model).parameters()
            self.optimizer: Any = torch.optim.AdamW(
                [weight for weight in trained if weight.requires_grad],
                lr=settings.lr * self._run.learning_rate_scale,
                betas=(settings.beta1, settings.beta2),
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                fused=True,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            run, updates = self._run, self._layout.updates

            def factor(update: int) -> float:
                return run.optimizer.share(update // updates + 1, run.steps)

            self.lr_scheduler: Any = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer, factor
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler


class _BeforeOptimizer(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: EstimatorTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.end_update()
