"""A task with problems from data, and a verifier and a reward chosen by name."""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.components import Component, Plain, identity_of, option
from advsweep.errors import AdvsweepWarning, ConfigError, counted
from advsweep.machine import usable_cores
from advsweep.names import POOL
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset_problems import (
    DataTask,
    Problems,
    check_draw,
    draw_from,
    make_problems,
    read_pool,
    template,
)
from advsweep.tasks.dataset_rows import HUB, absent_places, absolute, refuse_url
from advsweep.tasks.rewards import RewardedTask
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.pool import pool_for

if TYPE_CHECKING:
    from advsweep.tasks.base import PerCompletion
    from advsweep.tasks.verifiers.base import ReferenceAnswer
    from advsweep.tasks.verifiers.pool import Job

_EXAMPLES = 3
_ROWS = 10  # numbers of rows in a message
_SAMPLED = 100  # reference answers that are read before anything starts
_POOL_DIGITS = 16
_checked: set[tuple[str, str]] = set()
_CONSEQUENCES = {
    Outcome.CORRECT: "count as correct",
    Outcome.WRONG: "count as wrong",
    Outcome.UNSCORABLE: "could not be scored",
}
_REWARDS = {Outcome.CORRECT: 1.0, Outcome.WRONG: 0.0, Outcome.UNSCORABLE: np.nan}


@dataclass(kw_only=True)
class Dataset(RewardedTask, DataTask):
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
        for key in ("data", "held_out_data", "level_file"):
            refuse_url(key, getattr(self, key))
        self.data = absolute(self.data)
        self.held_out_data = absolute(self.held_out_data)
        self.level_file = absolute(self.level_file)
        self.levels = tuple(sorted(set(self.levels)))
        template(self.prompt)
        if not isinstance(self.verifier, Component):
            self.verifier = VERIFIERS.build(self.verifier, where="verifier")
        self._judged: tuple[Sequence[Problem], Sequence[str], list[Verdict]] | None = None
        self._is_drawn_by_run = False

    def for_seed(self, seed: int) -> Self:
        if isinstance(self.seed, int):
            return self
        # Not built anew of plain values, which name code that only the command line may load.
        task = replace(self, seed=seed)
        task._is_drawn_by_run = True
        return task

    @property
    def label(self) -> str:
        return self.title or Path(self.data.removeprefix(HUB)).stem or self.name

    def identity(self) -> Plain:
        """Return the problems, the verifier and the reward, but not the place of the problems.

        Where the seeds of runs draw them, there is a pool in place of the problems.
        """
        return {
            "name": self.name,
            "revision": self.revision,
            **self._identity_of_problems(),
            "verifier": identity_of(self._verifier),
            "deadline": self.deadline,
            "reward": [identity_of(part) for part in self._parts],
        }

    def _identity_of_problems(self) -> Plain:
        if not isinstance(self.seed, int):
            numbers = {"train": self.train, "held_out": self.held_out, "shots": self.shots}
            return {"pool": read_pool(self).digest, "seed": self.seed, **numbers}
        identity: Plain = {"problems": self._problems.digest}
        if self.shots:
            identity["examples"] = list(self._examples.values())
        if self._is_drawn_by_run:
            # Evaluations of it name their pool: those of the same problems without one are others.
            identity["pool"] = read_pool(self).digest
        return identity

    @property
    def has_system_messages(self) -> bool:
        return bool(template(self.prompt).system) or (not self.absent() and bool(self._systems))

    @functools.cached_property
    def _systems(self) -> list[str]:
        """The different system messages of all problems, in alphabetical order."""
        problems = [p for problems in self._possible.splits.values() for p in problems]
        return sorted({problem.system for problem in problems if problem.system})

    @property
    def _possible(self) -> Problems:
        """The problems that runs of any seed may have, so that all seeds are described alike."""
        return read_pool(self) if self._is_drawn_by_run else self._problems

    def protocol(self) -> Plain:
        protocol = self._verifier.protocol(
            lambda: [problem.reference for problem in self._reported_in(self._possible)]
        )
        if self.deadline != Dataset.deadline:
            protocol["verifier"] += f" deadline={self.deadline:g}"
        system = "\0".join(self._systems)
        protocol["system"] = hashlib.sha256(system.encode()).hexdigest()[:8] if system else "none"
        if self.shots:
            protocol["shots"] = str(self.shots)
        if self._is_drawn_by_run:
            protocol[POOL] = self._possible.digest[:_POOL_DIGITS]
        return protocol

    @staticmethod
    def _reported_in(problems: Problems) -> Sequence[Problem]:
        """Return the held-out problems; those that they are cut from where none are apart."""
        return problems.splits[Split.HELD_OUT] or problems.splits[Split.TRAIN]

    @property
    def can_train(self) -> bool:
        return bool(self._problems.splits[Split.TRAIN])

    def absent(self) -> tuple[str, ...]:
        absent = absent_places({"data": self.data, "held_out_data": self.held_out_data})
        if self.level_file and not Path(self.level_file).exists():
            absent += (f"task.level_file={self.level_file}",)
        return absent

    def check(self) -> None:
        verifier = self._verifier
        verifier.check()
        if self.deadline <= verifier.seconds_needed:
            raise ConfigError(
                f"task.deadline: expected > {verifier.seconds_needed:g}, as verifier "
                f"'{verifier.name}' is set, got {self.deadline:g}"
            )
        if self._is_drawn_by_run:
            check_draw(self)
        # Once per process: the runs of a sweep have equal tasks, or draw from one pool.
        key = (self._possible.digest, json.dumps(identity_of(verifier)))
        if key in _checked:
            return
        problems = [p for ps in self._possible.splits.values() for p in ps]
        verifier.check_references({p.id: p.reference for p in problems})
        # Some alone: reading all expressions of a large set takes minutes. Answers to others that
        # cannot be read are unscorable, with a warning of their own.
        some = problems[:: -(-len(problems) // _SAMPLED)] if problems else []
        if verifier.refusals:
            some = problems
        results = self._ask([(p.reference, None) for p in some])
        judged = list(zip(some, results, strict=True))
        refused = {p: r.reason for p, r in judged if r.reason in verifier.refusals}
        if refused:
            self._say_refused(refused, len(some))
        bad = [p for p, r in judged if r.outcome is not Outcome.CORRECT and p not in refused]
        if bad:
            self._say_unreadable(bad, len(some))
        _checked.add(key)

    def _say_unreadable(self, bad: Sequence[Problem], count: int) -> None:
        """Raise an error about reference answers that cannot be read, or warn of a few."""
        answers = [str(p.reference.get("answer", p.reference)) for p in bad[:_EXAMPLES]]
        examples = "; ".join(f"{a[:60]!r}" if a else "no answer found" for a in answers)
        text = (
            f"{len(bad)} of {count} reference answers cannot be read by verifier "
            f"'{self._verifier.name}', such as {examples} (problem {bad[0].id})"
        )
        if 2 * len(bad) > count:
            raise ConfigError(
                f"task.gold_column: {text}; name the column of the answers (gold_column, "
                "gold_part) or another verifier"
            )
        warnings.warn(
            f"{text}; answers to such problems are unscorable, and evaluations leave them out",
            AdvsweepWarning,
            stacklevel=3,
        )

    def _say_refused(self, refused: Mapping[Problem, str], count: int) -> None:
        """Raise an error about problems that no answer may count on, or warn of them."""
        first = next(iter(refused))
        rows = ", ".join(str(problem.row) for problem in [*refused][:_ROWS])
        more = ", ..." if len(refused) > _ROWS else ""
        text = (
            f"{refused[first]} in {len(refused)} of {counted(count, 'problem')} (rows {rows}{more})"
        )
        if self._verifier.must_refuse:
            raise ConfigError(
                f"task.tests_column: {text}: a program that does nothing passes. Mend these tests "
                f"or leave the rows out; task.verifier.loose_tests=unscorable goes on, and counts "
                f"no answer to them"
            )
        warnings.warn(f"{text}; answers to them are unscorable", AdvsweepWarning, stacklevel=3)

    def check_consent(self) -> None:
        self._verifier.check_consent()

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._solved[split]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        return draw_from(self.problems(Split.TRAIN), count, rng)

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        verdicts = self._judge(problems, completions)
        return np.array([_REWARDS[verdict.outcome] for verdict in verdicts])

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        return [verdict.answer for verdict in self._judge(problems, completions)]

    @property
    def _verifier(self) -> Verifier:
        assert isinstance(self.verifier, Verifier)
        return self.verifier

    @functools.cached_property
    def _problems(self) -> Problems:
        return make_problems(self)

    @functools.cached_property
    def _solved(self) -> Mapping[Split, list[Problem]]:
        def solved(problem: Problem) -> Problem:
            solution = self._verifier.solution(problem.reference)
            problem = replace(problem, reference={**problem.reference, "solution": solution})
            if not self.shots:
                return problem
            others = [text for own, text in self._examples.items() if own != problem.id]
            return replace(problem, prompt="\n\n".join([*others[: self.shots], problem.prompt]))

        return {split: list(map(solved, ps)) for split, ps in self._problems.splits.items()}

    @functools.cached_property
    def _examples(self) -> dict[str, str]:
        """Solved training problems by id, one more than are shown: none is shown to itself."""
        problems = self._problems.splits[Split.TRAIN]
        if self.shots >= len(problems):
            raise ConfigError(
                f"task.shots: expected fewer than the {counted(len(problems), 'training problem')}"
                f", which they are drawn from, got {self.shots}"
            )
        rows = np.random.default_rng(self.own_seed).permutation(len(problems))[: self.shots + 1]
        examples = {}
        for problem in (problems[row] for row in rows.tolist()):
            worked = problem.reference["worked"]
            solution = self._verifier.solution(problem.reference)
            # The verifier has to find the answer where a model writes it like the examples.
            text = worked if solution in worked else f"{worked}\n{solution}".lstrip()
            gap = "" if problem.prompt.endswith("\n") else " "
            examples[problem.id] = f"{problem.prompt}{gap}{text}"
        return examples

    def _judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """Return the verdicts; cached, because callers request scores and answers in turn."""
        if self._judged is not None:
            before, texts, verdicts = self._judged
            if list(before) == list(problems) and list(texts) == list(completions):
                return verdicts
        references = [problem.reference for problem in problems]
        verdicts = self._ask(list(zip(references, completions, strict=True)))
        # Of answers that the verifier could not judge, grouped by consequence and reason.
        unjudged: dict[tuple[str, str], list[str]] = {}
        for problem, verdict in zip(problems, verdicts, strict=True):
            if verdict.reason:
                what = _CONSEQUENCES[verdict.outcome]
                unjudged.setdefault((what, verdict.reason), []).append(problem.id)
        for (what, reason), ids in unjudged.items():
            warnings.warn(
                f"{len(ids)} of {len(verdicts)} answers {what}: {reason} (problem {ids[0]})",
                AdvsweepWarning,
                stacklevel=3,
            )
        self._judged = (problems, completions, verdicts)
        return verdicts

    def _ask(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Return the verifier's results, the best one where any of several answers is right."""
        singles = [(single, text) for reference, text in jobs for single in _singles(reference)]
        verdicts = iter(self._ask_singly(singles))
        grouped = [[next(verdicts) for _ in _singles(reference)] for reference, _ in jobs]
        return [min(group, key=_preference) for group in grouped]

    def _ask_singly(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Return the results of the verifier, from processes of its own where it may take long."""
        quickly = [self._verifier.judge_quickly(*job) for job in jobs]
        left = [job for job, found in zip(jobs, quickly, strict=True) if found is None]
        slowly: Iterator[Verdict] = iter(())
        if left:
            workers = self.workers or len(usable_cores())
            pool = pool_for(self._verifier, workers=workers, deadline=self.deadline)
            slowly = iter(pool.judge(left))
        return [found or next(slowly) for found in quickly]


def _singles(reference: ReferenceAnswer) -> list[ReferenceAnswer]:
    """Return a reference for each answer of which any is right; most have a single one."""
    answers = reference.get("answers")
    if answers is None:
        return [reference]
    return [{**reference, "answer": answer} for answer in answers]


# Of several answers, one that cannot be read does not matter where another one can.
_OUTCOMES = (Outcome.CORRECT, Outcome.WRONG, Outcome.UNSCORABLE)


def _preference(verdict: Verdict) -> tuple[int, bool]:
    return _OUTCOMES.index(verdict.outcome), bool(verdict.reason)
