"""The baseline of a report: the rows that others are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.filters import parse_where
from advsweep.report.data.keys import METHOD, METHOD_NODES, key_order
from advsweep.report.data.labels import name_group, show_key
from advsweep.report.tables.request import NO_BASELINE
from advsweep.report.tables.types import Row
from advsweep.tasks.controls import CONTROL

# Longer tables are compared only with a baseline that the user names.
MOST_ROWS = 30


@dataclass(frozen=True)
class BaselineRows:
    """The rows that others are compared with: those with these values of their keys.

    Attributes:
        values: the values of the keys.
        untrained: whether they are bases, floors or models without a run.
        tuned: the key whose value each row has chosen for itself; empty without a tuning.
    """

    values: Mapping[str, Any]
    untrained: bool = False
    tuned: str = ""

    @property
    def text(self) -> str:
        """The baseline in words, such as `grpo` or `group_size=8`."""
        return name_group(self.values)

    def of(self, row: Row, rows: Sequence[Row]) -> int | None:
        """Return the index of a row's baseline: the row that has its other keys.

        Raises:
            ReportError: several rows do.
        """
        if self.includes(row):
            return None
        fitting = [
            place
            for place, other in enumerate(rows)
            if self.includes(other) and self._is_alike(row, other)
        ]
        if len(fitting) > 1:
            some = " and ".join(name_group(rows[place].group) for place in fitting[:2])
            raise ReportError(
                f"--baseline {self.text}: {name_group(row.group)} could be compared with {some}; "
                "give more of the baseline's keys"
            )
        return fitting[0] if fitting else None

    def includes(self, row: Row) -> bool:
        """Tell whether a row is one of them."""
        if row.is_untrained != self.untrained:
            return False
        # No value of a config is this object.
        return all(row.group.get(key, self) == value for key, value in self.values.items())

    def _is_alike(self, row: Row, other: Row) -> bool:
        """Tell whether two rows have the same values of the keys that the baseline does not set."""
        # Parameters of a component mean nothing for another component.
        prefixes = [f"{CONTROL}.", *(f"{key}." for key in self.values)]
        if METHOD in self.values:
            prefixes += METHOD_NODES
        keys = other.group.keys() - self.values.keys()
        if not self.untrained:
            keys |= row.group.keys() - self.values.keys()
        return all(
            row.group.get(key) == other.group.get(key)
            for key in keys
            if key != self.tuned and not key.startswith(tuple(prefixes))
        )


def choose_baseline(
    text: str | None, *, planned: Sequence[Row], listed: Sequence[Row]
) -> BaselineRows | None:
    """Return the baseline that the user names, or the default one; None for no comparison.

    Args:
        text: as `parse_baseline` takes it; `none` for no comparison.
        planned: the trained rows, in the order of the sweep's plan.
        listed: all rows.

    Raises:
        NotFoundError, ReportError: as `parse_baseline`.
    """
    if text is None:
        # The sweep's first arm, in whichever order the rows are shown.
        return default_baseline(planned)
    if text == NO_BASELINE:
        return None
    keys = {key for row in planned for key in row.group}
    return parse_baseline(text, listed, min(keys, key=key_order))


def default_baseline(rows: Sequence[Row]) -> BaselineRows | None:
    """Return the first trained row's estimator, or its whole group if all share the estimator.

    The objective and the rollout policy are part of it where the estimator was trained with one.
    """
    trained = [row for row in rows if not row.is_untrained]
    if len(trained) < 2 or len(trained) > MOST_ROWS:
        return None
    first = trained[0].group
    if all(METHOD in row.group for row in trained):
        return BaselineRows({METHOD: first[METHOD]})
    of_estimator = {k: value for k, value in first.items() if k.partition(".")[0] == "estimator"}
    baseline = BaselineRows(of_estimator or first)
    if all(map(baseline.includes, trained)):
        return BaselineRows(first)
    return _with_arm(baseline, trained)


def _with_arm(baseline: BaselineRows, trained: Sequence[Row]) -> BaselineRows:
    """Add the objective and the rollout policy to a baseline that is an estimator.

    They are part of it where all of its rows have the same: an estimator that was trained with
    others, such as one that needs rollouts of its own, is then compared with it all the same.
    """
    if "estimator" not in baseline.values:
        return baseline
    first, *others = [row.group for row in trained if baseline.includes(row)]
    of_arm = {
        key: first[key]
        for key in METHOD_NODES
        if key in first
        and key not in baseline.values
        and all(group.get(key) == first[key] for group in others)
    }
    return BaselineRows({**baseline.values, **of_arm})


def parse_baseline(text: str, rows: Sequence[Row], key: str) -> BaselineRows:
    """Parse a baseline: a value of `key`, or `KEY=VALUE ...`.

    Raises:
        NotFoundError: no row has these values.
        ReportError: the text is no baseline.
    """
    trained = [row for row in rows if not row.is_untrained]
    if "=" not in text:
        # A base or a floor is named by a value of the key as well; a trained row comes first.
        values = {show_key(row.group.get(key, "")): row for row in [*rows, *trained]}
        if text not in values:
            raise NotFoundError(f"--baseline: no row has {key}={text}; {nearest(text, values)}")
        row = values[text]
        baseline = BaselineRows({key: row.group[key]}, untrained=row.is_untrained)
        return baseline if row.is_untrained else _with_arm(baseline, trained)
    filters = parse_where(text, "--baseline")
    for filter in filters:
        if filter.operator != "=" or len(filter.values) > 1:
            raise ReportError(f"--baseline: expected KEY=VALUE, got {filter.text!r}")
    baseline = BaselineRows({filter.key: filter.values[0] for filter in filters})
    if not any(map(baseline.includes, trained)):
        names = [name_group(row.group) for row in trained]
        raise NotFoundError(f"--baseline: no row has {text}; {nearest(text, names)}")
    return _with_arm(baseline, trained)
