"""Texts of a report: notes on its numbers, cautions, what is missing, and where they come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from advsweep.errors import counted, first_of
from advsweep.names import LEARNING_RATE, ROLLOUT_COST
from advsweep.report.data.columns import MOST_OF_SAMPLES, Column, column_of, logged_metric
from advsweep.report.data.evaluation_sources import PassAtK, ProblemChoice
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.runs import Group, name_group, show_key
from advsweep.report.data.windows import END_STEPS
from advsweep.report.tables.comparison import MOST_ROWS, SEEDS_FOR_A_MARK
from advsweep.report.tables.types import (
    Difference,
    Report,
    Row,
    Subject,
    count_states,
)
from advsweep.store import RunRecord, Store
from advsweep.store.imported import IMPORTED, is_imported
from advsweep.store.sanity import find_no_signal
from advsweep.writing import Mark, show

# How far base and baseline must be above guessing; as far as guessing itself where that is less.
#
# The second bound is for small chances: where a guess is right in .001, a pass@1 of .03 is none.
CHANCE_MARGIN = 0.05

# The floor that draws uniformly among well-formed answers.
GUESS = "guess"

NOT_MATCHED = "none"

_SHOWN = ("advsweep", "python", "torch")  # JSON has all versions
_NAMED = 6  # of what is listed at most
_FEW = 4  # rows of a caution
_LONGEST = 300  # characters of a note

# What the marks of a table mean.
LEGEND = {
    Mark.BEST: f"significantly better than all other rows with at least {SEEDS_FOR_A_MARK} seeds",
    Mark.SECOND: "significantly better than all rows below",
}


def notes(report: Report) -> list[str]:
    """Return sentences about the numbers: what they are, and what they do not say."""
    rows, columns = report.rows, report.columns
    trained = [row for row in rows if not row.is_base]
    rates = report.provenance["learning_rates"]
    seeds = sum(row.n for row in trained)
    end = [c.header for c in columns if c.is_mean_of_steps and c.window and c.window.kind == "end"]
    cost = [c.header for c in columns if c.name.startswith(ROLLOUT_COST)]
    cells = [row.cells[column.name] for row in rows for column in columns]
    alike = []
    for row in rows:
        # Costs that no seed changes are expected.
        directed = [c for c in columns if c.direction is not MetricDirection.NEITHER]
        equal = [c.header for c in directed if row.cells[c.name].has_no_spread]
        alike += [f"{name_group(row.group)} ({first_of(equal, _NAMED)})"] if equal else []
    missing = {c.header: seeds - sum(row.cells[c.name].n for row in trained) for c in columns}
    texts = [
        (True, f"mean ± half the 95 % Student t interval over {unit_of(report)}; n: runs"),
        (
            any(not math.isnan(cell.over_problems) for cell in cells),
            "(±): of one evaluation, half the 95 % interval over problems like these (bootstrap), "
            "which says nothing of another training",
        ),
        (
            any(row.subject is Subject.BASE and row.seeds for row in rows),
            "base: the models that runs start from, one for each seed; a difference to it is of "
            "each seed's runs to the seed's own base",
        ),
        (end, f"{', '.join(end)}: mean over the last {END_STEPS} steps"),
        (cost, f"{', '.join(cost)}: generated ones, per rollout that the steps ask for"),
        (
            alike,
            f"zero spread, so that ±0 is no interval: all seeds of {first_of(alike, _NAMED)} have "
            "the same value",
        ),
        *((True, text) for text in (*report.early_ends, *describe_unknown_seeds(report))),
        *(
            (True, text)
            for text in (*report.remarks, *report.revisions, *report.untaught, *report.cautions)
        ),
        (rates, f"learning rates: {'; '.join(map(_describe_matched, rates))}"),
        (report.left_out, f"left out, as they are not done: {count_states(report.left_out)}"),
        (
            report.unscorable,
            f"{report.unscorable:.2%} of the samples could not be scored, through no fault of the "
            "model's; they count as not correct",
        ),
        (
            report.unjudged,
            "problems left out of pass@k, as none of their samples could be scored: "
            f"{report.unjudged} (as a rule their gold answer cannot be read)",
        ),
    ]
    lines = [text for shown, text in texts if shown]
    for row in rows:
        if row.pruned:
            pruned = f"{row.pruned} of {row.runs + row.pruned} runs were pruned"
            means = "its means are those of the runs that did well early"
            lines.append(f"{name_group(row.group)}: {pruned}, so that {means}")
    for header, lacking in missing.items():
        if lacking:
            lines.append(f"{header}: {lacking} of {seeds} runs have no number")
    return lines


POOLED_SPREAD = (
    "that of a randomised block ANOVA (Fisher, 1935) of the sweep's arms that ran the same seeds "
    "of the same tasks and bases, shown or not; an arm whose spread is larger than that of the "
    "others (F test, p < .05) has its own, with n - 1"
)


def difference_notes(report: Report) -> list[str]:
    """Return sentences about the differences."""
    trained = [row for row in report.rows if not row.is_base]
    if not report.differences and report.baseline is None:
        many = f"not compared, with more than {MOST_ROWS} rows: --baseline names one"
        return [many] if len(trained) > MOST_ROWS else []
    if not report.differences:
        several = all(row.n > 1 for row in trained)
        why = "no column has an interval" if several else "that takes two seeds of each"
        return [f"not compared with {report.baseline}: {why}"]
    one = report.differences[0]
    given = one.target != one.comparison.difference
    what = f"for a difference of {one.target:g}" if given else "at the observed effect"
    compared = [d.comparison for d in report.differences]
    spread = "that of the pairs' differences alone"
    if any(c.pooled for c in compared):
        spread = POOLED_SPREAD
    test = (
        "paired by seed, with the t-test's p (p perm: of flipped signs); effect: in standard "
        "deviations of the pairs' differences (Hedges)"
    )
    freedom = f"of the spread, {spread}"
    needed = "pairs"
    if not any(c.paired for c in compared):
        test = "of unpaired runs, with the p of Welch's t-test; effect: in pooled standard "
        test += "deviations (Hedges)"
        freedom = "of Welch's t-test, after Satterthwaite"
        needed = "seeds of each row"
    lines = [
        f"differences: {test}; P(better): probability that a run does better than one of the "
        "baseline",
        describe_family(report) if report.primary else "no primary outcome has a difference",
        f"df: degrees of freedom {freedom}",
        f"seeds needed: {needed} that would give 80 % power {what}, if its spread is as estimated "
        "here",
    ]
    if not all(c.paired for c in compared):
        lines.append("unpaired: rows that share fewer than two known seeds, by Welch's t-test")
    return lines


def unit_of(report: Report) -> str:
    """Return what the numbers of a report are means over: seeds, or runs of unknown seeds."""
    trained = [row for row in report.rows if not row.is_base]
    return "runs" if any(row.unknown_seeds for row in trained) else "seeds"


def describe_unknown_seeds(report: Report) -> list[str]:
    """Return a sentence on the rows with runs whose seed nobody knows; none without any."""
    rows = [row for row in report.rows if row.unknown_seeds and not row.is_base]
    if not rows:
        return []
    compared = [
        difference.comparison
        for difference in report.differences
        if any(report.rows[i] in rows for i in (difference.row, difference.baseline))
    ]
    named = []
    for row in rows:
        of = "" if row.unknown_seeds == row.n else f" of {row.n}"
        named.append(f"{name_group(row.group)} ({row.unknown_seeds}{of})")
    text = f"seeds unknown: not paired: {first_of(named, _NAMED)}"
    if any(not comparison.paired for comparison in compared):
        text += "; differences are by Welch's t-test"
    if any(comparison.paired for comparison in compared):
        text += "; rows that share two known seeds or more are compared by these alone"
    return [text]


def describe_family(report: Report) -> str:
    """Describe which differences the p of the report's differences are adjusted over."""
    outcomes = ", ".join(dict.fromkeys(d.column.header for d in report.primary))
    declared = f", declared by {report.declared_by}" if report.declared_by else ""
    return f"p adj is adjusted over {report.family} ({outcomes}{declared}), by Benjamini-Hochberg"


def _describe_matched(rates: Mapping[str, Any]) -> str:
    """Describe how learning rates were matched, and the results."""
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
    """Describe in a few lines where the numbers come from."""
    p = report.provenance
    where = p["store"] if p["sweep"] is None else f"{p['store']}, sweep {p['sweep']}"
    days = sorted({at.date().isoformat() for at in (p["first"], p["last"]) if at is not None})
    made = f", made {' to '.join(days)}" if days else ""
    lines = [f"{where}: {counted(p['runs'], 'run')}{made}"]
    for evaluation in p["evaluations"]:
        own = {k: v for k, v in evaluation.items() if k not in ("task", "problems")}
        how = ", ".join(f"{k}={show_key(v)}" for k, v in own.items())
        problems, task = (show_key(evaluation[key]) for key in ("problems", "task"))
        lines.append(f"evaluated on {counted(problems, 'problem')} of {task}: {how}")
    versions = p["versions"]
    programs = [f"{name} {'/'.join(versions[name])}" for name in _SHOWN if name in versions]
    if p["commits"]:
        some = "/".join(commit[:10] for commit in p["commits"])
        programs.insert(0, f"commit {some} ({'' if p['dirty'] else 'no '}local changes)")
    lines += ["made with " + ", ".join(programs)] if programs else []
    lines += ["made on " + "; ".join(p["hardware"])] if p["hardware"] else []
    return lines


def describe_provenance(
    store: Store,
    sweep: str | None,
    runs: Sequence[RunRecord],
    evaluations: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Collect what the store knows about how some runs were made.

    Returns:
        `store`: its path as it was given, or its URL without a password; `sweep`: None for other
        sets of runs; `runs`: how many; `evaluations`: for each measured task its name, the number
        of problems, and how samples were drawn; `learning_rates`: for each method of matching
        them, `match` (`none` without matching), the name of its `reference`, and the `rates` at
        the end of training by estimator; `commits`, `versions` and `hardware` that made the runs,
        sorted; `dirty` if any commit had local changes; `first` and `last`: when the first run
        started and the last one finished, in UTC.
    """
    environments = store.runs.environments([run.id for run in runs]).values()
    git = [state for e in environments if (state := e.get("git"))]
    versions: dict[str, set[str]] = {}
    for environment in environments:
        own = {key: environment.get(key) for key in ("advsweep", "python")}
        for name, version in {**own, **environment.get("packages", {})}.items():
            if version:
                versions.setdefault(name, set()).add(version)
    machines = []
    for environment in environments:
        cores, memory = environment.get("cores"), environment.get("memory_bytes")
        size = f"{memory / 2**30:.0f} GiB" if memory else None
        parts = environment.get("cpu"), f"{cores} cores" if cores else None, size
        machines.append(", ".join(part for part in parts if part))
    return {
        "store": store.name,
        "sweep": sweep,
        "runs": len(runs),
        "evaluations": list(evaluations),
        "learning_rates": _learning_rates(store, runs),
        "commits": sorted({state["commit"] for state in git}),
        "dirty": any(state["dirty"] for state in git),
        "versions": {name: sorted(found) for name, found in sorted(versions.items())},
        "hardware": sorted(set(machines) - {""}),
        "first": min((run.started for run in runs if run.started), default=None),
        "last": max((run.finished for run in runs if run.finished), default=None),
    }


def _learning_rates(store: Store, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    last = store.metrics.last_values([run.id for run in runs], [LEARNING_RATE])
    found: dict[tuple[str, str | None], dict[str, set[float]]] = {}
    for run in runs:
        if is_imported(run.config) and not last.get(run.id):
            continue
        optimizer = {} if is_imported(run.config) else run.config.get("optimizer", {})
        match, reference = optimizer.get("match", NOT_MATCHED), None
        if match != NOT_MATCHED:
            reference = optimizer["match_reference"]["name"]
        rates = found.setdefault((match, reference), {}).setdefault(run.estimator, set())
        rates |= set(last.get(run.id, {}).values())
    return [
        {
            "match": match,
            "reference": reference,
            "rates": {estimator: sorted(rates) for estimator, rates in by_estimator.items()},
        }
        for (match, reference), by_estimator in found.items()
    ]


def describe_large_k(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describe the columns whose k is large for the number of samples.

    The unbiased estimate of pass@k has its largest variance at k = n, where it tells only
    whether any sample was right.
    """
    found: dict[int, list[str]] = {}
    for column in columns:
        # pass@1 is a share of all samples, however few.
        source = column.source
        if not isinstance(source, PassAtK) or source.k == 1:
            continue
        tasks = source.problems.tasks_of(evaluated)
        if not source.problems.is_mean:
            name = source.problems.task or evaluated.main
            tasks = {key: task for key, task in tasks.items() if key == name}
        records = [record for task in tasks.values() for record in task.final.values()]
        samples = min((int(record.n.max(initial=0)) for record in records), default=0)
        if source.k > MOST_OF_SAMPLES * samples:
            found.setdefault(samples, []).append(column.header)
    return [
        f"{', '.join(headers)}: k is above a quarter of the {samples} samples of a problem, where "
        "the estimate varies most; a smaller k, or more samples, compares better"
        for samples, headers in found.items()
    ]


def describe_denominators(evaluated: EvaluationsByTask, columns: Sequence[Column]) -> list[str]:
    """Describe the columns of pass@k that leave out problems with fewer than k samples."""
    found = []
    for column in columns:
        source = column.source
        if not isinstance(source, PassAtK) or source.problems.is_mean:
            continue
        tasks = source.problems.tasks_of(evaluated)
        task = tasks.get(source.problems.task or evaluated.main or "")
        if task is None:
            continue
        counted_problems = set()
        # Most evaluations have the same number of samples of each problem.
        for samples in {record.n.tobytes(): record.n for record in task.final.values()}.values():
            scored = samples[samples > 0]
            counted_problems.add((int((scored >= source.k).sum()), len(scored)))
        if all(enough == every for enough, every in counted_problems):
            continue
        least = min(enough for enough, _ in counted_problems)
        most = max(enough for enough, _ in counted_problems)
        every = max(every for _, every in counted_problems)
        enough = str(least) if least == most else f"{least} to {most}"
        found.append(f"{column.header} over {enough} of {every}")
    if not found:
        return []
    return [
        f"means over fewer problems, as the others have fewer than k samples: {'; '.join(found)}: "
        "columns of other problems are no curve over k"
    ]


def describe_logged_pass(columns: Sequence[Column], evaluated: EvaluationsByTask) -> list[str]:
    """Describe the columns of pass@k whose numbers are those that a trainer logged."""
    headers = [column.header for column in columns if logged_metric(column, evaluated) is not None]
    if not headers:
        return []
    return [f"{', '.join(headers)}: the last number that the logs have, of problems unknown here"]


def describe_no_signal(
    store: Store, groups: Sequence[tuple[Group, Sequence[RunRecord]]]
) -> list[str]:
    """Describe the rows with runs that learned nothing, or hardly anything, from their rewards."""
    found = find_no_signal(store, [run.id for _, members in groups for run in members])
    rows: dict[str, list[str]] = {}
    for group, members in groups:
        counts = Counter(found[run.id] for run in members if run.id in found)
        for text, count in counts.items():
            some = "" if count == len(members) else f" ({count} of {len(members)} runs)"
            rows.setdefault(text, []).append(f"{name_group(group)}{some}")
    return [f"{first_of(named, _FEW)}: {text}" for text, named in rows.items()]


def chance_column(column: Column) -> Column | None:
    """Return the column of pass@k after training with the same k, task and level.

    None for other columns, and where guessing has no number: of problems that are chosen by a
    base's solve rates, of training problems, and of several tasks.
    """
    source = column.source
    if not isinstance(source, PassAtK):
        return None
    problems = source.problems
    if problems.is_train or problems.base is not None or problems.is_mean:
        return None
    return column_of(PassAtK(source.k, problems=ProblemChoice(problems.task, level=problems.level)))


def chance_of(rows: Sequence[Row], column: str) -> float:
    """Return the chance that a guess is right; NaN where the task cannot compute it."""
    for row in rows:
        if row.subject is Subject.FLOOR and GUESS in row.group.values():
            return row.cells[column].mean
    return math.nan


def describe_chance(column: str, chance: float, values: Mapping[str, float]) -> str:
    """Say which values are at chance, where pass@k says nothing of a model; empty if none is."""
    margin = min(CHANCE_MARGIN, chance)
    if not any(value <= chance + margin for value in values.values()):
        return ""
    shown = ", ".join(f"{n} {show(v)}" for n, v in {GUESS: chance, **values}.items())
    return f"{column} must be more than {show(margin)} above {GUESS}: {shown}"


def caution_of_chance(rows: Sequence[Row], differences: Sequence[Difference]) -> list[str]:
    """Describe the primary outcomes on which a base or the baseline is at chance."""
    baselines: dict[str, set[int]] = {}
    for difference in differences:
        plain = chance_column(difference.column) if difference.is_primary else None
        if plain is not None:
            baselines.setdefault(plain.name, set()).add(difference.baseline)
    texts = []
    for name, places in baselines.items():
        tested = [row for i, row in enumerate(rows) if row.subject is Subject.BASE or i in places]
        values = {name_group(row.group): row.cells[name].mean for row in tested}
        text = describe_chance(name, chance_of(rows, name), values)
        if text:
            texts.append(f"at chance, so that claims on it are not judged: {text}")
    return texts


def describe_imported(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each format of which runs were imported; none without any."""
    imported = [run for run in runs if is_imported(run.config)]
    environments = store.runs.environments([run.id for run in imported]) if imported else {}
    by_format: dict[str, list[list[str]]] = {}
    for run in imported:
        described = environments.get(run.id, {}).get(IMPORTED)
        own = described.get("notes") if isinstance(described, Mapping) else None
        texts = own if isinstance(own, list) else []
        form = str(run.config["backend"].get("format", "unknown"))
        by_format.setdefault(form, []).append([str(note)[:_LONGEST] for note in texts])
    sentences = []
    for form, listed in sorted(by_format.items()):
        found = dict.fromkeys(note for texts in listed for note in texts)
        text = f"imported from {form}: {len(listed)} of {len(runs)} runs, by another trainer"
        sentences.append("; ".join([text, *([first_of(found, _NAMED, "; ")] if found else [])]))
    return sentences
