"""A store's runs, metrics and evaluations as pandas frames.

`run_frame` is tidy: a row per run, a column per config key and per number. `metric_frame`,
`evaluation_frame` and `problem_frame` are long: a row per metric point, per evaluation and per
evaluated problem. In all of them `run` is the run's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from advsweep.components import leaves
from advsweep.errors import NotFoundError, nearest
from advsweep.report.data.column_choice import choose_columns, read_columns
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.report.data.evaluation_sources import RAREFIED_ENTROPY, RIGHT_ENTROPY
from advsweep.report.data.groups import group_runs
from advsweep.report.data.keys import is_key
from advsweep.report.data.measure import measure
from advsweep.report.data.refusals import refuse_empty
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import metric_names
from advsweep.statistics import mean_over_problems
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.evaluation_records import COUNTS, IN_NATS
from advsweep.synonyms import COLUMNS

# What a run is, by the names of its record.
_OF_RUN = (
    "identity",
    "attempt",
    "config_hash",
    "sweeps",
    "estimator",
    "backend",
    "seed",
    "error",
    "step",
    "steps",
    "created",
    "started",
    "finished",
)
_EVALUATION = 10  # characters of an evaluation's identity


def run_frame(
    store: Store,
    runs: Sequence[RunRecord],
    columns: Sequence[str] | None = None,
    *,
    mixed: bool = False,
) -> pd.DataFrame:
    """Return a row per run: what it is, its config, and its numbers.

    Config keys are dotted; a component's name stands under the key itself, such as `estimator`.
    What a run lacks is missing; so is a seed that nobody knows, in a column of pandas' type Int64.

    Args:
        columns: names of numbers, as `report.data.columns` describes them; by default those of a
            report, and the summaries that the store keeps of each run.
        mixed: accept evaluations that were not made alike.

    Raises:
        NotFoundError: no run has a column; the message offers the nearest name.
        ReportError: the runs were not evaluated alike.
    """
    if not runs:
        return pd.DataFrame(
            columns=["run", "identity", "config_hash", "status", "estimator", "seed"]
        )
    ids = [run.id for run in runs]
    rows = []
    for run in runs:
        config = {key: hashable(value) for key, value in leaves(run.config, named=True)}
        described = describe_run(run)
        # What a run is comes first, and a config key of such a name does not replace it.
        rows.append(described | config | described)
    frame = _with_whole_seeds(pd.DataFrame(rows, index=ids))
    written = None
    along = False
    if columns is not None:
        # Config keys are columns of the frame already.
        written = read_columns(name for name in columns if not is_key(runs, name))
        along = any(column.needs_training_curve for column in written)
    data = RunData(store, runs, select_evaluations(store, runs, along=along, mixed=mixed))
    chosen = choose_columns(written, data.evaluated)
    numbers = measure(data, chosen)
    if columns is not None:
        refuse_empty(data, chosen, numbers)
    else:
        frame = frame.join(pd.DataFrame.from_dict(store.metrics.summaries(ids), orient="index"))
        numbers = numbers.dropna(axis="columns", how="all")
    return frame.join(numbers).reset_index(drop=True)


def _with_whole_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose seeds are whole numbers, and NA where nobody knows them."""
    if frame.empty or not frame["seed"].isna().any():
        return frame
    # Their own column type: NaN would make floats of the others.
    return frame.astype({"seed": "Int64"})


def describe_run(run: RunRecord) -> dict[str, Any]:
    """Return what a run is, without its config."""
    described: dict[str, Any] = {
        "run": run.id,
        "status": run.status.value,
        "failure": None if run.failure is None else run.failure.value,
    }
    for name in _OF_RUN:
        described[name] = getattr(run, name)
    return described


def hashable(value: Any) -> Any:
    """Return a config value that pandas can group by: a list becomes a tuple."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def metric_frame(
    store: Store, runs: Sequence[RunRecord], names: Sequence[str] | None = None, *, wide: bool
) -> pd.DataFrame:
    """Return the metric points of some runs, in the order of the runs.

    The columns are `run`, the config keys that differ between the runs, `seed`, and then
    `metric`, `step` and `value`; or, if wide, `step` and a column per metric.

    Args:
        names: of metrics; by default every metric that a run recorded.

    Raises:
        NotFoundError: no run has a metric; the message offers the nearest name.
    """
    ids = [run.id for run in runs]
    parts = []
    for name in names if names is not None else metric_names(store, runs):
        curves = store.metrics.series(ids, name)
        if not curves:
            hint = nearest(name, metric_names(store, runs), COLUMNS)
            raise NotFoundError(f"no run has a metric '{name}'; {hint}")
        for run_id in [run_id for run_id in ids if run_id in curves]:
            steps, values = curves[run_id]
            part = {"run": run_id, "metric": name, "step": steps, "value": values}
            parts.append(pd.DataFrame(part))
    empty = pd.DataFrame(columns=["run", "metric", "step", "value"])
    points = pd.concat(parts, ignore_index=True) if parts else empty
    if wide:
        points = points.pivot(index=["run", "step"], columns="metric", values="value")
        points = points.rename_axis(columns=None).reset_index()
    return _with_names(runs, points)


def evaluation_frame(store: Store, runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Return a row per run and evaluation: `n` samples per problem, and the scores.

    Evaluations of the base model are at step 0. The scores are means over the problems, those of
    the entropies of correct answers over the problems that have them.
    """
    records = store.evaluations.select([run.id for run in runs])
    columns = ["run", "step", "task", "evaluation", "n", "problems"]
    rows = [
        {
            "run": record.run_id,
            "step": record.step,
            "task": record.task,
            "evaluation": record.identity[:_EVALUATION],
            "n": int(record.n.max(initial=0)),
            "problems": len(record.problem_ids),
            **record.scores(),
            RIGHT_ENTROPY: float(mean_over_problems(record.right_entropy)),
            RAREFIED_ENTROPY: float(mean_over_problems(record.rarefied())),
        }
        for record in records
    ]
    return _with_names(runs, pd.DataFrame(rows, columns=None if rows else columns))


def problem_frame(store: Store, runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Return a row per run, evaluation and problem: `n` samples of which `c` are correct.

    Evaluations of the base model are at step 0. `evaluation` is the start of the evaluation's
    identity: one run can have several evaluations on the same task.
    """
    records = store.evaluations.select([run.id for run in runs])
    columns = ["run", "step", "task", "evaluation", "problem", "level", *COUNTS, *IN_NATS]
    columns.append("right_rarefied")
    empty = pd.DataFrame(columns=columns)
    problems = pd.concat(map(_problems, records), ignore_index=True) if records else empty
    return _with_names(runs, problems[columns])


def _problems(record: EvaluationRecord) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": record.run_id,
            "step": record.step,
            "task": record.task,
            "evaluation": record.identity[:_EVALUATION],
            "problem": record.problem_ids,
            **record.columns,
        }
    )


def _with_names(runs: Sequence[RunRecord], frame: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that identify runs: the keys that name a report's rows, and seeds."""
    named = pd.DataFrame(
        [
            {
                "run": run.id,
                **{key: hashable(value) for key, value in group.items()},
                "seed": run.seed,
            }
            for group, members in group_runs(runs)
            for run in members
        ],
        columns=None if runs else ["run", "estimator", "seed"],
    )
    named = _with_whole_seeds(named)
    keys = [key for key in named.columns if key not in ("run", "seed")]
    named = named[["run", *keys, "seed"]]
    # A row's name may use a word of this frame, such as `task` or `step`: the frame's own stays.
    named = named.drop(columns=[key for key in keys if key in frame.columns])
    return named.merge(frame, on="run", how="right", validate="one_to_many")


def record_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row per record, with the keys as columns."""
    return pd.DataFrame([{key: hashable(v) for key, v in own.items()} for own in records])
