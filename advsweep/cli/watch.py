"""`advsweep ls`, `status`, `show`, `logs`, `stop` and `samples`: runs, as the store has them."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advsweep.cli import options, runs
from advsweep.cli.output import (
    echo,
    echo_line,
    echo_rendered,
    print_columns,
    print_json,
    print_listing,
    warn,
)
from advsweep.errors import ConfigError, NotFoundError, counted, rough_duration
from advsweep.printable import printable_line
from advsweep.store import AnswerSample, EvaluationRecord, RunRecord, Status, open_store
from advsweep.store.records import show_seed
from advsweep.store.sanity import find_mixed_revisions
from advsweep.sweep.progress import SweepStatus, bar_line, read_status, varying_keys
from advsweep.writing import plain_value

# Runs that a table lists by default.
NEWEST = 50

# Collapsed runs that a table lists.
_LISTED = 20


# ls


def ls(
    sweep: str | None = None,
    status: Status | None = None,
    limit: int | None = None,
    models: bool = False,
    store: str | None = None,
    how: options.ListFormat = "table",
) -> None:
    """The last column of the table, `what`, has the config keys in which the listed runs differ.

    Options:
        --limit N >= 0: List the newest N; 0: all (default of a table: 50).
        --status: List only runs with this status.
        --models: List models evaluated by `advsweep eval --model` instead.

    Examples:
        advsweep ls
        advsweep ls demo --status failed
        advsweep ls --format csv
    """
    if limit is None and how == "table":
        limit = NEWEST
    most = limit or None
    opened = open_store(store, create=False)
    if models:
        if sweep is not None or status is not None:
            raise ConfigError("--models: models belong to no sweep and have no status; omit both")
        evaluated = [
            {
                "model": e.settings["model"],
                "task": e.task,
                "split": e.settings.get("split", "held_out"),
                "problems": len(e.problem_ids),
                **{key: e.settings[key] for key in ("n", "temperature", "top_p")},
                "pass@1": round(e.scores([1])["pass@1"], 4),
                "created": e.created.isoformat(timespec="seconds"),
                "identity": e.identity[:10],
            }
            for e in reversed(opened.evaluations.of_models())
        ]
        print_listing(evaluated[:most], how)
        return
    found = opened.runs.select(sweep=sweep, status=status, limit=most)
    for text in find_mixed_revisions(opened, found):
        warn(text)
    if how == "json":
        print_listing([_record(run, sweep) for run in found], how)
        return
    rows = [_row(run) for run in found]
    if how == "table":
        for row, keys in zip(rows, varying_keys(run.config for run in found), strict=True):
            row["seed"] = show_seed(row["seed"])
            row["what"] = " ".join(keys)
    print_listing(rows, how)
    if left := opened.runs.count(sweep=sweep, status=status) - len(found):
        echo_line(f"{counted(left, 'older run')} not shown; --limit 0 shows them.", err=True)
    if not found:
        echo("No runs found.", err=True)


def _row(run: RunRecord) -> dict[str, Any]:
    keys = ("estimator", "seed", "status", "failure", "step", "steps")
    own = {key: getattr(run, key) for key in keys}
    return {"id": run.id, "identity": run.identity[:10], "sweep": list(run.sweeps), **own}


def _record(run: RunRecord, sweep: str | None) -> dict[str, Any]:
    keys = ("backend", "attempt", "created", "started", "finished", "error", "config")
    return {
        **_row(run),
        "identity": run.identity,
        "sweep": sweep or (run.sweeps[0] if run.sweeps else None),
        "sweeps": list(run.sweeps),
        **{key: getattr(run, key) for key in keys},
    }


# status

WATCH_SECONDS = 1.0

_CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Collects what is printed for a terminal, so that it appears at once."""

    def isatty(self) -> bool:
        return True


def status(
    sweep: str | None = None,
    watch: bool = False,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Prints the number of runs per status, the running runs with their step, and the errors of the
    ten newest failures. Speed and time left count training steps only, without
    evaluations. Jobs of Slurm are listed by squeue.

    Options:
        --watch: Show it anew every second, until Ctrl-C, which stops no run.

    Examples:
        advsweep status
        advsweep status demo --watch
    """
    if watch and not sys.stdout.isatty():
        raise ConfigError("--watch: expected a terminal, got none; omit --watch")
    with open_store(store, create=False) as opened:
        while watch:
            shown = _Screen()
            with contextlib.redirect_stdout(shown):
                _print_status(sweep, read_status(opened, sweep, failures=10))
            # In one write, so that a terminal never shows half a table.
            echo_rendered(f"{_CLEAR}{shown.getvalue()}")
            time.sleep(WATCH_SECONDS)
        found = read_status(opened, sweep, failures=10)
    if how == "text":
        _print_status(sweep, found)
        return
    states = {state.value: count for state, count in found.states.items()}
    failures = [
        {**_row(run), "finished": run.finished, "error": run.error} for run in found.failures
    ]
    record = plain_value(replace(found, failures=(), race=None))
    record["race"] = found.race and found.race.plain()
    print_json({"sweep": sweep, **record, "states": states, "failures": failures})


def _print_status(sweep: str | None, found: SweepStatus) -> None:
    states = [f"{count} {state.value}" for state, count in found.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    _echo_words(f"{what}: {', '.join([counted(found.runs, 'run'), *states])}")
    if found.steps:
        left = found.seconds_left and [f"about {rough_duration(found.seconds_left)} left"]
        parts = [f"{found.trained} of {counted(found.steps, 'step')}", *(left or [])]
        echo_line(bar_line(found.trained / found.steps, parts))
    if found.tuning is not None:
        echo()
        runs.print_tuning(found.tuning)
    if found.race is not None:
        echo()
        runs.print_race(found.race)
    if collapsed := found.collapsed:
        listed = ", ".join(map(str, collapsed[:_LISTED])) + (" ..." if collapsed[_LISTED:] else "")
        _echo_words(f"collapsed in training: {counted(len(collapsed), 'run')} ({listed})")
    for failed in found.failures:
        place = f"{failed.status.value} at step {failed.step}/{failed.steps}"
        why = (failed.error or "").partition("\n")[0]
        _echo_words(
            f"run {failed.id} ({failed.estimator} seed={show_seed(failed.seed)}) {place}: {why}"
        )
    running = [
        {
            "run": str(run["id"]),
            "estimator": run["estimator"],
            "step": f"{run['step']}/{run['steps']}",
            "left": "-" if (left := run["seconds_left"]) is None else rough_duration(left),
            "stage": f"{run['stage'] or 'starting'}{', stopping' if run['stop_requested'] else ''}",
            "seed": show_seed(run["seed"]),
            "steps/s": "-" if run["steps_per_second"] is None else f"{run['steps_per_second']:.3g}",
            "heartbeat": "-"
            if (age := run["heartbeat_age"]) is None
            else f"{rough_duration(age)} ago",
            "where": f"{run['host']}:{run['pid']}",
        }
        for run in found.running
    ]
    if running:
        echo()
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        widths = [max(len(text), *(len(row[text]) for row in running)) + 2 for text in running[0]]
        ends = zip(running[0], itertools.accumulate(widths), strict=True)
        fitting = [column for column, end in ends if end - 2 <= wide]
        print_columns(fitting, [[row[column] for column in fitting] for row in running])


def _echo_words(text: str) -> None:
    """Print a line, which a terminal breaks between words."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in textwrap.wrap(printable_line(text), columns, subsequent_indent="  "):
        echo_line(line)


# show and logs


def show(run: str, store: str | None = None, how: options.RecordFormat = "text") -> None:
    """Also says where its folder and its checkpoints are, and why it failed.

    Examples:
        advsweep show last
        advsweep show 12 --format json
    """
    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if how == "json":
        print_json(runs.full_record(opened, record))
    else:
        runs.print_run(opened, record)


def logs(
    run: str,
    follow: bool = False,
    store: str | None = None,
) -> None:
    """The log is a file in the run's folder, on the machine that trained it.

    Options:
        --follow, -f: Keep printing new lines until the run ends.

    Examples:
        advsweep logs last
        advsweep logs 12 --follow
    """
    with open_store(store, create=False) as opened:
        for text in runs.read_log(opened, opened.runs.find(run), follow=follow):
            echo(text, nl=False)


# stop


def stop(targets: list[str], store: str | None = None) -> None:
    """The runs end as interrupted. Also prevents pending, interrupted and lost runs from being
    started by a worker or a queued job. The runs stay stopped until `advsweep retry`, or their
    `run` or `sweep` command, starts them again.

    Examples:
        advsweep stop 12
        advsweep stop demo
    """
    with open_store(store, create=False) as opened:
        found = runs.find_targets(opened, targets).runs
        running = [run for run in found if run.status is Status.RUNNING]
        open_ = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
        waiting = [run for run in found if run.status in open_]
        # A waiting run is marked, too: a worker could claim it a moment later.
        for run in [*running, *waiting]:
            opened.leases.request_stop(run.id)
    echo(
        f"Requested a stop of {len(running)} running and {counted(len(waiting), 'waiting run')}; "
        f"{len(found) - len(running) - len(waiting)} had already ended.",
        err=True,
    )


# samples


def samples(
    run: str | None = None,
    step: int | None = None,
    models: bool = False,
    store: str | None = None,
    how: options.RecordFormat = "text",
) -> None:
    """Each evaluation keeps the first answers to at most 8 problems, spread over the levels; a long
    answer loses its middle. Evaluations of the same problems keep answers to the same ones, so
    that the answers before and after training can be compared.

    Arguments:
        [RUN] (run): A run's id, the start of its identity, or 'last'.

    Options:
        --step N >= 0: Show the evaluation after this step; 0 is the base model (default:
            the last).
        --models: Show those of models evaluated by `advsweep eval --model` instead.

    Examples:
        advsweep samples last
        advsweep samples last --step 0
        advsweep samples last --format json
    """
    if models == (run is not None):
        raise ConfigError("expected either a run or --models")
    if models and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    opened = open_store(store, create=False)
    others: list[int] = []
    if run is None:
        evaluations: Sequence[EvaluationRecord] = opened.evaluations.of_models()
    else:
        record = opened.runs.find(run)
        found = opened.evaluations.select([record.id], split=None)
        if not found:
            raise NotFoundError(
                f"run {record.id} has no evaluation yet; `advsweep eval {record.id}` makes one"
            )
        others = sorted({e.step for e in found if e.step is not None})
        chosen = others[-1] if step is None else step
        if chosen not in others:
            raise NotFoundError(
                f"--step: expected a step with an evaluation of run {record.id} "
                f"({', '.join(map(str, others))}), got {step}"
            )
        evaluations = [e for e in found if e.step == chosen]
        others.remove(chosen)
    kept = opened.evaluations.samples([e.identity for e in evaluations])
    if how == "json":
        keys = ("problem_id", "level", "prompt", "answer", "length", "read", "verdict", "reward")
        shown = [
            {
                "run": e.run_id,
                "step": e.step,
                "task": e.task,
                "settings": e.settings,
                "samples": [
                    {key: getattr(sample, key) for key in keys}
                    for sample in kept.get(e.identity, [])
                ],
            }
            for e in evaluations
        ]
        print_json(shown)
        return
    for evaluation in evaluations:
        _print_samples(evaluation, kept.get(evaluation.identity, []))
    if others:
        echo(f"--step shows other evaluations: {', '.join(map(str, others))}", err=True)


def _print_samples(evaluation: EvaluationRecord, kept: Sequence[AnswerSample]) -> None:
    settings = evaluation.settings
    whose = f"model {settings.get('model')}"
    if evaluation.run_id is not None:
        weights = f"after step {evaluation.step}" if evaluation.step else "before training"
        whose = f"run {evaluation.run_id} {weights}"
    problems = len(evaluation.problem_ids)
    split = {"train": " training", "validation": " validation"}.get(settings.get("split", ""), "")
    echo_line(f"{whose}, {evaluation.task}: {len(kept)} of {problems}{split} problems")
    if not kept:
        echo("  no answers were kept: another program made the evaluation")
    for number, sample in enumerate(kept, 1):
        reward = "none" if sample.reward is None else f"{sample.reward:g}"
        read = "" if sample.read in (None, sample.answer) else f", read as {sample.read}"
        echo()
        echo_line(f"{number}. {sample.problem_id} (level {sample.level})")
        for title, text in (("prompt", sample.prompt), ("answer", sample.answer)):
            # Every line has a mark that the text cannot remove.
            for place, line in enumerate(text.split("\n")):
                echo_line(f"  {'' if place else title:<7} | {line}")
        echo_line(f"  verdict {sample.verdict}, reward {reward}{read}")
    echo()
