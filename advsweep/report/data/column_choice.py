"""Chooses the columns of a table: those that a user names, or those that its runs have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advsweep.errors import NotFoundError, first_of, nearest
from advsweep.names import ANSWER_ENTROPY
from advsweep.report.data.columns import (
    UNEVALUATED,
    Column,
    parse_column,
    standard_columns,
)
from advsweep.report.data.evaluation_sources import LOGGED_PASS, PassAtK
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.runs import metric_names
from advsweep.report.data.windows import END_STEPS
from advsweep.store import RunRecord, Store
from advsweep.synonyms import COLUMNS

# The most metrics of a log that a message or a table names unasked.
MOST_LOGGED = 8

# Words in the names of results.
_RESULT = re.compile(r"acc|correct|eval|pass|reward|score|solve|success|test|val", re.IGNORECASE)


@dataclass(frozen=True)
class WrittenColumn:
    """A column as a user wrote it, in which a `*` stands for every k, task or level.

    Attributes:
        text: the name.
        column: the column, with 1 for each `*`; None if no column is called so.
    """

    text: str
    column: Column | None

    @property
    def needs_training_curve(self) -> bool:
        """Whether it needs the values within the training."""
        return self.column is not None and self.column.needs_training_curve


def read_columns(texts: Iterable[str]) -> list[WrittenColumn]:
    """Parse the columns that a user names, before the k, tasks and levels of the runs are known."""
    return [WrittenColumn(text, parse_column(text.replace("*", "1"))) for text in texts]


def choose_columns(
    written: Sequence[WrittenColumn] | None, evaluated: EvaluationsByTask
) -> list[Column]:
    """Return the columns that a user wrote, or the default columns of a table.

    Raises:
        NotFoundError: a name cannot be a column.
    """
    main = evaluated.of(None)
    records = [] if main is None else list(main.final.values())
    ks = sorted({k for record in records for k in record.settings.get("k", ())})
    if written is None:
        written = read_columns(standard_columns(ks, evaluated.others))
    levels: set[int] = set()
    if any("level=*" in item.text for item in written):
        levels = {int(level) for record in records for level in np.unique(record.levels)}
    values_of = {"pass@": ks, "[": list(evaluated.tasks), "level=": sorted(levels)}
    columns: dict[str, Column] = {}
    for item in written:
        for text in _expand(item.text, values_of):
            if text in columns:
                continue
            column = item.column if "*" not in item.text else parse_column(text)
            if column is None:
                raise _no_column(text)
            columns[text] = column
    return list(columns.values())


def _expand(text: str, values_of: Mapping[str, Sequence[object]]) -> list[str]:
    """Return a text for each value that its `*` stands for.

    Args:
        values_of: the values by what stands before the `*`.
    """
    texts = [text]
    for before, values in values_of.items():
        star = f"{before}*"
        if star in text:
            texts = [one.replace(star, f"{before}{value}") for one in texts for value in values]
    return texts


def _no_column(text: str) -> NotFoundError:
    hint = nearest(text, standard_columns([1, 8, 64]), COLUMNS)
    return NotFoundError(
        f"no column is called '{text}'; expected a metric, METRIC@end, METRIC@first100, "
        "METRIC@min and other windows, pass@8, pass@8[TASK], pass@8[level=3], "
        f"pass@8@pass@1=0.5, {ANSWER_ENTROPY}, total/rollouts, or a config key; {hint}"
    )


def logged_pass_columns(
    store: Store, runs: Sequence[RunRecord], evaluated: EvaluationsByTask
) -> list[Column]:
    """Return pass@k for each k that trainers logged of runs without an evaluation."""
    if evaluated.tasks:
        return []
    written = {name.removeprefix(LOGGED_PASS) for name in metric_names(store, runs)}
    columns = [parse_column(f"pass@{k}") for k in sorted(filter(str.isdecimal, written), key=int)]
    return [c for c in columns if c is not None and isinstance(c.source, PassAtK)]


def results_first(names: Iterable[str]) -> list[str]:
    """Return the names of metrics with those of results before times, sizes and losses."""
    return sorted(names, key=lambda name: (_RESULT.search(name) is None, name))


def logged_columns(
    store: Store, runs: Sequence[RunRecord], shown: Iterable[Column]
) -> tuple[list[Column], list[str]]:
    """Return the metrics of the logs at their end, and sentences on them; none without any.

    A metric that is logged more rarely than each tenth step has its last value.

    Args:
        shown: columns whose metrics are left out.
    """
    ids = [run.id for run in runs]
    sources = {column.source.name for column in shown}
    names = results_first(name for name in metric_names(store, runs) if name not in sources)
    columns = []
    for name in names[:MOST_LOGGED]:
        at_end = store.metrics.means(ids, name, last=END_STEPS)
        is_frequent = at_end.keys() >= store.metrics.last_steps(ids, name).keys()
        column = parse_column(f"{name}@end" if is_frequent else f"{name}@last")
        if column is not None:
            columns.append(column)
    if not columns:
        return [], []
    has_reward = any(name == UNEVALUATED.partition("@")[0] for name in names)
    lacking = f" in its last {END_STEPS} steps" if has_reward else ""
    text = (
        f"no run has pass@k or a reward by our names{lacking}, so that the table has the "
        "metrics of the logs at their end; which values are better is not known, and nothing is "
        "tested: `--outcomes "
        f"{columns[0].name}` declares what to test"
    )
    more = names[MOST_LOGGED:]
    if more:
        text += f"; {len(more)} more: --columns {first_of(more, MOST_LOGGED)}"
    return columns, [text]
