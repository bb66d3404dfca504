"""What stands below a table: what its numbers are, what is missing, where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advsweep.report.columns import END_STEPS, Column
from advsweep.report.groups import Group
from advsweep.report.marks import SEEDS_FOR_A_MARK, marks
from advsweep.report.numbers import show_key
from advsweep.report.provenance import NOT_MATCHED
from advsweep.report.report import Report, count_states

_COMMIT = 10  # characters of a commit
_SHOWN = ("advsweep", "python", "torch")  # JSON has all versions


def notes(report: Report, best: str, second: str) -> list[str]:
    """Sentences about the numbers; `best` and `second` are how marks look in the format."""
    lines = ["mean ± half the 95 % Student t interval over seeds; n: runs"]
    lines += _explained(report.columns)
    if marks(report):
        lines.append(
            f"{best}: best mean of its column, {second}: second, of rows with at least "
            f"{SEEDS_FOR_A_MARK} seeds; no test of significance"
        )
    else:
        lines.append(f"nothing is marked: that takes two rows with {SEEDS_FOR_A_MARK} seeds each")
    lines.append(f"learning rates: {'; '.join(map(_matched, report.provenance.learning_rates))}")
    if report.left_out:
        lines.append(f"left out, as they are not done: {count_states(report.left_out)}")
    if report.unscorable:
        lines.append(
            f"{report.unscorable:.2%} of the samples could not be scored: neither right nor wrong; "
            "problems with fewer than k others are left out of pass@k"
        )
    lines += _pruned(report)
    runs = sum(row.n for row in report.rows if not row.is_base)
    for column in report.columns:
        cells = [row.cells[column.name] for row in report.rows if not row.is_base]
        if missing := runs - sum(cell.n for cell in cells):
            lines.append(f"{column.header}: {missing} of {runs} runs have no number")
    return lines


def _pruned(report: Report) -> list[str]:
    """What early stopping has taken from the table, and which rows it may flatter."""
    if not report.pruned:
        return []
    rules = ", ".join(f"{n} by stopping={rule}" for rule, n in sorted(report.pruned.items()))
    lines = [f"pruned: {rules}; `advsweep ls --status pruned` lists them"]
    lines += [
        f"{_name(row.group)}: {row.pruned} of {row.n + row.pruned} runs were pruned, so that "
        "its means are those of the runs that did well early"
        for row in report.rows
        if row.pruned
    ]
    return lines


def _name(group: Group) -> str:
    """A row in words, such as `grpo, group_size=8`."""
    keys = {key: show_key(value) for key, value in group.items()}
    return ", ".join(v if key == "estimator" else f"{key}={v}" for key, v in keys.items())


def _explained(columns: tuple[Column, ...]) -> list[str]:
    end = [column.header for column in columns if column.last is not None]
    return [f"{', '.join(end)}: mean over the last {END_STEPS} steps"] if end else []


def _matched(rates: Mapping[str, Any]) -> str:
    """How learning rates were matched, and what came of it."""
    if rates["match"] == NOT_MATCHED:
        return "not matched"
    some = [
        f"{estimator} {'/'.join(f'{rate:.3g}' for rate in values)}"
        for estimator, values in rates["rates"].items()
        if values
    ]
    listed = f" ({', '.join(some)})" if some else ""
    return f"matched by {rates['match']} to {rates['reference']}{listed}"


def provenance(report: Report) -> list[str]:
    """Where the numbers come from, in a few lines."""
    p = report.provenance
    where = p.store if p.sweep is None else f"{p.store}, sweep {p.sweep}"
    lines = [f"{where}: {p.runs} runs" + _dates(report)]
    if p.evaluation is not None:
        own = {k: v for k, v in p.evaluation.items() if k not in ("task", "problems")}
        how = ", ".join(f"{k}={show_key(v)}" for k, v in own.items())
        lines.append(
            f"evaluated on {p.evaluation['problems']} problems of {p.evaluation['task']}: {how}"
        )
    made = [f"{name} {'/'.join(p.versions[name])}" for name in _SHOWN if name in p.versions]
    if p.commits:
        some = "/".join(commit[:_COMMIT] for commit in p.commits)
        made.insert(0, f"commit {some}" + (" with changes" if p.dirty else ""))
    lines += ["made with " + ", ".join(made)] if made else []
    lines += ["made on " + "; ".join(p.hardware)] if p.hardware else []
    return lines


def _dates(report: Report) -> str:
    first, last = report.provenance.first, report.provenance.last
    if first is None or last is None:
        return ""
    days = sorted({first.date().isoformat(), last.date().isoformat()})
    return ", made " + " to ".join(days)
