"""Sampling from a transformers model, and token statistics of what was sampled.

`ModelSampler` answers problems for evaluations and reference rollouts. Training samples through
TRL instead, and records its statistics with `StatisticsRecorder`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.step_changes import at_answers, mean_by_problem, measured_answers
from advsweep.backends.training_loop import TokenStatistics
from advsweep.backends.trl.config import EVALUATION_REMEDIES, Prompt, advise_if_out_of_memory
from advsweep.backends.trl.ends import Ends, StopTexts
from advsweep.backends.trl.generation_defaults import without_defaults
from advsweep.backends.trl.padded_rows import TokenizedAnswers
from advsweep.backends.trl.positions import positions_of
from advsweep.backends.trl.shared_prompts import shared_generate
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    from advsweep.backends.trl.config import HfModel, TransformersGeneration
    from advsweep.backends.trl.padded_rows import Padded, PaddedRows, Texts
    from advsweep.backends.trl.prompt_sharing import PromptSharing
    from advsweep.tasks.base import Problem

    PerRow = Float[Tensor, " rows"]
    PerToken = Float[Tensor, "rows tokens"]
    # log π of the whole vocabulary, at one token of each row or at all.
    LogPolicy = Float[Tensor, "*rows vocabulary"]

    # Opens the base model, given the model: something that is called like a model.
    OpenBase = Callable[[Any], AbstractContextManager[Callable[..., Any]]]

Conversation = list[dict[str, str]]

# Greedy decoding has the entropies of this temperature: those of ties alone.
GREEDY = 1e-6


def prompt_of(problem: Problem, model: HfModel, tokenizer: Any) -> str | Conversation:
    """Return the model's input: the problem's text, or a conversation for a chat template."""
    return problem.messages if is_chat(model, tokenizer) else problem.text


def is_chat(model: HfModel, tokenizer: Any) -> bool:
    """Return whether problems become conversations for a chat template."""
    return model.prompt is Prompt.CHAT or (
        model.prompt is Prompt.AUTO and tokenizer.chat_template is not None
    )


def encode(problems: Sequence[Problem], model: HfModel, tokenizer: Any) -> list[list[int]]:
    """Return the tokens of the model's input for each problem."""
    prompts = [prompt_of(problem, model, tokenizer) for problem in problems]
    if isinstance(prompts[0], str):
        encoded = tokenizer(text=prompts)
    else:
        encoded = tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, return_dict=True
        )
    ids: list[list[int]] = encoded["input_ids"]
    return ids


class StatisticsRecorder(LogitsProcessor):  # type: ignore[misc]
    """Records token statistics during one `generate`, and returns the scores unchanged.

    transformers calls it before it applies the temperature, top-p and top-k.

    Args:
        temperature: temperature that divides the scores.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._log_p: LogPolicy | None = None
        self._surprisal: list[PerRow] = []
        self._entropy: list[PerRow] = []
        self._certainty: list[PerRow] = []

    def __call__(self, input_ids: Int[Tensor, "rows tokens"], scores: LogPolicy) -> LogPolicy:
        if self._log_p is not None:
            self._add_surprisal(input_ids[:, -1])
        self._log_p = log_p = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        self._entropy.append(torch.special.entr(log_p.exp()).sum(dim=-1))
        self._certainty.append(certainty(log_p))
        return scores

    def statistics(self, completions: Texts, *, of_tokens: Collection[str] = ()) -> TokenStatistics:
        """Return the statistics of the completions.

        Args:
            completions: tokens of each row up to its end mark, inclusive.
            of_tokens: what to keep of every token: `token_entropies`, `certainties`, and log π as
                `log_probs`.
        """
        assert self._log_p is not None
        device = self._log_p.device
        lengths = torch.tensor([len(tokens) for tokens in completions], device=device)
        # The model never gets the last token as input, so `__call__` has not seen it. Rows that
        # ended earlier hold padding there; the mask leaves it out.
        if len(self._surprisal) < len(self._entropy):
            self._add_surprisal(torch.tensor([tokens[-1] for tokens in completions], device=device))
        steps = torch.arange(len(self._entropy), device=device)
        mask = steps < lengths[:, None]

        def masked(per_step: list[PerRow]) -> PerToken:
            return torch.stack(per_step, dim=1).where(mask, 0.0)

        entropies = masked(self._entropy)
        surprisal = masked(self._surprisal)
        certainties = masked(self._certainty)
        by_name = {
            "token_entropies": entropies,
            "log_probs": -surprisal,
            "certainties": certainties,
        }
        return TokenStatistics(
            lengths=lengths.float(),
            surprisal=surprisal.sum(dim=1),
            entropy=entropies.sum(dim=1),
            certainty=certainties.sum(dim=1),
            tokens={name: by_name[name] for name in of_tokens},
        )

    def _add_surprisal(self, tokens: Int[Tensor, " rows"]) -> None:
        assert self._log_p is not None
        self._surprisal.append(-self._log_p.gather(1, tokens[:, None])[:, 0])


@contextmanager
def recording(
    model: Any, recorder: StatisticsRecorder, ends: Ends, sharing: PromptSharing | None = None
) -> Iterator[None]:
    """Make `model.generate` call the recorder meanwhile, and end at stop texts.

    Settings of the checkpoint's generation config have no effect.

    Args:
        sharing: decides whether equal prompts are computed once; None: they are not.
    """
    stopping = [StopTexts(ends.tokenizer, ends.stop)] if ends.stop else []
    separate_generate = model.generate

    def generate(*, input_ids: Padded, **named: Any) -> Tensor:
        if sharing is not None and sharing.of_generation(input_ids):
            return shared_generate(model, separate_generate, input_ids=input_ids, **named)
        generated: Tensor = separate_generate(input_ids=input_ids, **named)
        return generated

    model.generate = functools.partial(
        generate,
        logits_processor=LogitsProcessorList([recorder]),
        stopping_criteria=StoppingCriteriaList(stopping),
    )
    try:
        with without_defaults(model):
            yield
    finally:
        del model.generate


@torch.no_grad()
def completion_statistics(
    model: Any,
    answers: TokenizedAnswers,
    *,
    temperature: float,
    rows: int,
    each_token: bool = False,
) -> TokenStatistics:
    """Compute the statistics of completions by forward passes; the result is on the CPU.

    Args:
        rows: the most completions of one forward pass.
        each_token: whether to keep log π of every token, as `log_probs`.
    """
    parts = []
    for padded in answers.batches(model, rows):
        log_p = log_policy(model, padded, temperature)
        generated = padded.generated
        chosen = chosen_tokens(log_p, padded.ids).where(generated, 0.0)
        of_tokens = (-chosen, torch.special.entr(log_p.exp()).sum(dim=-1), certainty(log_p))
        sums = [values.where(generated, 0.0).sum(dim=1) for values in of_tokens]
        kept = {"log_probs": chosen} if each_token else {}
        lengths = generated.sum(dim=1).float()
        parts.append(TokenStatistics(lengths, sums[0], sums[1], sums[2], kept))
    return TokenStatistics.join(parts)


@torch.no_grad()
def completion_kl(
    model: Any,
    base: Callable[..., Any],
    answers: TokenizedAnswers,
    *,
    temperature: float,
    rows: int,
) -> PerRow:
    """Return the sum of KL(model ‖ base) over the tokens of each completion, in nats, on the CPU.

    Args:
        base: the base model, or a function that is called like one.
        rows: the most completions of one forward pass.
    """
    parts = []
    # Tensors as large as the logits, some of them in double precision, are in memory at once.
    for padded in answers.batches(model, max(1, rows // 8)):
        log_p = log_policy(model, padded, temperature, torch.float64)
        log_q = log_policy(base, padded, temperature, torch.float64)
        kl = (log_p.exp() * (log_p - log_q)).sum(dim=-1)
        parts.append(kl.where(padded.generated, 0.0).sum(dim=1).cpu())
    return torch.cat(parts)


@torch.no_grad()
def forward_statistic(
    trainer: Any, padded: PaddedRows, statistic: Callable[[LogPolicy], PerToken]
) -> PerToken:
    """Compute a statistic of the distribution at each token of a completion, by forward passes.

    Padding gets numbers without a meaning.

    Args:
        trainer: a trainer of TRL's, whose weights and temperature these are.
        statistic: `certainty` or `square_sum`, of log π of the whole vocabulary.
    """
    parts = padded.split(trainer.args.per_device_train_batch_size)
    with trainer.accelerator.autocast():
        values = [statistic(log_policy(trainer.model, part, trainer.temperature)) for part in parts]
    return torch.cat(values)


def log_policy(
    model: Any, padded: PaddedRows, temperature: float, dtype: torch.dtype = torch.float32
) -> LogPolicy:
    """Return log π of the whole vocabulary at each token of the completions."""
    logits = model(
        input_ids=padded.ids,
        attention_mask=padded.mask,
        position_ids=positions_of(padded.mask),
        logits_to_keep=padded.tokens + 1,
        use_cache=False,
    ).logits[:, :-1]
    return torch.log_softmax(logits.to(dtype) / temperature, dim=-1)


def chosen_tokens(log_p: LogPolicy, ids: Padded) -> PerToken:
    """Return log π of the tokens of completions, which end the rows of ids."""
    return log_p.gather(2, ids[:, -log_p.shape[1] :, None])[:, :, 0]


def certainty(log_p: LogPolicy) -> Float[Tensor, " *rows"]:
    """Return KL(uniform ‖ π), in nats."""
    return -log_p.mean(dim=-1) - math.log(log_p.shape[-1])


def square_sum(log_p: LogPolicy) -> Float[Tensor, " *rows"]:
    """Return Σπ²."""
    return (2 * log_p).exp().sum(dim=-1)


@dataclass(frozen=True)
class ModelSampler:
    """A model that answers problems.

    Attributes:
        opened: a context manager of the model, ready to generate.
        marks: end marks of completions.
        tokens: the most tokens of a completion.
        batch: number of completions that are generated together.
        sharing: decides whether a prompt is computed once for all of its completions.
        top_p: share of the probability that evaluations sample from.
        truncated: whether to sample with the training's top-p and top-k instead.
        base: opens the base model, to measure the KL from it; None: it is not measured.
        on_progress: receives the number of completions so far, and of all, before each batch and
            at the end.
    """

    opened: Callable[[], AbstractContextManager[Any]]
    tokenizer: Any
    marks: Sequence[int]
    model: HfModel
    generation: TransformersGeneration
    tokens: int
    batch: int
    sharing: PromptSharing | None = None
    top_p: float = 1.0
    truncated: bool = False
    base: OpenBase | None = None
    on_progress: Callable[[int, int], None] = lambda done, total: None

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        repeated = [problem for problem in problems for _ in range(n)]
        seed = torch_seed(seed, Stream.EVALUATION)
        with advise_if_out_of_memory(EVALUATION_REMEDIES):
            texts, statistics = self.complete(repeated, temperature, seed)
        sums = (statistics.entropy, statistics.lengths)
        entropy, lengths = (each.view(-1, n).sum(dim=1) for each in sums)
        return Completions(
            texts=[texts[i : i + n] for i in range(0, len(texts), n)],
            token_entropy=(entropy / lengths).double().numpy(),
            kl_base=None if statistics.kl is None else mean_by_problem(statistics.kl, n),
        )

    def complete(
        self, problems: Sequence[Problem], temperature: float, seed: int
    ) -> tuple[list[str], TokenStatistics]:
        """Draw one completion per problem, and restore the process's random generators."""
        completions, statistics = self.draw(problems, temperature, seed)
        return [self.ends.text_of(tokens) for tokens in completions], statistics

    @property
    def ends(self) -> Ends:
        """What ends a completion."""
        return Ends(self.tokenizer, self.marks, self.generation.stop)

    @property
    def cuts(self) -> dict[str, Any]:
        """The top-p and top-k to sample with; a top-k of 0 cuts nothing."""
        if self.truncated:
            return {"top_p": self.generation.top_p, "top_k": self.generation.top_k}
        return {"top_p": self.top_p, "top_k": 0}

    def draw(
        self, problems: Sequence[Problem], temperature: float, seed: int
    ) -> tuple[list[list[int]], TokenStatistics]:
        """Draw like `complete`, but return tokens, end marks included."""
        cuda = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=list(cuda)), self.opened() as model, torch.no_grad():
            torch.manual_seed(seed)
            completions = []
            parts = []
            for start in range(0, len(problems), self.batch):
                self.on_progress(start, len(problems))
                some = problems[start : start + self.batch]
                tokens, statistics = self._generate(model, some, temperature)
                completions += tokens
                parts.append(statistics)
            self.on_progress(len(problems), len(problems))
            kl = self.measure_kl(model, problems, completions, temperature)
        return completions, replace(TokenStatistics.join(parts), kl=kl)

    def measure_kl(
        self,
        model: Any,
        problems: Sequence[Problem],
        completions: Sequence[list[int]],
        temperature: float,
    ) -> PerRow | None:
        """Return the KL of the `measured_answers`, NaN for others; None if it is not measured.

        Answers of a truncated distribution say nothing of the KL of the whole one.
        """
        if self.base is None or temperature == 0 or self.top_p < 1:
            return None
        rows = measured_answers(len(completions)).tolist()
        with self.base(model) as base:
            answers = TokenizedAnswers(
                encode([problems[row] for row in rows], self.model, self.tokenizer),
                [completions[row] for row in rows],
                self.tokenizer.pad_token_id,
            )
            kl = completion_kl(model, base, answers, temperature=temperature, rows=self.batch)
        return at_answers(kl, len(completions))

    def _generate(
        self, model: Any, problems: Sequence[Problem], temperature: float
    ) -> tuple[list[list[int]], TokenStatistics]:
        ids = encode(problems, self.model, self.tokenizer)
        inputs = self.tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        ends = self.ends
        recorder = StatisticsRecorder(temperature or GREEDY)
        with recording(model, recorder, ends, self.sharing):
            generated = model.generate(
                **inputs.to(model.device), generation_config=self.settings_at(temperature)
            )
        width = inputs["input_ids"].shape[1]
        completions = [ends.cut(tokens) for tokens in generated[:, width:].tolist()]
        return completions, recorder.statistics(completions)

    def settings_at(self, temperature: float) -> GenerationConfig:
        """Return the settings of `generate` at a temperature; 0 is greedy decoding."""
        drawing = {"temperature": temperature, **self.cuts}
        return GenerationConfig(
            max_new_tokens=self.tokens,
            do_sample=temperature > 0,
            # transformers warns of sampling options that greedy decoding ignores.
            **(drawing if temperature > 0 else dict.fromkeys(drawing)),
            repetition_penalty=1.0,
            pad_token_id=self.tokenizer.pad_token_id,
            bos_token_id=self.tokenizer.bos_token_id,
            eos_token_id=self.ends.marks,
            disable_compile=True,
        )
