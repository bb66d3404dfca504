"""Judge the committed runs of a study again, without its store and without training.

    python experiments/judge_runs.py staleness        # tables and claims of one study

The rule of a comparison may change after a study, whose store is not kept. This reads `runs.csv`
(the values of every run), compares the rows of the study's tables with the spread of all arms of
their sweep, and replaces what follows from it: the differences of the columns that `runs.csv` has
in the CSVs and the Markdown tables, and the verdicts in `claims.csv`. All other numbers stay as the
store gave them.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from study import FOLDER, VERDICT

from advsweep.report.claims.lists import (
    Claim,
    ClaimResults,
    judge_claim_list,
    read_claim_list,
)
from advsweep.report.claims.reports import ClaimReports
from advsweep.report.data.columns import parse_column
from advsweep.report.data.filters import Filter, describe_filters, parse_where
from advsweep.report.data.keys import MISSING
from advsweep.report.tables.baselines import default_baseline, parse_baseline
from advsweep.report.tables.cells import make_cell
from advsweep.report.tables.comparison import Comparing, compare_rows
from advsweep.report.tables.notes import POOLED_SPREAD
from advsweep.report.tables.render import lay_out_differences, report_records
from advsweep.report.tables.types import Arm, Cell, Report, Row, Subject
from advsweep.writing import Document, write

# The difference to the chance baseline of each seed's problems, which cancels between two rows.
_ABOVE = re.compile(r"\[above=\w+\]$")
_PARTS = ("_difference", "_difference_low", "_difference_high", "_pairs", "_df", "_effect")
_PARTS += ("_p", "_p_adjusted", "_equal_within", "_seeds_needed")
# Ranks of values: those of the chance baselines, and the digits that are not here, change them.
_UNPAIRED = ("_p_better", "_p_permutation")
_UNPAIRED_HEADINGS = ("P(better)", "p perm")
_ROUNDING = 2e-5  # of the committed values, which have six digits
_FLOORS = ("guess", "walker", "chance")
RUNS = "runs.csv"
Record = dict[str, str]


def study_of(folder: Path) -> dict[str, Any]:
    """Return what `study.yaml` says of a study."""
    found: dict[str, Any] = yaml.safe_load((folder / "study.yaml").read_text("utf-8"))
    return found


class StudyRuns:
    """The committed runs of a study, as arms of its sweeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = pd.read_csv(folder / RUNS, dtype={"row": str, "estimator": str})
        self.columns = [*self._runs.columns[self._runs.columns.get_loc("n") + 1 :]]
        self.sweeps = set(self._runs["sweep"]) | {t["sweep"] for t in study_of(folder)["tables"]}
        self.study = study_of(folder)

    def has(self, column: str) -> bool:
        return _ABOVE.sub("", column) in self.columns

    @functools.cache  # noqa: B019, one object per study
    def arms(self, sweep: str) -> dict[str, Arm]:
        """Return the arms of a sweep by name, with their values after the last step."""
        found = {}
        own = self._runs[self._runs["sweep"] == sweep]
        for name, runs in own.groupby("row", sort=False):
            ends = runs[runs["step"] == runs.groupby("seed")["step"].transform("max")]
            row = self._row(name, _keys_of(name, runs["estimator"].iloc[0]), ends)
            sweeps = {seed: frozenset([sweep]) for seed in row.seeds}
            own_keys = {key: v for key, v in row.group.items() if key.startswith(("task", "model"))}
            design = json.dumps(own_keys, sort_keys=True)
            found[name] = Arm(name=name, row=row, design=design, bases={}, sweeps=sweeps)
        return found

    def tuned(self, sweep: str) -> str:
        """Return the key that each arm of a sweep has tuned for itself; empty for none."""
        return "optimizer.lr" if f"{sweep}-tuning" in self.sweeps else ""

    def base(self, sweep: str, group: Mapping[str, Any], where: Sequence[Filter]) -> Row:
        """Return the base models of a sweep's filtered runs, one for each seed."""
        own = self._runs[(self._runs["sweep"] == sweep) & (self._runs["step"] == 0)]
        fits = [
            _fits(_keys_of(name, estimator), where)
            for name, estimator in zip(own["row"], own["estimator"], strict=True)
        ]
        own = own[fits]
        return self._row("", group, own.drop_duplicates("seed"), Subject.BASE)

    def _row(
        self,
        name: str,
        group: Mapping[str, Any],
        values: pd.DataFrame,
        subject: Subject = Subject.RUN,
    ) -> Row:
        ordered = values.sort_values("seed")
        cells = {column: make_cell(ordered[column]) for column in self.columns}
        cells |= {f"{column}[above=guess]": cells[column] for column in self.columns}
        seeds = tuple(int(seed) for seed in ordered["seed"])
        return Row(
            group=dict(group),
            n=len(seeds),
            seeds=seeds,
            cells=cells,
            runs=len(seeds),
            subject=subject,
            arm=name,
        )


def _keys_of(name: str, estimator: str) -> dict[str, Any]:
    """Return the keys and values in the name of a row, such as `fade estimator.h_star=0.5`."""
    parts = re.split(r" (?=[\w.]+=)", name.removeprefix(estimator).strip())
    pairs = [part.partition("=") for part in parts if part]
    return {"estimator": estimator, **{key: _value(text) for key, _, text in pairs}}


def _value(text: str) -> Any:
    value = yaml.safe_load(text)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        return float(text)  # YAML takes 1e-4 for a text
    except ValueError:
        return value


def _row_of(
    record: Record,
    keys: Sequence[str],
    arms: Mapping[str, Arm],
    table: Mapping[str, Any],
    runs: StudyRuns,
) -> Row:
    """Return the row of a table's line, with the values of its runs."""
    group = {key: _value(record[key]) for key in keys if record[key]}
    name = str(group[keys[0]])
    where = parse_where(table["where"]) if "where" in table else []
    if name == "base":
        return runs.base(table["sweep"], group, where)
    if name in _FLOORS:
        cells: dict[str, Cell] = defaultdict(lambda: make_cell([]))
        return Row(group, n=int(record["n"]), seeds=(), cells=cells, subject=Subject.FLOOR)
    found = [
        arm
        for arm in arms.values()
        if all(arm.row.group.get(key) == group.get(key) for key in keys if key in _all_keys(arms))
        and _fits(arm.row.group, where)
    ]
    if len(found) != 1:
        raise SystemExit(f"{name}: expected one arm of {group}, got {len(found)}")
    return replace(found[0].row, group=group)


def _fits(group: Mapping[str, Any], where: Sequence[Filter]) -> bool:
    return all(own.holds(group.get(own.key, MISSING)) for own in where)


def _all_keys(arms: Mapping[str, Arm]) -> set[str]:
    return {key for arm in arms.values() for key in arm.row.group}


def make_report(runs: StudyRuns, table: Mapping[str, Any]) -> tuple[Report, list[Record]]:
    """Return the report of a table's rows in the columns that the runs have, and its CSV."""
    path = runs.folder / f"{table['file']}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    names = list(records[0])
    keys = names[: names.index("n")]
    arms = runs.arms(table["sweep"])
    rows = [_row_of(record, keys, arms, table, runs) for record in records]
    columns = [name.removesuffix("_n") for name in names if name.endswith("_n")]
    compared = [name.removesuffix("_difference") for name in names if name.endswith("_difference")]
    known = [name for name in columns if runs.has(name)]
    outcomes = [name for name in compared if f"{name}_p_adjusted" in names]
    parsed = {name: parse_column(name) for name in (*known, *compared) if runs.has(name)}
    baseline = default_baseline(rows)
    if "baseline" in table:
        baseline = parse_baseline(table["baseline"], rows, keys[0])
    if baseline is None:
        raise SystemExit(
            f"{table['file']}: no baseline; a table without differences has no verdict"
        )
    primary = [parsed[name] for name in outcomes]
    others = [parsed[name] for name in compared if name in parsed and name not in outcomes]
    baseline = replace(baseline, tuned=runs.tuned(table["sweep"]))
    report = Report(
        columns=tuple(parsed[name] for name in known),
        rows=tuple(rows),
        left_out={},
        pruned={},
        unscorable=0.0,
        provenance={"sweep": table["sweep"], "store": "", "runs": 0},
        baseline=baseline.text,
        outcomes=tuple(primary),
        differences=compare_rows(rows, list(arms.values()), Comparing(baseline, primary, others)),
        tuned=baseline.tuned,
        arms=tuple(arms.values()),
    )
    return report, records


def has_other_intervals(report: Report, records: Sequence[Record]) -> bool:
    """Tell whether a table's intervals are others than those of its CSV."""
    for record, own in zip(records, report_records(report), strict=True):
        for name, value in own.items():
            is_end = name.endswith(("_difference_low", "_difference_high"))
            if is_end and value is not None and abs(value - float(record[name])) > _ROUNDING:
                return True
    return False


def rewrite_csv(path: Path, report: Report, records: Sequence[Record]) -> None:
    """Replace the differences in a table's CSV."""
    names = list(records[0])
    for record, own in zip(records, report_records(report), strict=True):
        for name, value in own.items():
            if name in names and name.endswith(_PARTS) and not name.endswith(_UNPAIRED):
                record[name] = "" if value is None or value != value else str(value)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def rewrite_markdown(path: Path, report: Report) -> None:
    """Replace the lines of the differences in a table's Markdown."""
    made = _difference_lines(
        write(Document(tuple(lay_out_differences(report))), "markdown").splitlines(), report
    )
    lines = path.read_text("utf-8").splitlines()
    old = _difference_lines(lines, report)
    for key, (place, heading, line) in old.items():
        if key not in made:
            continue  # a column that the runs do not have
        _, made_heading, made_line = made[key]
        if heading != made_heading:
            raise SystemExit(f"{path.name}: {heading}\n{made_heading}")
        cells, made_cells = line.split("|"), made_line.split("|")
        for i, name in enumerate(heading.split("|")):
            if name.strip() in _UNPAIRED_HEADINGS:
                made_cells[i] = cells[i]
        lines[place] = "|".join(made_cells)
    note = "- df: degrees of freedom of the spread, "
    lines = [f"{note}{POOLED_SPREAD}" if line.startswith(note) else line for line in lines]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _difference_lines(
    lines: Sequence[str], report: Report
) -> dict[tuple[str, ...], tuple[int, str, str]]:
    """Return the place, the heading and the text of each line of a difference by its names."""
    found = {}
    heading = ""
    for place, line in enumerate(lines):
        if line.startswith("| column |"):
            heading = line
        elif not line.startswith("|"):
            heading = ""
        elif heading and not line.startswith("| :--"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            names = heading.strip("|").split("|")
            count = [name.strip() for name in names].index("difference")
            found[tuple(cells[:count])] = (place, heading, line)
    return found


class CommittedReports(ClaimReports):
    """Reports of committed runs, for the claims about them."""

    def __init__(self, runs: StudyRuns) -> None:
        self._tables = {}
        for table in runs.study["tables"]:
            if not table["sweep"].endswith("-tuning"):
                where = parse_where(table["where"]) if "where" in table else []
                self._tables[table["sweep"], describe_filters(where)], _ = make_report(runs, table)
        self._has = runs.has

    def can_judge(self, claim: Claim) -> bool:
        """Tell whether the runs have what a claim is about."""
        is_shown = (claim.sweep, describe_filters(claim.where)) in self._tables
        return is_shown and all(map(self._has, claim.kind.columns))

    def of(self, claim: Claim) -> Report:
        report = self._tables[claim.sweep, describe_filters(claim.where)]
        columns = [parse_column(name) for name in claim.kind.columns]
        return replace(report, columns=tuple(own for own in columns if own is not None))

    def describe_chance(self, claim: Claim, baselines: Mapping[str, Sequence[str]]) -> str:
        # The chance baselines are not among the runs; the gates of the studies hold them.
        return ""

    @property
    def provenance(self) -> list[str]:
        return []


def judge_claims_of(runs: StudyRuns) -> ClaimResults:
    """Return the findings on those of a study's claims that its runs can judge."""
    claims = read_claim_list(runs.folder / "claims.yaml")
    reports = CommittedReports(runs)
    judged = [claim for claim in claims.claims if reports.can_judge(claim)]
    for claim in claims.claims:
        if claim not in judged:
            print(f"{claim.id}: not judged again, as {RUNS} has not what it is about")
    return judge_claim_list(replace(claims, claims=tuple(judged)), reports)


def rewrite_claims(runs: StudyRuns) -> None:
    """Judge the claims again, and print each whose verdict is another one.

    Claims whose intervals all are the committed ones stay as they are: the correction over a list
    needs those that cannot be judged here, too.
    """
    results = judge_claims_of(runs)
    recorded = pd.read_csv(runs.folder / "claims.csv").set_index("claim", drop=False)
    committed = recorded.loc[[own.claim.id for own in results.results if own.claim is not None]]
    made = [(own.low, own.high) for own in results.results]
    if np.allclose(committed[["low", "high"]], made, rtol=0, atol=_ROUNDING, equal_nan=True):
        print(f"{len(made)} claims have the committed intervals")
        return
    if len(made) < len(recorded):
        raise SystemExit("expected to judge every claim of the list, as p adj is over all of them")
    for finding in results.results:
        assert finding.claim is not None
        line = recorded.loc[finding.claim.id]
        if line["verdict"] != finding.verdict.value:
            print(f"{finding.claim.id}: {line['verdict']} -> {finding.verdict.value}")
        own = {
            "verdict": finding.verdict.value,
            "n": finding.n,
            "difference": finding.difference,
            "low": finding.low,
            "high": finding.high,
            "p_value": finding.p_value,
            "p_adjusted": finding.p_adjusted,
            "reason": finding.reason,
        }
        for name, value in own.items():
            recorded.loc[finding.claim.id, name] = value
    recorded[VERDICT].to_csv(runs.folder / "claims.csv", index=False, float_format="%.6g")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=sorted(p.parent.name for p in FOLDER.glob("*/study.yaml")))
    parser.add_argument("--claims", action="store_true", help="judge the claims as well")
    options = parser.parse_args()
    runs = StudyRuns(FOLDER / options.name)
    for table in runs.study["tables"]:
        if "_difference" in (runs.folder / f"{table['file']}.csv").open().readline():
            report, records = make_report(runs, table)
            if has_other_intervals(report, records):
                rewrite_csv(runs.folder / f"{table['file']}.csv", report, records)
                rewrite_markdown(runs.folder / f"{table['file']}.md", report)
    if options.claims:
        rewrite_claims(runs)


if __name__ == "__main__":
    main()
