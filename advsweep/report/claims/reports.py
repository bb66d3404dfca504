"""The reports that claims are judged on, and whether their rows are at chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.claims.assertions import find_row
from advsweep.report.data.columns import Column
from advsweep.report.data.runs import (
    is_key,
    name_group,
    parse_where,
    read_runs,
    show_key,
    value_of,
)
from advsweep.report.tables.build import build_report
from advsweep.report.tables.notes import chance_column, describe_chance, guess, provenance
from advsweep.report.tables.types import Report, Subject, count_states
from advsweep.store import Store

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
        lines: dict[str, None] = {}
        used = list(self._used.values())
        for report in used:
            alike = [r for r in used if r.provenance["sweep"] == report.provenance["sweep"]]
            own = [r.provenance for r in alike]
            together = {
                **report.provenance,
                "runs": len(frozenset().union(*(r.run_ids for r in alike))),
                "first": min((p["first"] for p in own if p["first"]), default=None),
                "last": max((p["last"] for p in own if p["last"]), default=None),
            }
            lines |= dict.fromkeys(provenance(replace(report, provenance=together)))
        return list(lines)

    def of(self, claim: Claim) -> Report:
        """Return a report with a claim's columns and rows.

        Raises:
            NotFoundError: the claim names what does not exist.
            ReportError: its runs are not finished, or lack what it needs.
        """
        names = claim.kind.columns
        # With pass@k for the test against chance.
        report = self.build(claim, [*names, *filter(None, map(chance_column, names))])
        for name in claim.kind.rows:
            try:
                find_row(report, name, f"claim {claim.id}")
            except NotFoundError:
                # Rows of runs that are not finished exist: the claim cannot be told yet.
                filters = parse_where(name, f"claim {claim.id}") if "=" in name else []
                runs = read_runs(self._store, claim.sweep)
                filters += [f for f in claim.where if f.key != "status" and is_key(runs, f.key)]
                statuses = [
                    run.status
                    for run in runs
                    if all(f.holds(value_of(run, f.key)) for f in filters)
                    and ("=" in name or show_key(value_of(run, report.keys[0])) == name)
                ]
                if not statuses:
                    raise
                states = count_states(Counter(statuses))
                raise ReportError(f"no run of [{name}] is finished ({states})") from None
        self._used[id(report)] = report
        return report

    def build(self, claim: Claim, columns: Sequence[str]) -> Report:
        """Return a report of a claim's runs with some columns."""
        key = claim.sweep, claim.where, claim.at, claim.rows, tuple(dict.fromkeys(columns))
        if key not in self._built:
            self._built[key] = build_report(
                self._store,
                claim.sweep,
                columns=key[-1],
                rows=claim.rows,
                where=claim.where,
                at=claim.at,
                outcomes=self._outcomes,
                described=False,
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
            plain = chance_column(column)
            if plain is None:
                continue
            # Bases have no numbers within a training.
            report = self.of(replace(claim, at=None))
            guessed = guess(report.rows, plain)
            if math.isnan(guessed):
                continue
            origin = f"claim {claim.id}"
            named = [find_row(report, name, origin) for name in claim.kind.rows]
            bases = [row for row in report.rows if row.subject is Subject.BASE]
            # Those that the named rows start from, as far as their names tell.
            own = [
                base
                for base in bases
                for settings in [list(base.group.items())[1:]]
                if any(all(row.group.get(k, v) == v for k, v in settings) for row in named)
            ]
            rows = [*own, *(find_row(report, name, origin) for name in names)]
            values = {name_group(row.group): row.cells[plain].mean for row in rows}
            if bases and not named:
                means = [row.cells[plain].mean for row in bases]
                values = {"bases": math.fsum(means) / len(means)}
            texts.append(describe_chance(plain, guessed, values))
        return "; ".join(filter(None, texts))
