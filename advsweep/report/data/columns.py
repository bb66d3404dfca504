"""The columns of a table, and how each number is made from a run.

    METRIC           mean over all steps of the training
    METRIC@firstN    mean over the first N steps, fewer if the run is shorter
    METRIC@end       mean over the last 10 steps
    total/COST       sum over the training: steps, rollouts, tokens, seconds
    pass@K           of the last evaluation: mean over problems of the unbiased estimate
    entropy/answer   of the last evaluation: mean over problems, in nats
    entropy/right    of the last evaluation: entropy of the right answers alone, in nats; mean
                     over the problems that have one
    entropy/right_rarefied   the same of 8 right answers, over the problems that have so many;
                     of 16: entropy/right_rarefied[m=16]
    entropy/right_rarefied_share   the share of these problems
    kl/base          of the last evaluation: KL of an answer from the base model, in nats

METRIC is any metric that the runs recorded, such as `collapse/acr`. A mean leaves out steps
whose value is not a number. Metrics and columns of evaluations take a window on their curve
(`report.data.windows`), and every column a cutoff of its own (`report.data.cutoffs`):

    COLUMN@min, @argmax, @slope, @steps_to=X, @share>X, ...
    COLUMN@WHAT=X    where the run first comes to X: pass@32@pass@1=0.45, total/rollouts@pass@1=0.45
    COLUMN@selected  of the evaluation at the step with the best pass@1 on validation problems
                     (evaluation.select_on), where COLUMN is one of evaluations
    reached@WHAT=X   1 for a run that comes to X, and 0 for one that does not

Columns of evaluations can name their task and level:

    pass@8[gsm8k]            of the evaluation on that task; entropy/token[gsm8k] likewise
    pass@8[level=3]          of the problems of that level alone; [gsm8k,level=3] both
    pass@8[base=0.1:0.5]     of the problems whose solve rate before the training is in [.1, .5)
    pass@8[split=train]      on the training problems (evaluation.train_problems)
    law/a, law/mse/power     laws of pass@k over k of the last evaluation (`report.data.laws`)
    pass@8[above=guess]      minus that of a floor, an answerer without skill, on the same problems
    pass@8[mean], [iqm]      mean, or interquartile mean, over the tasks

Without a task they measure the task that the runs were trained on. `*` stands for every k, task
or level: pass@*, pass@1[*], pass@1[level=*].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from advsweep.report.data.cutoffs import COSTS, Cutoff, parse_cutoff
from advsweep.report.data.laws import PATTERN as LAW_PATTERN
from advsweep.report.data.windows import END_STEPS, NUMBER, Window, WindowKind, parse_window
from advsweep.statistics import RAREFIED

ANSWER_ENTROPY = "entropy/answer"
TOKEN_ENTROPY = "entropy/token"
RIGHT_ENTROPY = "entropy/right"
RAREFIED_ENTROPY = "entropy/right_rarefied"
RAREFIED_SHARE = "entropy/right_rarefied_share"
KL_BASE = "kl/base"
REACHED = "reached"
"""The column that says whether a run comes to the cutoff of `--at`."""

UNEVALUATED = "reward/mean@end"
"""The default column, and the one that is compared, of runs without an evaluation."""

OVER_TASKS = ("mean", "iqm")


class MetricDirection(Enum):
    """Which values of a metric are better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


# Neither direction is better for the others: all-correct groups teach nothing, but a better model
# has more of them, and estimators trade entropy and cost for accuracy.
_DIRECTIONS = {
    "collapse/acr": MetricDirection.LOWER,
    "collapse/acr_after": MetricDirection.LOWER,
    "collapse/all_wrong": MetricDirection.LOWER,
    "law/a": MetricDirection.LOWER,
    "memory/peak_gpu_mb": MetricDirection.LOWER,
    "memory/peak_mb": MetricDirection.LOWER,
    "reward/mean": MetricDirection.HIGHER,
}

# Metrics between 0 and 1, by the start of their names.
_SHARES = (
    "collapse/",
    "pass@",
    RAREFIED_SHARE,
    "advantage/zero_fraction",
    "cost/utilisation",
    "loss/clip_fraction",
    "estimator/acr",
    "estimator/omega",
    "estimator/triggered",
)

_HEADERS = {
    "collapse/acr": "ACR",
    "collapse/acr@first100": "ACR 1-100",
    "collapse/acr@end": "ACR end",
    "collapse/all_wrong@end": "all wrong",
    "collapse/all_correct@end": "all right",
    "entropy/token@end": "H tok",
    "cost/rollouts": "rollouts",
    **{f"total/{cost}": f"all {cost}" for cost in COSTS},
}

_EVALUATED_HEADERS = {
    ANSWER_ENTROPY: "H ans",
    TOKEN_ENTROPY: "H tok",
    RIGHT_ENTROPY: "H right",
    RAREFIED_ENTROPY: "H right/{m}",
    RAREFIED_SHARE: "has {m} right",
    KL_BASE: "KL base",
}

# Names of metrics may have an @ before a digit, as no window begins with one: exact/pass@8,
# val/acc/mean@16.
_PATTERN = re.compile(
    rf"total/(?P<total>{'|'.join(COSTS)})"
    rf"|(?P<evaluated>pass@(?P<k>[1-9]\d{{0,8}})|entropy/answer|entropy/right(?:_rarefied(?:_share)?)?"
    rf"|{KL_BASE}|{LAW_PATTERN}|entropy/token(?=\[))"
    r"(?:\[(?P<of>[^\[\]]+)\])?"
    r"|(?!pass@)(?P<metric>[^@\[\]=<>]+(?:@\d[^@\[\]=<>]*)*)"
)
_SHARE = r"(?:0?\.\d+|[01]\.?0*)"
_BASE = re.compile(rf"base=(?P<low>{_SHARE}):(?P<high>{_SHARE})")
_ABOVE = re.compile(r"above=(?P<floor>[A-Za-z_]\w*)")
_CUTOFF = re.compile(rf"[A-Za-z_].*={NUMBER}")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the name in options and data.
        header: the short name in tables.
        direction: which values are better.
        metric: the training metric that it averages; None for columns of evaluations and costs.
        first, last: how many steps from the start or the end count; None for all.
        total: the cost that it sums up; None for other columns.
        k: the k of pass@k; None for other columns.
        task: the evaluated task; None for the task that the runs were trained on.
        level: the level of the problems that count; None for all.
        over: `mean` or `iqm` over all tasks; None for one task.
        base: the solve rates of the run's own base model that the problems have that count: from
            the first on, below the second (1 itself where that is 1); None for all problems.
        law: the number of a law of pass@k, such as `law/a`; None for other columns.
        is_train: whether it is of the evaluation on training problems.
        m: how many right answers the rarefied entropy is of; None for other columns.
        above: the floor of the task that is subtracted, such as `guess`; None for none.
        window: what it takes from the curve; None for the mean of a metric over all, the first
            or the last steps, and for the value of the last evaluation.
        at: where in each run it is measured; None for the end, or the cutoff of the report.
        is_reached: whether it says if runs come to `at`.
        is_selected: whether it is of the step that validation problems chose.
    """

    name: str
    header: str
    direction: MetricDirection
    metric: str | None = None
    first: int | None = None
    last: int | None = None
    total: str | None = None
    k: int | None = None
    task: str | None = None
    level: int | None = None
    over: str | None = None
    base: tuple[float, float] | None = None
    law: str | None = None
    is_train: bool = False
    m: int | None = None
    above: str | None = None
    window: Window | None = None
    at: Cutoff | None = None
    is_reached: bool = False
    is_selected: bool = False

    @property
    def family(self) -> str:
        """Columns of a family stay together in a wide table: `collapse`, `pass`, `entropy`."""
        return re.split(r"[/@]", self.name)[0]

    @property
    def quantity(self) -> str:
        """The name without task and level: `pass@8`, `entropy/answer`, `collapse/acr@end`."""
        return self.name.partition("[")[0]

    @property
    def curve(self) -> str:
        """The name without window and cutoff: `pass@8[level=3]`, `collapse/acr`."""
        if self.metric is not None:
            return self.metric
        match = _PATTERN.match(self.name)
        return self.name if match is None else match[0]

    @property
    def is_evaluated(self) -> bool:
        return self.metric is None and self.total is None and not self.is_reached

    @property
    def is_made_of_curve(self) -> bool:
        """Whether it needs the values within the training; models without a run have none."""
        return self.window is not None or self.at is not None or self.is_selected

    @property
    def is_resampled(self) -> bool:
        """Whether a single evaluation has an interval over problems like its own."""
        return self.is_single and self.over is None and self.law is None and not self.needs_runs

    @property
    def needs_runs(self) -> bool:
        """Whether a number takes more than an evaluation: the base or the task of a run."""
        return self.base is not None or self.above is not None

    @property
    def is_single(self) -> bool:
        """Whether a single evaluation has a value of it."""
        return self.is_evaluated and not self.is_made_of_curve


def parse_column(name: str) -> Column | None:
    """Parses the name of a column; returns None if it cannot be one."""
    # Columns have an @ of their own, so each is tried: pass@8@pass@1=0.5.
    for place in (i for i, character in enumerate(name) if character == "@"):
        cutoff = _own_cutoff(name[place + 1 :])
        if cutoff is not None and (column := _at(name, name[:place], cutoff)) is not None:
            return column
    before, _, after = name.rpartition("@")
    if after == "selected" and (column := _simple(before)) is not None and column.is_evaluated:
        header = f"{column.header} selected"
        return replace(column, name=name, header=header, is_selected=True)
    window = parse_window(after) if before else None
    column = None if window is None else _simple(before)
    if column is not None and window is not None:
        return _windowed(name, column, window)
    return _simple(name)


def _own_cutoff(text: str) -> Cutoff | None:
    if _CUTOFF.fullmatch(text) is None or text.startswith(WindowKind.STEPS_TO.value):
        return None
    cutoff = parse_cutoff(text)
    return cutoff if cutoff.is_cost or _simple(cutoff.what) is not None else None


def _at(name: str, of: str, cutoff: Cutoff) -> Column | None:
    """Returns the column `of` at a cutoff of its own."""
    if of == REACHED:
        return reached_column(cutoff, name)
    column = parse_column(of)
    if column is None or column.at is not None:
        return None
    return replace(column, name=name, header=f"{column.header} @ {cutoff.text}", at=cutoff)


def reached_column(cutoff: Cutoff, name: str = REACHED) -> Column:
    """Returns the column that says which runs come to a cutoff."""
    return Column(name, name, MetricDirection.NEITHER, at=cutoff, is_reached=True)


def _windowed(name: str, column: Column, window: Window) -> Column | None:
    if column.total is not None:
        return None
    direction = column.direction if window.kind.keeps_unit else MetricDirection.NEITHER
    suffix = name.rpartition("@")[2]
    column = replace(
        column,
        name=name,
        header=_HEADERS.get(name, name if column.k is None else f"{column.header} {suffix}"),
        direction=direction,
    )
    if column.metric is None:
        return replace(column, window=window)
    if window.kind is WindowKind.FIRST:
        return replace(column, first=int(window.value))
    if window.kind is WindowKind.END:
        return replace(column, last=END_STEPS)
    return replace(column, window=window)


def within_steps(column: Column, steps: int) -> Column:
    """Returns a column of the first steps, named after those that runs of so many steps have."""
    if column.first is None or column.first <= steps:
        return column
    return replace(column, header=column.header.removesuffix(f"-{column.first}") + f"-{steps}")


def _simple(name: str) -> Column | None:
    """Parses a column without a window and a cutoff."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    if match["evaluated"]:
        return _evaluated(name, match)
    if match["total"]:
        return Column(name, _HEADERS[name], MetricDirection.NEITHER, total=match["total"])
    return Column(
        name,
        _HEADERS.get(name, name),
        _DIRECTIONS.get(match["metric"], MetricDirection.NEITHER),
        metric=match["metric"],
    )


def _evaluated(name: str, match: re.Match[str]) -> Column | None:
    task: str | None = None
    level: int | None = None
    over: str | None = None
    base: tuple[float, float] | None = None
    is_train = False
    m = RAREFIED if match["evaluated"].startswith(RAREFIED_ENTROPY) else None
    above: str | None = None
    for part in (match["of"] or "").split(",") if match["of"] else ():
        word = part.strip()
        if digits := re.fullmatch(r"level=(\d{1,9})", word):
            level = int(digits[1])
        elif (rates := _BASE.fullmatch(word)) and base is None:
            base = float(rates["low"]), float(rates["high"])
            if base[0] >= base[1]:
                return None
        elif (drawn := re.fullmatch(r"m=(\d{1,4})", word)) and m and int(drawn[1]) > 1:
            m = int(drawn[1])
        elif word == "split=train" and not is_train:
            is_train = True
        elif (floor := _ABOVE.fullmatch(word)) and above is None and match["k"]:
            above = floor["floor"]
        elif task is not None or over is not None or "=" in word:
            return None
        elif word in OVER_TASKS:
            over = word
        else:
            task = word
    k = int(match["k"]) if match["k"] else None
    law = match["evaluated"] if match["evaluated"].startswith("law/") else None
    short = law or _EVALUATED_HEADERS.get(match["evaluated"], f"p@{k}").format(m=m)
    of = [task or over, f"level {level}" if level is not None else None]
    of += ["train"] if is_train else []
    of += [f"base {base[0]:g}-{base[1]:g}"] if base is not None else []
    short += f" above {above}" if above is not None else ""
    return Column(
        name,
        " ".join([*(part for part in of if part), short]),
        _DIRECTIONS.get(match["evaluated"], MetricDirection.NEITHER)
        if k is None
        else MetricDirection.HIGHER,
        k=k,
        law=law,
        task=task,
        level=level,
        over=over,
        base=base,
        is_train=is_train,
        m=m,
        above=above,
    )


def metric_range(name: str) -> tuple[float, float] | None:
    """Returns the bounds of a metric or column that is a share; None for others."""
    column = parse_column(name)
    if column is not None and column.is_reached:
        return (0.0, 1.0)
    if column is not None and column.above is not None:
        return None
    if column is not None and column.window is not None:
        if column.window.kind.is_share:
            return (0.0, 1.0)
        if not column.window.kind.keeps_unit:
            return None
    return (0.0, 1.0) if name.startswith(_SHARES) else None


def needs_curves(names: Iterable[str]) -> bool:
    """Tells whether some columns need evaluations within the training; names may have a `*`."""
    columns = [parse_column(name.replace("*", "1")) for name in names]
    return any(column is not None and column.is_made_of_curve for column in columns)


def standard_columns(ks: Sequence[int], others: Sequence[str] = ()) -> list[str]:
    """Returns the default columns of a table: collapse, pass@k, entropies, cost.

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


def expand(
    name: str, *, ks: Iterable[int], tasks: Iterable[str], levels: Iterable[int]
) -> list[str]:
    """Expands a name with `*` in it."""
    names = [name]
    for before, values in (
        ("pass@", [str(k) for k in ks]),
        ("[", list(tasks)),
        ("level=", [str(level) for level in levels]),
    ):
        star = f"{before}*"
        names = [
            each.replace(star, before + value)
            for each in names
            for value in (values if star in each else [""])
        ]
    return names
