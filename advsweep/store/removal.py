"""Removal of runs, with all that the store holds of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from advsweep.errors import StoreError
from advsweep.store.base import chunks
from advsweep.store.evaluations import remove_unused_problems
from advsweep.store.overview import Overview
from advsweep.store.owners import host_name
from advsweep.store.records import Status
from advsweep.store.tables import (
    Base,
    Evaluation,
    Run,
    RunEvaluation,
    Sweep,
    SweepRun,
    Trial,
)


class Removal(Overview):
    """The part of a store that forgets."""

    def remove(self, run_ids: Sequence[int]) -> None:
        """Removes runs with their metrics, checkpoints' records and evaluations.

        Evaluations that other runs share stay. All of it goes, or nothing; files are left.

        Raises:
            NotFoundError: there is no such run.
            StoreError: a process has one of the runs.
        """
        with self._write() as connection:
            for ids in chunks(run_ids):
                self._refuse_held(connection, ids)
                linked = select(RunEvaluation.evaluation_id).where(RunEvaluation.run_id.in_(ids))
                evaluations = set(connection.execute(linked).scalars())
                # Whatever table says something of a run, in the order that foreign keys ask for.
                for table in reversed(Base.metadata.sorted_tables):
                    for column in table.columns:
                        if column.references(Run.__table__.c.id):
                            connection.execute(delete(table).where(column.in_(ids)))
                self._remove_unshared(connection, evaluations)
                connection.execute(delete(Run).where(Run.id.in_(ids)))

    def remove_sweep(self, name: str) -> None:
        """Removes a sweep; its runs stay.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._write() as connection:
            sweep_id = self._require_sweep(connection, name)
            connection.execute(delete(SweepRun).where(SweepRun.sweep_id == sweep_id))
            connection.execute(delete(Trial).where(Trial.sweep_id == sweep_id))
            connection.execute(delete(Sweep).where(Sweep.id == sweep_id))

    def _refuse_held(self, connection: Connection, run_ids: Sequence[int]) -> None:
        lease = (Run.host, Run.pid, Run.process_started, Run.heartbeat)
        query = select(Run.id, Run.status, *lease).where(Run.id.in_(run_ids)).with_for_update()
        rows = {row.id: row for row in connection.execute(query)}
        for run_id in run_ids:
            if run_id not in rows:
                self._require_run(connection, run_id)
            row = rows[run_id]
            if row.status is Status.RUNNING and self._is_held(row):
                raise StoreError(
                    f"run {run_id} is being trained by process {row.pid} on "
                    f"{host_name(row.host)}; "
                    f"`advsweep stop {run_id}` stops it"
                )

    def _remove_unshared(self, connection: Connection, evaluations: set[int]) -> None:
        """Removes those of some evaluations that no run is linked to, and their problems."""
        for ids in chunks(evaluations):
            shared = select(RunEvaluation.evaluation_id)
            alone = (Evaluation.id.in_(ids), Evaluation.id.not_in(shared))
            connection.execute(delete(Evaluation).where(*alone))
        if evaluations:
            remove_unused_problems(connection)
