"""Checkpoints of runs, and analyses of their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import delete, select

from advsweep.store.base import StorePart, chunks, insert_or_ignore, insert_or_update
from advsweep.store.records import AnalysisRecord, CheckpointRecord, NewAnalysis
from advsweep.store.tables import ANALYSES, CHECKPOINTS


class Checkpoints(StorePart):
    """The records of checkpoints; the files lie in the folders of the runs."""

    def add(self, run_id: int, step: int, path: Path) -> None:
        """Records a checkpoint that is complete and in its final place."""
        row = {"run_id": run_id, "path": self._stored(path), "step": step, "created": self._now()}
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            self._guard.require(connection, run_id)
            insert = insert_or_update(connection, CHECKPOINTS, "run_id", "path", update="created")
            connection.execute(insert, row)

    def remove(self, run_id: int, path: Path) -> None:
        """Removes the record of a deleted checkpoint."""
        at = (CHECKPOINTS.c.run_id == run_id, CHECKPOINTS.c.path == self._stored(path))
        with self._database.write() as connection:
            self._guard.require(connection, run_id)
            connection.execute(delete(CHECKPOINTS).where(*at))

    def select(self, run_id: int) -> list[CheckpointRecord]:
        """Returns the checkpoints of a run, by step."""
        query = select(CHECKPOINTS.c.step, CHECKPOINTS.c.path, CHECKPOINTS.c.created)
        query = query.where(CHECKPOINTS.c.run_id == run_id).order_by(CHECKPOINTS.c.step)
        folder = self._shared.runs_directory
        with self._database.read() as connection:
            return [
                CheckpointRecord(step=step, path=folder / path, created=created)
                for step, path, created in connection.execute(query)
            ]

    def _stored(self, path: Path) -> str:
        # Relative, so that the store and the folder of runs can be moved together.
        path, folder = path.absolute(), self._shared.runs_directory
        return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


class Analyses(StorePart):
    """Analyses of weights and hidden states: records beside the runs, which stay as they are."""

    def add(self, run_id: int, analysis: NewAnalysis) -> None:
        """Adds an analysis; one of the same identity stays as it is."""
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
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            connection.execute(insert_or_ignore(connection, ANALYSES, "run_id", "identity"), row)

    def select(self, run_ids: Sequence[int], kind: str | None = None) -> list[AnalysisRecord]:
        """Returns the analyses of some runs by run, step and age; of all kinds by default."""
        query = select(ANALYSES)
        if kind is not None:
            query = query.where(ANALYSES.c.kind == kind)
        query = query.order_by(
            ANALYSES.c.run_id, ANALYSES.c.step, ANALYSES.c.created, ANALYSES.c.identity
        )
        with self._database.read() as connection:
            return [
                AnalysisRecord(**row._mapping)
                for ids in chunks(sorted(run_ids))
                for row in connection.execute(query.where(ANALYSES.c.run_id.in_(ids)))
            ]


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON lacks, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
