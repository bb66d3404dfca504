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
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.backends.step_changes import evenly_spaced
from advsweep.errors import AdvsweepWarning, first_of
from advsweep.printable import printable_line
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel
    from advsweep.tasks.base import Task

SAMPLED = 100
"""Problems of a split that are looked at."""

_FILE = "tokenizer.json"
_SHOWN = 8
_COMPARED = "LNPS"
"""Unicode's letters, numbers, punctuation and symbols."""


def describe_lost_characters(model: HfModel, task: Task) -> list[str]:
    """Describe the characters of some prompts of both splits that the tokenizer leaves out.

    Returns:
        Warnings; empty if nothing is lost, or if the tokenizer cannot be checked.
    """
    file = model.folder / _FILE
    tokenizer = _load(str(file), file.stat().st_mtime_ns) if file.is_file() else None
    if tokenizer is None:
        return []
    held_out = task.problems(Split.HELD_OUT)
    problems = [held_out[row] for row in evenly_spaced(len(held_out), SAMPLED)]
    if task.can_train:
        problems += task.draw(SAMPLED, np.random.default_rng(0))
    prompts = list(dict.fromkeys(problem.text for problem in problems))
    losses = [lost for prompt in prompts if (lost := lost_characters(tokenizer, prompt))]
    if not losses:
        return []
    return [
        printable_line(
            f"model.path: the tokenizer of {model.path} leaves out characters of {len(losses)} of "
            f"{len(prompts)} sampled prompts, which the model does not see: "
            f"{first_of(dict.fromkeys(chain(*losses)), _SHOWN, ' ')}; take another model, or "
            f"problems and a prompt without them (task.data, task.prompt)"
        )
    ]


def warn_of_lost_characters(model: HfModel, task: Task) -> None:
    """Warn of them, where no plan does."""
    for caution in describe_lost_characters(model, task):
        warnings.warn(caution, AdvsweepWarning, stacklevel=2)


def lost_characters(tokenizer: Any, text: str) -> list[str]:
    """Return the characters of a text that are left out, each once.

    Args:
        tokenizer: one of the package `tokenizers`.
    """
    encoded = tokenizer.encode(text, add_special_tokens=False)
    ids = [
        i
        for i, token in zip(encoded.ids, encoded.tokens, strict=True)
        # The unknown mark; models of the class Unigram keep the text and have only its id.
        if token != getattr(tokenizer.model, "unk_token", None)
        and token == tokenizer.id_to_token(i)
    ]
    kept = _forms(tokenizer.decode(ids, skip_special_tokens=False))
    return [c for c in dict.fromkeys(text) if not _forms(c) <= kept]


# A sweep plans many runs of one model and one task.
@functools.lru_cache(maxsize=4)
def _load(file: str, changed: int) -> Any:
    """Load a file that changed at a time, in ns; None if it cannot be loaded."""
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(file)
    except Exception:  # noqa: BLE001 - it raises nothing narrower; the training reports the cause
        return None


def _forms(text: str) -> set[str]:
    """Return the characters of a text without differences of case, accent or compatibility."""
    plain = unicodedata.normalize("NFKD", text)
    return set("".join(c for c in plain if unicodedata.category(c)[0] in _COMPARED).casefold())
