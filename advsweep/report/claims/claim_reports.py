"""The reports that claims are judged on, and the runs that are not in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from advsweep.errors import NotFoundError, ReportError, StoreError
from advsweep.report.claims.expressions import find_row
from advsweep.report.claims.lists import Claim
from advsweep.report.data.columns import REACHED, Column, needs_curves, parse_column
from advsweep.report.data.evaluations import select_evaluations
from advsweep.report.data.filters import Filter, parse_where, show_key
from advsweep.report.data.grouping import is_key, value_of
from advsweep.report.data.measure import measure
from advsweep.report.data.selection import read_runs
from advsweep.report.tables.build import build_report
from advsweep.report.tables.chance import chance_column
from advsweep.report.tables.footnotes import provenance
from advsweep.report.tables.types import Report, SpreadKind, count_states
from advsweep.store import Failure, RunOutline, RunRecord, Status, Store

ACR, TREATED = "collapse/acr", "collapse/acr_after"

# The machine ended these: no estimator is to blame.
_MACHINE = (Failure.OOM, Failure.TIMEOUT, Failure.KILLED, Failure.DISK)


class ClaimReports:
    """Reports of the runs that claims are about; claims about the same runs share one."""

    def __init__(
        self,
        store: Store,
        claims: Sequence[Claim],
        outcomes: Sequence[Column] = (),
        spread: SpreadKind = SpreadKind.POOLED,
    ) -> None:
        self._store = store
        self._outcomes = outcomes
        self._spread = spread
        self._columns: dict[object, list[str]] = {}
        # The tests against chance have numbers after training.
        for claim in (own for c in claims for own in (c, replace(c, at=None))):
            known = self._columns.setdefault(_runs_of(claim), [])
            known += [c for c in columns_of(claim) if c not in known]
        self._built: dict[object, Report | None] = {}
        self._alone: dict[object, Report] = {}
        self._used: list[Report] = []

    @property
    def provenance(self) -> list[str]:
        """Sentences about the source of the numbers; each run counts once."""
        lines: dict[str, None] = {}
        for report in self._used:
            alike = [r for r in self._used if r.provenance.sweep == report.provenance.sweep]
            own = [r.provenance for r in alike]
            together = replace(
                report.provenance,
                runs=len(frozenset().union(*(r.run_ids for r in alike))),
                first=min((p.first for p in own if p.first), default=None),
                last=max((p.last for p in own if p.last), default=None),
            )
            lines |= dict.fromkeys(provenance(replace(report, provenance=together)))
        return list(lines)

    def of(self, claim: Claim) -> Report:
        """Returns a report with a claim's columns and rows.

        Raises:
            NotFoundError: the claim names what does not exist.
            ReportError: its runs are not finished, or lack what it needs.
        """
        key = _runs_of(claim)
        if key not in self._built:
            try:
                self._built[key] = self.alone(claim, self._columns[key])
            except (ReportError, StoreError):
                # One claim's metric may be missing although the others' are there, so each claim
                # gets a report of its own.
                self._built[key] = None
        report = self._built[key] or self._own(claim)
        for name in claim.kind.rows:
            self._check_row(claim, report, name)
        self._used += [] if report in self._used else [report]
        return report

    def _own(self, claim: Claim) -> Report:
        columns = columns_of(claim)
        key = _runs_of(claim), tuple(columns)
        if key not in self._alone:
            self._alone[key] = self.alone(claim, columns)
        return self._alone[key]

    def alone(self, claim: Claim, columns: Sequence[str]) -> Report:
        """Builds a report of a claim's runs that no other claim shares."""
        return build_report(
            self._store,
            claim.sweep,
            columns=columns,
            rows=claim.rows,
            where=claim.where,
            at=claim.at,
            spread=self._spread,
            outcomes=self._outcomes,
            described=False,
        )

    def _check_row(self, claim: Claim, report: Report, name: str) -> None:
        """Refuses a row without finished runs.

        Raises:
            NotFoundError: no run has the name, finished or not.
            ReportError: there are runs of the name, but none is finished.
        """
        try:
            find_row(report, name, f"claim {claim.id}")
        except NotFoundError:
            runs = self._runs(claim, name, report.keys[0])
            if not runs:
                raise
            states = count_states(Counter(run.status for run in runs))
            raise ReportError(f"no run of [{name}] is finished ({states})") from None

    def count_failures(self, claim: Claim, name: str, when: Sequence[Filter]) -> tuple[int, int]:
        """Counts the failed runs of a row, and its runs that are finished or failed.

        Runs that the machine ended (memory, time, disk, a kill) do not count, and neither do
        those that a stopping rule ended.

        Args:
            when: filters on columns; finished runs that match all of them have failed, too.

        Raises:
            NotFoundError: no run has the name, finished or not.
        """
        runs = self._runs(claim, name, claim.rows[0] if claim.rows else "estimator")
        if not runs:
            raise NotFoundError(f"claim {claim.id}: no run is called '{name}'")
        records = self._store.runs.select(ids=[run.id for run in runs])
        failed = [r for r in records if r.status is Status.FAILED and r.failure not in _MACHINE]
        done = [run for run in records if run.status is Status.DONE]
        hits = self._matching(done, when) if when and done else 0
        return len(failed) + hits, len(failed) + len(done)

    def _matching(self, done: Sequence[RunRecord], when: Sequence[Filter]) -> int:
        columns = [parse_column(filter.key) for filter in when]
        found = [column for column in columns if column is not None]
        if len(found) < len(columns):
            raise NotFoundError(f"no column is called '{when[columns.index(None)].key}'")
        along = needs_curves(filter.key for filter in when)
        evaluated = select_evaluations(self._store, done, along=along)
        values = measure(self._store, done, evaluated, found)
        for column in found:
            if not values[column.name]:
                raise NotFoundError(f"no run has a number '{column.name}'")
        return sum(
            all(f.holds(values[f.key].get(run.id, float("nan"))) for f in when) for run in done
        )

    def _runs(self, claim: Claim, name: str, key: str) -> list[RunRecord | RunOutline]:
        """Returns a claim's runs that a row's name fits, whatever their status."""
        filters = parse_where(name, f"claim {claim.id}") if "=" in name else []
        runs = read_runs(self._store, claim.sweep, None, ())
        own = [f for f in claim.where if f.key != "status" and is_key(runs, f.key)]
        return [
            run
            for run in runs
            if all(f.holds(value_of(run, f.key)) for f in (*filters, *own))
            and (filters or show_key(value_of(run, key)) == name)
        ]


def columns_of(claim: Claim) -> list[str]:
    """Returns the columns that a claim needs, and those that its line shows beside them.

    These are the share of runs that reach its cutoffs, the collapse rate before the estimator's
    own treatment, and pass@k after training for the test against chance.
    """
    names = list(claim.kind.columns)
    parsed = [parse_column(name) for name in names]
    extra = [f"{REACHED}@{c.at.text}" for c in parsed if c is not None and c.at is not None]
    extra += filter(None, map(chance_column, names))
    return list(dict.fromkeys([*names, *untreated(names).values(), *extra]))


def untreated(names: Sequence[str]) -> dict[str, str]:
    """Returns the column before the estimator's treatment for each column after it."""
    parsed = [parse_column(name) for name in names]
    return {
        column.name: column.name.replace(TREATED, ACR)
        for column in parsed
        if column is not None and column.metric == TREATED
    }


def _runs_of(claim: Claim) -> object:
    where = tuple(filter.text for filter in claim.where)
    return claim.sweep, where, claim.at, claim.rows
