"""The spread that the difference of two rows is tested with: that of their design, or their own.

Rows share a design if their runs differ in the method alone (estimator, objective, rollout policy),
the value that was tuned for each included, and have the same seeds. Their spread is then estimated
from all of them (`statistics.blocks`), so that every command has the same interval and p for the
same two rows, whichever of them is the baseline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from advsweep.report.tables.types import Row, SpreadKind
from advsweep.statistics import BlockSpread, Comparison, PooledSpread, compare_seeds, pool_spread
from advsweep.statistics.intervals import sample_sd
from advsweep.tasks.controls import CONTROL

_ARM = ("estimator", "objective", "rollout", CONTROL)
"""The components of a method, which is what is compared."""


class Spreads:
    """The common spread of the rows of a report, by column and design."""

    def __init__(
        self, rows: Sequence[Row] = (), spread: SpreadKind = SpreadKind.POOLED, tuned: str = ""
    ) -> None:
        self._spread = spread
        self._tuned = tuned
        self._rows = rows
        self._known: dict[tuple[str, str], tuple[BlockSpread | None, list[Row]]] = {}

    def compare(self, row: Row, other: Row, column: str, level: float = 0.95) -> Comparison:
        """Compare two rows by their seeds; a row of exact numbers has them for every seed."""
        values = row.by_seed(column)
        return compare_seeds(
            values, _of_seeds(other, column, values), level, self.pooled(row, other, column)
        )

    def pooled(self, row: Row, other: Row, column: str) -> PooledSpread | None:
        """Return the spread of two rows' differences; None if they have one of their own."""
        if self._spread is SpreadKind.OWN or row.is_base or other.is_base:
            return None
        design = self._design(row, column)
        if design != self._design(other, column) or _differ_equally(row, other, column):
            return None
        if (column, design) not in self._known:
            alike = [
                each
                for each in self._rows
                if not each.is_base and self._design(each, column) == design
            ]
            values = [list(_finite(each, column).values()) for each in alike]
            self._known[column, design] = (pool_spread(values) if values else None, alike)
        found, alike = self._known[column, design]
        if found is None:
            return None
        wider = [found.wider[i] for i, each in enumerate(alike) if each is row or each is other]
        return None if any(wider) else found.pooled

    def _design(self, row: Row, column: str) -> str:
        """Names what rows must share: the settings beside the arm's own, and the seeds."""
        settings = {
            key: value
            for key, value in row.group.items()
            if key.partition(".")[0] not in _ARM and key != self._tuned
        }
        return json.dumps([settings, sorted(_finite(row, column))], sort_keys=True)


def _of_seeds(row: Row, column: str, seeds: Mapping[int, float]) -> Mapping[int, float]:
    cell = row.cells[column]
    return row.by_seed(column) if row.seeds or not cell.n else dict.fromkeys(seeds, cell.mean)


def _finite(row: Row, column: str) -> dict[int, float]:
    return {seed: v for seed, v in row.by_seed(column).items() if math.isfinite(v)}


def _differ_equally(row: Row, other: Row, column: str) -> bool:
    """Tell whether two rows differ by the same number on every seed: it has no spread to test.

    Costs do, and the same runs, whose difference is 0.
    """
    values, others = _finite(row, column), _finite(other, column)
    differences = np.array([value - others[seed] for seed, value in values.items()])
    scale = max(map(abs, (*values.values(), *others.values())), default=0.0)
    return len(differences) > 1 and sample_sd(differences, scale) == 0
