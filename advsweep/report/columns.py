"""What a table can have as columns, and how each number is made from a run.

    METRIC           mean over all steps of the training
    METRIC@firstN    mean over the first N steps, fewer if the run is shorter
    METRIC@end       mean over the last 10 steps
    pass@K           of the last evaluation: mean over problems of the unbiased estimate
    entropy/answer   of the last evaluation: mean over problems, in nats

METRIC is any metric that the runs recorded, such as `collapse/acr`. Steps whose value is not
a number are left out of a mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

END_STEPS = 10
"""How many steps `@end` is the mean of."""

ANSWER_ENTROPY = "entropy/answer"


class Better(Enum):
    """Which way a metric is better, if it is."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


# All-correct groups teach nothing, but a better model has more of them; entropy and cost are
# what an estimator trades for accuracy. None of them is better one way.
_BETTER = {
    "collapse/acr": Better.LOWER,
    "collapse/acr_after": Better.LOWER,
    "collapse/all_wrong": Better.LOWER,
    "reward/mean": Better.HIGHER,
}

_HEADERS = {
    "collapse/acr@first100": "ACR 1-100",
    "collapse/acr@end": "ACR end",
    "collapse/all_wrong@end": "all wrong",
    "collapse/all_correct@end": "all right",
    "entropy/token@end": "H tok",
    ANSWER_ENTROPY: "H ans",
    "cost/rollouts": "rollouts",
}

_PATTERN = re.compile(
    r"(?:pass@(?P<k>[1-9]\d*)|(?P<metric>[^@]+)(?:@(?:(?P<end>end)|first(?P<first>[1-9]\d*)))?)"
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: as programs read it.
        header: as people read it, short.
        better: which way it is better.
        metric: the training metric that it is the mean of; None for one of evaluations.
        first, last: over how many steps from the start or the end; None for all.
        k: of pass@k; None for anything else.
    """

    name: str
    header: str
    better: Better
    metric: str | None = None
    first: int | None = None
    last: int | None = None
    k: int | None = None

    @property
    def family(self) -> str:
        """What stands together when a table is too wide: `collapse`, `pass`, `entropy`."""
        return re.split("[/@]", self.name)[0]


def parse_column(name: str) -> Column | None:
    """The column of a name; None if the name cannot be one."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    if match["k"]:
        return Column(name, f"p@{match['k']}", Better.HIGHER, k=int(match["k"]))
    header = _HEADERS.get(name, name)
    if name == ANSWER_ENTROPY:
        return Column(name, header, Better.NEITHER)
    return Column(
        name,
        header,
        _BETTER.get(match["metric"], Better.NEITHER),
        metric=match["metric"],
        first=int(match["first"]) if match["first"] else None,
        last=END_STEPS if match["end"] else None,
    )


def standard_columns(ks: Sequence[int]) -> list[str]:
    """The columns of a table that nobody chose: collapse, pass@k, entropies, cost."""
    return [
        "collapse/acr@first100",
        "collapse/acr@end",
        "collapse/all_wrong@end",
        "collapse/all_correct@end",
        *(f"pass@{k}" for k in ks),
        "entropy/token@end",
        ANSWER_ENTROPY,
        "cost/rollouts",
    ]
