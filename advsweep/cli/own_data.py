"""What `advsweep init --data` reads in a file of problems, and the sweep file that it proposes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advsweep.errors import AdvsweepWarning, ConfigError, counted
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.dataset_answers import is_words
from advsweep.tasks.dataset_cells import CellError, cell, has_cell, read_answers
from advsweep.tasks.dataset_columns import SOLUTION_COLUMNS
from advsweep.tasks.dataset_forms import Form, FormError, Given, recognise, shown_rows
from advsweep.tasks.dataset_names import GOLDS, WORKED, plain_name
from advsweep.tasks.dataset_problems import make_problems
from advsweep.tasks.dataset_rows import HUB, Rows, RowSource, absolute, refuse_url
from advsweep.tasks.verifiers.base import Verifier
from advsweep.tasks.verifiers.number_reader import read_quantity
from advsweep.yaml_files import yaml_literal

# Templates of what `advsweep init` writes.
INIT_FILES = Path(__file__).parent / "init_files"

_LOOKED_AT = 200  # rows
_MOST_HELD_OUT = 100
_SHARE = 5  # one problem of so many is held out
_HELD_OUT_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
_SHOTS = 3
_FEWEST_PROBLEMS = 2
_MOST_TOKENS = 256
_CODE_DEADLINE = 60.0
_HALF = 0.5
_HUB_MODEL = re.compile(r"[\w.-]+/[\w.-]+")
_LETTER = re.compile(r"[A-Z]|\([A-Z]\)")
_DECIMAL_COMMA = re.compile(r"-?[0-9]+,(?:[0-9]{1,2}|[0-9]{4,})")
_PLAIN_PLACE = re.compile(r"[\w./~:@-]+")

# Columns with long texts that are no part of a question.
_EXPLANATIONS = (
    *GOLDS,
    *WORKED,
    "rationale",
    "explanation",
    "reasoning",
    "cot",
    "steps",
    "generations",
    "messages",
    "conversations",
)
_WORDS_PROMPT = '{question}\nEnd your reply with "The answer is" and the answer.'


@dataclass(frozen=True)
class Proposal:
    """A task for a file of problems.

    Attributes:
        task: the options of the task, as the sweep file has them.
        problem: the first training problem, as the model gets it.
        rows: how many rows the training data has.
        reason: why the verifier is that of the task.
        held_out: how many problems are held out.
        max_tokens: how long an answer may be on a machine without a GPU.
        gpu: whether this machine seems to have one.
        notes: what the user should look at.
    """

    task: dict[str, Any]
    problem: Problem
    rows: int
    reason: str
    held_out: int
    max_tokens: int
    gpu: bool
    notes: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What was read, for the user to check."""
        task = self.task
        gold = task.get("gold_column")
        answers = f"answers in {_quoted(gold)}" if gold else f"tests in '{task['tests_column']}'"
        columns = [f"questions in '{task['question_column']}'", answers]
        for key, noun in (
            ("context_column", "texts before them"),
            ("options_column", "options"),
            ("level_column", "levels"),
        ):
            if task.get(key):
                columns.append(f"{noun} in {_quoted(task[key])}")
        lists = {
            "any": "any of several answers is right",
            "all": "all answers of a list are needed",
        }
        verifier = task["verifier"]
        name = verifier if isinstance(verifier, str) else verifier["name"]
        sentences = [
            f"{counted(self.rows, 'row')}; {', '.join(columns)}",
            f"verifier {name}: {self.reason}",
            f"{counted(self.held_out, 'problem')} held out for evaluations",
        ]
        if task.get("gold_lists"):
            sentences.insert(1, lists[task["gold_lists"]])
        if task.get("first_option") is not None:
            sentences.insert(1, f"answers are numbers of options, from {task['first_option']}")
        if not self.gpu:
            sentences.append("no GPU here: few steps, short answers after solved problems")
        return sentences


def _quoted(columns: str | Sequence[str]) -> str:
    names = [columns] if isinstance(columns, str) else columns
    return ", ".join(f"'{name}'" for name in names)


def propose(
    data: str,
    *,
    question: str | None = None,
    gold: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Proposal:
    """Read a file, a folder or a data set of the hub, and propose a task for it.

    Args:
        question, gold: the columns; None: those of a known form.
        settings: further options of the task, which are taken as they are.

    Raises:
        ConfigError: there is no data, its form is not known, or it does not make problems.
    """
    refuse_url("--data", data)
    settings = dict(settings or {})
    if question is not None:
        settings["question_column"] = question
    if gold is not None:
        settings["gold_column"] = gold
    location = absolute(data)
    _hint_at_hub(data, location)
    rows = RowSource(location, str(settings.get("subset", ""))).read(
        str(settings.get("train_split", "train"))
    )
    form = _form(rows, settings)
    options = {"data": location, **_columns(form), **_splits(location, settings), **settings}
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AdvsweepWarning)
        task, reason, problem = _complete(options, rows, form, settings)
    notes += dict.fromkeys(str(warning.message) for warning in caught)
    notes += _unused(rows, form)
    return Proposal(
        task={key: task[key] for key in task if key != "data"} | {"data": data},
        problem=problem,
        rows=len(rows),
        reason=reason,
        held_out=_held_out_count(task),
        max_tokens=_max_tokens(task),
        gpu=has_gpu(),
        notes=notes,
    )


def has_gpu() -> bool:
    """Return whether this machine seems to have a GPU."""
    return any(map(shutil.which, ("nvidia-smi", "rocm-smi")))


def _hint_at_hub(data: str, location: str) -> None:
    if not data.startswith(HUB) and not Path(location).exists() and _HUB_MODEL.fullmatch(data):
        raise ConfigError(
            f"--data: expected a file or a folder, got '{data}', which is not there; "
            f"{HUB}{data} is the data set of that name on the hub"
        )


def _form(rows: Rows, settings: Mapping[str, Any]) -> Form:
    """Return the form of the rows, and refuse one that leaves doubts."""
    options = settings.get("options_column", ())
    context = settings.get("context_column")
    form = recognise(
        rows,
        Given(
            question=settings.get("question_column", ""),
            gold=settings.get("gold_column", ""),
            context=None if context is None else str(context),
            options=(options,) if isinstance(options, str) and options else tuple(options),
            tests=settings.get("tests_column", ""),
            lists=settings.get("gold_lists", "auto"),
            first_option=settings.get("first_option"),
            part=settings.get("gold_part", "auto"),
        ),
    )
    if form.doubts:
        raise _refusal(f"--data: {form.doubts[0]}", rows)
    return form


def _refusal(message: str, rows: Rows) -> FormError:
    """Return an error that shows the first rows, with what to type in the words of the command."""
    words = re.sub(r"task\.question_column=", "--question ", message)
    words = re.sub(r"task\.gold_column=", "--answer ", words)
    words = re.sub(r"task\.(\w+)=", r"--set \1=", words)
    names = dict.fromkeys(name for row in rows[:_LOOKED_AT] for name in row)
    return FormError(words, shown_rows(rows, list(names)))


def _columns(form: Form) -> dict[str, Any]:
    """Return the options of a task that name its columns."""
    lists = {True: "any", False: "all", None: ""}[form.any_answer]
    options = form.options[0] if len(form.options) == 1 else list(form.options)
    by_key = {
        "question_column": form.question,
        "context_column": form.context,
        "gold_column": form.gold,
        "gold_lists": lists,
        "options_column": options,
        "tests_column": form.tests,
        "setup_column": form.setup,
        "program_column": form.program,
        "entry_point_column": form.entry_point,
        "level_column": form.level,
    }
    chosen: dict[str, Any] = {key: value for key, value in by_key.items() if value}
    if form.first_option is not None:
        chosen["first_option"] = form.first_option
    return chosen


def _splits(location: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that names the split of held-out problems; none for a file."""
    if Path(location).is_file() or "held_out_data" in settings or "held_out_split" in settings:
        return {}
    source = RowSource(location, str(settings.get("subset", "")))
    for split in _HELD_OUT_SPLITS:
        try:
            source.read(split)
        except ConfigError:
            continue  # there is no such split
        return {} if split == Dataset.held_out_split else {"held_out_split": split}
    return {"held_out_split": ""}


def _complete(
    options: dict[str, Any], rows: Rows, form: Form, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], str, Problem]:
    """Return the options of the task, why it has its verifier, and its first problem.

    Raises:
        ConfigError: the rows make no problems, or most answers cannot be read.
    """
    has_split = not Path(options["data"]).is_file() and options.get("held_out_split", "test")
    split = {} if has_split else {"train_split": "", "held_out_split": "train", "held_out": 0}
    everything = _dataset({**options, "prompt": "{question}", **split})
    problems = _all_problems(everything, rows)
    verifier, reason = _verifier(problems, form)
    task = {**options, "verifier": verifier}
    if not has_split and "held_out_data" not in settings:
        task["held_out"] = min(_MOST_HELD_OUT, max(1, len(problems) // _SHARE))
    prompt = _prompt(problems, verifier, form)
    if prompt:
        task["prompt"] = prompt
    if verifier == "code":
        task["deadline"] = _CODE_DEADLINE
    if not has_gpu() and not form.tests:
        task |= _short(task, len(problems), rows)
    task |= settings
    built = _dataset(task)
    problem = built.problems(Split.TRAIN)[0]
    try:
        _check(built)
    except ConfigError as error:
        if not str(error).startswith("task.gold_column"):
            raise
        words = "task.gold_column=COL, task.gold_part=PART or task.verifier=NAME"
        raise _refusal(f"{error}: {words}", rows) from error
    return task, reason, problem


def _all_problems(task: Dataset, rows: Rows) -> list[Problem]:
    """Return the problems of all splits, of which there are two at least.

    Raises:
        FormError: a row cannot be read, or too few can; shows the first rows.
    """
    # The task of the sweep file warns of the same rows again.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AdvsweepWarning)
        try:
            splits = make_problems(task).splits
        except FormError:
            raise
        except ConfigError as error:
            words = "task.question_column=COL task.gold_column=COL"
            raise _refusal(
                f"{error}; mend such rows, leave them out, or name other columns: {words}", rows
            ) from error
    problems = [problem for split in splits.values() for problem in split]
    if len(problems) < _FEWEST_PROBLEMS:
        reasons = "".join(f"; {warning.message}" for warning in caught)
        raise _refusal(
            f"--data: expected {_FEWEST_PROBLEMS} different problems or more, one to train on and "
            f"one to hold out, got {len(problems)} in {counted(len(rows), 'row')}{reasons}",
            rows,
        )
    return problems


def _dataset(options: Mapping[str, Any]) -> Dataset:
    return Dataset.build(options, where="task")


def _check(task: Dataset) -> None:
    """Check the reference answers, unless this machine lacks what the verifier needs."""
    assert isinstance(task.verifier, Verifier)
    try:
        task.verifier.check()
    except ConfigError as error:
        warnings.warn(str(error), AdvsweepWarning, stacklevel=2)
        return
    task.check()


def _short(task: Mapping[str, Any], problems: int, rows: Rows) -> dict[str, Any]:
    """Return what a model without much training needs: the bare question, solved problems."""
    short: dict[str, Any] = {
        "prompt": "{question}",
        "shots": max(0, min(_SHOTS, problems - task.get("held_out", 0) - 1)),
    }
    usual = [name for name in SOLUTION_COLUMNS if any(has_cell(row, name) for row in rows)]
    if usual and not all(_has_solution(row, usual[0]) for row in rows):
        # Some rows have no steps: the examples are answers alone.
        short["solution_column"] = task["gold_column"]
    return short


def _has_solution(row: Mapping[str, Any], column: str) -> bool:
    try:
        return read_answers(cell(row, column)) is not None
    except CellError:
        return False


def _verifier(problems: Sequence[Problem], form: Form) -> tuple[Any, str]:
    """Return a verifier for some reference answers, and the reason."""
    if form.tests:
        return "code", "the data has tests of programs"
    answers = [
        text
        for problem in problems
        for text in problem.reference.get("answers", [problem.reference["answer"]])
    ]
    unread = [text for text in answers if read_quantity(text) is None]
    if form.options:
        return "choice", "the questions have options"
    if not unread:
        return "numeric", "all answers are numbers"
    if all(_LETTER.fullmatch(text) for text in answers):
        return "choice", "all answers are letters"
    words = [text for text in answers if is_words(text)]
    if len(words) > _HALF * len(answers):
        return (
            {"name": "regex", "ignore_case": True},
            f"most answers are words, such as {words[0][:40]!r}",
        )
    reason = f"not all answers are numbers, such as {unread[0][:40]!r}"
    commas = [text for text in unread if _DECIMAL_COMMA.fullmatch(text)]
    if commas:
        reason += (
            f"; {commas[0]!r} is read as two numbers: if it is one, write its decimal comma as a "
            "point"
        )
    return "boxed_math", reason


def _answers(reference: Mapping[str, Any]) -> Sequence[str]:
    return reference["answers"] if "answers" in reference else [reference["answer"]]


def _prompt(problems: Sequence[Problem], verifier: Any, form: Form) -> str:
    """Return the prompt that the verifier needs; empty for the default, which asks for a box."""
    if verifier in ("choice", "code"):
        return verifier if verifier == "code" or form.options else "choice"
    texts = [f"{problem.system}\n{problem.prompt}" for problem in problems]
    boxes = sum("\\boxed" in text for text in texts)
    stated = sum(bool(re.search(r"\banswer\s*:", text, re.IGNORECASE)) for text in texts)
    asks_itself = boxes + (stated if verifier == "numeric" else 0) >= _HALF * len(texts)
    if isinstance(verifier, dict):
        return _WORDS_PROMPT
    return "plain" if asks_itself else ""


def _held_out_count(task: Mapping[str, Any]) -> int:
    return len(_dataset(task).problems(Split.HELD_OUT))


def _max_tokens(task: Mapping[str, Any]) -> int:
    """Return how long an answer like those of the solved problems may be, in characters."""
    built = _dataset(task)
    if not built.shots:
        return _MOST_TOKENS
    longest = max(
        len(str(problem.reference.get("worked", "")) + problem.reference["solution"])
        for problem in built.problems(Split.TRAIN)
    )
    return min(_MOST_TOKENS, longest)


def _unused(rows: Rows, form: Form) -> list[str]:
    """Return a note on unused columns with longer texts than the questions."""
    looked_at = rows[:_LOOKED_AT]
    most = sum(len(str(row.get(form.question.partition(".")[0]))) for row in looked_at)
    longer = [
        name
        for name in form.unused
        if "." not in name
        and plain_name(name) not in _EXPLANATIONS
        and any(isinstance(row.get(name), (str, list, dict)) for row in looked_at)
        and sum(len(str(row.get(name) or "")) for row in looked_at) > most
    ]
    if not longer:
        return []
    return [
        f"unused, with longer texts than the questions: {_quoted(longer)}; if a question needs "
        "one of them: --set context_column=COL, or options_column=COL"
    ]


def check_model(model: str) -> None:
    """Refuse a model that is no folder of transformers and no name on the hub.

    Raises:
        ConfigError: says what there is.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"--model: expected a folder of transformers, got '{model}', which has no "
                "config.json"
            )
        return
    if not _HUB_MODEL.fullmatch(model) or model.startswith("."):
        raise ConfigError(
            f"--model: expected a folder with a model, or OWNER/NAME of the hub, got '{model}', "
            "which is no folder here"
        )


# The sweep file


# Comments behind keys of the task.
_COMMENTS = {
    "held_out": "problems of the evaluations, which are not trained on",
    "prompt": "{question} stands for the question; `boxed` asks for steps and a box",
    "shots": "solved problems before each question: they show the form of an answer",
    "gold_lists": "any: one of several answers is enough; all: all are needed",
    "first_option": "answers are numbers of options, from this one",
}
_COMMENT_COLUMN = 24
_LEADING = ("data", "question_column", "context_column", "options_column", "gold_column")


def sweep_file(proposal: Proposal, data: str, model: str, folder: Path) -> str:
    """Return the text of a sweep file in a folder, for a model of transformers."""

    def place(path: str) -> str:
        # Paths of a sweep file are from where the command is called, which is that folder.
        if not Path(path).expanduser().exists():
            return path
        inside = os.path.relpath(absolute(path), folder.absolute())
        return absolute(path) if inside.startswith(os.pardir) else inside

    task = {**proposal.task, "data": place(data)}
    shown = task["data"] if _PLAIN_PLACE.fullmatch(task["data"]) else "FILE"
    values = {
        "shown_data": shown,
        "task": _task_lines(task),
        "model": yaml_literal(place(model)),
        "max_tokens": yaml_literal(proposal.max_tokens),
    }
    name = "data.yaml" if proposal.gpu else "data_cpu.yaml"
    template = INIT_FILES / name
    return string.Template(template.read_text("utf-8")).substitute(values)


def _task_lines(task: Mapping[str, Any]) -> str:
    """Return the lines of a task in a sweep file, with comments."""
    keys = [*(key for key in _LEADING if key in task), *(k for k in task if k not in _LEADING)]
    lines = []
    for key in keys:
        line = f"  {key}: {yaml_literal(task[key])}"
        if key in _COMMENTS:
            line = f"{line:<{_COMMENT_COLUMN}} # {_COMMENTS[key]}"
        lines.append(line)
    return "\n".join(lines)


def gold_text(reference: Mapping[str, Any]) -> str:
    """Return a reference answer for people; that of a program is its tests."""
    if "answers" in reference:
        return f"any of {', '.join(reference['answers'])}"
    if "answer" in reference:
        return str(reference["answer"])
    return str({key: value for key, value in reference.items() if key != "solution"} or reference)


def next_command(folder: Path, proposal: Proposal | None) -> str:
    """Return the command that trains what was written."""
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    verifier = proposal.task["verifier"] if proposal else ""
    consent = " --run-code" if verifier == "code" else ""
    return f"{where}advsweep sweep sweep.yaml{consent}"
