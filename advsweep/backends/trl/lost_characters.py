"""Finds characters of a task that a model's tokenizer leaves out, which the model never sees.

Plans look for them, so only the package `tokenizers` is imported, which takes a twentieth of a
second, and not transformers. It reads `tokenizer.json`; folders without that file, and names on
the hub, are not checked.

Real tokenizers do not write a text back exactly: they change spaces, case, accents and
compatibility forms, and add marks. Such changes lose nothing. A character counts as lost if the
text that a prompt's known tokens decode to lacks it in every form. Spaces, marks and controls are
not compared.
"""

from __future__ import annotations

import functools
import unicodedata
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.backends.step_changes import evenly_spaced
from advsweep.errors import AdvsweepWarning, ConfigError, first_of
from advsweep.printable import printable_line
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel
    from advsweep.tasks.base import Problem, Task

SAMPLED = 100
"""Problems of a split that are looked at."""

_FILE = "tokenizer.json"
_SHOWN = 8
_SCORED = 8
_SMALL = 64
_COMPARED = "LNPS"
"""Unicode's letters, numbers, punctuation and symbols."""


def describe_lost_characters(model: HfModel, task: Task) -> list[str]:
    """Describe the characters of a task that the model's tokenizer leaves out.

    Some training and held-out problems are looked at: their prompts, and whether a known right
    answer is still right without the characters that it loses.

    Returns:
        Warnings; empty if nothing is lost, or if the tokenizer cannot be checked.
    """
    file = model.folder / _FILE
    tokenizer = _load(str(file), file.stat().st_mtime_ns) if file.is_file() else None
    if tokenizer is None:
        return []
    problems = _sample(task)
    prompts = list(dict.fromkeys(problem.text for problem in problems))
    losses = [lost for prompt in prompts if (lost := tokenizer.lost(prompt))]
    of_model, found = f"model.path: the tokenizer of {model.path}", []
    if losses:
        found.append(
            f"{of_model}{tokenizer.small_alphabet()} leaves out characters of {len(losses)} of "
            f"{len(prompts)} sampled prompts, which the model does not see: "
            f"{first_of(dict.fromkeys(chain(*losses)), _SHOWN, ' ')}; take another model, or "
            "problems and a prompt without them (task.data, task.prompt)"
        )
    if example := _unwritable(tokenizer, task, problems):
        found.append(
            f"{of_model} cannot write right answers: of '{example[0]}' it keeps "
            f"'{example[1]}', which is wrong; take another model or verifier (task.verifier)"
        )
    return [printable_line(text) for text in found]


def warn_of_lost_characters(model: HfModel, task: Task) -> None:
    """Warn of them, where no plan does."""
    for caution in describe_lost_characters(model, task):
        warnings.warn(caution, AdvsweepWarning, stacklevel=2)


class CheckedTokenizer:
    """A tokenizer of the package `tokenizers`; each text is looked at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.lost = functools.lru_cache(maxsize=8 * SAMPLED)(self._lost)

    def kept(self, text: str) -> str:
        """Return what the known tokens of a text decode to."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = [
            i
            for i, token in zip(encoded.ids, encoded.tokens, strict=True)
            # The unknown mark; models of the class Unigram keep the text and have only its id.
            if token != getattr(self._tokenizer.model, "unk_token", None)
            and token == self._tokenizer.id_to_token(i)
        ]
        kept: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return kept

    def _lost(self, text: str) -> tuple[str, ...]:
        """Return the characters of a text that are left out, each once."""
        kept = _forms(self.kept(text))
        return tuple(c for c in dict.fromkeys(text) if not _forms(c) <= kept)

    def small_alphabet(self) -> str:
        """Describe the characters of a small tokenizer; empty for others."""
        words = sorted(self._tokenizer.get_vocab(with_added_tokens=False))
        known = [word for word in words if len(word) == 1]
        return f", which has only {' '.join(known)}," if len(words) <= _SMALL and known else ""


# A sweep plans many runs of one model and one task.
@functools.lru_cache(maxsize=4)
def _load(file: str, changed: int) -> CheckedTokenizer | None:
    """Load a file that changed at a time, in ns; None if it cannot be loaded."""
    try:
        from tokenizers import Tokenizer

        return CheckedTokenizer(Tokenizer.from_file(file))
    except Exception:  # noqa: BLE001 - it raises nothing narrower; the training reports the cause
        return None


def _sample(task: Task) -> list[Problem]:
    """Return some problems of both splits, the same in each call."""
    held_out = task.problems(Split.HELD_OUT)
    chosen = [held_out[row] for row in evenly_spaced(len(held_out), SAMPLED)]
    return [*chosen, *(task.draw(SAMPLED, np.random.default_rng(0)) if task.can_train else ())]


def _unwritable(
    tokenizer: CheckedTokenizer, task: Task, problems: Sequence[Problem]
) -> tuple[str, str] | None:
    """Return a right answer and what is kept of it, if losses make all of some answers wrong."""
    solved = [(p, s) for p in problems if isinstance(s := p.reference.get("solution"), str)]
    if not solved or not all(tokenizer.lost(solution) for _, solution in solved):
        return None
    try:
        task.check_consent()
    except ConfigError:
        return None  # verifying may run programs
    some = solved[:_SCORED]
    kept = [tokenizer.kept(solution) for _, solution in some]
    outcomes = task.score([problem for problem, _ in some], kept)
    return (some[0][1], kept[0]) if (outcomes == 0).all() else None


def _forms(text: str) -> set[str]:
    """Return the characters of a text without differences of case, accent or compatibility."""
    plain = unicodedata.normalize("NFKD", text)
    return set("".join(c for c in plain if unicodedata.category(c)[0] in _COMPARED).casefold())
