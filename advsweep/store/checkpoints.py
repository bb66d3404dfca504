"""Checkpoints: which ones a run has, and where they are."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import delete, select

from advsweep.store.base import StorePart
from advsweep.store.records import CheckpointRecord
from advsweep.store.tables import Checkpoint


class Checkpoints(StorePart):
    """The part of a store that knows the checkpoints of each run."""

    def add(self, run_id: int, step: int, path: Path) -> None:
        """Records a checkpoint that is whole and in place."""
        row = {"run_id": run_id, "path": self._kept(path), "step": step, "created": self._now()}
        with self._write() as connection:
            self._require_run(connection, run_id)
            self._require_lease(connection, run_id)
            insert = self._insert_or_update(Checkpoint, "run_id", "path", update="created")
            connection.execute(insert, row)

    def remove(self, run_id: int, path: Path) -> None:
        """Forgets a checkpoint that was deleted."""
        at = (Checkpoint.run_id == run_id, Checkpoint.path == self._kept(path))
        with self._write() as connection:
            self._require_lease(connection, run_id)
            connection.execute(delete(Checkpoint).where(*at))

    def select(self, run_id: int) -> list[CheckpointRecord]:
        """A run's checkpoints, by step."""
        query = select(Checkpoint.step, Checkpoint.path, Checkpoint.created)
        query = query.where(Checkpoint.run_id == run_id).order_by(Checkpoint.step)
        with self._read() as connection:
            return [
                CheckpointRecord(step=step, path=self.runs_directory / path, created=created)
                for step, path, created in connection.execute(query)
            ]

    def _kept(self, path: Path) -> str:
        """Relative to the folder of all runs, so that both can be moved together."""
        path = path.absolute()
        below = path.is_relative_to(self.runs_directory)
        return str(path.relative_to(self.runs_directory) if below else path)
