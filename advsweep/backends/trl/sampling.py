"""Answers of a transformers model to problems, for evaluations and reference rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.trl import memory
from advsweep.backends.trl.model_config import Prompt
from advsweep.backends.trl.token_statistics import SignalRecorder, Signals, recording
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from collections.abc import Callable

    from advsweep.backends.trl.generation_config import TransformersGeneration
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem

Conversation = list[dict[str, str]]

GREEDY = 1e-6
"""The temperature whose entropies those of the temperature 0 are taken for: of ties alone."""


def prompt_of(problem: Problem, model: HfModel, tokenizer: Any) -> str | Conversation:
    """What the model is given: the problem's text, or a conversation that it opens."""
    chat = model.prompt is Prompt.CHAT or (
        model.prompt is Prompt.AUTO and tokenizer.chat_template is not None
    )
    return problem.messages if chat else problem.text


def encode(problems: Sequence[Problem], model: HfModel, tokenizer: Any) -> list[list[int]]:
    """The tokens that the model is given."""
    prompts = [prompt_of(problem, model, tokenizer) for problem in problems]
    ids: list[list[int]]
    if isinstance(prompts[0], str):
        ids = tokenizer(text=prompts)["input_ids"]
    else:
        encoded = tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, return_dict=True
        )
        ids = encoded["input_ids"]
    return ids


@dataclass(frozen=True)
class ModelSampler:
    """A model that answers problems.

    Attributes:
        opened: gives the model, ready to generate, for as long as it is entered.
        tokens: the most tokens of a completion.
        batch: completions that are generated together.
        top_p: share of the probability that evaluations sample from.
    """

    opened: Callable[[], AbstractContextManager[Any]]
    tokenizer: Any
    model: HfModel
    generation: TransformersGeneration
    tokens: int
    batch: int
    top_p: float = 1.0

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draws n completions per problem; the same seed gives the same completions."""
        repeated = [problem for problem in problems for _ in range(n)]
        seed = torch_seed(seed, Stream.EVALUATION)
        with memory.remedied(memory.EVALUATION):
            return as_completions(*self.complete(repeated, temperature, seed, cut=False), n)

    def complete(
        self, problems: Sequence[Problem], temperature: float, seed: int, *, cut: bool
    ) -> tuple[list[str], Signals]:
        """Draws one completion per problem; the process's generators are left alone.

        Args:
            cut: sample as training does, with its top-p and top-k.
        """
        completions, signals = self.draw(problems, temperature, seed, cut=cut)
        return self.tokenizer.batch_decode(completions, skip_special_tokens=True), signals

    def draw(
        self, problems: Sequence[Problem], temperature: float, seed: int, *, cut: bool
    ) -> tuple[list[list[int]], Signals]:
        """The same as `complete`, but as tokens, end marks included."""
        cuda = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=list(cuda)), self.opened() as model, torch.no_grad():
            torch.manual_seed(seed)
            parts = [
                self._generate(model, problems[start : start + self.batch], temperature, cut)
                for start in range(0, len(problems), self.batch)
            ]
        completions = [tokens for part, _ in parts for tokens in part]
        return completions, Signals.unstacked(torch.cat([s.stacked().cpu() for _, s in parts]))

    def _generate(
        self, model: Any, problems: Sequence[Problem], temperature: float, cut: bool
    ) -> tuple[list[list[int]], Signals]:
        from transformers import GenerationConfig

        ids = encode(problems, self.model, self.tokenizer)
        inputs = self.tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
        ends = end_marks(model, self.tokenizer)
        recorder = SignalRecorder(temperature or GREEDY)
        drawing: dict[str, float | None] = {
            "temperature": temperature,
            "top_p": self.generation.top_p if cut else self.top_p,
            "top_k": self.generation.top_k if cut else 0,
        }
        with recording(model, recorder):
            generated = model.generate(
                **inputs.to(model.device),
                generation_config=GenerationConfig(
                    max_new_tokens=self.tokens,
                    do_sample=temperature > 0,
                    # Greedy decoding has no use for them, and would say so.
                    **(drawing if temperature > 0 else dict.fromkeys(drawing)),
                    repetition_penalty=1.0,
                    pad_token_id=self.tokenizer.pad_token_id,
                    bos_token_id=self.tokenizer.bos_token_id,
                    eos_token_id=ends,
                    disable_compile=True,
                ),
            )
        completions = [
            _up_to_end(tokens, ends)
            for tokens in generated[:, inputs["input_ids"].shape[1] :].tolist()
        ]
        return completions, recorder.signals(completions)


def as_completions(texts: Sequence[str], signals: Signals, n: int) -> Completions:
    """Texts of which n at a time answer the same problem."""
    entropy, lengths = (each.view(-1, n).sum(dim=1) for each in (signals.entropy, signals.lengths))
    return Completions(
        texts=[texts[i : i + n] for i in range(0, len(texts), n)],
        token_entropy=(entropy / lengths).double().numpy(),
    )


def end_marks(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end a completion: the tokeniser's, and those that the model names."""
    named = model.generation_config.eos_token_id
    marks = [named] if isinstance(named, int) else list(named or ())
    return [*dict.fromkeys([tokenizer.eos_token_id, *marks])]


def _up_to_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens
