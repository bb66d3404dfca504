"""Builds a report: rows of replicates, columns of metrics, each number with interval and n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.report.data.columns import (
    REACHED,
    Column,
    MetricDirection,
    needs_curves,
    parse_column,
    reached_column,
    within_steps,
)
from advsweep.report.data.compare_at import (
    compare_at,
    describe_missing,
    describe_own,
    own_cutoffs,
)
from advsweep.report.data.cutoffs import Cutoff
from advsweep.report.data.evaluations import (
    EvaluationsByTask,
    select_evaluations,
    unjudged_problems,
)
from advsweep.report.data.filters import MISSING, Filter, describe_filters, show_key
from advsweep.report.data.grouping import (
    Group,
    group_by,
    group_runs,
    is_key,
    key_order,
    value_of,
    varying_keys,
)
from advsweep.report.data.measure import TrainingCurves, measure
from advsweep.report.data.outcomes import (
    KEY,
    choose_outcomes,
    find_outcome,
    outcome_choices,
    parse_outcomes,
)
from advsweep.report.data.selection import (
    read_runs,
    refuse_empty,
    select_columns,
    select_runs,
    split_columns,
    used_tasks,
)
from advsweep.report.tables.cautions import (
    describe_dominance,
    describe_large_k,
    describe_no_signal,
    describe_rarefied,
)
from advsweep.report.tables.chance import caution_of_chance, chance_column
from advsweep.report.tables.comparison import (
    BaselineRows,
    compare_rows,
    default_baseline,
    parse_baseline,
    rank_rows,
)
from advsweep.report.tables.floor_rows import floor_rows
from advsweep.report.tables.footnotes import describe_provenance
from advsweep.report.tables.imported import describe_imported
from advsweep.report.tables.rows import (
    MOST_SINGLE,
    single_evaluations,
    trained_row,
    with_problems,
    without_intervals,
)
from advsweep.report.tables.types import (
    Difference,
    Report,
    Row,
    SpreadKind,
    count_states,
)
from advsweep.report.tables.untrained import base_rows, model_rows
from advsweep.statistics import RankInterval
from advsweep.store import RunOutline, RunRecord, Status, Store
from advsweep.store.evaluation_records import unscorable_share
from advsweep.store.sanity import find_mixed_revisions

NO_BASELINE = "none"
_SHOWN = 8  # values of a key in a message


def build_report(
    store: Store,
    sweep: str | None = None,
    run_ids: Sequence[int] | None = None,
    *,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    where: Sequence[Filter] = (),
    pool: bool = False,
    mixed_protocols: bool = False,
    at: Cutoff | None = None,
    sort: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rank: str | None = None,
    spread: SpreadKind = SpreadKind.POOLED,
    outcomes: Sequence[Column] = (),
    described: bool = True,
) -> Report:
    """Compares the finished runs of a sweep, of all sweeps, or of some ids.

    Args:
        sweep: a sweep's name; None for every run of the store.
        run_ids: only these runs.
        columns: names as `report.data.columns` describes them; by default collapse, pass@k for
            the k of the runs' evaluations, entropies and cost. Config keys among them are
            pivoted: the other columns are repeated for each of their values; pass@k of the
            least k if there are none.
        rows: config keys that name the rows; by default the estimator and every key that varies.
        where: filters that runs must match; without one on `status` they must be done.
        pool: average over runs that differ in other keys than those of rows and columns.
        mixed_protocols: combine runs that were not evaluated alike.
        at: where in the training runs are compared; by default at its end.
        sort: a column or a key, with `:rising` or `:falling` after it.
        baseline: the rows that others are compared with, as in `parse_baseline`; `none`
            for no comparison. By default the first row, in tables of at most 30 rows.
        target: the difference that seeds needed are counted for; by default the observed one.
        rank: a column; rows are sorted by the intervals of their ranks in it.
        spread: the spread that intervals of differences rest on.
        outcomes: the primary outcomes; by default those that the sweep declares, or else those of
            `report.data.outcomes`.
        described: whether differences in other columns are described.

    Raises:
        NotFoundError: the sweep, a run, key, metric or row does not exist; the message offers
            the nearest name.
        ReportError: no run is finished, the runs were not evaluated alike, or a row would
            combine runs of several configurations.
    """
    runs = read_runs(store, sweep, run_ids, where)
    selection = select_runs(store, runs, where, mixed=mixed_protocols)
    done = selection.runs
    if not done:
        raise ReportError(_nothing_finished(store, sweep, runs, selection.left_out, where))
    declared_by = "the list of claims" if outcomes else ""
    if not outcomes and sweep is not None:
        outcomes = parse_outcomes(store.sweeps.spec(sweep).get(KEY), f"sweep.{KEY}")
        declared_by = "the sweep" if outcomes else ""
    along = at is not None or needs_curves([*(columns or ()), *(o.name for o in outcomes)])
    evaluated = select_evaluations(store, done, along=along, mixed=mixed_protocols)
    keys, metrics = split_columns(done, columns)
    chosen = _with_reached(metrics, keys, evaluated, at)
    tuning = None if sweep is None else store.sweeps.tuning(sweep)
    tuned = "" if tuning is None else tuning.key
    remarks = [*selection.remarks, *([] if tuning is None else [tuning.text])]
    curves = TrainingCurves(store, done, evaluated)
    found, remark = (None, "") if at is None else compare_at(curves, evaluated, at)
    cutoff_steps = None if found is None else found.usable
    choices = outcome_choices(evaluated, outcomes)
    visible = {column.name: column for column in chosen}
    candidates = {column.name: column for choice in choices for column in choice}
    plain = [parse_column(p) for name in candidates if (p := chance_column(name)) is not None]
    plain_columns = {column.name: column for column in plain if column is not None}
    measured = [*(candidates | plain_columns | visible).values()]
    values = measure(store, done, evaluated, measured, cutoff_steps, curves)
    if metrics is not None:
        refuse_empty(store, done, evaluated, chosen, values)
    groups = _groups(done, rows, keys, tuned, pool=pool)
    if found is not None:
        remarks.append(remark + describe_missing(groups, found))
    for own in own_cutoffs(c for c in chosen if c.at != at).values():
        came, remark = describe_own(curves, evaluated, own)
        remarks.append(remark + describe_missing(groups, came))
    remarks += _pooled(groups)
    remarks += [mixed.text for mixed in find_mixed_revisions(store, done)]
    remarks += describe_imported(store, done)
    by_config = Counter(run.config_hash for run in selection.pruned)
    trained = [trained_row(group, m, values, by_config) for group, m in groups]
    trained = without_intervals(trained, [c.name for c in chosen if c.is_reached])
    single = [single_evaluations(m, evaluated, chosen) if at is None else {} for _, m in groups]
    if sum(map(bool, single)) <= MOST_SINGLE:
        trained = with_problems(trained, single, chosen)
    trained = trained if sort is None else _sorted(trained, chosen, sort)
    label = _label(rows, keys, groups)
    untrained: list[Row] = []
    # Models that no run trained have no values within a training.
    if at is None:
        untrained += base_rows(groups, evaluated, measured, label)
    for floor, description in floor_rows(evaluated, measured, label):
        if any(floor.cells[column.name].n for column in chosen):
            untrained.append(floor)
            remarks.append(description)
    if at is None:
        models = model_rows(evaluated, measured, label)
        untrained += [m for m in models if any(m.cells[column.name].n for column in chosen)]
    listed = [*untrained, *trained]
    if metrics is None:
        chosen = [column for column in chosen if _has_values(listed, column)]
    longest = max(run.steps for run in done)
    chosen = [within_steps(column, longest) for column in chosen]
    primary = choose_outcomes(
        choices,
        lambda name: {(i, n) for i, row in enumerate(trained) if (n := row.cells[name].n)},
    )
    if missing := [column.name for column in outcomes if column not in primary]:
        remarks.append(f"declared as outcomes, but no run has a number: {', '.join(missing)}")
    # Runs are equal in the column that sets their cutoff.
    equal = None if at is None else parse_column(at.what)
    primary = tuple(
        within_steps(column, longest)
        for column in primary
        if equal is None or find_outcome(column, [equal]) is None
    )
    shown = [column for column in chosen if _has_values(listed, column)]
    ranks: Mapping[int, RankInterval] = {}
    if rank is not None:
        listed, ranks = rank_rows(listed, _ranking(chosen, keys, rank))
    compared = _choose_baseline(baseline, listed)
    tested = {column.name for column in primary}
    others = _described(chosen, metrics, at) if described else []
    others = [column for column in others if find_outcome(column, primary) is None]
    differences: Sequence[Difference] = ()
    if compared is not None:
        own_baseline = replace(compared, tuned=tuned)
        differences = compare_rows(listed, primary, others, own_baseline, target, spread)
    cautions = [
        *describe_large_k(evaluated, shown),
        *describe_rarefied(evaluated, shown),
        *describe_dominance(store, groups),
        *(caution_of_chance(listed, differences) if at is None else ()),
    ]
    return Report(
        columns=tuple(chosen),
        rows=tuple(
            replace(row, cells={name: row.cells[name] for name in visible}) for row in listed
        ),
        left_out=selection.left_out,
        pruned=Counter(run.stopping["name"] for run in selection.pruned if run.stopping),
        unscorable=unscorable_share(evaluated.final),
        unjudged=unjudged_problems(evaluated.final),
        provenance=describe_provenance(
            store, sweep, done, [evaluated.tasks[t].protocol for t in used_tasks(evaluated, chosen)]
        ),
        pivot=tuple(keys),
        remarks=tuple(remarks),
        untaught=tuple(describe_no_signal(store, groups)),
        cautions=tuple(cautions),
        baseline=None if compared is None else compared.text,
        run_ids=frozenset(run.id for run in done),
        ranks=ranks,
        ranked_by=rank,
        outcomes=primary,
        declared_by=declared_by,
        differences=differences,
        compared=tuple(
            replace(row, cells={name: cell for name, cell in row.cells.items() if name in tested})
            for row in listed
        ),
        spread=spread,
        tuned=tuned,
    )


def _with_reached(
    metrics: Sequence[str] | None,
    keys: Sequence[str],
    evaluated: EvaluationsByTask,
    at: Cutoff | None,
) -> list[Column]:
    """Returns the columns, with the share of runs that come to a value that `--at` names."""
    named = None if metrics is None else [name for name in metrics if at is None or name != REACHED]
    chosen = select_columns(named, evaluated, pivoted=bool(keys))
    return chosen if at is None or at.is_cost else [*chosen, reached_column(at)]


def _has_values(rows: Sequence[Row], column: Column) -> bool:
    return any(row.cells[column.name].n for row in rows)


def _nothing_finished(
    store: Store,
    sweep: str | None,
    runs: Sequence[RunRecord | RunOutline],
    left_out: Mapping[Status, int],
    where: Sequence[Filter],
) -> str:
    what = f"sweep '{sweep}'" if sweep is not None else store.name
    if runs and where:
        states = f" ({count_states(left_out)})" if left_out else ""
        chosen = f"{describe_filters(where)}{states}{_values(runs, where)}"
        return f"{what} has no finished run with {chosen}"
    models = "; `report --models` has what `eval --model` evaluated" if sweep is None else ""
    models = models if models and store.evaluations.of_models() else ""
    if not left_out:
        start = "start some with `advsweep run` or `advsweep sweep`"
        return f"{what} has no runs to report; {start}{models}"
    return (
        f"{what} has no finished run to report yet ({count_states(left_out)}); "
        f"`advsweep ls` shows them{models}"
    )


def _values(runs: Sequence[RunRecord | RunOutline], where: Sequence[Filter]) -> str:
    """Lists the values of the keys whose filter no run matches."""
    text = ""
    for filter in where:
        values = [value_of(run, filter.key) for run in runs]
        known = dict.fromkeys(show_key(value) for value in values if value is not MISSING)
        if known and not any(map(filter.holds, values)):
            text += f"; {filter.key} is {first_of(known, _SHOWN)}"
    return text


def _groups(
    runs: Sequence[RunRecord],
    rows: Sequence[str] | None,
    pivot: Sequence[str],
    tuned: str,
    *,
    pool: bool,
) -> list[tuple[Group, list[RunRecord]]]:
    """Groups the runs by row, and by the values of the pivot's keys if there is a pivot.

    Args:
        tuned: the key that was tuned for each row; empty for none.
    """
    if rows is not None or pool:
        keys = dict.fromkeys([*(rows or ["estimator"]), *pivot])
        return group_by(runs, list(keys), pool=pool)
    # Replicates may differ in a key of the pivot, as in their seeds.
    return [
        ({**group, **place}, part)
        for group, members in group_runs(runs, always=tuned)
        for place, part in group_by(members, [key for key in pivot if is_key(members, key)])
    ]


def _label(
    rows: Sequence[str] | None, pivot: Sequence[str], groups: Sequence[tuple[Group, object]]
) -> str:
    """Returns the key that names models which no run trained."""
    label = rows[0] if rows else "estimator"
    if label not in pivot:
        return label
    return next((key for group, _ in groups for key in group if key not in pivot), "model")


def _pooled(groups: Sequence[tuple[Group, Sequence[RunRecord]]]) -> list[str]:
    """Describes what rows average over, if they combine several configurations."""
    varying: dict[str, None] = {}
    for _, members in groups:
        if len({run.config_hash for run in members}) > 1:
            varying |= dict.fromkeys(varying_keys(members)) or {"revisions of a component": None}
    if not varying:
        return []
    keys = ", ".join(sorted(varying, key=key_order))
    return [f"the value of a seed is the mean of its runs over {keys}; seeds that lack one are out"]


def _sorted(rows: Sequence[Row], columns: Sequence[Column], sort: str) -> list[Row]:
    """Sorts by a column, the best first, or by a key, rising; rows without a value are last."""
    name, _, way = sort.partition(":")
    if way not in ("", "rising", "falling"):
        raise ReportError(f"--sort: expected {name}:rising or {name}:falling, got '{sort}'")
    by_name = {column.name: column for column in columns}
    keys = {key for row in rows for key in row.group}
    if name not in by_name and name not in keys:
        hint = nearest(name, [*by_name, *keys])
        raise NotFoundError(f"--sort: the table has no column or key '{name}'; {hint}")
    column = by_name.get(name)
    falling = (
        column is not None and column.direction is MetricDirection.HIGHER
        if not way
        else way == "falling"
    )

    def value(row: Row) -> Any:
        return row.group.get(name) if column is None else row.cells[name].mean

    def is_missing(row: Row) -> bool:
        own = value(row)
        return own is None or own != own

    known = [row for row in rows if not is_missing(row)]
    numbers = all(isinstance(value(row), (int, float)) for row in known)
    order = value if numbers else lambda row: show_key(value(row))
    return [*sorted(known, key=order, reverse=falling), *filter(is_missing, rows)]


def _ranking(columns: Sequence[Column], pivot: Sequence[str], name: str) -> Column:
    """Returns the column that ranks the rows."""
    if pivot:
        raise ReportError(
            f"--sort rank: expected no config key among --columns, got {', '.join(pivot)}"
        )
    found = {column.name: column for column in columns}
    if name not in found:
        raise NotFoundError(
            f"--sort rank: the table has no column '{name}'; {nearest(name, found)}"
        )
    return found[name]


def _choose_baseline(text: str | None, rows: Sequence[Row]) -> BaselineRows | None:
    """Parses the named baseline, or takes the first row's."""
    if text == NO_BASELINE:
        return None
    if text is None:
        return default_baseline(rows)
    keys = sorted({key for row in rows if not row.is_base for key in row.group}, key=key_order)
    return parse_baseline(text, rows, keys[0])


def _described(
    columns: Sequence[Column], metrics: Sequence[str] | None, at: Cutoff | None
) -> list[Column]:
    """Return the columns whose differences are shown: the named ones, or the runs' own pass@k."""
    if metrics is not None:
        # Runs are equal in the column that sets their cutoff.
        return [c for c in columns if not c.is_reached and (at is None or c.name != at.what)]
    return [column for column in columns if column.k is not None and column.task is None]
