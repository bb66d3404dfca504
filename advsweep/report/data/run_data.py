"""What the columns of a table take their numbers from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.report.data.evaluations import EvaluationsByTask
    from advsweep.report.data.sources import Source
    from advsweep.report.data.windows import Curve
    from advsweep.store import RunRecord, Store


class RunData:
    """Some runs with their evaluations and their store; each curve is read once.

    Attributes:
        runs: the runs.
        ids: their ids, in the same order.
        evaluated: their evaluations, also those within the training if a column needs them.
        refuses_absent: whether a cutoff is refused whose curve no run has.
    """

    def __init__(
        self,
        store: Store,
        runs: Sequence[RunRecord],
        evaluated: EvaluationsByTask,
        *,
        refuses_absent: bool = True,
    ) -> None:
        self.store = store
        self.runs = runs
        self.ids = [run.id for run in runs]
        self.evaluated = evaluated
        self.refuses_absent = refuses_absent
        self._curves: dict[Source, Mapping[int, Curve]] = {}

    def curves(self, source: Source) -> Mapping[int, Curve]:
        """Return the curve of each run that has one, by the run's id."""
        if source not in self._curves:
            self._curves[source] = source.read_curves(self)
        return self._curves[source]
