"""The report as one HTML page, with its style, script and data in it.

Its script draws the panels of figures, and thinned curves of all metrics.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from scipy.special import stdtrit

from advsweep.components import leaves
from advsweep.errors import NotFoundError, ReportError, counted, first_of
from advsweep.names import ACR, REWARD_MEAN, TOKEN_ENTROPY, TURN_COUNT
from advsweep.printable import printable, printable_values
from advsweep.report.claims.sentences import judge_difference, list_findings
from advsweep.report.data.columns import Column, label_column, range_of
from advsweep.report.data.filters import Filter
from advsweep.report.data.frames import describe_run
from advsweep.report.data.groups import group_runs
from advsweep.report.data.keys import MISSING, value_of
from advsweep.report.data.labels import name_group, show_key
from advsweep.report.data.runs import metric_names
from advsweep.report.figures.chart import Panel
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.registry import FIGURES
from advsweep.report.figures.style import RowStyle
from advsweep.report.figures.training import STANDARD
from advsweep.report.tables.notes import describe_family
from advsweep.report.tables.render import lay_out, show_difference
from advsweep.report.tables.types import Report, Subject
from advsweep.store import EvaluationRecord, RunRecord, Status, Store
from advsweep.store.races import read_race
from advsweep.store.seeds import show_seed
from advsweep.writing import Entry, Line, Mark, Table, show, show_value

# Largest number of points of a curve, and of what a run has spent along its training.
MOST_POINTS = 200
_SPENT_POINTS = 17

# About the largest number of characters that all curves take together.
BUDGET = 3_000_000

_LETTERS = 8  # of a value, about
_FIRST_SHOWN = 8  # rows
_SHOWN = 4  # values of a key in the header
_RUN_METRICS = (REWARD_MEAN, ACR, TOKEN_ENTROPY)
# Title of each figure of `advsweep plot` on the page.
_FIGURES = {
    "passk": "pass@k after training",
}
# Those of runs with episodes.
_FIGURES_OF_TURNS = {
    "turns": "turns of episodes",
}


def collect_figures(
    data: FigureData, columns: Sequence[Column], finished: FigureData | None
) -> dict[str, Any]:
    """Return what the page's figures are drawn from, and notes on them.

    Args:
        data: the runs with curves.
        columns: the columns of the report's table, which the page can draw over each other.
        finished: those of the runs that are done, which have numbers after their training.
    """
    curves = collect_curves(data)
    styled = [(row.label, row.style, [run.id for run in row.runs]) for row in data.rows]
    if finished is not None:
        styled += [(label, style, []) for label, style in _untrained_styles(finished)]
    rows = [
        {"label": label, "colour": style.colour, "variant": style.variant, "runs": runs}
        for label, style, runs in styled
    ]
    values = [] if finished is None else _collect_columns(finished, columns)
    notes = [
        "curves: means over seeds, with 95 % Student t bands where there are two seeds or more"
    ]
    if any(run.status is not Status.DONE for run in data.runs):
        notes.append(
            "runs that are not done end early: a mean is that of the runs that came to its step, "
            "and may jump where one ends"
        )
    if (per := max((metric["per"] for metric in curves["metrics"]), default=1)) > 1:
        notes.append(
            f"curves are thinned: a point is the mean over up to {per} neighbouring recorded "
            "steps, and bands are of that mean"
        )
    if len(data.rows) > _FIRST_SHOWN:
        notes.append(
            f"at first {_FIRST_SHOWN} rows are shown; the buttons above, or words of their "
            "labels, show others"
        )
    if len(values) > 1:
        notes.append("points of one column over another: one for each run, after its training")
    figures: list[dict[str, Any]] = []
    if finished is not None:
        figures, remarks = _collect_finished(finished, _labels_in(data, finished))
        notes += remarks
    return {
        "rows": rows,
        "first": _FIRST_SHOWN,
        "curves": curves,
        "spent": collect_spent(data),
        "columns": values,
        "figures": figures,
        "notes": notes,
    }


# The data of figures where no run has trained yet.
NO_FIGURES: Mapping[str, Any] = {
    "rows": [],
    "first": 0,
    "curves": {"metrics": [], "t": []},
    "spent": {},
    "columns": [],
    "figures": [],
    "notes": ["no run has trained a step yet"],
}


def _untrained_styles(data: FigureData) -> list[tuple[str, RowStyle]]:
    """Return the labels and styles of base models and floors; none without an evaluation."""
    try:
        untrained = [(row.label, row.style) for row in data.untrained]
        untrained += [(name, style) for name, (style, _) in data.floors.items()]
    except ReportError:
        return []
    # Their black would be invisible on a dark page.
    return [(label, style._replace(colour="var(--ink)")) for label, style in untrained]


def _collect_columns(data: FigureData, columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return the values of the table's columns by run, without columns that no run has."""
    values = []
    for column in columns:
        with suppress(NotFoundError, ReportError):
            own = {str(run): round_off(value) for run, value in data.values(column.name).items()}
            values.append({"name": column.header, "runs": own})
    return values


def _labels_in(data: FigureData, finished: FigureData) -> dict[str, str]:
    """Return the labels that rows of finished runs have among the rows of all, by their own.

    More runs may need more words to be told apart.
    """
    known = {run.config_hash: row.label for row in data.rows for run in row.runs}
    return {row.label: known.get(row.runs[0].config_hash, row.label) for row in finished.rows}


def _collect_finished(
    data: FigureData, labels: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures of finished runs, and notes on them.

    Args:
        labels: what rows are called on the page, by their labels in these figures.
    """
    figures = []
    notes = []
    titles = _FIGURES
    if TURN_COUNT in data.metric_names:
        titles = _FIGURES | _FIGURES_OF_TURNS
    for name, title in titles.items():
        try:
            made = FIGURES[name](data)
        except (NotFoundError, ReportError) as error:
            notes.append(f"no {title}: {error}")
            continue
        notes += [f"{title}: {note}" for note in made.notes]
        panels = [_collect_panel(panel, labels) for panel in made.panels]
        figures.append({"title": title, "panels": panels})
    return figures, notes


def _collect_panel(panel: Panel, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a panel as the page's script draws it."""
    return {
        "title": panel.title,
        "xLabel": panel.x_label,
        "log": panel.x_scale == "log",
        "xTicks": panel.x_ticks and list(panel.x_ticks.items()),
        "yLimits": panel.y_limits,
        "within": panel.within,
        "series": [
            {
                "label": labels.get(series.label, series.label),
                "mark": series.mark.name,
                "variant": series.style.variant,
                **{name: _rounded(getattr(series, name)) for name in ("x", "y", "low", "high")},
            }
            for series in panel.series
        ],
    }


def _rounded(values: Any) -> list[float | None] | None:
    return None if values is None else [round_off(v) for v in np.asarray(values).tolist()]


def collect_differences(report: Report) -> list[dict[str, Any]]:
    """Return the lines of a forest plot for each column, with what each difference says.

    Columns are in the report's order: the primary outcomes first, as the page shows the first few.
    """
    return [
        {
            "name": column.header,
            "better": column.direction.value,
            "primary": any(column is d.column for d in report.primary),
            "lines": [
                {
                    "label": name_group(report.rows[d.row].group),
                    "mean": round_off(d.comparison.difference),
                    "low": round_off(d.comparison.low),
                    "high": round_off(d.comparison.high),
                    "text": " ".join(show_difference(d.comparison)),
                    "p_adjusted": round_off(d.p_adjusted),
                    "outcome": judge_difference(d),
                }
                for d in report.differences
                if d.column is column
            ],
        }
        for column in dict.fromkeys(d.column for d in report.differences)
    ]


def collect_curves(data: FigureData, *, budget: int = BUDGET) -> dict[str, Any]:
    """Return the runs' curves of every metric, the defaults of the figures first.

    Returns:
        `metrics`: for each metric its label (`name`), the `steps` of its points, how many steps a
        point averages (`per`), the bounds of its values if it is a share (`within`), and `runs`:
        the values at these steps by run id; `t`: the 97.5 % quantile of Student's t for n
        values at index n, from which the page computes its bands.
    """
    order = {name: place for place, name in enumerate(STANDARD)}
    names = sorted(data.metric_names, key=lambda name: (order.get(name, len(order)), name))
    labels = Counter(map(label_column, names))
    # Every metric gets the same share of the page, so that none depends on which others there are.
    points = budget // (_LETTERS * len(data.runs) * max(len(names), 1))
    metrics: list[dict[str, Any]] = []
    for name in names:
        # Evaluations with different settings make no curve.
        with suppress(NotFoundError, ReportError):
            steps, per, values = data.thinned(name, min(max(points, 2), MOST_POINTS))
            label = label_column(name)
            metrics.append(
                {
                    # A metric of logs may be called as one of ours is labelled.
                    "name": label if labels[label] == 1 else name,
                    "steps": steps.tolist(),
                    "per": per,
                    "within": range_of(name),
                    "runs": {str(run_id): _rounded(own) for run_id, own in values.items()},
                }
            )
    most = max(len(row.runs) for row in data.rows)
    quantiles = [round_off(float(stdtrit(n - 1, 0.975))) for n in range(2, most + 1)]
    return {"metrics": metrics, "t": [0, 0, *quantiles]}


def collect_spent(data: FigureData, *, budget: int = BUDGET // 20) -> dict[str, Any]:
    """Return what each run had spent at equal distances along its training.

    Returns:
        For `rollouts` and `seconds`, if any run recorded them: by run id its last step, then the
        totals from step 0 to this step.
    """
    points = min(max(budget // (_LETTERS * len(data.runs)), 2), _SPENT_POINTS)
    spent: dict[str, dict[str, list[float | None]]] = {}
    for cost in ("rollouts", "seconds"):
        with suppress(NotFoundError, ReportError):
            for run_id, (steps, totals) in data.series(f"total/{cost}").items():
                places = np.linspace(0, steps[-1], points)
                own = [steps[-1], *np.interp(places, steps, totals)]
                spent.setdefault(cost, {})[str(run_id)] = [round_off(float(v)) for v in own]
    return spent


# The last value of each metric, by run id and metric.
LastValues = Mapping[int, Mapping[str, float]]


def lay_out_runs(runs: Sequence[RunRecord], last: LastValues) -> Table:
    """Lay out a line for each run: its state, its time and the last values of main metrics."""
    known = {name for values in last.values() for name in values}
    ks = sorted(int(match[1]) for name in known if (match := re.fullmatch(r"pass@(\d+)", name)))
    # The smallest k and the largest.
    names = [f"pass@{k}" for k in sorted({*ks[:1], *ks[-1:]})]
    names += [name for name in _RUN_METRICS if name in known]
    labels = {run.id: name_group(group) for group, members in group_runs(runs) for run in members}
    lines = []
    for run in runs:
        seconds = None
        if run.started is not None and run.finished is not None:
            seconds = (run.finished - run.started).total_seconds()
        entries = (
            Entry(f"{run.step}/{run.steps}", value=run.step),
            _entry(seconds, ".0f"),
            *(_entry(last.get(run.id, {}).get(name)) for name in names),
        )
        texts = (str(run.id), labels[run.id], show_seed(run.seed), run.status.value)
        lines.append(Line(names=texts, entries=entries))
    return Table(
        names=("run", "row", "seed", "status"),
        columns=("steps", "seconds", *map(label_column, names)),
        sections=(tuple(lines),),
    )


def _entry(value: float | None, form: str = "") -> Entry:
    if value is None or math.isnan(value):
        return Entry()
    return Entry(format(value, form) if form else show(value), value=value)


def collect_runs(store: Store, runs: Sequence[RunRecord], last: LastValues) -> dict[str, Any]:
    """Return config, provenance and numbers of each run; what runs share is written once.

    Returns:
        `pairs`: every key with a value that some run has; `metrics`: their names; `runs`: by run
        id the identity, with `config` and `environment` as indices into the pairs and `last` as
        values of the metrics.
    """
    ids = [run.id for run in runs]
    environments = store.runs.environments(ids)
    metrics = sorted({name for values in last.values() for name in values})
    evaluations: dict[int, list[EvaluationRecord]] = {}
    for evaluation in store.evaluations.select(ids, ends_only=True):
        assert evaluation.run_id is not None
        evaluations.setdefault(evaluation.run_id, []).append(evaluation)
    places: dict[tuple[str, str], int] = {}

    def pooled(node: Mapping[str, Any]) -> list[int]:
        pairs = [
            (k, v if isinstance(v, str) else json.dumps(v)) for k, v in leaves(node, named=True)
        ]
        return [places.setdefault(pair, len(places)) for pair in pairs]

    described = {}
    for run in runs:
        own = {**describe_run(run), "host": run.host}
        described[str(run.id)] = {
            "is": {key: text for key, value in own.items() if (text := show_value(value))},
            "config": pooled(run.config),
            # Without the command line: pages are passed on, and it names files.
            "environment": pooled({**environments.get(run.id, {}), "command": {}}),
            "last": [round_off(last.get(run.id, {}).get(name)) for name in metrics],
            "evaluations": [
                [
                    e.step,
                    pooled({"task": e.task, **e.settings}),
                    {name: round_off(value) for name, value in e.scores().items()},
                ]
                for e in evaluations.get(run.id, ())
            ],
        }
    return {"pairs": [list(pair) for pair in places], "metrics": metrics, "runs": described}


def round_off(value: float | None, digits: int = 5) -> float | None:
    """Round to five digits, more than a screen shows; None where there is no finite value."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("chart.js", "panels.js", "figures.js", "page.js")
_LIVE_SCRIPTS = ("live.js",)
_START = "start.js"
_MARKS = {
    Mark.BEST: {"tag": "strong", "words": "bold"},
    Mark.SECOND: {"tag": "u", "words": "underlined"},
}


def describe_runs(report: Report, runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the facts below the page's title, each with its name."""
    facts = []
    for key in ("task", "model", "model.path", "steps"):
        known = [value for run in runs if (value := value_of(run, key)) not in (MISSING, "")]
        if values := dict.fromkeys(map(show_key, known)):
            facts.append((key, first_of(values, _SHOWN)))
    trained = [row.n for row in report.rows if not row.is_untrained]
    seeds = "-".join(map(str, sorted({min(trained), max(trained)})))
    bases = sum(row.models for row in report.rows if row.subject is Subject.BASE)
    n = f"{counted(len(trained), 'row')} of {counted(seeds, 'seed')}"
    facts.append(("n", f"{n}, {counted(bases, 'base model')}" if bases else n))
    times = [at for run in runs for at in (run.started, run.finished) if at is not None]
    if times:
        days = dict.fromkeys(at.date().isoformat() for at in (min(times), max(times)))
        facts.append(("made", " to ".join(days)))
    return facts


def _facts_of_head(report: Report) -> list[tuple[str, str]]:
    """Return the note and the tags of the sweep as facts."""
    parted = [line.partition(": ") for line in report.head]
    return [(name, text) for name, _, text in parted]


@dataclass(frozen=True, kw_only=True)
class PageContents:
    """What a page shows.

    Attributes:
        title: the sweep, or the store.
        sweep: the sweep; None for the runs of a store.
        report: None where no run is finished yet.
        listed: the runs in its list.
        trained: the runs with curves; None without any.
        finished: those of the runs that are done; None without any.
        missing: why there is no report, or what it lacks yet; empty for neither.
        verdict: what `advsweep judge` says of it, in sentences.
        live: whether it is renewed, and stops and restarts runs.
    """

    title: str
    sweep: str | None
    report: Report | None
    listed: Sequence[RunRecord]
    trained: FigureData | None
    finished: FigureData | None
    missing: str = ""
    verdict: Sequence[str] = ()
    live: bool = False


def render_page(
    report: Report,
    store: Store,
    *,
    where: Sequence[Filter] = (),
    verdict: Sequence[str] = (),
) -> str:
    """Return a report as an HTML page with figures and every run; equal data give equal bytes.

    Args:
        store: the store that the report was made from.
        where: the filters that the report's runs fulfil. Without any, the page lists all runs
            of the sweep, whatever their state.
        verdict: what `advsweep judge` says of it, in sentences.
    """
    sweep = report.provenance["sweep"]
    title = sweep or report.provenance["store"]
    selected = store.runs.select(sweep=sweep, newest_first=False)
    data = FigureData(store, NamedRuns(selected, title), where)
    contents = PageContents(
        title=title,
        sweep=sweep,
        report=report,
        listed=data.runs if where else selected,
        trained=data,
        finished=data,
        verdict=verdict,
    )
    return render_contents(contents, store)


def render_contents(contents: PageContents, store: Store) -> str:
    """Return the page that shows these contents, of runs of this store."""
    report = contents.report
    listed = contents.listed
    last = store.metrics.last_values([run.id for run in listed], metric_names(store, listed))
    race = None if contents.sweep is None else read_race(store, contents.sweep)
    rows = [] if race is None else race.rows()
    lines = tuple(Line(tuple(row.values())) for row in rows)
    page: str = (
        make_environment()
        .get_template("page.html")
        .render(
            title=contents.title,
            live=contents.live,
            missing=contents.missing,
            facts=_list_facts(contents),
            verdict=contents.verdict,
            findings=[] if report is None else list_findings(report),
            family=describe_family(report) if report and report.primary else "",
            baseline=report and report.baseline,
            report=report and lay_out(report),
            runs=lay_out_runs(listed, last),
            race=race and Table(tuple(rows[0]), (), (lines,), race.title),
            race_limits=[] if race is None else race.limits,
            data=_write_data(_embed(contents, store, last)),
            style=read_assets("page.css"),
            script=read_assets(*_SCRIPTS, *(_LIVE_SCRIPTS if contents.live else ()), _START),
        )
    )
    return page


def _list_facts(contents: PageContents) -> list[tuple[str, str]]:
    """Return the facts below the title; none without a report."""
    if contents.report is None or contents.finished is None:
        return []
    facts = describe_runs(contents.report, contents.finished.runs)
    return [*facts, *_facts_of_head(contents.report)]


def _embed(contents: PageContents, store: Store, last: LastValues) -> dict[str, Any]:
    """Return the data of the page's scripts."""
    report = contents.report
    embedded: dict[str, Any] = {
        "differences": [] if report is None else collect_differences(report)
    }
    if contents.trained is None:
        embedded |= NO_FIGURES
    else:
        columns = () if report is None else report.columns
        embedded |= collect_figures(contents.trained, columns, contents.finished)
    return embedded | collect_runs(store, contents.listed, last)


def _write_data(embedded: Mapping[str, Any]) -> Markup:
    """Write data as JSON that can stand in a script element."""
    plain = printable_values(embedded)
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # A `<` could end the script element.
    return Markup(text.replace("<", "\\u003c"))


def make_environment() -> Environment:
    """Return the templates, which escape texts and control characters."""
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        # Names and notes may hold control characters, which browsers obey.
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["marks"] = _MARKS
    environment.tests["known"] = lambda value: value is not None and not math.isnan(value)
    # The hash by which a Content-Security-Policy allows an inline script or style.
    environment.filters["sha256"] = lambda text: base64.b64encode(
        hashlib.sha256(text.encode()).digest()
    ).decode("ascii")
    environment.filters["breakable"] = _breakable
    return environment


def read_assets(*names: str) -> Markup:
    """Return styles or scripts, one after another."""
    return Markup("\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in names))


def _breakable(text: str) -> Markup:
    """Let a browser break a key or a metric after its dots and slashes."""
    return Markup("<wbr>").join(re.split(r"(?<=[./])", printable(text)))
