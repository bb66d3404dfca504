"""Where completions end: at an end mark, at a text of `generation.stop`, or at the token limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor


def end_marks(generation_config: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end a completion: the tokenizer's and those of a checkpoint."""
    named = generation_config.eos_token_id
    marks = [named] if isinstance(named, int) else list(named or ())
    return [*dict.fromkeys([tokenizer.eos_token_id, *marks])]


def until_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the end of the first stop text in it."""
    ends = [text.index(one) + len(one) for one in stop if one in text]
    return text[: min(ends)] if ends else text


@dataclass(frozen=True)
class Ends:
    """What ends a completion before the token limit.

    A completion's last token is an end mark, or the token that completes a stop text; that token
    may go on after the stop text, which `until_stop` then leaves out of the text.

    Attributes:
        marks: end marks.
        stop: stop texts.
    """

    tokenizer: Any
    marks: Sequence[int]
    stop: Sequence[str] = ()

    def cut(self, tokens: list[int]) -> list[int]:
        """Return a completion without the padding that follows its end."""
        marked = (index for index, token in enumerate(tokens) if token in self.marks)
        tokens = tokens[: next(marked, len(tokens)) + 1]
        if not self._stops(tokens):
            return tokens
        # Longer prefixes of tokens with a stop text have it, too.
        sizes = range(1, len(tokens))
        return tokens[: 1 + bisect_left(sizes, True, key=lambda size: self._stops(tokens[:size]))]

    def is_truncated(self, tokens: Sequence[int]) -> bool:
        """Return whether the token limit ended a completion."""
        return tokens[-1] not in self.marks and not self._stops(tokens)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, up to the end of the first stop text.

        It has the special tokens that a reward may ask for, such as `</think>` in some
        vocabularies: only end marks and padding have no text.
        """
        without_text = {*self.marks, self.tokenizer.pad_token_id}
        kept = [token for token in tokens if token not in without_text]
        return until_stop(self.tokenizer.decode(kept), self.stop)

    def _stops(self, tokens: Sequence[int]) -> bool:
        if not self.stop:
            return False
        text = self.tokenizer.decode(tokens)
        return has_stop(text, self.stop)


class StopTexts(StoppingCriteria):  # type: ignore[misc]
    """Ends rows of one `generate` whose completions have a stop text.

    transformers' own criterion also finds texts that begin in the prompt, as vLLM does not.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        # A token has at least one byte; decoding may drop a space before the first of them.
        self._window = max(len(one.encode()) for one in stop) + 8
        self._prompt: int | None = None

    def __call__(
        self, input_ids: Int[Tensor, "rows tokens"], scores: Any, **_: Any
    ) -> Bool[Tensor, " rows"]:
        width = input_ids.shape[1]
        if self._prompt is None:
            self._prompt = width - 1
        texts = self._tokenizer.batch_decode(
            input_ids[:, max(self._prompt, width - self._window) :]
        )
        ended = [has_stop(text, self._stop) for text in texts]
        return torch.tensor(ended, device=input_ids.device)


def has_stop(text: str, stop: Sequence[str]) -> bool:
    """Whether a text has one of the stop texts."""
    return any(one in text for one in stop)
