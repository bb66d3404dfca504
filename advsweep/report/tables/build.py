"""Builds a report: rows of replicates, columns of metrics, each number with interval and n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from advsweep.errors import NotFoundError, ReportError, first_of, nearest
from advsweep.report.data.column_choice import (
    choose_columns,
    logged_columns,
    logged_pass_columns,
    read_columns,
)
from advsweep.report.data.columns import (
    MOST_OF_SAMPLES,
    OUTCOMES,
    REACHED,
    UNEVALUATED,
    Column,
    column_of,
    find_outcome,
    parse_column,
    parse_outcomes,
    reached_column,
    within_steps,
)
from advsweep.report.data.cutoffs import Cutoff, find_steps, resolve_cutoff
from advsweep.report.data.early_ends import (
    FAILED,
    KEEP,
    EarlyEnds,
    describe_early_ends,
    describe_failed,
    ended_runs,
    find_early_ends,
    with_value,
    without_runs,
)
from advsweep.report.data.evaluation_sources import (
    RAREFIED_ENTROPY,
    RIGHT_ENTROPY,
    Evaluation,
    PassAtK,
)
from advsweep.report.data.evaluations import EvaluationsByTask, select_evaluations
from advsweep.report.data.measure import measure
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.refusals import refuse_empty
from advsweep.report.data.run_data import RunData
from advsweep.report.data.runs import (
    MISSING,
    Filter,
    describe_filters,
    group_by,
    group_runs,
    is_key,
    key_order,
    read_runs,
    show_key,
    title_key,
    value_of,
)
from advsweep.report.data.selection import SelectedRuns, select_runs
from advsweep.report.data.sources import Reached
from advsweep.report.tables.comparison import (
    compare_rows,
    default_baseline,
    parse_baseline,
    rank_rows,
)
from advsweep.report.tables.designs import lending_runs, make_arms
from advsweep.report.tables.notes import (
    GUESS,
    caution_of_chance,
    chance_column,
    describe_denominators,
    describe_imported,
    describe_large_k,
    describe_logged_pass,
    describe_no_signal,
    describe_provenance,
)
from advsweep.report.tables.rows import base_rows, floor_rows, model_rows, trained_rows
from advsweep.report.tables.types import Difference, Report, Row, count_states
from advsweep.statistics import RankInterval
from advsweep.store import RunRecord, Status, Store
from advsweep.store.evaluation_records import unscorable_share
from advsweep.store.races import read_race
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
    at: Cutoff | None = None,
    sort: str | None = None,
    baseline: str | None = None,
    target: float | None = None,
    rank: str | None = None,
    outcomes: Sequence[Column] = (),
    described: bool = True,
    declared_by: str = "the list of claims",
    ended_early: str | float = KEEP,
) -> Report:
    """Compare the finished runs of a sweep, of all sweeps, or of some ids.

    Args:
        sweep: a sweep's name; None for every run of the store.
        run_ids: only these runs.
        columns: names as `report.data.columns` describes them; by default collapse, pass@k for
            the k of the runs' evaluations, entropies and cost.
        rows: config keys that name the rows; by default the estimator and every key that varies.
        where: filters that runs must match; without one on `status` they must be done.
        at: where in the training runs are compared; by default at its end.
        sort: a column or a key.
        baseline: the rows that others are compared with, as in `parse_baseline`; `none`
            for no comparison. By default the first arm of the sweep that is shown, however rows
            are sorted, in tables of at most 30 rows.
        target: the difference that seeds needed are counted for; by default the observed one.
        rank: a column; rows are sorted by the intervals of their ranks in it.
        outcomes: the primary outcomes; by default those that the sweep declares, or else those of
            `outcome_choices`.
        described: whether differences in other columns are described.
        declared_by: what declares `outcomes`.
        ended_early: what becomes of runs whose outcomes are of an earlier step than the others':
            they stay (`keep`), count as `failed`, or have this number in the outcomes.

    Raises:
        NotFoundError: the sweep, a run, key, metric or row does not exist; the message offers
            the nearest name.
        ReportError: no run is finished, the runs were not evaluated alike, or a row would
            combine runs of several configurations.
    """
    runs = read_runs(store, sweep, run_ids)
    selection = select_runs(store, runs, where)
    done = selection.runs
    if not done:
        what = f"sweep '{sweep}'" if sweep is not None else store.name
        raise ReportError(_nothing_finished(what, runs, selection, where))
    if keys := [name for name in columns or () if is_key(done, name)]:
        raise ReportError(
            f"--columns: {', '.join(keys)} is a config key, which names rows: expected it among "
            "--rows, or in --where"
        )
    given = list(outcomes)
    declared_by = declared_by if outcomes else ""
    if not outcomes and sweep is not None:
        outcomes = parse_outcomes(store.sweeps.spec(sweep).get(OUTCOMES), f"sweep.{OUTCOMES}")
        declared_by = "the sweep" if outcomes else ""
    written = None
    if columns is not None:
        written = read_columns(name for name in columns if at is None or name != REACHED)
    needing = [*(written or ()), *outcomes]
    along = at is not None or any(column.needs_training_curve for column in needing)
    # Runs of the same design that the table does not show lend it their spread.
    scope = runs if run_ids is None else read_runs(store, sweep)
    lending = lending_runs(scope, done)
    read = select_evaluations(store, done, lending=lending, along=along)
    evaluated = read.without([run.id for run in lending])
    tuning = None if sweep is None else store.sweeps.tuning(sweep)
    tuned = "" if tuning is None else tuning.key
    remarks = [*selection.remarks, *([] if tuning is None else [tuning.text])]
    if sweep is not None and (race := read_race(store, sweep)) is not None:
        remarks.append(
            f"{race.text}; the intervals and p-values here are those of a number of seeds that was "
            f"fixed beforehand, which it was not"
        )

    # Columns: those that are shown, and those that the primary outcomes need. Outcomes are measured
    # whether or not they are shown, so that hiding a column cannot change what is significant.
    chosen = choose_columns(written, evaluated)
    if columns is None:
        chosen += logged_pass_columns(store, done, evaluated)
        known = {column.name for column in chosen}
        chosen += [column for column in given if column.name not in known]
    if at is not None and not at.is_cost:
        chosen.append(reached_column(at))
    choices = outcome_choices(evaluated, outcomes)
    candidates = {column.name: column for choice in choices for column in choice}
    plain = map(chance_column, candidates.values())
    visible = {column.name: column for column in chosen}
    measured = candidates | {c.name: c for c in plain if c is not None} | visible

    # Rows: replicates of runs below base models, chance baselines and models without a run.
    data = RunData(store, done, evaluated)
    spent, came, where_at = (None, None, "")
    if at is not None:
        resolved = resolve_cutoff(data, at, _hidden_runs(scope, done, sweep))
        spent, came, where_at = resolved.cutoff, resolved.steps, resolved.text
    numbers = measure(data, measured.values(), came)
    if columns is not None:
        refuse_empty(data, chosen, numbers)
    elif not outcomes and numbers[list(candidates)].isna().all(axis=None):
        filled_columns = [column for column in chosen if numbers[column.name].notna().any()]
        logged, of_logs = logged_columns(store, done, filled_columns)
        numbers = numbers.join(measure(data, logged, came))
        chosen += logged
        visible |= {column.name: column for column in logged}
        measured |= visible
        remarks += of_logs
    remarks += describe_logged_pass([c for c in chosen if numbers[c.name].notna().any()], evaluated)
    groups = group_runs(done, always=tuned) if rows is None else group_by(done, rows)
    ends: list[EarlyEnds] = []
    if at is None:
        filled = {name for name in measured if numbers[name].notna().any()}
        ended = [column for name, column in measured.items() if name in filled]
        ends = find_early_ends(store, groups, ended, evaluated)
    early_ends: list[str] = []
    if ends and ended_early != KEEP:
        deciding = filled & candidates.keys() or filled
        failed = ended_runs(groups, ends, deciding)
        early_ends.append(describe_failed(groups, failed, ended_early))
        if ended_early == FAILED:
            gone = {run.id for run in failed}
            done = [run for run in done if run.id not in gone]
            groups = without_runs(groups, gone)
        else:
            numbers = with_value(numbers, ends, failed, candidates.keys(), float(ended_early))
        ends = []
    if came is not None:
        remarks.append(f"{where_at}, {came.describe(groups)}")
    for own in {c.at.text: c.at for c in chosen if c.at is not None and c.at != at}.values():
        remarks.append(f"@{own.text}: {find_steps(data, own, own.text).describe(groups)}")
    remarks += describe_imported(store, done)
    by_config = Counter(run.config_hash for run in selection.pruned)
    trained = trained_rows(groups, numbers, visible, by_config, evaluated if at is None else None)
    every = numbers
    if lending:
        lent = _lent(store, done, lending, read, measured.values(), spent)
        every = pd.concat([numbers, lent])
    arms = make_arms(trained, shown=done, lending=lending, numbers=every, evaluated=read)
    # The sweep's first arm is the baseline in whichever order the rows are shown.
    planned = trained
    trained = trained if sort is None else _sort(trained, chosen, sort)

    def has_numbers(row: Row) -> bool:
        return any(row.cells[column.name].n for column in chosen)

    # Models that no run trained have no values within a training.
    label = rows[0] if rows else title_key(group for group, _ in groups)
    shown = list(measured.values())
    untrained: list[Row] = []
    if at is None:
        untrained += base_rows(groups, evaluated, shown, label)
    for floor, description in floor_rows(evaluated, shown, label):
        if has_numbers(floor):
            untrained.append(floor)
            remarks.append(description)
    if at is None:
        untrained += filter(has_numbers, model_rows(evaluated, shown, label))
    listed = [*untrained, *trained]

    longest = max(run.steps for run in done)
    filled = {c.name for c in chosen if any(row.cells[c.name].n for row in listed)}
    if columns is None:
        chosen = [column for column in chosen if column.name in filled]
    chosen = [within_steps(column, longest) for column in chosen]
    primary = [column for choice in choices if (column := _choose(choice, trained)) is not None]
    if missing := [column.name for column in outcomes if column not in primary]:
        remarks.append(f"declared as outcomes, but no run has a number: {', '.join(missing)}")
    # Runs are equal in the column that sets their cutoff: its difference is 0 by construction, and
    # would only make the family larger.
    equals = [] if at is None or at.source is None else [column_of(at.source)]
    primary = [
        within_steps(column, longest) for column in primary if find_outcome(column, equals) is None
    ]
    ranks: Mapping[int, RankInterval] = {}
    if rank is not None:
        if rank not in visible:
            hint = nearest(rank, visible)
            raise NotFoundError(f"--sort rank: the table has no column '{rank}'; {hint}")
        listed, ranks = rank_rows(listed, visible[rank])
        tests = "paired t-tests"
        if any(row.unknown_seeds for row in trained):
            tests = "t-tests (Welch's of rows with unknown seeds)"
        remarks.append(
            f"rank: the places by {rank} that {tests} against all other rows leave open, "
            "95 % after Holm; rows with overlapping ranks may be equal"
        )
    compared = None
    if baseline is None:
        compared = default_baseline(planned)
    elif baseline != NO_BASELINE:
        keys = sorted({key for row in trained for key in row.group}, key=key_order)
        compared = parse_baseline(baseline, listed, keys[0])
    differences: Sequence[Difference] = ()
    if compared is not None:
        # The named columns, or the runs' own pass@k.
        others = [
            column
            for column in (chosen if described else ())
            if find_outcome(column, [*primary, *equals]) is None
            and not isinstance(column.source, Reached)
            and (columns is not None or _is_pass_of_own_task(column))
        ]
        own_baseline = replace(compared, tuned=tuned)
        differences = compare_rows(listed, arms, primary, others, own_baseline, target)
    shown = [column for column in chosen if column.name in filled]
    problems = [c.source.problems for c in chosen if isinstance(c.source, Evaluation)]
    tasks = {choice.task or evaluated.main for choice in problems}
    if any(choice.is_mean for choice in problems):
        tasks |= set(evaluated.tasks)
    tasks = tasks or {evaluated.main}

    return Report(
        columns=tuple(chosen),
        rows=tuple(listed),
        left_out=selection.left_out,
        pruned=Counter(run.stopping["name"] for run in selection.pruned if run.stopping),
        unscorable=unscorable_share(evaluated.final),
        unjudged=len({(one.task, own) for one in evaluated.final for own in one.unjudged}),
        provenance=describe_provenance(
            store, sweep, done, [t.protocol for name, t in evaluated.tasks.items() if name in tasks]
        ),
        remarks=tuple(remarks),
        revisions=tuple(find_mixed_revisions(store, done)),
        untaught=tuple(describe_no_signal(store, groups)),
        early_ends=(
            *early_ends,
            *describe_early_ends(groups, _of_table(ends, [*chosen, *primary])),
        ),
        cautions=(
            *describe_large_k(evaluated, shown),
            *describe_denominators(evaluated, shown),
            *(caution_of_chance(listed, differences) if at is None else ()),
        ),
        baseline=None if compared is None else compared.text,
        run_ids=frozenset(run.id for run in done),
        arms=tuple(arms),
        ranks=ranks,
        outcomes=tuple(primary),
        declared_by=declared_by,
        differences=differences,
        tuned=tuned,
    )


def _hidden_runs(
    runs: Sequence[RunRecord], shown: Sequence[RunRecord], sweep: str | None
) -> list[RunRecord]:
    """Return the finished runs of a table's sweep that it does not show.

    Args:
        runs: of the sweep, or of the store.
        shown: those that the table shows.
        sweep: None: those of the runs that are shown.
    """
    ids = {run.id for run in shown}
    sweeps = {name for run in shown for name in run.sweeps} if sweep is None else {sweep}
    finished = [run for run in runs if run.status is Status.DONE and run.id not in ids]
    return [run for run in finished if not sweeps.isdisjoint(run.sweeps)]


def _lent(
    store: Store,
    shown: Sequence[RunRecord],
    lending: Sequence[RunRecord],
    evaluated: EvaluationsByTask,
    columns: Iterable[Column],
    at: Cutoff | None,
) -> pd.DataFrame:
    """Return the numbers of the runs that lend a table their spread, by their ids.

    Args:
        evaluated: the evaluations of the table's runs, and theirs.
        at: where the table's runs are compared.
    """
    theirs = evaluated.without([run.id for run in shown])
    data = RunData(store, lending, theirs, refuses_absent=False)
    came = None if at is None else find_steps(data, at, "--at")
    return measure(data, columns, came)


def _is_pass_of_own_task(column: Column) -> bool:
    return isinstance(column.source, PassAtK) and column.source.problems.task is None


def _of_table(ends: Sequence[EarlyEnds], columns: Sequence[Column]) -> list[EarlyEnds]:
    """Return those of the columns that a table shows or tests."""
    names = {column.name for column in columns}
    return [own for own in ends if own.column.name in names]


def outcome_choices(
    evaluated: EvaluationsByTask, declared: Sequence[Column]
) -> list[Sequence[Column]]:
    """Return the primary outcomes of a table's runs: each the first of some columns that all have.

        pass@1                     accuracy
        pass@K[above=guess]        coverage above chance, at the largest k that the samples
                                   support, a quarter of them; pass@K without a chance baseline
        entropy/right_rarefied     diversity of the correct answers; entropy/right where a run
                                   lacks it

    Runs without an evaluation have pass@1 if they logged it, or else `reward/mean@end`. The
    differences of these outcomes to the baseline are one family: their p values are corrected
    together, whatever columns a table shows. All other differences are descriptive and have no
    test.

    Args:
        declared: the outcomes that the sweep or the list of claims declares; empty for none.
    """
    if declared:
        return [[column] for column in declared]
    main = evaluated.of(None)
    # Trainers may have logged pass@1 as a number.
    names = [["pass@1", UNEVALUATED]]
    if main is not None:
        records = main.final.values()
        samples = min((int(record.n.max(initial=0)) for record in records), default=0)
        k = int(MOST_OF_SAMPLES * samples)
        coverage = [[f"pass@{k}[above={GUESS}]", f"pass@{k}"]] if k > 1 else []
        names = [["pass@1"], *coverage, [RAREFIED_ENTROPY, RIGHT_ENTROPY]]
    return [[c for name in listed if (c := parse_column(name)) is not None] for listed in names]


def _choose(choice: Sequence[Column], rows: Sequence[Row]) -> Column | None:
    """Return the first column that all runs have which have the last; None if no run has any.

    Also None for the diversity of correct answers where it is 0 in all runs, as it is of problems
    with a single correct answer.
    """

    def having(column: Column) -> set[tuple[int, int]]:
        return {(i, n) for i, row in enumerate(rows) if (n := row.cells[column.name].n)}

    found = next(column for column in choice if having(column) >= having(choice[-1]))
    means = [row.cells[found.name].mean for row in rows if row.cells[found.name].n]
    # An outcome that is declared stays: it is the only column of its choice.
    is_single = len(choice) > 1 and choice[-1].name == RIGHT_ENTROPY and not any(means)
    return found if means and not is_single else None


def _nothing_finished(
    what: str, runs: Sequence[RunRecord], selection: SelectedRuns, where: Sequence[Filter]
) -> str:
    states = f" ({count_states(selection.left_out)})" if selection.left_out else ""
    if not runs or not (where or states):
        return f"{what} has no runs to report; start some with `advsweep run` or `advsweep sweep`"
    if not where:
        return f"{what} has no finished run to report yet{states}; `advsweep ls` shows them"
    text = f"{what} has no finished run with {describe_filters(where)}{states}"
    for filter in where:
        # The values of the keys whose filter no run matches.
        values = [value_of(run, filter.key) for run in runs]
        known = dict.fromkeys(show_key(value) for value in values if value is not MISSING)
        if known and not any(map(filter.holds, values)):
            text += f"; {filter.key} is {first_of(known, _SHOWN)}"
    return text


def _sort(rows: Sequence[Row], columns: Sequence[Column], name: str) -> list[Row]:
    """Sort by a column, the best first, or by a key, rising; rows without a value are last."""
    column = next((column for column in columns if column.name == name), None)
    keys = {key for row in rows for key in row.group}
    if column is None and name not in keys:
        hint = nearest(name, [*keys, *(own.name for own in columns)])
        raise NotFoundError(f"--sort: the table has no column or key '{name}'; {hint}")
    falling = column is not None and column.direction is MetricDirection.HIGHER

    def value(row: Row) -> Any:
        return row.group.get(name) if column is None else row.cells[name].mean

    known = [row for row in rows if value(row) is not None and value(row) == value(row)]
    numbers = all(isinstance(value(row), (int, float)) for row in known)
    order = value if numbers else lambda row: show_key(value(row))
    missing = [row for row in rows if row not in known]
    return [*sorted(known, key=order, reverse=falling), *missing]
