"""Columns of evaluations: pass@k, entropies, and laws of pass@k over k."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from advsweep.errors import FitError
from advsweep.names import ANSWER_ENTROPY, TOKEN_ENTROPY
from advsweep.report.data.sources import Source
from advsweep.report.data.windows import Curve, Window
from advsweep.statistics import bootstrap_over_problems, mean_over_problems, pass_at_k, value_at
from advsweep.statistics.pass_at_k import RAREFIED

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.report.data.evaluations import EvaluationsByTask, TaskEvaluations
    from advsweep.report.data.run_data import RunData
    from advsweep.store import EvaluationRecord

    OfProblems = Float[np.ndarray, " problems"]
    # Of evaluations with equally many problems.
    ByProblem = Float[np.ndarray, "evaluations problems"]

K = TypeVar("K", bound=Hashable)

RIGHT_ENTROPY = "entropy/right"
RAREFIED_ENTROPY = "entropy/right_rarefied"
RAREFIED_SHARE = "entropy/right_rarefied_share"
KL_BASE = "kl/base"

# What an import calls a pass@k that a trainer logged as a number, before the k.
LOGGED_PASS = "pass_at_"

# The laws of `statistics.pass_laws`, which loads scipy; a test compares them.
LAWS = ("shifted_power", "power", "exponential")

# The arrays of an evaluation's record.
_ARRAYS = {
    ANSWER_ENTROPY: "answer_entropy",
    RIGHT_ENTROPY: "right_entropy",
    TOKEN_ENTROPY: "token_entropy",
    KL_BASE: "kl_base",
}


@dataclass(frozen=True)
class ProblemChoice:
    """Which evaluation a column measures, and on which of its problems.

    Attributes:
        task: the evaluated task; None for the task that the runs were trained on.
        is_mean: whether it is the mean over all tasks.
        level: the level of the problems that count; None for all.
        base: the solve rates of the run's own base model that the problems have that count: from
            the first on, below the second (1 itself where that is 1); None for all problems.
        is_train: whether it is of the evaluation on training problems.
    """

    task: str | None = None
    is_mean: bool = False
    level: int | None = None
    base: tuple[float, float] | None = None
    is_train: bool = False

    @property
    def parts(self) -> list[str]:
        """The choice as it stands in the brackets of a column."""
        parts = []
        if self.task is not None:
            parts.append(self.task)
        if self.is_mean:
            parts.append("mean")
        if self.level is not None:
            parts.append(f"level={self.level}")
        if self.is_train:
            parts.append("split=train")
        if self.base is not None:
            parts.append(f"base={self.base[0]!r}:{self.base[1]!r}")
        return parts

    @property
    def labels(self) -> list[str]:
        """The choice as words before the name of the number."""
        labels = []
        if self.is_mean:
            labels.append("mean")
        elif self.task is not None:
            labels.append(self.task)
        if self.level is not None:
            labels.append(f"level {self.level}")
        if self.is_train:
            labels.append("train")
        if self.base is not None:
            labels.append(f"base {self.base[0]:g}-{self.base[1]:g}")
        return labels

    def tasks_of(self, evaluated: EvaluationsByTask) -> Mapping[str, TaskEvaluations]:
        """Return the evaluations of all tasks, on training problems if it is of these."""
        return evaluated.train if self.is_train else evaluated.tasks

    def task_of(self, evaluated: EvaluationsByTask) -> TaskEvaluations | None:
        """Return the evaluations of the task, by default of the main one; None if there are none.

        Raises:
            ReportError: they were not made alike.
        """
        return evaluated.of(self.task, train=self.is_train)


@dataclass(frozen=True)
class Evaluation(Source):
    """A number of evaluations: the mean over problems in the last one of each run.

    Attributes:
        problems: of which evaluation, and of which of its problems.
    """

    problems: ProblemChoice = field(default=ProblemChoice(), kw_only=True)

    def __str__(self) -> str:
        parts = [*self.problems.parts, *self._own_parts()]
        return f"{self.name}[{','.join(parts)}]" if parts else self.name

    def _own_parts(self) -> list[str]:
        """Return what stands in the brackets besides the choice of problems."""
        return []

    @property
    def label(self) -> str:
        header = "" if self.entry is None else self.entry.header
        return " ".join([*self.problems.labels, self._fill(header or self.name)])

    def takes(self, window: Window) -> bool:
        return self.has_curve

    @property
    def has_curve(self) -> bool:
        return not self.problems.is_mean

    @property
    def has_bootstrap_interval(self) -> bool:
        """Whether a single evaluation has an interval over problems like its own."""
        return self.problems.base is None and not self.problems.is_mean

    @abstractmethod
    def by_problem(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        """Return the number of each problem; NaN where it is undefined."""

    def on_level(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        """Return the number of each problem of the column's level; NaN for those of others."""
        values = self.by_problem(records)
        if self.problems.level is None:
            return values
        levels = np.stack([record.levels for record in records])
        return np.where(levels == self.problems.level, values, np.nan)

    def over_problems(self, record: EvaluationRecord) -> float:
        """Return half the 95 % interval over problems like those of an evaluation."""
        interval = bootstrap_over_problems(self.on_level([record])[0])
        return (interval.high - interval.low) / 2

    def values(self, data: RunData, window: Window | None) -> Mapping[int, float]:
        if window is None:
            return self.scores(data.evaluated, lambda task: task.final)
        if window.kind == "selected":
            return self.scores(data.evaluated, lambda task: task.selected)
        return super().values(data, window)

    def scores(
        self,
        evaluated: EvaluationsByTask,
        choose: Callable[[TaskEvaluations], Mapping[K, EvaluationRecord]],
    ) -> dict[K, float]:
        """Score the evaluations that `choose` takes from the column's task."""
        if self.problems.is_mean:
            tasks = self.problems.tasks_of(evaluated).values()
            return _mean_of_all([self.score(task, choose(task)) for task in tasks])
        task = self.problems.task_of(evaluated)
        return {} if task is None else self.score(task, choose(task))

    def score(self, task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord]) -> dict[K, float]:
        """Score evaluations: the mean over the problems that have a number, NaN where none has."""
        if self.problems.base is not None:
            # Without a base there are no solve rates to choose problems by.
            chosen = {key: record for key, record in chosen.items() if record.run_id in task.base}
        records = list(chosen.values())
        means = np.full(len(records), np.nan)
        for places in _equally_large(records):
            alike = [records[place] for place in places]
            values = self.on_level(alike)
            for line, record in zip(values, alike, strict=True):
                self._adjust(line, record, task)
            means[places] = mean_over_problems(values)
        return dict(zip(chosen, means.tolist(), strict=True))

    def _adjust(
        self,
        values: Float[np.ndarray, " problems"],
        record: EvaluationRecord,
        task: TaskEvaluations,
    ) -> None:
        """Set the numbers of problems that do not count to NaN, in place."""
        if self.problems.base is None:
            return
        assert record.run_id is not None
        low, high = self.problems.base
        base = task.base[record.run_id]
        with np.errstate(invalid="ignore"):
            rate = base.c / base.n
        # The last class has the problems that the base always solves.
        is_inside = (rate >= low) & (rate < (math.inf if high == 1 else high))
        ids = np.array(base.problem_ids)[is_inside]
        values[~np.isin(record.problem_ids, ids)] = np.nan

    def read_curves(self, data: RunData) -> Mapping[int, Curve]:
        task = self.problems.task_of(data.evaluated)
        if task is None:
            return {}
        chosen = {
            (run_id, record.step): record
            for run_id, records in task.along.items()
            if self._has_all(records)
            for record in records
        }
        points: dict[int, list[tuple[int, float]]] = {}
        for (run_id, step), value in self.score(task, chosen).items():
            points.setdefault(run_id, []).append((step, value))
        curves: dict[int, Curve] = {}
        for run_id, pairs in points.items():
            steps = np.array([step for step, _ in pairs])
            curves[run_id] = steps, np.array([value for _, value in pairs])
        return curves

    def _has_all(self, records: Sequence[EvaluationRecord]) -> bool:
        """Tell whether all evaluations of a run can have the number."""
        return True

    def number(self, curve: Curve, window: Window | None, step: float | None = None) -> float:
        if window is not None:
            return window.of(curve, None if step is None else math.floor(step))
        if step is None:
            return float(curve[1][-1])
        return float(value_at(*curve, step))


def _mean_of_all(parts: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """Return the mean of what all parts have: a mean over some of them is another quantity."""
    if not parts:
        return {}
    shared = [key for key in parts[0] if all(key in part for part in parts)]
    return {key: float(np.mean([part[key] for part in parts])) for key in shared}


def _equally_large(records: Sequence[EvaluationRecord]) -> Iterator[np.ndarray]:
    """Yield the places of the evaluations that have equally many problems."""
    sizes = np.array([len(record.n) for record in records])
    for size in np.unique(sizes):
        yield np.flatnonzero(sizes == size)


@dataclass(frozen=True)
class PassAtK(Evaluation):
    """The unbiased estimate of pass@k, undefined for a problem with fewer than k scored samples.

    Attributes:
        k: how many samples.
        above: the floor that is subtracted, such as `guess`; None: nothing is subtracted.
    """

    k: int
    above: str | None = None

    @property
    def name(self) -> str:
        return f"pass@{self.k}"

    @property
    def range(self) -> tuple[float, float] | None:
        return super().range if self.above is None else None

    @property
    def has_bootstrap_interval(self) -> bool:
        return self.above is None and super().has_bootstrap_interval

    def _own_parts(self) -> list[str]:
        return [] if self.above is None else [f"above={self.above}"]

    @property
    def label(self) -> str:
        label = super().label
        return label if self.above is None else f"{label} - {self.above}"

    def _fill(self, words: str) -> str:
        return words.format(k=self.k)

    def by_problem(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        n = np.stack([record.n for record in records])
        c = np.stack([record.c for record in records])
        # pass@k is computed once for each pair of counts.
        size = int(n.max(initial=0)) + 1
        pairs, which = np.unique(n * size + c, return_inverse=True)
        return pass_at_k(*np.divmod(pairs, size), self.k)[which].reshape(n.shape)

    def _adjust(
        self,
        values: Float[np.ndarray, " problems"],
        record: EvaluationRecord,
        task: TaskEvaluations,
    ) -> None:
        super()._adjust(values, record, task)
        if self.above is not None:
            floor = task.floors(record).get(self.above)
            values -= math.nan if floor is None else floor.pass_at(self.k, record.problem_ids)

    def _has_all(self, records: Sequence[EvaluationRecord]) -> bool:
        # Leaving out the evaluations with fewer samples would leave a line from the first to the
        # last one, which is no curve.
        return all(record.settings.get("n", self.k) >= self.k for record in records)

    def logged_metric(self, evaluated: EvaluationsByTask) -> str | None:
        """Return the metric that stands for it in runs without an evaluation; None without one.

        Trainers log pass@k as a number, without its problems: an import calls it `pass_at_K`.
        """
        if self.above is not None or self.problems != ProblemChoice() or evaluated.tasks:
            return None
        return f"{LOGGED_PASS}{self.k}"

    def values(self, data: RunData, window: Window | None) -> Mapping[int, float]:
        logged = self.logged_metric(data.evaluated)
        if window is None and logged is not None:
            return _last_shares(data, logged)
        return super().values(data, window)


def _last_shares(data: RunData, metric: str) -> dict[int, float]:
    """Return the last value of a metric in each run; none if it is no share."""
    curves = data.store.metrics.series(data.ids, metric)
    last = {run_id: Window("last").of(curve) for run_id, curve in curves.items()}
    is_share = all(0 <= value <= 1 for value in last.values() if not math.isnan(value))
    return last if is_share else {}


@dataclass(frozen=True)
class ProblemMean(Evaluation):
    """The mean over problems of a number that evaluations have of each: an entropy, or the KL.

    Attributes:
        quantity: such as `entropy/answer`.
    """

    quantity: str

    @property
    def name(self) -> str:
        return self.quantity

    def by_problem(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        return np.stack([getattr(record, _ARRAYS[self.quantity]) for record in records])


@dataclass(frozen=True)
class RarefiedEntropy(Evaluation):
    """The entropy of some of the correct answers, or the share of problems that have so many.

    Attributes:
        m: of how many correct answers.
        is_share: whether it is the share.
    """

    m: int = RAREFIED
    is_share: bool = False

    @property
    def name(self) -> str:
        return RAREFIED_SHARE if self.is_share else RAREFIED_ENTROPY

    def _own_parts(self) -> list[str]:
        return [] if self.m == RAREFIED else [f"m={self.m}"]

    def _fill(self, words: str) -> str:
        return words.format(m=self.m)

    def by_problem(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        values = np.stack([record.rarefied(self.m) for record in records])
        if not self.is_share:
            return values
        has_counts = np.array([[record.right_counts is not None] for record in records])
        return np.where(has_counts, ~np.isnan(values), np.nan)


@dataclass(frozen=True)
class Law(Evaluation):
    """A number of a law of pass@k over k, as `statistics.pass_laws` fits it.

    A law is fitted to the powers of two up to half the samples: near n, pass@k of n samples has
    its largest variance.

    Attributes:
        quantity: `a`, `b` or `c`, a parameter of the shifted power law; or `mse` or `aic` of `law`.
        law: one of `LAWS`; empty for a parameter.
    """

    quantity: str
    law: str = ""

    @property
    def name(self) -> str:
        return f"law/{self.quantity}/{self.law}" if self.law else f"law/{self.quantity}"

    @property
    def has_bootstrap_interval(self) -> bool:
        return False

    def by_problem(self, records: Sequence[EvaluationRecord]) -> ByProblem:
        raise NotImplementedError("a law is fitted to means over problems")

    def score(self, task: TaskEvaluations, chosen: Mapping[K, EvaluationRecord]) -> dict[K, float]:
        """Return the number of each evaluation's law; NaN where none can be fitted."""
        samples = {key: int(record.n.max(initial=0)) for key, record in chosen.items()}
        largest = max(samples.values(), default=0) // 2
        ks = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
        by_k = [PassAtK(k, problems=self.problems).score(task, chosen) for k in ks]
        numbers = {}
        for key, n in samples.items():
            curve = [
                values.get(key, math.nan) if k <= n // 2 else math.nan
                for k, values in zip(ks, by_k, strict=True)
            ]
            numbers[key] = self._fit(ks, np.array(curve))
        return numbers

    def _fit(self, ks: Sequence[int], curve: np.ndarray) -> float:
        """Return the number of the law of a curve; NaN where it cannot be fitted."""
        from advsweep.statistics.pass_laws import (  # loads scipy.optimize
            compare_laws,
            fit_pass_at_k,
        )

        try:
            if not self.law:
                return float(getattr(fit_pass_at_k(ks, curve), self.quantity).value)
            fits = compare_laws(ks, curve)
        except FitError:
            return math.nan
        if self.law not in fits:
            return math.nan
        fit = fits[self.law]
        if self.quantity == "mse":
            return fit.mse
        return fit.aicc - fits[LAWS[0]].aicc if LAWS[0] in fits else math.nan
