"""The columns of a table: one language, and one parser.

    METRIC           of the training's steps, such as `collapse/acr`: their mean
    total/COST       sum over the training: steps, rollouts, tokens, seconds
    pass@K           of the last evaluation: mean over problems of the unbiased estimate
    entropy/answer   of the last evaluation: mean over problems, in nats; also entropy/right (of the
                     correct answers alone), entropy/right_rarefied (of 8 of them, [m=16] of 16),
                     entropy/right_rarefied_share (of the problems that have so many), kl/base
    law/a, law/mse/power     laws of pass@k over k of the last evaluation (`statistics.pass_laws`)
    reached@WHAT=X   1 for a run that comes to X, and 0 for one that does not

Columns of evaluations select a task, problems or a reference:

    pass@8[gsm8k]  [level=3]  [gsm8k,level=3]  [split=train]
    pass@8[base=0.1:0.5]     the problems whose solve rate before the training is in [.1, .5)
    pass@8[above=guess]      minus that of an answerer without skill on the same problems
    pass@8[mean]             mean over the tasks, of the last evaluations alone

Without a task they measure the task that the runs were trained on. `*` stands for every k, task
or level: pass@*, pass@1[*], pass@1[level=*].

A window takes a number from the curve of a metric, or of a column over the evaluations within the
training; a cutoff says where in each run a column is measured:

    @firstN, @end    mean over the first N steps, the last 10 steps
    @last            the last value
    @min, @max, @argmin, @argmax   the extreme values, and the first steps that have them
    @slope           slope of the line of least squares, per 100 steps
    @var             variance of the values, with n - 1
    @steps_to=X      the first step at X, from whichever side
    @share>X, @share<X       the share of the steps above, or below X
    @selected        of the evaluation at the step with the best pass@1 on validation problems
    COLUMN@WHAT=X    where the run first comes to X: pass@32@pass@1=0.45, total/rollouts@pass@1=0.45

Values that are not a number are left out. Other packages add columns of stored analyses through
the entry point group `advsweep.columns` (`report.data.analyses`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from advsweep.errors import ConfigError
from advsweep.report.data.metrics import MetricDirection, find_metric
from advsweep.statistics import value_at
from advsweep.statistics.pass_at_k import RAREFIED

ANSWER_ENTROPY = "entropy/answer"
TOKEN_ENTROPY = "entropy/token"
RIGHT_ENTROPY = "entropy/right"
RAREFIED_ENTROPY = "entropy/right_rarefied"
RAREFIED_SHARE = "entropy/right_rarefied_share"
KL_BASE = "kl/base"

# The column that says whether a run comes to the cutoff of `--at`.
REACHED = "reached"

# The default column, and the one that is compared, of runs without an evaluation.
UNEVALUATED = "reward/mean@end"

# What an import calls a pass@k that a trainer logged as a number, before the k.
LOGGED_PASS = "pass_at_"

COSTS = ("steps", "rollouts", "tokens", "seconds")

# The laws of `statistics.pass_laws`, which loads scipy; a test compares them.
LAWS = ("shifted_power", "power", "exponential")

# The key of a sweep file and of a list of claims that declares primary outcomes.
OUTCOMES = "outcomes"

# The largest k of pass@k as a share of the samples per problem; the estimate varies most above.
MOST_OF_SAMPLES = 1 / 4

# How many steps `@end` averages over.
END_STEPS = 10

# Steps in the running mean of a training metric in which a value is looked for.
SMOOTHED = 10

# Steps that `@slope` is per.
PER_STEPS = 100

# Steps and the values at them.
Curve = tuple[np.ndarray, np.ndarray]

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SHARE = r"(?:0?\.\d+|[01]\.?0*)"

# Names of metrics may have an @ before a digit, as no window begins with one: exact/pass@8,
# val/acc/mean@16.
_SOURCE = re.compile(
    rf"total/(?P<total>{'|'.join(COSTS)})"
    r"|(?P<evaluated>pass@(?P<k>[1-9]\d{0,8})|entropy/answer|entropy/right(?:_rarefied(?:_share)?)?"
    rf"|{KL_BASE}|law/(?:[abc]|(?:mse|aic)/(?:{'|'.join(LAWS)}))|entropy/token(?=\[))"
    r"(?:\[(?P<of>[^\[\]]+)\])?"
    r"|(?!pass@)(?P<metric>[^@\[\]=<>]+(?:@\d[^@\[\]=<>]*)*)"
)
_PART = re.compile(
    rf"level=(?P<level>\d{{1,9}})|base=(?P<low>{_SHARE}):(?P<high>{_SHARE})|m=(?P<m>\d{{1,4}})"
    r"|(?P<train>split=train)|above=(?P<above>[A-Za-z_]\w*)|(?P<mean>mean)|(?P<task>[^=]+)"
)
_WINDOW = re.compile(
    r"(?P<first>first)(?P<steps>[1-9]\d{0,8})"
    r"|(?P<plain>end|last|min|max|argmin|argmax|slope|var|selected)"
    rf"|(?P<valued>steps_to=|share>|share<)(?P<value>{NUMBER})"
)
_CUTOFF = re.compile(rf"(?!steps_to=)[A-Za-z_].*={NUMBER}")


@dataclass(frozen=True)
class Window:
    """What a column takes from a curve.

    Attributes:
        kind: `first`, `end`, `min`, `steps_to=`, `share>`, ...; `mean` of all its values.
        value: the steps of `@firstN`, or the X of `@steps_to=X` and `@share>X`; 0 for others.
    """

    kind: str
    value: float = 0.0

    @property
    def keeps_unit(self) -> bool:
        """Whether its number is a value of the curve, or a mean of such."""
        return self.kind in ("first", "end", "last", "min", "max", "selected")

    def of(self, curve: Curve, end: float | None = None) -> float:
        """Return the window's number; NaN where the curve has none.

        Args:
            end: the step at which the curve ends; None for its last one.
        """
        steps, values = _finite(curve)
        if end is not None:
            steps, values = steps[steps <= end], values[steps <= end]
        if self.kind == "first":
            values = values[steps <= self.value]
        elif self.kind == "end" and len(steps):
            values = values[steps > (steps[-1] if end is None else end) - END_STEPS]
        if not len(values):
            return math.nan
        match self.kind:
            case "last":
                return float(values[-1])
            case "min" | "max":
                return float(getattr(values, self.kind)())
            case "argmin" | "argmax":
                return float(steps[getattr(values, self.kind)()])
            case "var":
                return float(values.var(ddof=1)) if len(values) > 1 else math.nan
            case "slope":
                # Least squares: the covariance with the steps over the variance of the steps.
                centred = steps - steps.mean()
                spread = float(centred @ centred)
                total = float(centred @ (values - values.mean()))
                return PER_STEPS * total / spread if spread else math.nan
            case "steps_to=":
                return step_at((steps, values), self.value)
            case "share>":
                return float((values > self.value).mean())
            case "share<":
                return float((values < self.value).mean())
        # fsum, as the store's own means: a value does not depend on the order of its sum.
        return math.fsum(values) / len(values)


def step_at(curve: Curve, value: float) -> float:
    """Return the step at which a curve first reaches a value, from whichever side; NaN if never.

    The curve is a straight line between two points.
    """
    steps, values = _finite(curve)
    # A curve that starts above is mirrored, so that it comes from below.
    side = -1.0 if values.size and values[0] > value else 1.0
    return float(value_at(side * values, steps, side * value))


def smoothed(curve: Curve) -> Curve | None:
    """Return the running mean of a metric over ten steps; None for a shorter run."""
    steps, values = curve
    if len(steps) < SMOOTHED:
        return None
    window = np.ones(SMOOTHED) / SMOOTHED
    return steps[SMOOTHED - 1 :], np.convolve(values, window, "valid")


def _finite(curve: Curve) -> Curve:
    steps, values = curve
    known = ~np.isnan(values)
    return steps[known], values[known]


@dataclass(frozen=True)
class Cutoff:
    """Where in their training runs are compared.

    Attributes:
        what: a cost, or the name of a column.
        value: the value to reach; None for the largest cost that all runs reach.
    """

    what: str
    value: float | None = None

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS

    @property
    def text(self) -> str:
        return self.what if self.value is None else f"{self.what}={self.value:g}"


def parse_cutoff(text: str, option: str = "--at") -> Cutoff:
    """Parse a cutoff as users write it: `rollouts`, `rollouts=50000`, `pass@1=0.5`.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: the text is no cutoff.
    """
    # The name of a column may have an = of its own: pass@1[level=3]=0.5.
    what, equals, written = text.strip().rpartition("=")
    what = what if equals else written
    try:
        value = float(written) if equals else None
    except ValueError:
        value = math.nan
    wrong = what not in COSTS if value is None else not math.isfinite(value)
    if not what or wrong or (what in COSTS and value is not None and value <= 0):
        raise ConfigError(
            f"{option}: expected {', '.join(COSTS)}, one of these with =NUMBER, or "
            f"COLUMN=NUMBER, got {text!r}"
        )
    return Cutoff(what, value)


@dataclass(frozen=True)
class Select:
    """Which evaluation a column measures, and on which of its problems.

    Attributes:
        task: the evaluated task; None for the task that the runs were trained on.
        is_mean: whether it is the mean over all tasks.
        level: the level of the problems that count; None for all.
        base: the solve rates of the run's own base model that the problems have that count: from
            the first on, below the second (1 itself where that is 1); None for all problems.
        is_train: whether it is of the evaluation on training problems.
        m: how many correct answers the rarefied entropy is of; None for other columns.
        above: the floor of the task that is subtracted, such as `guess`; None for none.
    """

    task: str | None = None
    is_mean: bool = False
    level: int | None = None
    base: tuple[float, float] | None = None
    is_train: bool = False
    m: int | None = None
    above: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the name in options and data.
        header: the short name in tables.
        direction: which values are better.
        source: the metric, the cost or the number of evaluations, such as `pass@8`.
        is_evaluated: whether it is of evaluations.
        select: what a column of evaluations measures.
        window: what it takes from the curve; None for the mean of a metric, and for the value of
            the last evaluation.
        at: where in each run it is measured; None for the end, or the cutoff of the report.
    """

    name: str
    header: str
    direction: MetricDirection
    source: str
    is_evaluated: bool = False
    select: Select = Select()
    window: Window | None = None
    at: Cutoff | None = None

    @property
    def quantity(self) -> str:
        """The name without task and level: `pass@8`, `entropy/answer`, `collapse/acr@end`."""
        return self.name.partition("[")[0]

    @property
    def metric(self) -> str | None:
        """The training metric; None for columns of evaluations and costs."""
        return None if self.is_evaluated or self.total or self.is_reached else self.source

    @property
    def total(self) -> str | None:
        """The cost that it sums up; None for other columns."""
        cost = self.source.removeprefix("total/")
        return cost if cost != self.source and cost in COSTS else None

    @property
    def k(self) -> int | None:
        """The k of pass@k; None for other columns."""
        is_pass = self.is_evaluated and self.source.startswith("pass@")
        return int(self.source.removeprefix("pass@")) if is_pass else None

    @property
    def is_reached(self) -> bool:
        """Whether it says if runs come to `at`."""
        return self.source == REACHED and self.at is not None

    @property
    def is_selected(self) -> bool:
        """Whether it is of the step that validation problems chose."""
        return self.window is not None and self.window.kind == "selected"

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of a metric over all, the first or the last steps."""
        kind = None if self.window is None else self.window.kind
        return self.metric is not None and kind in (None, "first", "end")

    @property
    def is_made_of_curve(self) -> bool:
        """Whether it needs the values within the training; models without a run have none."""
        return self.at is not None or (self.window is not None and not self.is_mean)

    @property
    def is_single(self) -> bool:
        """Whether a single evaluation has a value of it."""
        return self.is_evaluated and not self.is_made_of_curve

    @property
    def is_resampled(self) -> bool:
        """Whether a single evaluation has an interval over problems like its own."""
        own = self.select
        takes_more = own.base is not None or own.above is not None or own.is_mean
        return self.is_single and not takes_more and not self.source.startswith("law/")


def parse_column(name: str) -> Column | None:
    """Parse the name of a column; return None if it cannot be one."""
    # Columns have an @ of their own, so each is tried: pass@8@pass@1=0.5.
    for place in (i for i, character in enumerate(name) if character == "@"):
        if _CUTOFF.fullmatch(name[place + 1 :]) is None:
            continue
        cutoff = parse_cutoff(name[place + 1 :])
        if not cutoff.is_cost and _parse_source(cutoff.what) is None:
            continue
        if name[:place] == REACHED:
            return reached_column(cutoff, name)
        column = parse_column(name[:place])
        if column is not None and column.at is None and not column.select.is_mean:
            return replace(column, name=name, header=f"{column.header} @ {cutoff.text}", at=cutoff)
    before, _, after = name.rpartition("@")
    match = _WINDOW.fullmatch(after) if before else None
    column = None if match is None else _parse_source(before)
    if match is None or column is None or column.select.is_mean:
        return _parse_source(name)
    kind = match["first"] or match["plain"] or match["valued"]
    window = Window(kind, float(match["steps"] or match["value"] or 0))
    if column.total or not math.isfinite(window.value) or (column.metric and kind == "selected"):
        return None
    header = name if column.k is None else f"{column.header} {after}"
    if kind == "selected":
        header = f"{column.header} selected"
    elif column.metric is not None and (entry := find_metric(column.metric)) is not None:
        header = entry.windowed_header(kind, int(window.value)) or name
    direction = column.direction if window.keeps_unit else MetricDirection.NEITHER
    return replace(column, name=name, header=header, direction=direction, window=window)


def reached_column(cutoff: Cutoff, name: str = REACHED) -> Column:
    """Return the column that says which runs come to a cutoff."""
    return Column(name, name, MetricDirection.NEITHER, REACHED, at=cutoff)


def within_steps(column: Column, steps: int) -> Column:
    """Return a column of the first steps, named after those that runs of so many steps have."""
    first = column.window.value if column.window and column.window.kind == "first" else 0
    if not column.is_mean or first <= steps:
        return column
    return replace(column, header=column.header.removesuffix(f"-{first:g}") + f"-{steps}")


def _parse_source(name: str) -> Column | None:
    """Parse a column without a window and a cutoff."""
    match = _SOURCE.fullmatch(name)
    if match is None:
        return None
    source = match["evaluated"] or name
    entry = find_metric(source)
    direction = MetricDirection.NEITHER if entry is None else entry.better
    header = entry.header if entry is not None and entry.header else name
    if not match["evaluated"]:
        header = header.format(cost=match["total"]) if match["total"] else header
        return Column(name, header, direction, source)
    found: dict[str, Any] = {"m": RAREFIED} if source.startswith(RAREFIED_ENTROPY) else {}
    seen: set[str] = set()
    for text in match["of"].split(",") if match["of"] else ():
        part = _PART.fullmatch(text.strip())
        kind = str(part.lastgroup) if part is not None else ""
        if part is None or kind in seen:
            return None
        seen.add(kind)
        if kind == "high":
            found["base"] = float(part["low"]), float(part["high"])
        elif kind in ("train", "mean"):
            found[f"is_{kind}"] = True
        else:
            found[kind] = int(part[kind]) if kind in ("level", "m") else part[kind]
    select = Select(**found)
    is_wrong = (
        (select.base is not None and select.base[0] >= select.base[1])
        or ("m" in seen and not (source.startswith(RAREFIED_ENTROPY) and found["m"] >= 2))
        or (select.above is not None and not source.startswith("pass@"))
        or (select.is_mean and select.task is not None)
    )
    if is_wrong:
        return None
    if entry is not None:
        header = entry.header or entry.end or source
    parts = (
        "mean" if select.is_mean else select.task,
        None if select.level is None else f"level {select.level}",
        "train" if select.is_train else None,
        None if select.base is None else f"base {select.base[0]:g}-{select.base[1]:g}",
        header.format(k=match["k"], m=select.m),
        None if select.above is None else f"above {select.above}",
    )
    header = " ".join(part for part in parts if part)
    return Column(name, header, direction, source, is_evaluated=True, select=select)


def metric_range(name: str) -> tuple[float, float] | None:
    """Return the bounds of a metric or column that is a share; None for others."""
    column = parse_column(name)
    if column is None or column.select.above is not None:
        return None
    kind = "" if column.window is None else column.window.kind
    if column.is_reached or kind in ("share>", "share<"):
        return (0.0, 1.0)
    entry = find_metric(column.source)
    is_share = entry is not None and entry.is_bounded
    return (0.0, 1.0) if is_share and (not kind or Window(kind).keeps_unit) else None


def needs_curves(names: Iterable[str]) -> bool:
    """Tell whether some columns need evaluations within the training; names may have a `*`."""
    columns = [parse_column(name.replace("*", "1")) for name in names]
    return any(column is not None and column.is_made_of_curve for column in columns)


def standard_columns(ks: Sequence[int], others: Sequence[str] = ()) -> list[str]:
    """Return the default columns of a table: collapse, pass@k, entropies, cost.

    Args:
        ks: the k of pass@k on the runs' own task.
        others: the other evaluated tasks.
    """
    return [
        "collapse/acr@first100",
        "collapse/acr@end",
        "collapse/all_wrong@end",
        "collapse/all_correct@end",
        *(f"pass@{k}" for k in ks),
        # Without an evaluation the rewards of the training have to do.
        *(() if ks or others else (UNEVALUATED,)),
        *(f"pass@1[{task}]" for task in others),
        "entropy/token@end",
        ANSWER_ENTROPY,
        "cost/rollouts",
    ]


def find_outcome(column: Column, outcomes: Sequence[Column]) -> Column | None:
    """Return the outcome whose differences between rows a column has; None if it is of none.

    A chance baseline that is subtracted from both rows cancels.
    """

    def compared(one: Column) -> Any:
        return one.source, replace(one.select, above=None), one.window, one.at

    return next((outcome for outcome in outcomes if compared(outcome) == compared(column)), None)


def parse_outcomes(names: Any, where: str) -> list[Column]:
    """Parse declared primary outcomes; none if nothing is declared.

    Args:
        where: the key that has them, for messages.

    Raises:
        ConfigError: they are no list of columns.
    """
    if names is None:
        return []
    found: list[Column] = []
    for name in names if isinstance(names, list) and names else [names]:
        column = parse_column(name) if isinstance(name, str) and names is not name else None
        # A chance baseline changes no difference.
        is_known = column is not None and find_outcome(column, found) is not None
        if column is None or "*" in name or column.is_reached or is_known:
            raise ConfigError(
                f"{where}: expected a list of columns, each once, such as [pass@1, "
                f"pass@8[above=guess], {RIGHT_ENTROPY}], got {name!r}"
            )
        found.append(column)
    return found
