"""Trials: the points that a search has asked for, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, insert, select

from advsweep.store.base import StorePart
from advsweep.store.models import Sweep, Trial
from advsweep.store.records import TrialRecord


class Trials(StorePart):
    """The part of a store that holds the trials of searches."""

    def add_trial(self, sweep: str, params: Mapping[str, Any], config_hash: str) -> int:
        """Adds a trial to a sweep; returns its number, which no other process has.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._write() as connection:
            sweep_id = self._require_sweep(connection, sweep)
            # One process at a time counts the trials of a sweep.
            connection.execute(select(Sweep.id).where(Sweep.id == sweep_id).with_for_update())
            last = connection.execute(
                select(func.max(Trial.number)).where(Trial.sweep_id == sweep_id)
            ).scalar()
            number: int = 0 if last is None else last + 1
            values = {"params": dict(params), "config_hash": config_hash}
            connection.execute(insert(Trial).values(sweep_id=sweep_id, number=number, **values))
        return number

    def trials(self, sweep: str) -> list[TrialRecord]:
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
