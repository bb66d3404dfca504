"""A task with problems from data, and a verifier and a reward chosen by name."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Component, Plain, option
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks.base import Problem, Split, Task
from advsweep.tasks.dataset.problems import (
    AnswerPart,
    Columns,
    Problems,
    Recipe,
    make_problems,
    with_solutions,
)
from advsweep.tasks.dataset.reference_answers import check_reference_answers
from advsweep.tasks.dataset.rows import HUB, Source, absolute
from advsweep.tasks.dataset.templates import template
from advsweep.tasks.rewards import build_reward
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.base import ReferenceAnswer
from advsweep.tasks.verifiers.pool import pool_for, usable_cores

if TYPE_CHECKING:
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.verifiers.server import Job, JobResult

_REWARDS = {Outcome.CORRECT: 1.0, Outcome.WRONG: 0.0, Outcome.UNSCORABLE: np.nan}


@dataclass(kw_only=True)
class Dataset(Task):
    """Problems from a file, a folder or the hub; `conf/task` has the well-known sets.

    A template makes prompts of questions, and a verifier compares answers with a column of
    reference answers. Problems are drawn uniformly, without repetition within a draw if there are
    enough. The identity is made of the problems themselves: the same problems from another place,
    or under other column names, are the same task.
    """

    name: ClassVar[str] = "dataset"

    data: str = option("", help="a file, a folder with a file per split, or hub:OWNER/NAME[@REV]")
    held_out_data: str = option("", help="another such place for held-out problems")
    subset: str = option("", help="the hub's configuration, such as main; or a folder of data")
    train_split: str = option("train", help="split of the training problems; empty: none")
    held_out_split: str = option("test", help="split of the held-out problems; empty: cut them")
    question_column: str | tuple[str, ...] = option(
        ("question", "problem", "prompt"), help="column of the question, or several to look for"
    )
    gold_column: str | tuple[str, ...] = option(
        ("answer", "solution"), help="column of the gold answer, or several to look for"
    )
    level_column: str = option("", help="column of the difficulty level; empty: all are level 0")
    id_column: str = option("", help="column of the ids; empty: made of the questions")
    options_column: str = option("", help="column of the options of multiple choice")
    tests_column: str = option("", help="column of the tests of a program")
    setup_column: str = option("", help="column of what runs before the tests of a program")
    program_column: str = option("", help="column of a program that passes the tests")
    gold_part: AnswerPart = option(
        AnswerPart.AUTO, help="after ####, in the last box, the whole, or auto: what there is"
    )
    prompt: str = option("boxed", help="name of a template, or a text with {question} in it")
    levels: tuple[int, ...] = option((), help="difficulty levels in use; empty: all")
    level_file: str = option("", help="JSON lines with an id and a level, in place of a column")
    train: int = option(0, ge=0, help="training problems, chosen by the seed; 0: all")
    held_out: int = option(0, ge=0, help="held-out problems, chosen by the seed; 0: all")
    seed: int = option(0, ge=0, help="chooses problems where not all are taken")
    verifier: str | dict[str, Any] | Component = option(
        "boxed_math", help="what judges answers: a name or a mapping"
    )
    reward: str | dict[str, Any] = option(
        "accuracy", help="what training rewards: a part, or parts with their weights"
    )
    deadline: float = option(5.0, gt=0, help="seconds that verifying one answer may take")
    workers: int = option(0, ge=0, identity=False, help="processes that verify; 0: one per core")
    title: str = option("", identity=False, help="what reports call it; empty: the data's name")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.data, self.held_out_data = absolute(self.data), absolute(self.held_out_data)
        self.level_file = absolute(self.level_file)
        self.levels = tuple(sorted(set(self.levels)))
        template(self.prompt)
        if not isinstance(self.verifier, Component):
            self.verifier = VERIFIERS.build(self.verifier, where="verifier")
        self._reward = build_reward(self.reward)
        self.reward = self._reward.plain()
        self._judged: tuple[Sequence[Problem], Sequence[str], list[Verdict]] | None = None

    @property
    def label(self) -> str:
        return self.title or Path(self.data.removeprefix(HUB)).stem or self.name

    @property
    def reward_range(self) -> tuple[float, float]:
        return self._reward.range

    @property
    def is_binary(self) -> bool:
        return self._reward.is_binary

    def identity(self) -> Plain:
        """Return the problems, the verifier and the reward, but not the place of the problems."""
        return {
            "name": self.name,
            "revision": self.revision,
            "problems": self._problems.digest,
            "verifier": self._verifier.identity(),
            "deadline": self.deadline,
            "reward": [part.identity() for part in self._reward.parts],
        }

    @property
    def is_shaped(self) -> bool:
        return self._reward.is_shaped

    @property
    def rewards_verdicts(self) -> bool:
        return any(part.reads_verdicts for part in self._reward.parts)

    @property
    def has_system_messages(self) -> bool:
        return bool(template(self.prompt).system)

    def protocol(self) -> Plain:
        protocol = self._verifier.protocol(self._held_out_references())
        if self.deadline != Dataset.deadline:
            protocol["verifier"] += f" deadline={self.deadline:g}"
        system = template(self.prompt).system
        return protocol | {
            "system": hashlib.sha256(system.encode()).hexdigest()[:8] if system else "none",
        }

    @property
    def can_train(self) -> bool:
        return bool(self._problems.splits[Split.TRAIN])

    def absent(self) -> tuple[str, ...]:
        places = {"data": self.data, "held_out_data": self.held_out_data}
        absent = {k: place for k, place in places.items() if place and not Source(place).is_here}
        if self.level_file and not Path(self.level_file).exists():
            absent["level_file"] = self.level_file
        return tuple(f"task.{key}={place}" for key, place in absent.items())

    def check(self) -> None:
        with _naming_the_task():
            self._verifier.check()
            if self.deadline <= (needed := self._verifier.seconds_needed):
                raise ConfigError(
                    f"deadline: expected > {needed:g}, as verifier '{self._verifier.name}' is "
                    f"set, got {self.deadline:g}"
                )
            splits = self._problems.splits.values()
            self._verifier.check_references({p.id: p.reference for ps in splits for p in ps})
            check_reference_answers(self._problems, self._verifier, self._ask)

    def check_consent(self) -> None:
        with _naming_the_task():
            self._verifier.check_consent()

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._solved[split]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        problems = self.problems(Split.TRAIN)
        rows = rng.choice(len(problems), count, replace=count > len(problems))
        return [problems[row] for row in rows.tolist()]

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        verdicts = self._judge(problems, completions)
        return np.array([_REWARDS[verdict.outcome] for verdict in verdicts])

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        return [verdict.answer for verdict in self._judge(problems, completions)]

    def rewards(
        self, completions: Sequence[str], outcomes: PerCompletion, lengths: PerCompletion
    ) -> PerCompletion:
        return self._reward.values(completions, outcomes, lengths)

    @property
    def _verifier(self) -> Verifier:
        assert isinstance(self.verifier, Verifier)
        return self.verifier

    def _held_out_references(self) -> Iterator[ReferenceAnswer]:
        for problem in self._problems.splits[Split.HELD_OUT]:
            yield problem.reference

    @property
    def _recipe(self) -> Recipe:
        source = Source(self.data, self.subset)
        return Recipe(
            train_source=source,
            held_out_source=Source(self.held_out_data, self.subset),
            train_split=self.train_split,
            held_out_split=self.held_out_split,
            columns=Columns(
                question=_names(self.question_column),
                gold=_names(self.gold_column),
                level=self.level_column,
                id=self.id_column,
                options=self.options_column,
                tests=self.tests_column,
                setup=self.setup_column,
                program=self.program_column,
            ),
            answer_part=self.gold_part,
            prompt=self.prompt,
            levels=self.levels,
            level_file=self.level_file,
            train=self.train,
            held_out=self.held_out,
            seed=self.seed,
        )

    @functools.cached_property
    def _problems(self) -> Problems:
        places = (self.data, self.held_out_data, self.level_file)
        with _naming_the_task():
            return make_problems(self._recipe, tuple(map(_changed, places)))

    @functools.cached_property
    def _solved(self) -> Mapping[Split, list[Problem]]:
        solve = self._verifier.solution
        splits = self._problems.splits.items()
        return {split: with_solutions(problems, solve) for split, problems in splits}

    def _judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """Return the verdicts; cached, because callers request scores and answers in turn."""
        if self._judged is not None:
            before, texts, verdicts = self._judged
            if list(before) == list(problems) and list(texts) == list(completions):
                return verdicts
        quickly = self._verifier.judge_quickly
        found = [quickly(p.reference, c) for p, c in zip(problems, completions, strict=True)]
        left = [i for i, verdict in enumerate(found) if verdict is None]
        jobs: list[Job] = [(problems[i].reference, completions[i]) for i in left]
        for i, verdict in zip(left, self._ask(jobs), strict=True):
            found[i] = verdict
        verdicts = [verdict for verdict in found if verdict is not None]
        assert len(verdicts) == len(completions)
        _warn_of_unjudged(problems, verdicts)
        self._judged = (problems, completions, verdicts)
        return verdicts

    def _ask(self, jobs: Sequence[Job]) -> list[JobResult]:
        if not jobs:
            return []
        workers = self.workers or usable_cores()
        return pool_for(self._verifier, workers=workers, deadline=self.deadline).judge(jobs)


@contextmanager
def _naming_the_task() -> Iterator[None]:
    """Prefix keys with the config group in errors raised after the fields were checked."""
    try:
        yield
    except ConfigError as error:
        message = str(error).removeprefix("task.")
        raise type(error)(f"task.{message}") from error


def _names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _changed(place: str) -> int:
    """Return the time of change of a file, or of the newest file of a folder; else 0."""
    path = Path(place)
    if not place or place.startswith(HUB) or not path.exists():
        return 0
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return max(map(_time_of_change, files))


def _time_of_change(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0  # a broken or circular link


def _warn_of_unjudged(problems: Sequence[Problem], verdicts: Sequence[Verdict]) -> None:
    """Warn of answers that the verifier could not judge, grouped by consequence and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for problem, verdict in zip(problems, verdicts, strict=True):
        if verdict.reason:
            wrong = verdict.outcome is Outcome.WRONG
            what = "count as wrong" if wrong else "could not be scored"
            found.setdefault((what, verdict.reason), []).append(problem.id)
    for (what, reason), ids in found.items():
        warnings.warn(
            f"{len(ids)} of {len(verdicts)} answers {what}: {reason} (problem {ids[0]})",
            AdvsweepWarning,
            stacklevel=4,
        )
