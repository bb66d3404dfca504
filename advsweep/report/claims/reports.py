"""Reports of the runs that claims are about, and what they say on rows at chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.claims.assertions import find_row
from advsweep.report.data.columns import Column, parse_column
from advsweep.report.data.filters import parse_where
from advsweep.report.data.keys import is_key, value_of
from advsweep.report.data.labels import name_group, show_key
from advsweep.report.data.runs import read_runs
from advsweep.report.tables.build import build_report
from advsweep.report.tables.chance import chance_column, chance_of, describe_chance
from advsweep.report.tables.provenance import provenance
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report, Row, Subject, count_states
from advsweep.store import Status, Store

if TYPE_CHECKING:
    from advsweep.report.claims.lists import Claim


class ClaimReports:
    """Reports of the runs that claims are about, each with a claim's columns."""

    def __init__(self, store: Store, outcomes: Sequence[Column] = ()) -> None:
        self._store = store
        self._outcomes = outcomes
        self._built: dict[object, Report] = {}
        self._used: dict[int, Report] = {}

    @property
    def provenance(self) -> list[str]:
        """Sentences about the source of the numbers; each run counts once."""
        by_sweep: dict[str | None, list[Report]] = {}
        for report in self._used.values():
            by_sweep.setdefault(report.provenance["sweep"], []).append(report)
        lines: dict[str, None] = {}
        for report in self._used.values():
            reports = by_sweep[report.provenance["sweep"]]
            firsts = [r.provenance["first"] for r in reports if r.provenance["first"]]
            lasts = [r.provenance["last"] for r in reports if r.provenance["last"]]
            together = {
                **report.provenance,
                "runs": len(frozenset().union(*(r.run_ids for r in reports))),
                "first": min(firsts, default=None),
                "last": max(lasts, default=None),
            }
            lines |= dict.fromkeys(provenance(replace(report, provenance=together)))
        return list(lines)

    def of(self, claim: Claim) -> Report:
        """Return a report with a claim's columns and rows.

        Raises:
            NotFoundError: the claim names what does not exist.
            ReportError: its runs are not finished, or lack what it needs.
        """
        columns = list(claim.kind.columns)
        for name in claim.kind.columns:
            # For the test against chance.
            chance = _chance_name(name)
            if chance is not None:
                columns.append(chance)
        report = self.build(claim, columns)
        for name in claim.kind.rows:
            try:
                find_row(report, name, f"claim {claim.id}")
            except NotFoundError:
                # Rows of runs that are not finished exist: the claim cannot be told yet.
                statuses = self._statuses(claim, name, report.keys[0])
                if not statuses:
                    raise
                states = count_states(Counter(statuses))
                raise ReportError(f"no run of [{name}] is finished ({states})") from None
        self._used[id(report)] = report
        return report

    def _statuses(self, claim: Claim, name: str, title: str) -> list[Status]:
        """Return the statuses of the runs of a row, in whatever state they are.

        Args:
            name: the row, as `find_row` has it.
            title: the first key of the report.
        """
        runs = read_runs(self._store, claim.sweep)
        filters = [f for f in claim.where if f.key != "status" and is_key(runs, f.key)]
        if "=" in name:
            filters += parse_where(name, f"claim {claim.id}")
        else:
            runs = [run for run in runs if show_key(value_of(run, title)) == name]
        return [run.status for run in runs if all(f.holds(value_of(run, f.key)) for f in filters)]

    def build(self, claim: Claim, columns: Sequence[str]) -> Report:
        """Return a report of a claim's runs with some columns."""
        conditions = tuple(condition.text for condition in claim.where)  # values may be lists
        names = tuple(dict.fromkeys(columns))
        key = (claim.sweep, conditions, claim.at, claim.rows, names)
        if key not in self._built:
            self._built[key] = build_report(
                self._store,
                ReportRequest(
                    claim.sweep,
                    columns=names,
                    rows=claim.rows,
                    where=claim.where,
                    at=claim.at,
                    outcomes=self._outcomes,
                    described=False,
                ),
            )
        return self._built[key]

    def describe_chance(self, claim: Claim, baselines: Mapping[str, Sequence[str]]) -> str:
        """Say which rows of a claim are at chance; empty if none is.

        The base and the baselines of a column (the rows that others are compared with) are compared
        with guessing at the same k. A claim about points has the mean of all bases. Problems that
        are chosen by solve rates, and tasks that cannot compute the chance of a guess, are not
        tested.
        """
        texts = []
        for column, names in baselines.items():
            plain = _chance_name(column)
            if plain is None:
                continue
            # Bases have no numbers within a training.
            report = self.of(replace(claim, at=None))
            chance = chance_of(report.rows, plain)
            if math.isnan(chance):
                continue
            means = _means_of_bases(report, claim, plain)
            for name in names:
                row = find_row(report, name, f"claim {claim.id}")
                means[name_group(row.group)] = row.cells[plain].mean
            texts.append(describe_chance(plain, chance, means))
        return "; ".join(text for text in texts if text)


def _means_of_bases(report: Report, claim: Claim, column: str) -> dict[str, float]:
    """Return the means of the bases that a claim's rows start from, as far as their names tell.

    A claim without named rows has the mean of all bases.
    """
    bases = [row for row in report.rows if row.subject is Subject.BASE]
    if bases and not claim.kind.rows:
        means = [row.cells[column].mean for row in bases]
        return {"bases": math.fsum(means) / len(means)}
    named = [find_row(report, name, f"claim {claim.id}") for name in claim.kind.rows]
    return {
        name_group(base.group): base.cells[column].mean
        for base in bases
        if any(_starts_from(row, base) for row in named)
    }


def _starts_from(row: Row, base: Row) -> bool:
    """Return whether a row can start from a base: no key of their names tells them apart."""
    settings = list(base.group.items())[1:]
    return all(row.group.get(key, value) == value for key, value in settings)


def _chance_name(name: str) -> str | None:
    """Return the name of the column of pass@k that is tested against chance; None without one."""
    column = parse_column(name)
    plain = None if column is None else chance_column(column)
    return None if plain is None else plain.name
