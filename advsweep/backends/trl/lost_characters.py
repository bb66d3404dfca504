"""Finds characters of a task that a model's tokeniser leaves out, which the model never sees.

Plans look for them, so only the package `tokenizers` is imported, which takes a twentieth of a
second, and not transformers. It reads `tokenizer.json`; folders without that file, and names on
the hub, are not checked.

Real tokenisers do not write a text back exactly: they change spaces, case, accents and
compatibility forms, and add marks. Such changes lose nothing. A character counts as lost if the
text that a prompt's known tokens decode to lacks it in every form. Spaces, marks and controls are
not compared.
"""

from __future__ import annotations

import functools
import unicodedata
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.backends.step_changes import evenly_spaced
from advsweep.errors import AdvsweepWarning
from advsweep.printable import printable_line
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel
    from advsweep.tasks.base import Problem, Task

SAMPLED = 100
"""Problems of a split that are looked at."""

_FILE = "tokenizer.json"
_SHOWN = 8
_SMALL = 64
_COMPARED = "LNPS"
"""Unicode's letters, numbers, punctuation and symbols."""


def describe_lost_characters(model: HfModel, task: Task) -> list[str]:
    """Describe the characters of a task that the model's tokeniser leaves out.

    Some training and held-out problems are looked at: their prompts and their gold answers.

    Returns:
        A warning; empty if no character is lost, or if the tokeniser cannot be checked.
    """
    file = model.folder / _FILE
    if not file.is_file():
        return []
    problems = _sample(task)
    prompts = tuple(dict.fromkeys(problem.text for problem in problems))
    answers = (problem.reference.get("answer") for problem in problems)
    golds = tuple(dict.fromkeys(answer for answer in answers if isinstance(answer, str)))
    text = _describe(str(file), file.stat().st_mtime_ns, model.path, prompts, golds)
    return [text] if text else []


def warn_of_lost_characters(model: HfModel, task: Task) -> None:
    """Warn of them, where no plan does."""
    for caution in describe_lost_characters(model, task):
        warnings.warn(caution, AdvsweepWarning, stacklevel=2)


def _sample(task: Task) -> list[Problem]:
    """Return some problems of both splits, the same in each call."""
    held_out = task.problems(Split.HELD_OUT)
    chosen = [held_out[row] for row in evenly_spaced(len(held_out), SAMPLED)]
    return [*chosen, *(task.draw(SAMPLED, np.random.default_rng(0)) if task.can_train else ())]


# A sweep plans many runs of one model and one task.
@functools.lru_cache(maxsize=8)
def _describe(
    file: str, changed: int, path: str, prompts: tuple[str, ...], golds: tuple[str, ...]
) -> str:
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(file)
    except Exception:  # noqa: BLE001 - it raises nothing narrower; the training reports the cause
        return ""
    of_prompts, of_golds = (
        [lost for text in texts if (lost := lost_characters(text, tokenizer))]
        for texts in (prompts, golds)
    )
    parts = [
        f"{len(losses)} of {len(texts)} {what}"
        for losses, texts, what in (
            (of_prompts, prompts, "sampled prompts"),
            (of_golds, golds, "gold answers"),
        )
        if losses
    ]
    if not parts:
        return ""
    lost = list(dict.fromkeys(c for losses in (*of_prompts, *of_golds) for c in losses))
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return (
        f"model.path: the tokeniser of {path} leaves out characters of {' and '.join(parts)}: "
        f"{_spell(lost[:_SHOWN])}{more}. The model neither reads nor writes them{_known(tokenizer)}"
        f"; take a model that knows them, or problems and a prompt without them (task.data, "
        f"task.prompt)"
    )


def lost_characters(text: str, tokenizer: Any) -> list[str]:
    """Return the characters of a text that a tokeniser of `tokenizers` leaves out, each once."""
    encoded = tokenizer.encode(text, add_special_tokens=False)
    ids = [
        i
        for i, token in zip(encoded.ids, encoded.tokens, strict=True)
        # The unknown mark; models of the class Unigram keep the text and have only its id.
        if token != getattr(tokenizer.model, "unk_token", None)
        and tokenizer.id_to_token(i) == token
    ]
    kept = _forms(tokenizer.decode(ids, skip_special_tokens=False))
    return [c for c in dict.fromkeys(text) if not _forms(c) <= kept]


def _forms(text: str) -> set[str]:
    """Return the characters of a text without differences of case, accent or compatibility."""
    plain = unicodedata.normalize("NFKD", text)
    return set("".join(c for c in plain if unicodedata.category(c)[0] in _COMPARED).casefold())


def _spell(characters: Iterable[str]) -> str:
    return printable_line(" ".join(characters))


def _known(tokenizer: Any) -> str:
    """Describe the characters that a small tokeniser knows; empty for others."""
    words = sorted(tokenizer.get_vocab(with_added_tokens=False))
    known = [word for word in words if len(word) == 1]
    return f", but {_spell(known)}" if len(words) <= _SMALL and known else ""
