"""TRL's GRPOTrainer with the estimators, objectives, rollout policies and metrics of advsweep.

TRL turns prompts and completions into tokens, generates, computes log-probabilities and
shuffles rollouts into minibatches; transformers' Trainer makes the updates. This class chooses
the problems and the groups, and computes advantages, loss, learning rate and metrics.

The methods stand in the order in which TRL calls them in a step; the package's docstring has
the order as a list.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import set_seed
from trl import GRPOTrainer

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.step_changes import ChangeMeter, WeightSample, peak_memory
from advsweep.backends.training_loop import Answers, TokenStatistics, collect_and_weigh, score
from advsweep.backends.trl import releases
from advsweep.backends.trl.config import generation_of, hf_model
from advsweep.backends.trl.consistency import Bound, measure_gap
from advsweep.backends.trl.ends import Ends, end_marks
from advsweep.backends.trl.loading import disable_dropout
from advsweep.backends.trl.padded_rows import PaddedRows
from advsweep.backends.trl.positions import needs_positions, with_positions
from advsweep.backends.trl.prompt_sharing import PromptSharing
from advsweep.backends.trl.sampling import (
    ModelSampler,
    StatisticsRecorder,
    forward_statistic,
    prompt_of,
    recording,
    square_sum,
)
from advsweep.backends.trl.shared_prompts import shared_pass
from advsweep.backends.trl.steps import (
    DRAWN_LOG_PROBS,
    StepBuffer,
    StepEffect,
    StepSource,
    concatenate_rows,
    forward_pass,
    pick_rows,
    rows_of,
    trained_mask,
    whole_rows,
)
from advsweep.config.settings import AdamW
from advsweep.errors import TrainingError
from advsweep.estimators.batch import nonzero_rows
from advsweep.names import UPDATE_SECONDS
from advsweep.objectives.base import LossInputs
from advsweep.objectives.parts import choice_on, choose_for_parts, inputs_on

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.base import Run
    from advsweep.backends.trl.consistency import Truncation
    from advsweep.backends.trl.options import TrlOptions
    from advsweep.backends.trl.ranks import Ranks
    from advsweep.backends.trl.steps import Rows, Samplers
    from advsweep.estimators.batch import Advantages
    from advsweep.objectives.base import Choice
    from advsweep.tasks.base import Problem


class EstimatorTrainer(GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer that takes its rollouts, advantages and loss from a run.

    One step of the run is one generation of TRL's and `layout.updates` of TRL's steps. The
    dataset that TRL gets only sets that pace: problems are drawn by seed and step.

    Args:
        ranks: the processes that train the run together.
        samplers: what answers problems for rollouts that are not trained on.
        log: writes a line to the run's log.
        arguments: arguments of GRPOTrainer.

    Attributes:
        estimator: a copy of the run's estimator, with its own memory.
        step_buffer: the values of the current step.
        base_rate: the base's solve rate, for a control that needs it; set before the first step.
        meter: measures the changes of the weights; None where it does not.
        sharing: decides which passes compute a prompt once for all of its rollouts.
    """

    # What the sampler's log-probabilities are normalised within; None: all tokens.
    _truncation: Truncation | None = None
    _gap_remedy = "try model.attention=eager or another model"

    def __init__(
        self,
        run: Run,
        options: TrlOptions,
        *,
        ranks: Ranks,
        samplers: Samplers,
        log: Callable[[str], None],
        **arguments: Any,
    ) -> None:
        self._run = run
        self._options = options
        self._model_settings = hf_model(run.model)
        self._ranks = ranks
        self._layout = options.layout_of(run, ranks.count)
        self._skip = options.skip_zero_advantages and run.objective.skips_exactly
        self.samplers = samplers
        self._read = run.estimator.needs | run.estimator.uses
        self._each_token = "token_entropies" in self._read
        self.estimator = copy.deepcopy(run.estimator)
        self.estimator.reset()
        self.step_buffer = StepBuffer()
        self.base_rate = math.nan
        self._first_weights: WeightSample | None = None
        # Older releases of TRL draw an adapter's first weights before they set the seed.
        set_seed(run.seed)
        super().__init__(
            model=self._model_settings.location, reward_funcs=self._reward, **arguments
        )
        disable_dropout(self.model)
        marks = end_marks(self.model.generation_config, self.processing_class)
        releases.end_completions(self, marks)
        if run.objective.needs_entropy:
            releases.differentiate_entropies(self)
        self.sharing = PromptSharing(options.share_prompts, self.model, log)
        self._needs_positions = needs_positions(self.model)
        # Until the first rollouts of this process, of a resumed training too.
        self._checks_log_probs = True
        trained = {
            name: weight for name, weight in self.model.named_parameters() if weight.requires_grad
        }
        self.meter = None
        if ranks.is_first and sum(map(torch.numel, trained.values())) <= options.measured_weights:
            self.meter = ChangeMeter(trained)

    @property
    def pad_id(self) -> int:
        return int(self.processing_class.pad_token_id)

    @functools.cached_property
    def ends(self) -> Ends:
        """What ends a completion."""
        stop = generation_of(self._run.generation).stop
        return Ends(self.processing_class, self.eos_token_ids, stop)

    @property
    def steps_done(self) -> int:
        """Finished steps of the run; each may be several of transformers' steps."""
        return int(self.state.global_step) // self._layout.updates

    def step_metrics(self) -> dict[str, float]:
        """Return the metrics of the step that has just ended."""
        buffer = self.step_buffer
        seconds = time.perf_counter() - buffer.update_started
        metrics = buffer.metrics | buffer.updates.metrics
        if buffer.effect:
            metrics |= buffer.effect.metrics()
        if self.meter:
            metrics |= self.meter.measure()
        if self._first_weights is not None:
            metrics |= self._first_weights.metrics()
            self._first_weights = None
        return {**metrics, **peak_memory(), UPDATE_SECONDS: seconds}

    def evaluation_sampler(self, sampler: ModelSampler) -> ModelSampler:
        """Return what evaluates the current weights, given a sampler with transformers."""
        return sampler

    # Rollouts

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        """Make the rollouts of a whole step; TRL calls this once per step."""
        run = self._run
        step = self.steps_done + 1
        # TRL never clears its own metrics: they would grow without end.
        self._metrics["train"].clear()
        # A new one each step, so that nothing of the last step can be read by mistake.
        buffer = StepBuffer(control_rng=numpy_generator(run.seed, Stream.CONTROL, step))
        self.step_buffer = buffer
        source = StepSource(self, run, step)
        collected, advantages, buffer.metrics = collect_and_weigh(
            run, source, self.estimator, self.base_rate
        )
        rows = source.rows(collected.rows(run.drawn_size))
        rows |= self._weights_of_rows(advantages, width=rows["completion_ids"].shape[1])
        if self._ranks.is_first:
            buffer.effect = StepEffect(self, rows, entropies=self._options.entropy_change)
        buffer.update_started = time.perf_counter()
        return self._ranks.rows_of(rows)

    def _weights_of_rows(self, advantages: Advantages, width: int) -> Rows:
        """Return the advantages of TRL's rows, and which of these take part.

        Args:
            width: tokens of the rows' completions.
        """
        values = advantages.values.flatten(0, 1).float()
        keep = advantages.keep.flatten()
        counted = advantages.in_denominators.flatten()
        # TRL's rows are always those of a full step: what is missing has no part in the loss.
        missing = self._layout.rollouts - len(keep)
        padding: tuple[int, ...] = (0, missing)
        if values.ndim > 1:
            # An estimator's tokens reach to the longest rollout drawn, of which these may be
            # shorter.
            padding = (0, width - values.shape[1], 0, missing)
        device = self.accelerator.device
        return {
            "advantages": F.pad(values, padding).to(device),
            "keep": F.pad(keep, (0, missing)).to(device),
            "counted": F.pad(counted, (0, missing)).to(device),
        }

    def roll_out(self, problems: Sequence[Problem]) -> Rows:
        """Generate and score one rollout per problem; see `StepBuffer.take_draw`.

        Each process generates those of some prompts. The rows of all are in the order of the
        problems.
        """
        buffer = self.step_buffer
        buffer.draws += 1
        buffer.calls = 0
        rows = self._generate_rows(self._ranks.part_of(problems, unit=self._run.drawn_size))
        statistics = buffer.statistics
        answers = buffer.answers
        assert statistics is not None
        assert answers is not None
        tokens = {**statistics.tokens, **self._passes_over(rows)}
        drawn = tokens.pop("log_probs", None)
        statistics = replace(statistics, tokens=tokens)
        sampled = rows.get("sampling_per_token_logps") if drawn is None else drawn
        if self._checks_log_probs:
            assert sampled is not None
            self._check_log_probs(rows, sampled)
            self._checks_log_probs = False
        if drawn is not None and not Bound.of(self).is_rounded:
            width = rows["completion_ids"].shape[1]
            fitted = F.pad(drawn, (0, max(0, width - drawn.shape[1])))[:, :width]
            rows[DRAWN_LOG_PROBS] = fitted.to(self.accelerator.device)
        if self._ranks.count > 1:
            rows, statistics, answers = self._joined(rows, statistics, answers, len(problems))
        buffer.statistics = statistics
        self._judge(problems, answers)
        return rows

    def _generate_rows(self, problems: Sequence[Problem]) -> Rows:
        """Let TRL generate; the buffer then has the answers and what the sampler recorded."""
        inputs = self.inputs_of(problems)
        # TRL groups rows by it; the rows that are trained on are fewer with some policies.
        self.num_generations = self._run.drawn_size
        try:
            return rows_of(super()._generate_and_score_completions(inputs))
        finally:
            self.num_generations = self._run.group_size

    def inputs_of(self, problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """Return the rows that TRL takes."""
        tokenizer = self.processing_class
        prompts = [prompt_of(problem, self._model_settings, tokenizer) for problem in problems]
        return [{"prompt": prompt} for prompt in prompts]

    def _joined(
        self, rows: Rows, statistics: TokenStatistics, answers: Answers, count: int
    ) -> tuple[Rows, TokenStatistics, Answers]:
        """Return the first rollouts of the parts of all processes, with all about them."""
        on_cpu = {name: values.cpu() for name, values in rows.items()}
        parts = self._ranks.gather((on_cpu, TokenStatistics.join([statistics]), answers))
        joined = concatenate_rows([part[0] for part in parts], self.pad_id)
        device = self.accelerator.device
        rows = {name: values[:count].to(device) for name, values in joined.items()}
        statistics = TokenStatistics.join([part[1] for part in parts]).first(count)
        return rows, statistics, Answers.join([part[2] for part in parts], count)

    def _check_log_probs(self, rows: Rows, sampled: Float[Tensor, "rows tokens"]) -> None:
        """Refuse a model whose log π in updates is another than in sampling; see `consistency`."""

        def score(padded: PaddedRows) -> Float[Tensor, "rows tokens"]:
            log_probs: Tensor = self.token_pass(self.model, padded)[0]
            return log_probs

        gap = measure_gap(self, rows, sampled, score, self._truncation)
        bound = Bound.of(self, self._options.log_prob_bound)
        bound.check(gap, self.model, f"{self._gap_remedy}; backend.log_prob_bound sets the bound")

    def _passes_over(self, rows: Rows) -> Rows:
        """Compute what the estimator reads of each token by further forward passes."""
        read = self._read & {"token_grad_norms", "token_kl"}
        if not read:
            return {}
        mask = trained_mask(rows)
        log_probs = forward_pass(self, rows).float()
        numbers: Rows = {}
        if "token_kl" in read:
            numbers["token_kl"] = log_probs - rows["ref_per_token_logps"]
        if "token_grad_norms" in read:
            squares = forward_statistic(self, whole_rows(rows), square_sum)
            numbers["token_grad_norms"] = 1 - 2 * log_probs.exp() + squares
        return {name: values.where(mask, 0.0) for name, values in numbers.items()}

    def judge_answers(
        self, sampler: ModelSampler, problems: Sequence[Problem], temperature: float, seed: int
    ) -> Float[Tensor, " rows"]:
        """Return the rewards of one answer per problem, which is not trained on.

        The first process samples them: parts of several processes would be other answers.
        """

        def complete() -> Answers:
            texts, statistics = sampler.complete(problems, temperature, seed)
            # Whether they are cut off does not matter: they are not trained on.
            return Answers(texts, statistics.lengths.tolist(), [False] * len(texts))

        return self._judge(problems, self._ranks.from_first(complete))

    def _judge(self, problems: Sequence[Problem], answers: Answers) -> Float[Tensor, " rows"]:
        """Verify completions and return their rewards; see `training_loop.score`."""
        started = time.perf_counter()
        buffer = self.step_buffer
        rng = buffer.control_rng
        assert rng is not None
        # By one process: a verifier may answer otherwise a second time.
        buffer.scores = self._ranks.from_first(
            lambda: score(self._run, problems, answers, rng=rng, base_rate=self.base_rate)
        )
        buffer.reward_seconds += time.perf_counter() - started
        return buffer.scores.rewards

    def _generate_single_turn(self, prompts: Any, *arguments: Any, **named: Any) -> Any:
        """Generate completions, and record token statistics on the way."""
        completions: list[list[int]] = []
        statistics: list[TokenStatistics] = []
        size = self._options.rollout_batch or len(prompts)
        self.step_buffer.calls += 1
        model = self.accelerator.unwrap_model(self.model_wrapped)
        starts = range(0, len(prompts), size)
        for part, start in enumerate(starts, self._ranks.rank * len(starts)):
            batch = prompts[start : start + size]
            recorder = StatisticsRecorder(self.temperature)
            with self._seeded(part), recording(model, recorder, self.ends, self.sharing):
                generated, _ = super()._generate_single_turn(batch, *arguments, **named)
            cut = [self.ends.cut(tokens) for tokens in generated]
            completions += cut
            statistics.append(recorder.statistics(cut, of_tokens=self._kept_of_tokens()))
        self.step_buffer.statistics = TokenStatistics.join(statistics)
        return completions, None  # transformers gives no log-probabilities

    def _kept_of_tokens(self) -> list[str]:
        """Return what is recorded of every token that is sampled; see `StatisticsRecorder`."""
        return ["log_probs", "token_entropies"] if self._each_token else ["log_probs"]

    @contextlib.contextmanager
    def _seeded(self, part: int) -> Iterator[None]:
        """Draw a part of a draw by its number, in whichever process it is drawn."""
        if part == 0:
            yield  # by the seed of the step
            return
        device = self.accelerator.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            buffer = self.step_buffer
            numbers = [self.steps_done + 1, buffer.draws, part]
            if buffer.calls > 1:
                numbers.append(buffer.calls)
            torch.manual_seed(torch_seed(self._run.rollout_seed, Stream.ROLLOUTS, *numbers))
            yield

    def _reward(
        self,
        completion_ids: Sequence[Sequence[int]],
        **_: Any,
    ) -> list[float]:
        """The reward function that TRL calls.

        TRL turns rewards into its own advantages, which nothing reads. The buffer keeps the answers
        for `roll_out`, which judges those of all processes together.
        """
        texts = [self.ends.text_of(tokens) for tokens in completion_ids]
        lengths = [len(tokens) for tokens in completion_ids]
        truncated = [self.ends.is_truncated(tokens) for tokens in completion_ids]
        self.step_buffer.answers = Answers(texts, lengths, truncated)
        return [0.0] * len(texts)

    # Updates

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        # TRL generates when its buffer of minibatches is used up, and then replaces it.
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not before:
            self._count_shares()
        inputs["part"] = self._step % len(self._buffered_inputs)
        return inputs

    def _share(self, micro_step: int) -> tuple[float, float]:
        shares = self.step_buffer.shares
        return shares[micro_step % len(shares)]

    def _count_shares(self) -> None:
        """Count the rollouts and tokens that each minibatch trains on.

        Every forward pass gets an equal share of both. The mean over the passes of an update is
        then the mean over its rollouts, in whichever pass and process they are computed.
        """
        counts = []
        for part in self._buffered_inputs:
            tokens = trained_mask(part)[part["keep"]].sum()
            counts.append(torch.stack([part["counted"].sum(), tokens]))
        passes = self._layout.passes
        of_updates = torch.stack(counts).view(-1, passes, 2).sum(dim=1).cpu()
        of_updates = torch.stack(self._ranks.gather(of_updates)).sum(dim=0)
        shares: list[tuple[float, float]] = []
        for rollouts, tokens in (of_updates / self._layout.all_passes).tolist():
            shares += [(rollouts, tokens)] * passes
        self.step_buffer.shares = shares

    def token_pass(
        self,
        model: Any,
        padded: PaddedRows,
        batch_size: int | None = None,
        *,
        compute_entropy: bool = False,
        **named: Any,
    ) -> Any:
        """Compute log π and, if asked for, the entropies of the completions' tokens, as TRL does.

        The third of the results is the loss of routers, which is off.
        """
        separate = with_positions(model) if self._needs_positions else model
        log_probs: list[Tensor] = []
        entropies: list[Tensor] = []
        for batch in padded.split(batch_size or len(padded.ids)):
            groups = self.sharing.of_pass(batch)
            if groups is None:
                of_tokens, spread, _ = super()._get_per_token_logps_and_entropies(
                    separate, *batch, compute_entropy=compute_entropy, **named
                )
            else:
                with self.accelerator.autocast():
                    of_tokens, spread = shared_pass(
                        model,
                        batch,
                        groups,
                        temperature=self.temperature,
                        entropies=compute_entropy,
                    )
            log_probs.append(of_tokens)
            entropies.append(spread)
        return torch.cat(log_probs), torch.cat(entropies) if compute_entropy else None, None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Int[Tensor, "rows width"],
        attention_mask: Int[Tensor, "rows width"],
        logits_to_keep: int,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        padded = PaddedRows(input_ids, attention_mask, logits_to_keep)
        return self.token_pass(model, padded, *arguments, **named)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Compute the objective's loss on one forward pass of a minibatch."""
        buffer = self.step_buffer
        objective = self._run.objective
        passes = self._layout.passes
        part = inputs.pop("part")
        pass_of_update = part % passes
        _, tokens = buffer.shares[part]
        needs_choice = objective.chooses and self._layout.all_passes > 1
        if pass_of_update == 0 and needs_choice and tokens > 0:
            buffer.choices = self._choices(self._buffered_inputs[part : part + passes], part)
        loss_inputs, zero_loss = self._loss_inputs(model, inputs, part)
        if tokens == 0:
            buffer.updates.add({}, zero_loss)
            return zero_loss
        if needs_choice:
            loss_inputs = replace(loss_inputs, choice=buffer.choices[pass_of_update])
        output = objective.loss(loss_inputs)
        buffer.updates.add(output.metrics, output.loss.detach())
        loss: Tensor = output.loss / passes
        return loss if len(loss_inputs.log_probs) else loss + zero_loss

    @torch.no_grad()
    def _choices(self, passes: Sequence[Mapping[str, Any]], first: int) -> list[Choice]:
        """Return what the losses of the passes of a minibatch take from all of it.

        It takes a further forward pass over the minibatch, with the weights of its update.
        """
        parts = []
        for part, inputs in enumerate(passes, first):
            parts.append(self._loss_inputs(self.model, inputs, part)[0])
        objective = self._run.objective
        if self._ranks.count == 1:
            return choose_for_parts(objective, parts)
        # Every process chooses for all of them, from the same numbers, and keeps its share.
        of_ranks = self._ranks.gather([inputs_on(part, "cpu") for part in parts])
        choices = choose_for_parts(objective, list(itertools.chain.from_iterable(of_ranks)))
        start = self._ranks.rank * len(parts)
        device = self.accelerator.device
        return [choice_on(choice, device) for choice in choices[start : start + len(parts)]]

    def _loss_inputs(
        self, model: Any, inputs: Mapping[str, Any], part: int
    ) -> tuple[LossInputs, Tensor]:
        """Return what the loss of a pass reads, of the rollouts that take part.

        The second result is 0, with a graph: transformers wants a loss with one of every pass. So
        a pass in which no rollout takes part computes one.
        """
        rows = self._weighted(rows_of(inputs))
        used = rows["keep"]
        if self._skip:
            used = used & nonzero_rows(rows["advantages"])
        count = int(used.sum())
        if count < len(used):
            rows = pick_rows(rows, used.nonzero()[:, 0] if count else torch.tensor([0]))
        log_probs, entropies, _ = self._get_per_token_logps_and_entropies(
            model, *whole_rows(rows), compute_entropy=self._run.objective.needs_entropy
        )

        def of_used(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[:count]

        rollouts, tokens = self.step_buffer.shares[part]
        loss_inputs = LossInputs(
            log_probs=log_probs[:count],
            old_log_probs=rows.get("old_per_token_logps", log_probs.detach())[:count],
            completion_mask=trained_mask(rows)[:count],
            advantages=rows["advantages"][:count],
            rollouts=rollouts,
            tokens=tokens,
            parts=self._layout.all_passes,
            reference_log_probs=of_used(rows.get("ref_per_token_logps")),
            sampler_log_probs=of_used(rows.get("sampling_per_token_logps")),
            entropies=of_used(entropies),
        )
        return loss_inputs, log_probs.sum() * 0

    def _weighted(self, rows: Rows) -> Rows:
        """Return rows with the advantages that the loss gets."""
        return rows

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.step_buffer.updates.norm = float(norm)
        return norm

    def end_update(self) -> None:
        """Check an update before the optimizer makes it: call it once gradients are clipped.

        Drop the gradients if no rollout takes part, so that weights and moments stay.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        updates = self.step_buffer.updates
        loss, metrics = updates.means(self._ranks)
        _, tokens = self._share(self._step - 1)
        if tokens == 0:
            # Not a gradient of 0, with which AdamW's momentum would move the weights on.
            for parameter in self.model_wrapped.parameters():
                parameter.grad = None
            updates.begin()
            return
        self._check("loss", loss)
        self._check("gradient norm", updates.norm)
        if self.steps_done == 0 and self._first_weights is None:
            trained = [weight for weight in self.model.parameters() if weight.requires_grad]
            self._first_weights = WeightSample(trained)
        updates.end(metrics, self._get_learning_rate())

    def _check(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"step {self.steps_done + 1}: expected a finite {what}, got {value}; the weights "
                f"are unchanged; try a smaller optimizer.lr"
            )

    # Optimizer

    def create_optimizer(self, model: Any = None) -> Any:
        """Make AdamW over all trained weights, as on every backend."""
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
            run = self._run
            updates = self._layout.updates

            # Constant over the updates of a step: a schedule is defined in steps of the run.
            def factor(update: int) -> float:
                return run.optimizer.share(update // updates + 1, run.steps)

            self.lr_scheduler: Any = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer, factor
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler
