"""Checks of a checkpoint's tokenizer and chat template with a task's prompts, before training."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.positions import needs_positions
from advsweep.backends.trl.sampling import encode, is_chat
from advsweep.backends.trl.tokenizer_file import sample_problems
from advsweep.errors import ConfigError, first_of

if TYPE_CHECKING:
    from advsweep.tasks.base import Task

# Marks that templates write for single tokens, such as <|im_start|>.
_MARK = re.compile(r"<\|[^<>|\s]+\|>")
# A text that has tokens in every vocabulary of words, bytes or digits.
_CONTENT = "1"


@dataclass(frozen=True)
class Checkpoint:
    """What the checks look at.

    Attributes:
        loaded: the model of transformers.
        marks: its end marks.
    """

    model: HfModel
    tokenizer: Any
    loaded: Any
    marks: Sequence[int]

    def check(self, task: Task, tokens: int, stop: Sequence[str]) -> list[str]:
        """Look at the template and at some problems of a task; return warnings.

        Args:
            tokens: the most tokens of an answer.
            stop: texts that end an answer too.

        Raises:
            ConfigError: the model cannot get these prompts.
        """
        warnings = []
        if is_chat(self.model, self.tokenizer):
            warnings += self._check_template()
            warnings += self._describe_unknown_end(stop)
        return warnings + self._check_lengths(task, tokens)

    def _check_template(self) -> list[str]:
        text = self._render([{"role": "user", "content": _CONTENT}], add_generation_prompt=True)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        path = self.model.path
        decoded = self.tokenizer.decode(ids)
        unknown = self.tokenizer.unk_token_id
        if (unknown is not None and unknown in ids) or _letters(decoded) != _letters(text):
            raise ConfigError(
                f"model.prompt: expected a chat template whose words are in the tokenizer of "
                f"{path}, got {text!r}, of which the model would see {decoded!r}; set "
                f"model.prompt=plain, or take the tokenizer that belongs to the template"
            )
        torn = {}
        for mark in _MARK.findall(text):
            pieces = len(self.tokenizer(mark, add_special_tokens=False)["input_ids"])
            if pieces > 1:
                torn[mark] = pieces
        if not torn:
            return []
        listed = ", ".join(f"{mark} ({pieces} tokens)" for mark, pieces in torn.items())
        return [
            f"model.prompt: the chat template of {path} writes {listed}, which its tokenizer does "
            "not have as single tokens; set model.prompt=plain, or take the tokenizer that belongs "
            "to the template"
        ]

    def _describe_unknown_end(self, stop: Sequence[str]) -> list[str]:
        """Warn of a template that ends an answer by a token that does not end one here."""
        messages = [
            {"role": "user", "content": _CONTENT},
            {"role": "assistant", "content": _CONTENT},
        ]
        try:
            text = self._render(messages)
        except ConfigError:
            return []  # it is for prompts alone
        _, _, behind = text.rpartition(_CONTENT)
        ids = self.tokenizer(behind, add_special_tokens=False)["input_ids"]
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        end = next((token for token in ids if token in special), None)
        if end is None or end in self.marks:
            return []
        mark = self.tokenizer.decode([end])
        if mark in stop:
            return []
        marks = first_of([self.tokenizer.decode([token]) for token in self.marks], 4)
        return [
            f"model.path: the chat template of {self.model.path} ends an answer with {mark}, which "
            f"ends none here (end marks: {marks}): answers may go on to the token limit; set "
            f"\"generation.stop=['{mark}']\", or add it to eos_token_id of generation_config.json"
        ]

    def _check_lengths(self, task: Task, tokens: int) -> list[str]:
        try:
            prompts = encode(sample_problems(task), self.model, self.tokenizer)
        except TemplateError as error:
            raise self._refused(error) from error
        config = self.loaded.config.get_text_config()
        largest = max(max(prompt) for prompt in prompts if prompt)
        if largest >= config.vocab_size:
            raise ConfigError(
                f"model.path: expected prompts of the {config.vocab_size} tokens that the model "
                f"knows, got token {largest} ({self.tokenizer.decode([largest])!r}) of its "
                "tokenizer; take the tokenizer that belongs to the model"
            )
        positions = getattr(config, "max_position_embeddings", None)
        longest = max(map(len, prompts))
        if not positions or longest + tokens <= positions:
            return []
        limit = f"{self.model.path} has {positions} positions"
        sampled = f"a prompt has {longest} tokens and an answer up to {tokens}"
        if longest >= positions or needs_positions(self.loaded):
            raise ConfigError(
                f"generation.max_tokens: expected prompts and answers of at most {positions} "
                f"tokens, as {limit}; {sampled}"
            )
        return [
            f"generation.max_tokens: {limit}, and {sampled}: behind the last position its answers "
            "are poor; a smaller generation.max_tokens, or shorter prompts, keep within them"
        ]

    def _render(self, messages: Sequence[dict[str, str]], **named: Any) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **named)
        except TemplateError as error:
            raise self._refused(error) from error
        return text

    def _refused(self, error: TemplateError) -> ConfigError:
        return ConfigError(
            f"model.prompt: expected a chat template that takes this task's messages, got that of "
            f"{self.model.path}: {error}; set model.prompt=plain"
        )


def _letters(text: str) -> str:
    """Return a text without what tokenizers may change of it: spaces, case, forms of a letter."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
