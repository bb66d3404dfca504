"""A task with problems from data, and a verifier and a reward chosen by name."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.components import Component, Plain, option
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.local_files import cache_folder, replace_file
from advsweep.machine import usable_cores
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset_problems import (
    DataTask,
    Problems,
    make_problems,
    template,
)
from advsweep.tasks.dataset_rows import HUB, Source, absolute
from advsweep.tasks.rewards import build_reward
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.pool import pool_for

if TYPE_CHECKING:
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.verifiers.pool import Job, JobResult

_EXAMPLES = 3
_checked: set[str] = set()
_REWARDS = {Outcome.CORRECT: 1.0, Outcome.WRONG: 0.0, Outcome.UNSCORABLE: np.nan}


@dataclass(kw_only=True)
class Dataset(DataTask):
    """Problems from a file, a folder or the hub; `conf/task` has the well-known sets.

    A template makes prompts of questions, and a verifier compares answers with a column of
    reference answers. Problems are drawn uniformly, without repetition within a draw if there are
    enough. The identity is made of the problems themselves: the same problems from another place,
    or under other column names, are the same task.
    """

    name: ClassVar[str] = "dataset"

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
        # Read from the data only if the verifier needs them.
        held_out = (p for split in (Split.HELD_OUT,) for p in self._problems.splits[split])
        protocol = self._verifier.protocol(p.reference for p in held_out)
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
            self._check_reference_answers()

    def _check_reference_answers(self) -> None:
        """Warn of reference answers that the verifier cannot read, once per process.

        Reading thousands of expressions takes minutes, so the result is cached in a file.

        Raises:
            ConfigError: most of them cannot be read.
        """
        verifier = self._verifier
        distribution = verifier.distribution
        material = {
            "problems": self._problems.digest,
            "verifier": verifier.identity(),
            "version": importlib.metadata.version(distribution) if distribution else "",
        }
        key = hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()
        if key in _checked:
            return
        problems = [problem for split in Split for problem in self._problems.splits[split]]
        quickly = [verifier.reads_quickly(p.reference) for p in problems]
        bad = [i for i, readable in enumerate(quickly) if readable is False]
        left = [i for i, readable in enumerate(quickly) if readable is None]
        kept = cache_folder() / "gold" / f"{key}.json"
        if left and kept.is_file():
            bad += json.loads(kept.read_text())
        elif left:
            answers = self._ask([(problems[i].reference, None) for i in left])
            found = [i for i, answer in zip(left, answers, strict=True) if answer is not None]
            bad += found
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace_file(kept, json.dumps(found))  # other processes may write it as well
        if bad:
            examples = "; ".join(_example(problems[i]) for i in sorted(bad)[:_EXAMPLES])
            text = (
                f"{len(bad)} of {len(problems)} reference answers cannot be read by verifier "
                f"'{verifier.name}', such as {examples}"
            )
            if 2 * len(bad) > len(problems):
                raise ConfigError(
                    f"gold_column: {text}; name the column of the answers (gold_column, "
                    "gold_part) or another verifier"
                )
            warnings.warn(
                f"{text}; answers to these problems are unscorable, and evaluations leave them out",
                AdvsweepWarning,
                stacklevel=2,
            )
        _checked.add(key)

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

    @functools.cached_property
    def _problems(self) -> Problems:
        places = (self.data, self.held_out_data, self.level_file)
        with _naming_the_task():
            return make_problems(self, tuple(map(_changed, places)))

    @functools.cached_property
    def _solved(self) -> Mapping[Split, list[Problem]]:
        solve = self._verifier.solution
        splits = self._problems.splits.items()
        return {
            split: [
                replace(p, reference={**p.reference, "solution": solve(p.reference)})
                for p in problems
            ]
            for split, problems in splits
        }

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
        workers = self.workers or len(usable_cores())
        return pool_for(self._verifier, workers=workers, deadline=self.deadline).judge(jobs)


def _example(problem: Problem) -> str:
    text = str(problem.reference.get("answer", problem.reference))
    shown = repr(text if len(text) <= 60 else text[:59] + "…")
    return f"{problem.id}: {shown if text else 'no answer found'}"


@contextmanager
def _naming_the_task() -> Iterator[None]:
    """Prefix keys with the config group in errors raised after the fields were checked."""
    try:
        yield
    except ConfigError as error:
        message = str(error).removeprefix("task.")
        raise type(error)(f"task.{message}") from error


def _changed(place: str) -> int:
    """Return the time of change of a file, or of the newest file of a folder; else 0."""
    path = Path(place)
    if not place or place.startswith(HUB) or not path.exists():
        return 0
    times = [0]
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with suppress(OSError):  # a broken or circular link
            times.append(file.stat().st_mtime_ns)
    return max(times)


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
