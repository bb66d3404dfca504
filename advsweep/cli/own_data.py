"""What `advsweep init --data` sees in a file of problems, and the sweep file that it proposes."""

from __future__ import annotations

import json
import os
import shutil
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, counted
from advsweep.tasks.dataset_answers import reference_part
from advsweep.tasks.dataset_rows import Source, absolute
from advsweep.tasks.verifiers.answers import number

# Usual names of the columns, likelier ones first.
QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input", "text")
GOLDS = ("answer", "gold", "final_answer", "solution", "target", "label", "output", "response")

_LOOKED_AT = 200  # rows
_MOST_HELD_OUT = 100
_SHARE = 5  # one problem of so many is held out


@dataclass(frozen=True)
class Guess:
    """What a file of problems seems to hold.

    Attributes:
        rows: how many problems there are.
        question, gold: the names of the columns.
        verifier: what can judge answers to them.
        reason: why that verifier.
        held_out: how many problems evaluations may take.
        longest: the characters of the longest answer.
        gpu: whether this machine seems to have one.
    """

    rows: int
    question: str
    gold: str
    verifier: str
    reason: str
    held_out: int
    longest: int
    gpu: bool

    @property
    def sentences(self) -> list[str]:
        """What was guessed, for the user to check."""
        return [
            f"{counted(self.rows, 'row')}; questions in '{self.question}', answers in "
            f"'{self.gold}'",
            f"verifier {self.verifier}: {self.reason}",
            f"{counted(self.held_out, 'problem')} held out for evaluations",
            *([] if self.gpu else ["no GPU here: few steps, short answers after solved problems"]),
        ]


def guess_settings(data: str) -> Guess:
    """Look at the first problems of a file, a folder or a data set of the hub.

    Raises:
        ConfigError: there is no data, or no two columns can be a question and its answer.
    """
    rows = Source(absolute(data)).read("train")
    some = rows[:_LOOKED_AT]
    columns = [
        name
        for name in dict.fromkeys(key for row in some for key in row)
        if all(_is_answer(row.get(name)) for row in some)
    ]
    question = _choose(QUESTIONS, columns, some)
    gold = _choose(GOLDS, [name for name in columns if name != question], some)
    if not gold:
        known = ", ".join(f"'{key}'" for key in some[0])
        raise ConfigError(
            f"--data: expected a column of questions and one of answers, without gaps, in {data}, "
            f"got {known}; name them in a sweep file (task.question_column, task.gold_column)"
        )
    verifier, reason = _judge([reference_part(str(row[gold])) for row in some])
    held_out = min(_MOST_HELD_OUT, max(1, len(rows) // _SHARE))
    longest = max(len(str(row[gold])) for row in some)
    gpu = any(map(shutil.which, ("nvidia-smi", "rocm-smi")))
    return Guess(len(rows), question, gold, verifier, reason, held_out, longest, gpu)


def _is_answer(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and bool(value.strip()))


def _choose(usual: Sequence[str], columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return the column with the likeliest name, or else the one with the longest texts."""
    by_name = {name.lower(): name for name in columns}
    named = [by_name[name] for name in usual if name in by_name]
    longest = sorted(columns, key=lambda name: -sum(len(str(row[name])) for row in rows))
    return next(iter((*named, *longest)), "")


def _judge(references: Sequence[str]) -> tuple[str, str]:
    unread = [text for text in references if number(text) is None]
    if not unread:
        return "numeric", "all answers are numbers"
    if all(len(text) == 1 and text in string.ascii_uppercase for text in references):
        return "choice", "all answers are letters"
    return "boxed_math", f"not all answers are numbers, such as {unread[0][:40]!r}"


def sweep_file(guess: Guess, data: str, model: str, folder: Path) -> str:
    """Return the text of a sweep file in a folder, for a model of transformers."""

    def place(path: str) -> str:
        # Paths of a sweep file are from where the command is called, which is that folder.
        if not Path(path).expanduser().exists():
            return path
        inside = os.path.relpath(absolute(path), folder.absolute())
        return absolute(path) if inside.startswith(os.pardir) else inside

    values = {
        "data": place(data),
        "model": place(model),
        "question": guess.question,
        "gold": guess.gold,
        "verifier": guess.verifier,
        "held_out": guess.held_out,
        "max_tokens": min(256, guess.longest + 8),  # a box takes less than 8
    }
    # JSON's texts are YAML's, whatever is in them.
    quoted = {name: json.dumps(value) for name, value in values.items()}
    template = Path(__file__).parent / "init_files" / f"data{'' if guess.gpu else '_cpu'}.yaml"
    return string.Template(template.read_text("utf-8")).substitute(quoted)
