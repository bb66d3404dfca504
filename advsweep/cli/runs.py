"""Find the runs that arguments name; records and texts of runs and evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from advsweep.cli.output import echo, echo_line, print_code, print_columns, print_pairs
from advsweep.components import leaves
from advsweep.errors import ConfigError, NotFoundError, counted, nearest
from advsweep.named_code import find_codes
from advsweep.names import ACR, ANSWER_ENTROPY, REWARD_MEAN, SELECTED_STEP, TOKEN_ENTROPY
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.store.imported import is_imported
from advsweep.store.races import RaceRecord
from advsweep.store.sanity import find_no_signal, run_list
from advsweep.store.seeds import UNKNOWN_SEED, show_seed
from advsweep.store.tuning_records import TunedValue, TuningRecord, ValueState
from advsweep.synonyms import SWEEPS

# Looks that a table of a race has.
LOOKS = 4


@dataclass(frozen=True)
class Targets:
    """Runs and sweeps that the arguments name.

    Attributes:
        runs: each run once, in the order given; a sweep's runs in plan order.
        named: ids of the runs that were named individually.
        sweeps: names of the sweeps that were named.
    """

    runs: Sequence[RunRecord]
    named: Set[int]
    sweeps: Sequence[str]


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into names of runs or sweeps and KEY=VALUE overrides."""
    names = [argument for argument in arguments if "=" not in argument]
    return names, [argument for argument in arguments if "=" in argument]


def split_sweep(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split arguments into the name of a sweep, if there is one, and KEY=VALUE overrides.

    Raises:
        ConfigError: there are several names.
    """
    names, overrides = split_overrides(arguments)
    if len(names) > 1:
        raise ConfigError(f"expected one sweep at most, got {', '.join(names)}")
    return next(iter(names), None), overrides


def find_targets(
    store: Store, keys: Sequence[str], *, hint: Callable[[str], str] | None = None
) -> Targets:
    """Find runs by sweep name, id, start of an identity, or `last`.

    Args:
        hint: says what else a key that matches nothing may mean.

    Raises:
        NotFoundError: a key matches nothing, or both a sweep and a run.
    """
    names = store.sweeps.names()
    runs: dict[int, RunRecord] = {}
    named = set()
    sweeps = []
    for key in keys:
        try:
            run = store.runs.find(key)
        except NotFoundError as error:
            if key not in names:
                other = "" if hint is None else f"; {hint(key)}"
                near = nearest(key, names, SWEEPS)
                raise NotFoundError(f"{error}; sweeps: {near}{other}") from error
            sweeps.append(key)
            runs |= {each.id: each for each in store.runs.select(sweep=key, newest_first=False)}
            continue
        if key in names:
            raise NotFoundError(
                f"'{key}' matches both a sweep and run {run.id}; name the run as "
                f"{run.identity[:10]}, or name the sweep's runs by their ids"
            )
        named.add(run.id)
        runs[run.id] = run
    return Targets(list(runs.values()), named, sweeps)


SUMMARISED = (
    (REWARD_MEAN, "mean reward"),
    (ACR, "collapsed groups (ACR)"),
    (TOKEN_ENTROPY, "token entropy, nats"),
)


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return what listings have of a run."""
    keys = ("estimator", "seed", "status", "failure", "step", "steps")
    return {
        "id": run.id,
        "identity": run.identity[:10],
        "sweep": list(run.sweeps),
        **{key: getattr(run, key) for key in keys},
    }


def full_record(store: Store, run: RunRecord) -> dict[str, Any]:
    """Return everything that the store holds about a run, for `--format json`."""
    names = store.metrics.names(run.id)
    evaluations = store.evaluations.select([run.id], split=None)
    analyses = store.analyses.select([run.id])
    return {
        **{field.name: getattr(run, field.name) for field in dataclasses.fields(run)},
        "sweep": run.sweeps[0] if run.sweeps else None,
        "environment": store.runs.environment(run.id),
        "metrics": store.metrics.last_values([run.id], names).get(run.id, {}),
        "summaries": store.metrics.summaries([run.id]).get(run.id, {}),
        "evaluations": [evaluation_record(e) for e in evaluations],
        "analyses": [
            {"kind": a.kind, "step": a.step, "settings": a.settings, "result": a.result}
            for a in analyses
        ],
        "checkpoints": [{"step": c.step, "path": c.path} for c in store.checkpoints.select(run.id)],
    }


def evaluation_record(evaluation: EvaluationRecord) -> dict[str, Any]:
    """Return an evaluation with its scores and the counts of each problem."""
    e = evaluation
    numbers = ("n", "c", "distinct", "unscorable", "answer_entropy", "token_entropy")
    columns = {
        "problem_id": e.problem_ids,
        "prompt": e.prompts,
        "level": e.levels,
        **{name: getattr(e, name) for name in (*numbers, "right_entropy", "kl_base")},
        "right_rarefied": e.rarefied(),
    }
    return {
        "identity": e.identity,
        "subject": e.subject,
        "run": e.run_id,
        "step": e.step,
        "task": e.task,
        "settings": e.settings,
        "created": e.created,
        "scores": e.scores(),
        "problems": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
    }


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted keys and values as text; the value of a node with a name is the name."""
    return {k: "null" if v is None else str(v) for k, v in leaves(config, named=True)}


def print_run(store: Store, run: RunRecord, *, full: bool) -> None:
    """Print a run: its state, how it differs from the defaults, main metrics and evaluations.

    Args:
        full: print all evaluations, every config key, the environment and every metric as well.
    """
    chosen = store.metrics.summaries([run.id]).get(run.id, {}).get(SELECTED_STEP)
    selected = {} if chosen is None else {"selected": f"step {chosen:g}, by validation problems"}
    failure = f" ({run.failure.value})" if run.failure else ""
    reason = f": {run.error}" if run.error else ""
    print_pairs(
        {
            "run": f"{run.id} (attempt {run.attempt})",
            "identity": run.identity,
            "sweeps": ", ".join(run.sweeps) or "none",
            "status": f"{run.status.value}{failure}{reason}",
            **({"seed": f"{UNKNOWN_SEED} (nobody knows it)"} if run.seed is None else {}),
            "step": f"{run.step} of {run.steps}",
            **selected,
            "started": _time(run.started),
            "finished": _time(run.finished),
            "folder": str(run.directory),
        }
    )
    sentences = describe_no_signal(store, [run.id])
    sentences += [tuning.text for tuning in map(store.sweeps.tuning, run.sweeps) if tuning]
    for sentence in sentences:
        echo()
        echo_line(sentence)
    evaluations = store.evaluations.select([run.id])
    for evaluation in evaluations if full else evaluations[-1:]:
        echo()
        print_evaluation(evaluation, f"evaluation after step {evaluation.step}: ")
    sections = _full_sections(store, run) if full else _short_sections(store, run)
    for title, pairs in sections.items():
        if pairs:
            echo(f"\n{title}")
            print_pairs(pairs, indent="  ")
    for key, code in find_codes(run.config):
        title = f"code of {key}: {code.get('object')} in {code.get('place')}"
        print_code(title, str(code.get("text")))
    if run.traceback:
        echo(f"\n{run.traceback.rstrip()}")
    if not full:
        echo(f"\n`advsweep show {run.id} --full` has every key, metric and evaluation.", err=True)


def _full_sections(store: Store, run: RunRecord) -> dict[str, dict[str, str]]:
    """Return all that the store holds of a run, by title."""
    last = store.metrics.last_values([run.id], store.metrics.names(run.id)).get(run.id, {})
    checkpoints = store.checkpoints.select(run.id)
    return {
        "config": flatten(run.config),
        "environment": flatten(store.runs.environment(run.id) or {}),
        "metrics, last values": {name: f"{value:.6g}" for name, value in sorted(last.items())},
        "checkpoints": {f"step {c.step}": str(c.path) for c in checkpoints},
        "analyses": _analyses(store, run),
    }


def _analyses(store: Store, run: RunRecord) -> dict[str, str]:
    analyses = store.analyses.select([run.id])
    return {f"{a.kind.replace('_', ' ')} after step {a.step}": "" for a in analyses}


def _short_sections(store: Store, run: RunRecord) -> dict[str, dict[str, str]]:
    """Return what is special about a run, and its main numbers, by title."""
    from advsweep.cli.defaults import default_config  # imports components, which `ls` does without

    names = [name for name, _ in SUMMARISED]
    last = store.metrics.last_values([run.id], names).get(run.id, {})
    usual = flatten(default_config(run.config))
    changed = {
        key: value
        for key, value in flatten(run.config).items()
        if usual.get(key) != value or key in ("estimator", "seed")
    }
    return {
        "config, where it differs from the defaults": changed,
        "metrics, last values": {
            label: f"{last[name]:.6g}" for name, label in SUMMARISED if name in last
        },
        "analyses": _analyses(store, run),
    }


def print_summary(store: Store, run: RunRecord) -> None:
    """Print what came out of a run, in a few lines, before and after training side by side."""
    took = ""
    if run.started and run.finished:
        took = f" in {(run.finished - run.started).total_seconds():.0f} s"
    echo_line(
        f"run {run.id}: {run.estimator}, seed {show_seed(run.seed)}: {run.status.value}, "
        f"step {run.step} of {run.steps}{took}"
    )
    if run.error:
        echo_line(f"  {run.error}")
    rows = []
    for name, label in SUMMARISED:
        values = store.metrics.series([run.id], name).get(run.id)
        if values is not None and len(values[1]):
            rows.append((label, values[1][0], values[1][-1]))
    evaluations = store.evaluations.select([run.id])
    if len(evaluations) > 1:
        # Of an imported run nobody asked for other k.
        settings = run.config.get("evaluation", {}) if not is_imported(run.config) else {}
        ks = settings.get("k", evaluations[-1].settings["k"])
        first, last = evaluations[0].scores(ks), evaluations[-1].scores(ks)
        rows += [(f"held-out {k}", first[k], last[k]) for k in first if k.startswith("pass@")]
        rows.append(("answer entropy, nats", first[ANSWER_ENTROPY], last[ANSWER_ENTROPY]))
    if rows:
        echo_line(f"  {'':<24} {'first':>8} {'last':>8}")
    for label, before, after in rows:
        echo_line(f"  {label:<24} {before:8.3f} {after:8.3f}")
    for sentence in describe_no_signal(store, [run.id]):
        echo_line(sentence)
    echo(f"\nadvsweep show {run.id} has the rest.", err=True)


def describe_no_signal(store: Store, run_ids: Sequence[int]) -> list[str]:
    """Return a sentence for the runs that learned nothing, or hardly anything, for each cause."""
    by_text: dict[str, list[int]] = {}
    for run_id, text in find_no_signal(store, run_ids).items():
        by_text.setdefault(text, []).append(run_id)
    return [
        f"{run_list(ids)}: {text}; `advsweep samples {ids[0]}` shows what the model wrote"
        for text, ids in by_text.items()
    ]


def print_tuning(record: TuningRecord) -> None:
    """Print the scores of each arm and its choice."""
    values = sorted({each.value for arm in record.arms for each in arm.grid})
    rows = []
    for arm in record.arms:
        scores = {each.value: _describe_score(each) for each in arm.grid}
        rows.append([arm.name, *(scores.get(value, "") for value in values), arm.choice])
    echo_line(record.title)
    print_columns(["arm", *(f"{value:g}" for value in values), "choice"], rows)


def _describe_score(value: TunedValue) -> str:
    """Return the score of a value, or why it has none; a dropped one has fewer seeds."""
    if value.score is None:
        return value.state.value
    if value.state is ValueState.DROPPED:
        return f"{value.score:.3f} (n={value.seeds})"
    return f"{value.score:.3f}"


def print_race(record: RaceRecord) -> None:
    """Print how each arm stands, with the last intervals of its difference to the baseline."""
    rows = record.rows(LOOKS)
    echo_line(record.title)
    print_columns([*rows[0]], [[*row.values()] for row in rows])
    for limit in record.limits:
        echo_line(limit)


def print_evaluation(e: EvaluationRecord, head: str, ks: Sequence[int] | None = None) -> None:
    """Print an evaluation: its settings, scores and solve rates by level.

    Args:
        head: prefix of the first line.
        ks: the k of pass@k (default: those of the evaluation's settings).
    """
    s = e.settings
    cut = f", top-p {s['top_p']:g}" if s.get("top_p", 1.0) < 1 else ""
    by = f", sampled by {s['sampler']}" if "sampler" in s else ""
    # Imported evaluations do not say how they were sampled.
    at = f", temperature {s['temperature']:g}{cut}" if "temperature" in s else ""
    how = f"n={s['n']}{at}, {counted(len(e.n), 'problem')}{by}"
    echo_line(f"{head}{e.task}, {how}")
    print_pairs({k: f"{v:.4f}" for k, v in e.scores(ks).items()}, indent="  ")
    if unjudged := len(e.unjudged):
        echo(f"  no pass@k of {counted(unjudged, 'problem')}: no sample could be scored")
    by_level = []
    for level in sorted(set(e.levels.tolist())):
        c, n = (int(each[e.levels == level].sum()) for each in (e.c, e.n))
        by_level.append(f"{level}: {c / n:.3f}" if n else f"{level}: –")
    echo_line(f"  pass@1 by level  {'  '.join(by_level)}")


def _time(value: datetime | None) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value else "not yet"
