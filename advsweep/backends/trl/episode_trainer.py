"""Episodes with environments of the user's in TRL's loop: in trainings, and in evaluations."""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.training_loop import Answers, Outcomes, TokenStatistics
from advsweep.backends.trl import releases
from advsweep.backends.trl.config import (
    EVALUATION_REMEDIES,
    advise_if_out_of_memory,
    hf_model,
)
from advsweep.backends.trl.environments import EnvironmentGuard
from advsweep.backends.trl.episodes import EpisodeRecorder
from advsweep.backends.trl.sampling import (
    GREEDY,
    ModelSampler,
    StatisticsRecorder,
    is_chat,
    prompt_of,
    recording,
)
from advsweep.backends.trl.steps import trained_mask
from advsweep.backends.trl.trainer import EstimatorTrainer
from advsweep.backends.trl.turn_records import OF_TOKENS, TurnRecords
from advsweep.errors import ConfigError, TrainingError
from advsweep.tasks.base import Completions
from advsweep.tasks.environments import EnvironmentTask

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.base import Run
    from advsweep.backends.trl.config import HfModel
    from advsweep.backends.trl.options import TrlOptions
    from advsweep.backends.trl.steps import Rows
    from advsweep.tasks.base import Problem


class _Generation(NamedTuple):
    """What TRL's loop has made: a row for each episode.

    Attributes:
        completions: tokens of policy and environment.
        masks: 1 for the policy's tokens, 0 for those of the environment.
        cut_off: whether a limit of tokens or turns has ended the episode.
    """

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    masks: Sequence[Sequence[int]]
    cut_off: Sequence[bool]


class Played(NamedTuple):
    """Episodes that were played for an evaluation.

    Attributes:
        rewards: NaN where the environment has failed.
    """

    texts: list[str]
    rewards: Float[Tensor, " rows"]
    statistics: TokenStatistics


class EpisodeMaker(GRPOTrainer):  # type: ignore[misc]
    """A GRPOTrainer whose rollouts are episodes with a task's environments.

    Args:
        task: makes the environments.
        model_settings: how problems become prompts.
        arguments, named: arguments of the next class, at last of GRPOTrainer.
    """

    def __init__(
        self, *arguments: Any, task: EnvironmentTask, model_settings: HfModel, **named: Any
    ) -> None:
        self._task = task
        self._prompt_settings = model_settings
        self._guard = EnvironmentGuard()
        self._records = TurnRecords()
        self._evaluating: ModelSampler | None = None
        self._temperature_of_play = 1.0
        factory = self._guard.guard(task.make_environment)
        if not is_chat(model_settings, named["processing_class"]):
            raise ConfigError(
                f"model.prompt: expected a model with a chat template, as the task has an "
                f"environment, got {model_settings.path} with plain texts"
            )
        with _refused_templates(model_settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*environment_factory")
            super().__init__(*arguments, environment_factory=factory, **named)
        # TRL groups the rows of evaluations by it.
        self.num_generations_eval = 1
        self._recorder = EpisodeRecorder(self, self._guard)

    def inputs_of(self, problems: Sequence[Problem]) -> list[dict[str, Any]]:
        """Return the rows that TRL takes, which are also what `reset` gets."""
        rows = []
        for problem in problems:
            prompt = prompt_of(problem, self._prompt_settings, self.processing_class)
            rows.append({**problem.columns, "prompt": prompt})
        return rows

    def begin_episodes(self, seed: int) -> None:
        """Prepare for a generation.

        Args:
            seed: of what environments draw from `random` and `numpy.random`.
        """
        random.seed(seed)
        np.random.seed(seed % 2**32)
        self._guard.forget_hanging(self._environment_pool)
        self._recorder.begin()
        self._records.begin()

    def play(
        self, problems: Sequence[Problem], sampler: ModelSampler, temperature: float, seed: int
    ) -> Played:
        """Play an episode of each problem, and train on none.

        The model must be in evaluation mode.

        Args:
            sampler: says how to sample, and what ends a turn.
            seed: see `begin_episodes`.
        """
        self.begin_episodes(seed)
        settings = sampler.settings_at(temperature)
        with self._evaluates(sampler, temperature, generation_config=settings, beta=0.0):
            GRPOTrainer._generate_and_score_completions(self, self.inputs_of(problems))
        # TRL never clears its own metrics: they would grow without end.
        self._metrics["eval"].clear()
        made = self._generation
        statistics = self._records.statistics(made.prompts, made.completions, made.masks)
        texts = [sampler.ends.text_of(tokens) for tokens in made.completions]
        return Played(texts, self._rewards, statistics)

    @contextlib.contextmanager
    def _evaluates(
        self, sampler: ModelSampler, temperature: float, **changes: Any
    ) -> Iterator[None]:
        """Generate for an evaluation meanwhile, with other settings of the trainer."""
        before = {name: getattr(self, name) for name in changes}
        self._evaluating = sampler
        self._temperature_of_play = temperature
        for name, value in changes.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            self._evaluating = None
            for name, value in before.items():
                setattr(self, name, value)

    # What TRL calls, in this order

    def _generate(self, prompts: Any) -> Any:
        generated = super()._generate(prompts)
        prompt_ids, completions, masks, messages = generated[:4]
        cut_off = [
            self._is_cut_off(tokens, said[-1])
            for tokens, said in zip(completions, messages, strict=True)
        ]
        self._generation = _Generation(prompt_ids, completions, masks, cut_off)
        return generated

    def _is_cut_off(self, tokens: Sequence[int], last: Mapping[str, Any]) -> bool:
        """Whether a limit has ended an episode: within a turn, or before its calls were answered.

        Args:
            last: the last message.
        """
        waits = last["role"] == "tool" or bool(last.get("tool_calls"))
        return waits or tokens[-1] not in self.eos_token_ids

    def _generate_single_turn(self, prompts: Any, *arguments: Any, **named: Any) -> Any:
        self._recorder.before_turn()
        make = self._make_turn if self._evaluating is None else self._make_evaluated_turn
        turns, statistics = make(prompts, *arguments, **named)
        self._records.add(prompts, turns, statistics)
        return turns, None  # transformers gives no log-probabilities

    def _make_turn(
        self, prompts: Any, *arguments: Any, **named: Any
    ) -> tuple[list[list[int]], TokenStatistics]:
        """Let the model write a turn of a training."""
        raise NotImplementedError

    def _make_evaluated_turn(
        self, prompts: Any, *arguments: Any, **named: Any
    ) -> tuple[list[list[int]], TokenStatistics]:
        sampler = self._evaluating
        assert sampler is not None
        recorder = StatisticsRecorder(self._temperature_of_play or GREEDY)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        with recording(model, recorder, sampler.ends):
            written, _ = GRPOTrainer._generate_single_turn(self, prompts, *arguments, **named)
        turns = [sampler.ends.cut(tokens) for tokens in written]
        statistics = TokenStatistics.join([recorder.statistics(turns, of_tokens=OF_TOKENS)])
        return turns, statistics

    def _calculate_rewards(self, inputs: Any, *arguments: Any, **named: Any) -> Any:
        """Keep the rewards of the episodes, NaN for those whose environment has failed.

        Raises:
            TrainingError: all have failed.
        """
        self._recorder.end()
        rewards: Tensor = super()._calculate_rewards(inputs, *arguments, **named)
        reasons = self._guard.take_failures(self.environments)
        failed = torch.tensor([reason is not None for reason in reasons])
        if failed.all():
            raise TrainingError(f"every environment of a generation has failed: {reasons[0]}")
        # The last column is that of `get_reward`.
        self._rewards = rewards[:, -1].cpu().masked_fill(failed, math.nan)
        return rewards


class EpisodeTrainer(EpisodeMaker, EstimatorTrainer):
    """Trains on episodes with a task's environments.

    Its rows have TRL's `tool_mask`: an environment's tokens are read, and in no loss.
    """

    def __init__(self, run: Run, options: TrlOptions, **named: Any) -> None:
        assert isinstance(run.task, EnvironmentTask)
        model = hf_model(run.model)
        super().__init__(run, options, task=run.task, model_settings=model, **named)

    def evaluation_sampler(self, sampler: ModelSampler) -> ModelSampler:
        return EpisodeSampler.of(sampler, self._task, lambda model: contextlib.nullcontext(self))

    def _generate_rows(self, problems: Sequence[Problem]) -> Rows:
        numbers = (self.steps_done + 1, self.step_buffer.draws)
        self.begin_episodes(torch_seed(self._run.rollout_seed, Stream.ENVIRONMENTS, *numbers))
        return super()._generate_rows(problems)

    def _kept_of_tokens(self) -> list[str]:
        return list(OF_TOKENS)

    def _make_turn(
        self, prompts: Any, *arguments: Any, **named: Any
    ) -> tuple[list[list[int]], TokenStatistics]:
        turns, _ = EstimatorTrainer._generate_single_turn(self, prompts, *arguments, **named)
        statistics = self.step_buffer.statistics
        assert statistics is not None
        return turns, statistics

    def _calculate_rewards(self, inputs: Any, *arguments: Any, **named: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, *arguments, **named)
        if self._evaluating is None:
            self._keep_episodes()
        return rewards

    def _keep_episodes(self) -> None:
        """Put the episodes of a training into the step's buffer, in place of their last turns."""
        made = self._generation
        statistics = self._records.statistics(made.prompts, made.completions, made.masks)
        tokens = dict(statistics.tokens)
        del tokens["certainties"]
        if not self._each_token:
            del tokens["token_entropies"]
        buffer = self.step_buffer
        buffer.statistics = TokenStatistics(
            lengths=statistics.lengths,
            surprisal=statistics.surprisal,
            entropy=statistics.entropy,
            certainty=statistics.certainty,
            tokens=tokens,
            turns=statistics.turns,
        )
        buffer.answers = Answers(
            texts=[self.ends.text_of(tokens) for tokens in made.completions],
            lengths=statistics.lengths,
            truncated=made.cut_off,
            outcomes=self._outcomes(made),
        )

    def _outcomes(self, made: _Generation) -> Outcomes:
        width = max(map(len, made.completions))
        rows = self._recorder.rows(made.masks, width, torch.device("cpu"))

        def of_turns(name: str) -> Tensor | None:
            # Draws of a step have as many columns, whatever the longest of their episodes.
            if name not in rows:
                return None
            values = rows[name]
            return F.pad(values, (0, self._task.tool_turns + 1 - values.shape[1]))

        verdicts = self._task.verdicts(self._rewards.double().numpy())
        return Outcomes(
            rewards=self._rewards,
            verdicts=torch.from_numpy(verdicts).float(),
            turn_states=of_turns("turn_states"),
            turn_rewards=of_turns("turn_rewards"),
        )

    def _check_log_probs(self, rows: Rows, sampled: Float[Tensor, "rows tokens"]) -> None:
        # NaN: an environment's tokens were not sampled.
        drawn = trained_mask(rows).to(sampled.device)
        super()._check_log_probs(rows, sampled.masked_fill(~drawn, math.nan))


class EpisodePlayer(EpisodeMaker):
    """Plays episodes with a model that no training has in hand.

    Args:
        scratch: a folder that transformers may write to.
    """

    def __init__(
        self, model: Any, sampler: ModelSampler, task: EnvironmentTask, scratch: str
    ) -> None:
        settings = GRPOConfig(
            output_dir=scratch,
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=sampler.tokens,
            **episode_settings(task),
            gradient_checkpointing=False,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            report_to="none",
            disable_tqdm=True,
        )
        super().__init__(
            task=task,
            model_settings=sampler.model,
            model=model,
            reward_funcs=[],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=sampler.tokenizer,
        )
        releases.end_completions(self, sampler.marks)


def episode_settings(task: EnvironmentTask) -> dict[str, Any]:
    """Return the arguments of GRPOConfig that limit episodes."""
    return {"max_tool_calling_iterations": task.tool_turns}


OpenMaker = Callable[[Any], AbstractContextManager[EpisodeMaker]]


@dataclass(frozen=True, kw_only=True)
class EpisodeSampler(ModelSampler):
    """Plays episodes for evaluations, by TRL's own loop.

    Attributes:
        maker: makes what plays them, given the opened model.
    """

    task: EnvironmentTask
    maker: OpenMaker

    @classmethod
    def of(cls, sampler: ModelSampler, task: EnvironmentTask, maker: OpenMaker) -> EpisodeSampler:
        """Return what plays the episodes of a task as a sampler answers problems."""
        names = [field.name for field in fields(ModelSampler)]
        return cls(**{n: getattr(sampler, n) for n in names}, task=task, maker=maker)

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        repeated = [problem for problem in problems for _ in range(n)]
        with advise_if_out_of_memory(EVALUATION_REMEDIES):
            parts = self._play(repeated, temperature, torch_seed(seed, Stream.EVALUATION))
        texts = [text for part in parts for text in part.texts]
        rewards = torch.cat([part.rewards for part in parts]).double().numpy()
        statistics = TokenStatistics.join([part.statistics for part in parts])
        sums = (statistics.entropy, statistics.lengths)
        entropy, lengths = (each.view(-1, n).sum(dim=1) for each in sums)
        return Completions(
            texts=[texts[i : i + n] for i in range(0, len(texts), n)],
            token_entropy=(entropy / lengths).double().numpy(),
            verdicts=self.task.verdicts(rewards).reshape(len(problems), n),
        )

    def _play(self, problems: Sequence[Problem], temperature: float, seed: int) -> list[Played]:
        cuda = range(torch.cuda.device_count())
        with (
            torch.random.fork_rng(devices=list(cuda)),
            self.opened() as model,
            self.maker(model) as maker,
            torch.no_grad(),
        ):
            torch.manual_seed(seed)
            parts = []
            for start in range(0, len(problems), self.batch):
                self.on_progress(start, len(problems))
                some = problems[start : start + self.batch]
                parts.append(maker.play(some, self, temperature, seed + start))
            self.on_progress(len(problems), len(problems))
        return parts


def episode_sampler(sampler: ModelSampler, task: EnvironmentTask) -> EpisodeSampler:
    """Return what plays a task's episodes with the model of a sampler, apart from a training."""

    @contextlib.contextmanager
    def make(model: Any) -> Iterator[EpisodeMaker]:
        with tempfile.TemporaryDirectory() as scratch:
            yield EpisodePlayer(model, sampler, task, scratch)

    return EpisodeSampler.of(sampler, task, make)


@contextlib.contextmanager
def _refused_templates(model: HfModel) -> Iterator[None]:
    """Refuse in one line a chat template that TRL's loop cannot use.

    Raises:
        ConfigError: says what TRL says of it.
    """
    try:
        yield
    except ValueError as error:
        if "chat template" not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"model.path: expected a model whose chat template writes tools and their calls, as "
            f"the task has an environment, got {model.path}: {reason}"
        ) from error
