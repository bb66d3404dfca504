"""The Python API: a store's data as pandas frames, and reports for notebooks.

    import advsweep

    runs = advsweep.load_runs("advsweep.db", sweep="demo", where="estimator=fade")
    report = advsweep.report("advsweep.db", sweep="demo")

`advsweep` imports this module when one of its functions is first used. No function writes to a
store, and none creates one. All errors are `advsweep.errors.AdvsweepError`.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from advsweep.errors import counted
from advsweep.report.data.columns import parse_outcomes
from advsweep.report.data.cutoffs import parse_cutoff
from advsweep.report.data.early_ends import KEEP, parse_ended_early
from advsweep.report.data.filters import Filter, parse_conditions, split_list
from advsweep.report.data.frames import (
    evaluation_frame,
    hashable,
    metric_frame,
    problem_frame,
    run_frame,
)
from advsweep.report.data.labels import name_group
from advsweep.report.data.runs import read_runs
from advsweep.report.data.selection import select_runs
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out, plain_difference, render, report_records
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report
from advsweep.store import RunRecord, Store, open_store
from advsweep.writing import write_table

if TYPE_CHECKING:
    from advsweep.report.figures.chart import Chart

# A path, a URL, an open store, or None for `$ADVSWEEP_STORE`, else `advsweep.db` here.
StoreLike = str | os.PathLike[str] | Store | None


def load_runs(
    store: StoreLike = None,
    *,
    sweep: str | None = None,
    where: str | Sequence[str] = (),
    columns: str | Sequence[str] | None = None,
    mixed_protocols: bool = False,
) -> pd.DataFrame:
    """Loads a row per run: its state, its config by dotted keys, and its numbers.

    Runs in every state are loaded; `where="status=done"` selects the finished ones. Of several
    attempts of a run the newest one that is done is loaded, or else the newest.

    Args:
        sweep: a sweep's name; None for every run of the store.
        where: filters, as of `advsweep report --where`, such as `"estimator=fade seed<3"`.
        columns: numbers, as of `advsweep report --columns`; by default a report's own columns
            and the summaries of each run, such as `time/run`.
        mixed_protocols: accept evaluations that were not made alike.

    Raises:
        AdvsweepError: the store, the sweep, a key or a column does not exist, or the runs were
            not evaluated alike.
    """
    with _opened(store) as opened:
        runs = _select(opened, sweep, where)
        return run_frame(opened, runs, _list(columns), mixed=mixed_protocols)


def load_metrics(
    store: StoreLike = None,
    *,
    sweep: str | None = None,
    where: str | Sequence[str] = (),
    names: str | Sequence[str] | None = None,
    wide: bool = False,
) -> pd.DataFrame:
    """Loads metric points: `run`, the config keys that differ, `seed`, `metric`, `step`, `value`.

    Args:
        sweep, where: as of `load_runs`.
        names: of metrics, such as `["reward/mean", "collapse/acr"]`; by default all.
        wide: return a row per run and step, with a column per metric.

    Raises:
        AdvsweepError: the store, the sweep, a key or a metric does not exist.
    """
    with _opened(store) as opened:
        return metric_frame(opened, _select(opened, sweep, where), _list(names), wide=wide)


def load_evaluations(
    store: StoreLike = None, *, sweep: str | None = None, where: str | Sequence[str] = ()
) -> pd.DataFrame:
    """Loads the evaluations of runs: a row per run and evaluation, with pass@k and entropies.

    Evaluations of the base model are at step 0.

    Args:
        sweep, where: as of `load_runs`.

    Raises:
        AdvsweepError: the store, the sweep or a key does not exist.
    """
    with _opened(store) as opened:
        return evaluation_frame(opened, _select(opened, sweep, where))


def load_problems(
    store: StoreLike = None, *, sweep: str | None = None, where: str | Sequence[str] = ()
) -> pd.DataFrame:
    """Loads the evaluations of runs: `n` samples and `c` correct ones per step, task and problem.

    Evaluations of the base model are at step 0.

    Args:
        sweep, where: as of `load_runs`.

    Raises:
        AdvsweepError: the store, the sweep or a key does not exist.
    """
    with _opened(store) as opened:
        return problem_frame(opened, _select(opened, sweep, where))


class ReportTable:
    """A report that prints as text, shows as a table in a notebook, and converts to a frame.

    Attributes:
        report: the report itself: its rows, columns, differences and provenance.
    """

    def __init__(self, report: Report) -> None:
        self.report = report

    def to_frame(self) -> pd.DataFrame:
        """A row per row of the report, with the columns of `advsweep report --format csv`.

        They are the config keys that name rows, `n`, for each column NAME, NAME_low, NAME_high
        and NAME_n, and for each compared column its difference to the baseline, p-values, ...
        """
        # A missing key is empty in the CSV alone.
        records = report_records(self.report)
        return pd.DataFrame([{key: hashable(v) for key, v in own.items()} for own in records])

    def differences(self) -> pd.DataFrame:
        """A row per difference to the baseline, those of the primary outcomes first.

        Columns are the keys that name rows, `baseline`, `outcome`, `primary`, and those of the
        CSV: `difference` with `difference_low` and `difference_high`, `pairs`, `df`, `p`,
        `p_adjusted`, `equal_within`, ...; p is NaN for differences that are descriptive.
        `attrs["family"]` says what p is adjusted over.
        """
        report = self.report
        frame = pd.DataFrame(
            {
                **{key: hashable(report.rows[d.row].group.get(key)) for key in report.keys},
                "baseline": name_group(report.rows[d.baseline].group),
                "outcome": d.column.name,
                "primary": d.is_primary,
                **plain_difference(d),
            }
            for d in report.differences
        )
        frame.attrs["family"] = report.family
        return frame

    def render(self, format: str = "table") -> str:
        """The report as `table`, `markdown`, `latex`, `csv` or `json`.

        Raises:
            ConfigError: the format does not exist.
        """
        return render(self.report, format)

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        rows = counted(len(self.report.rows), "row")
        return f"<report of {counted(self.report.provenance['runs'], 'run')}, {rows}>"

    def _repr_html_(self) -> str:
        text = write_table(lay_out(self.report), styled=False, wrapped=True)
        return f"<pre>{html.escape(text)}</pre>"


def report(
    store: StoreLike = None,
    *,
    sweep: str | None = None,
    where: str | Sequence[str] = (),
    rows: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    sort: str | None = None,
    baseline: str | None = None,
    difference: float | None = None,
    margin: str | float | Sequence[str] = (),
    at: str | None = None,
    outcomes: str | Sequence[str] | None = None,
    ended_early: str | float = KEEP,
) -> ReportTable:
    """Compares the finished runs of a sweep, as `advsweep report` does with the same options.

    Args:
        sweep: a sweep's name; None for every run of the store.
        where: filters, such as `"estimator=fade seed<3"`.
        rows: config keys that name the rows; by default the estimator and all that varies.
        columns: numbers and config keys, such as `["pass@8", "collapse/acr@end"]`.
        sort: a column, the best first, or a key.
        baseline: the row that others are compared with; `none` for no comparison.
        difference: the difference that seeds needed are counted for.
        margin: margins of equivalence that are tested: `0.02` for every pass@k, or texts such as
            `"entropy/right=0.05"`.
        at: where in the training runs are compared, such as `rollouts` or `pass@1=0.5`.
        outcomes: the columns that are tested; by default those that the sweep declares, or else
            pass@1, coverage and diversity, or the reward.
        ended_early: what becomes of runs whose outcomes are of an earlier step than the others':
            `keep`, `failed`, or a number that they count with.

    Raises:
        AdvsweepError: the store, the sweep, a key, a column or a row does not exist, an option
            cannot be read, or the data cannot stand in one table.
    """
    with _opened(store) as opened:
        return ReportTable(
            build_report(
                opened,
                ReportRequest(
                    sweep,
                    where=_filters(where),
                    rows=_list(rows),
                    columns=_list(columns),
                    sort=sort,
                    baseline=baseline,
                    target=difference,
                    margins=[str(margin)] if isinstance(margin, (str, float)) else margin,
                    at=None if at is None else parse_cutoff(at, "at"),
                    outcomes=parse_outcomes(_list(outcomes), "outcomes"),
                    declared_by="outcomes",
                    ended_early=parse_ended_early(str(ended_early), "ended_early"),
                ),
            )
        )


class Drawing:
    """A figure of runs, which a notebook shows.

    Attributes:
        chart: its series and titles.
    """

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def to_frame(self) -> pd.DataFrame:
        """The numbers that are drawn, as of `advsweep plot --format csv`."""
        return pd.DataFrame(self.chart.records)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it into a .png, .svg or .pdf file.

        Raises:
            ReportError: the path has another ending, or cannot be written.
        """
        from advsweep.report.figures.draw import write

        write([self.chart], Path(path))

    def __repr__(self) -> str:
        return f"<figure {self.chart.name}: {self.chart.title}>"

    def _repr_png_(self) -> bytes:
        from advsweep.report.figures.draw import png_bytes

        return png_bytes([self.chart])


def plot(
    store: StoreLike = None,
    *,
    figure: str,
    sweep: str | None = None,
    where: str | Sequence[str] = (),
    task: str | None = None,
    **options: Any,
) -> Drawing:
    """Draw a figure of the finished runs of a sweep, as `advsweep plot` does.

    Args:
        figure: such as `passk` or `curves`; `advsweep list figures` lists all.
        sweep, where: as of `report`.
        task: use evaluations on this task; None: the task of the runs.
        options: those of `advsweep plot` that the figure has, such as `metrics=["reward/mean"]`.

    Raises:
        AdvsweepError: a name does not exist, an option has no effect on the figure, or the runs
            lack the data.
    """
    from advsweep.report.figures.data import FigureData, NamedRuns
    from advsweep.report.figures.registry import check_options, collect

    given = options if task is None else {**options, "task": task}
    check_options([figure], given)
    with _opened(store) as opened:
        runs = read_runs(opened, sweep)
        selected = NamedRuns(runs, sweep or Path(opened.name).stem, sweep)
        data = FigureData(opened, selected, _filters(where), task)
        return Drawing(collect(figure, data, **given))


@contextmanager
def _opened(store: StoreLike) -> Iterator[Store]:
    if isinstance(store, Store):
        yield store
    else:
        with open_store(None if store is None else os.fspath(store), create=False) as opened:
            yield opened


def _select(store: Store, sweep: str | None, where: str | Sequence[str]) -> list[RunRecord]:
    filters = _filters(where)
    return select_runs(store, read_runs(store, sweep), filters, finished_only=False).runs


def _filters(where: str | Sequence[str]) -> list[Filter]:
    texts = [where] if isinstance(where, str) else where
    return parse_conditions(texts, "where")


def _list(names: str | Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    return split_list(names) if isinstance(names, str) else list(names)
