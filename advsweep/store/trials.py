"""Trials: the points that a search has asked for, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from advsweep.store.base import StorePart
from advsweep.store.records import TrialRecord
from advsweep.store.tables import Trial


class Trials(StorePart):
    """The part of a store that holds the trials of searches."""

    def add(self, sweep: str, number: int, params: Mapping[str, Any], config_hash: str) -> bool:
        """Adds a trial to a sweep; False where there is one of that number already.

        Raises:
            NotFoundError: there is no such sweep.
        """
        values = {"number": number, "params": dict(params), "config_hash": config_hash}
        with self._write() as connection:
            sweep_id = self._require_sweep(connection, sweep)
            added = connection.execute(
                self._insert_or_ignore(Trial, "sweep_id", "number"),
                {"sweep_id": sweep_id, **values},
            )
            if added.rowcount or not self._patience.repeats:
                return bool(added.rowcount)
            at = (Trial.sweep_id == sweep_id, Trial.number == number)
            known = connection.execute(select(Trial.params, Trial.config_hash).where(*at)).one()
            return (known.params, known.config_hash) == (values["params"], config_hash)

    def select(self, sweep: str) -> list[TrialRecord]:
        """The trials of a sweep by number; none where there was no search.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._read() as connection:
            sweep_id = self._require_sweep(connection, sweep)
            query = select(Trial.number, Trial.params, Trial.config_hash)
            rows = connection.execute(
                query.where(Trial.sweep_id == sweep_id).order_by(Trial.number)
            )
            return [
                TrialRecord(number=number, params=params, config_hash=config_hash)
                for number, params, config_hash in rows
            ]
