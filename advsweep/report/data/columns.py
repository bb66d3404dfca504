"""The columns of a table, and how each number is made from a run.

    METRIC           mean over all steps of the training
    METRIC@firstN    mean over the first N steps, fewer if the run is shorter
    METRIC@end       mean over the last 10 steps
    total/COST       sum over the training: steps, rollouts, tokens, seconds
    pass@K           of the last evaluation: mean over problems of the unbiased estimate
    entropy/answer   of the last evaluation: mean over problems, in nats

METRIC is any metric that the runs recorded, such as `collapse/acr`. A mean leaves out steps
whose value is not a number. Columns of evaluations can name their task and level:

    pass@8[gsm8k]            of the evaluation on that task; entropy/token[gsm8k] likewise
    pass@8[level=3]          of the problems of that level alone; [gsm8k,level=3] both
    pass@8[mean], [iqm]      mean, or interquartile mean, over the tasks

Without a task they measure the task that the runs were trained on. `*` stands for every k, task
or level: pass@*, pass@1[*], pass@1[level=*].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

END_STEPS = 10
"""How many steps `@end` averages over."""

ANSWER_ENTROPY = "entropy/answer"
TOKEN_ENTROPY = "entropy/token"
COSTS = ("steps", "rollouts", "tokens", "seconds")
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
    "reward/forged": MetricDirection.LOWER,
    "reward/mean": MetricDirection.HIGHER,
}

# Metrics between 0 and 1, by the start of their names.
_SHARES = (
    "collapse/",
    "pass@",
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

_PATTERN = re.compile(
    rf"total/(?P<total>{'|'.join(COSTS)})"
    r"|(?P<evaluated>pass@(?P<k>[1-9]\d{0,8})|entropy/answer|entropy/token(?=\[))"
    r"(?:\[(?P<of>[^\[\]]+)\])?"
    r"|(?P<metric>[^@\[\]]+)(?:@(?:(?P<end>end)|first(?P<first>[1-9]\d{0,8})))?"
)


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

    @property
    def family(self) -> str:
        """Columns of a family stay together in a wide table: `collapse`, `pass`, `entropy`."""
        return re.split(r"[/@]", self.name)[0]

    @property
    def quantity(self) -> str:
        """The name without task and level: `pass@8`, `entropy/answer`, `collapse/acr@end`."""
        return self.name.partition("[")[0]

    @property
    def is_evaluated(self) -> bool:
        return self.metric is None and self.total is None


def parse_column(name: str) -> Column | None:
    """Parses the name of a column; returns None if it cannot be one."""
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
        first=int(match["first"]) if match["first"] else None,
        last=END_STEPS if match["end"] else None,
    )


def _evaluated(name: str, match: re.Match[str]) -> Column | None:
    task: str | None = None
    level: int | None = None
    over: str | None = None
    for part in (match["of"] or "").split(",") if match["of"] else ():
        word = part.strip()
        if digits := re.fullmatch(r"level=(\d{1,9})", word):
            level = int(digits[1])
        elif task is not None or over is not None or "=" in word:
            return None
        elif word in OVER_TASKS:
            over = word
        else:
            task = word
    k = int(match["k"]) if match["k"] else None
    short = {ANSWER_ENTROPY: "H ans", TOKEN_ENTROPY: "H tok"}.get(match["evaluated"], f"p@{k}")
    of = [task or over, f"level {level}" if level is not None else None]
    return Column(
        name,
        " ".join([*(part for part in of if part), short]),
        MetricDirection.NEITHER if k is None else MetricDirection.HIGHER,
        k=k,
        task=task,
        level=level,
        over=over,
    )


def metric_range(name: str) -> tuple[float, float] | None:
    """Returns the bounds of a metric or column that is a share; None for others."""
    return (0.0, 1.0) if name.startswith(_SHARES) else None


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
