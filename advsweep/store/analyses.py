"""Analyses of weights: records of their own beside the runs, which they leave as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from advsweep.store.base import StorePart, chunks
from advsweep.store.records import AnalysisRecord, NewAnalysis
from advsweep.store.tables import Analysis


class Analyses(StorePart):
    """The part of a store that holds what was found in weights and hidden states."""

    def add(self, run_id: int, analysis: NewAnalysis) -> None:
        """Keeps an analysis; one that is there already stays as it is.

        Raises:
            NotFoundError: there is no such run.
        """
        row = {
            "run_id": run_id,
            "identity": analysis.identity,
            "kind": analysis.kind,
            "step": analysis.step,
            "settings": dict(analysis.settings),
            "created": self._now(),
            "result": _finite(analysis.result),
            "directions": analysis.directions,
        }
        insert = self._insert_or_ignore(Analysis, "run_id", "identity")
        with self._write() as connection:
            self._require_run(connection, run_id)
            connection.execute(insert, row)

    def select(self, run_ids: Sequence[int], kind: str | None = None) -> list[AnalysisRecord]:
        """The analyses of some runs, of a kind or all, by run, step and age."""
        query = select(Analysis.__table__)
        if kind is not None:
            query = query.where(Analysis.kind == kind)
        query = query.order_by(Analysis.run_id, Analysis.step, Analysis.created, Analysis.identity)
        with self._read() as connection:
            return [
                AnalysisRecord(**row._mapping)
                for ids in chunks(sorted(run_ids))
                for row in connection.execute(query.where(Analysis.run_id.in_(ids)))
            ]


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
