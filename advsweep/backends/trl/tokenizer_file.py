"""What a plan reads of a folder's `tokenizer.json`: it has no time to load transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.backends.step_changes import evenly_spaced
from advsweep.errors import first_of
from advsweep.printable import printable_line
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from advsweep.backends.trl.config import HfModel
    from advsweep.tasks.base import Problem, Task

# Words of a tokenizer whose words are single characters.
_MOST_CHARACTERS = 256
# Problems of a split whose prompts are looked at.
_SAMPLED_PROBLEMS = 100


class TokenizerFile(NamedTuple):
    """What plans need of a tokenizer.

    Attributes:
        special: its special tokens.
        characters: all words, if each of them is a single character; otherwise empty.
    """

    special: frozenset[str] = frozenset()
    characters: frozenset[str] = frozenset()


def read_tokenizer_file(folder: Path) -> TokenizerFile:
    """Read a folder's tokenizer; it is empty if there is none that can be read."""
    path = folder / "tokenizer.json"
    try:
        stats = path.stat()
    except OSError:
        return TokenizerFile()  # of the hub, or without such a file
    return _read(path, stats.st_size, stats.st_mtime_ns)


# Every run of a plan looks at it, and those of real models take a third of a second.
@functools.lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> TokenizerFile:
    """Read a file; its size and time tell when it has changed."""
    try:
        content = json.loads(path.read_text("utf-8"))
        added = content["added_tokens"]
        names = {token["content"] for token in added}
        special = frozenset(token["content"] for token in added if token.get("special"))
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return TokenizerFile()  # damaged: loading it tells
    try:
        words = {*content["model"]["vocab"]} - names
    except (TypeError, KeyError):
        return TokenizerFile(special)  # of pieces, each with a score
    if len(words) > _MOST_CHARACTERS or any(len(word) > 1 for word in words):
        return TokenizerFile(special)
    return TokenizerFile(special, frozenset(words))


def sample_problems(task: Task) -> list[Problem]:
    """Return some problems of both splits, the same ones each time."""
    held_out = task.problems(Split.HELD_OUT)
    problems = [held_out[row] for row in evenly_spaced(len(held_out), _SAMPLED_PROBLEMS)]
    if task.can_train:
        problems += task.draw(_SAMPLED_PROBLEMS, np.random.default_rng(0))
    return problems


def describe_special_tokens(model: HfModel, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Describe the texts that a run looks for in answers and that are special tokens of the model.

    Rewards see them here. Programs that decode answers without special tokens, as most do, do not:
    there a reward for the same text is always 0.

    Args:
        wanted: texts, by the config key that asks for them.
    """
    special = read_tokenizer_file(model.folder).special
    cautions = []
    for key, texts in wanted.items():
        inside = sorted({token for text in texts for token in special if token and token in text})
        if inside:
            cautions.append(
                f"{key}: {', '.join(inside)} is a special token of {model.path}, which answers "
                "keep here; programs that decode without special tokens never see it"
            )
    return cautions


def describe_lost_characters(model: HfModel, task: Task) -> list[str]:
    """Describe the characters of some prompts of both splits that the tokenizer leaves out.

    Tokenizers of real models write any text as bytes or pieces. One whose words are single
    characters, such as that of an exported tiny model, knows these alone: others vanish without an
    error. Plans look for them, so `tokenizer.json` is read as it is, without transformers.

    Returns:
        Warnings; empty if nothing is lost, or if the tokenizer cannot be checked.
    """
    characters = read_tokenizer_file(model.folder).characters
    if not characters:
        return []
    prompts = list(dict.fromkeys(problem.text for problem in sample_problems(task)))
    losing = [prompt for prompt in prompts if not characters.issuperset(prompt)]
    if not losing:
        return []
    lost = dict.fromkeys(c for c in "".join(losing) if c not in characters and not c.isspace())
    alphabet = " ".join(sorted(characters))
    return [
        printable_line(
            f"model.path: the tokenizer of {model.path}, which has only {alphabet}, "
            f"leaves out characters of {len(losing)} of {len(prompts)} sampled prompts, which the "
            f"model does not see: {first_of(lost, 8, ' ')}; take another model, or problems and a "
            f"prompt without them (task.data, task.prompt)"
        )
    ]
