"""The page of a sweep whose runs train: curves of all, and a report of the finished ones."""

from __future__ import annotations

from collections.abc import Sequence

from advsweep.errors import ReportError, counted
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.html.page import PageContents, render_contents
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report
from advsweep.store import RunRecord, Status, Store


def render_live_page(store: Store, sweep: str | None) -> str:
    """Return the page of a sweep, or of all runs of a store, as `advsweep serve` shows it.

    Its script asks `state` beside the page for the state of the runs, and the page itself for
    the rest; it posts to `stop` and `retry`.

    Raises:
        NotFoundError: there is no such sweep.
    """
    selected = store.runs.select(sweep=sweep, newest_first=False)
    title = sweep or store.name
    report, missing = _report_of(store, sweep)
    contents = PageContents(
        title=title,
        sweep=sweep,
        report=report,
        listed=selected,
        trained=_figure_data(store, selected, title, finished_only=False),
        finished=_figure_data(store, selected, title, finished_only=True),
        missing=missing or _describe_unfinished(selected),
        live=True,
    )
    return render_contents(contents, store)


def _describe_unfinished(runs: Sequence[RunRecord]) -> str:
    """Warn of a report on the way; empty once all runs are done."""
    unfinished = sum(run.status is not Status.DONE for run in runs)
    if not unfinished:
        return ""
    return (
        f"{unfinished} of {counted(len(runs), 'run')} are not done. Intervals and p values are "
        "those of a fixed number of seeds: looking at them on the way and stopping when one is "
        "small finds differences that are not there; `race` in a sweep file allows for it."
    )


def _report_of(store: Store, sweep: str | None) -> tuple[Report | None, str]:
    """Return the report; or None, and why there is none yet."""
    try:
        return build_report(store, ReportRequest(sweep)), ""
    except ReportError as error:
        return None, str(error)


def _figure_data(
    store: Store, runs: Sequence[RunRecord], name: str, *, finished_only: bool
) -> FigureData | None:
    """Return the runs in the form that figures need; None if none has trained, or is done."""
    try:
        return FigureData(store, NamedRuns(runs, name), finished_only=finished_only)
    except ReportError:
        return None
