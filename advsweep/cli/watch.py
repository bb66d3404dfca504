"""`advsweep ls`, `status`, `show`, `logs`, `stop` and `samples`: runs, as the store has them."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_run
from advsweep.cli.options import ListFormat, RecordFormat
from advsweep.cli.output import (
    duration,
    echo,
    echo_line,
    echo_rendered,
    print_columns,
    print_json,
    print_listing,
    warn,
)
from advsweep.errors import ConfigError, NotFoundError, counted

if TYPE_CHECKING:
    from advsweep.store import AnswerSample, EvaluationRecord, RunRecord, Store
    from advsweep.sweep.status import QueuedJob, SweepStatus

NEWEST = 50
"""Runs that a table lists by default."""

_LISTED = 20
"""Queued runs and collapsed runs that a table lists."""


# ls


def ls(
    sweep: options.SweepName = None,
    status: str | None = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            metavar="N",
            help=f"List the newest N; 0: all (default of a table: {NEWEST}).",
        ),
    ] = None,
    models: bool = False,
    store: options.Store = None,
    how: options.Listing = ListFormat.TABLE,
) -> None:
    """The last column of the table, `what`, has the config keys in which the listed runs differ.

    Options:
        --status: List only runs with this status.
        --models: List models evaluated by `advsweep eval --model` instead.

    Examples:
        advsweep ls
        advsweep ls demo --status failed
        advsweep ls --format csv
    """
    from advsweep.store import open_store
    from advsweep.store.records import parse_status
    from advsweep.store.sanity import find_mixed_revisions

    if limit is None and how is ListFormat.TABLE:
        limit = NEWEST
    most = limit or None
    opened = open_store(store, create=False)
    if models:
        if sweep is not None or status is not None:
            raise ConfigError("--models: models belong to no sweep and have no status; omit both")
        print_listing([_model(e) for e in reversed(opened.evaluations.of_models())][:most], how)
        return
    runs = opened.runs.select(sweep=sweep, status=parse_status(status), limit=most)
    for text in find_mixed_revisions(opened, runs):
        echo_line(f"advsweep: {text}", err=True)
    if how is ListFormat.JSON:
        print_listing([_record(r, sweep) for r in runs], how)
        return
    rows = [_row(r) for r in runs]
    if how is ListFormat.TABLE:
        from advsweep.sweep.planning.labels import varying_keys

        for row, keys in zip(rows, varying_keys(r.config for r in runs), strict=True):
            row["what"] = " ".join(keys)
    print_listing(rows, how, optional=("identity",))
    left = opened.runs.count(sweep=sweep, status=parse_status(status)) - len(runs)
    if left:
        echo_line(f"{counted(left, 'older run')} not shown; --limit 0 shows them.", err=True)
    if not runs:
        echo("No runs found.", err=True)


def _model(evaluation: EvaluationRecord) -> dict[str, Any]:
    settings = evaluation.settings
    return {
        "model": settings["model"],
        "task": evaluation.task,
        "split": settings.get("split", "held_out"),
        "problems": len(evaluation.problem_ids),
        "n": settings["n"],
        "temperature": settings["temperature"],
        "top_p": settings["top_p"],
        "pass@1": round(evaluation.scores([1])["pass@1"], 4),
        "created": evaluation.created.isoformat(timespec="seconds"),
        "identity": evaluation.identity[:10],
    }


def _row(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "identity": run.identity[:10],
        "sweep": list(run.sweeps),
        "estimator": run.estimator,
        "seed": run.seed,
        "status": run.status,
        "failure": run.failure,
        "step": run.step,
        "steps": run.steps,
    }


def _record(run: RunRecord, sweep: str | None) -> dict[str, Any]:
    return {
        **_row(run),
        "identity": run.identity,
        "sweep": sweep or (run.sweeps[0] if run.sweeps else None),
        "sweeps": list(run.sweeps),
        "backend": run.backend,
        "attempt": run.attempt,
        "created": run.created,
        "started": run.started,
        "finished": run.finished,
        "error": run.error,
        "config": run.config,
    }


# status

WATCH_SECONDS = 1.0

_CLEAR = "\x1b[H\x1b[2J"


class _Screen(io.StringIO):
    """Collects what is printed for a terminal, so that it appears at once."""

    def isatty(self) -> bool:
        return True


def status(
    sweep: options.SweepName = None,
    watch: bool = False,
    store: options.Store = None,
    how: options.Record = RecordFormat.TEXT,
) -> None:
    """Prints the number of runs per status, the running runs with their step, and the errors of the
    ten newest failures. Speed and time left count training steps only, without
    evaluations. For runs submitted to Slurm, calls squeue once to list the queued ones.

    Options:
        --watch: Show it anew every second, until Ctrl-C, which stops no run.

    Examples:
        advsweep status
        advsweep status demo --watch
    """
    from advsweep.store import open_store
    from advsweep.sweep.status import read_status

    if watch and not sys.stdout.isatty():
        raise ConfigError("--watch: expected a terminal, got none; omit --watch")
    with open_store(store, create=False) as opened:
        while watch:
            shown = _Screen()
            with contextlib.redirect_stdout(shown):
                _print_status(sweep, read_status(opened, sweep, failures=10))
            echo_rendered(f"{_CLEAR}{shown.getvalue()}")
            try:
                time.sleep(WATCH_SECONDS)
            except KeyboardInterrupt:
                return
        found = read_status(opened, sweep, failures=10)
        if how is RecordFormat.TEXT:
            # Print first: squeue may take seconds to answer.
            _print_status(sweep, found)
            _print_queued(_queued(opened, sweep) or ())
            return
        queued = _queued(opened, sweep)
    from advsweep.writing import plain_value

    states = {state.value: count for state, count in found.states.items()}
    print_json({"sweep": sweep, **plain_value(found), "states": states, "queued": queued})


def _queued(store: Store, sweep: str | None) -> Sequence[QueuedJob] | None:
    """Return the queued jobs; None, with a message on stderr, if the queue does not answer."""
    from advsweep.sweep.status import queued_jobs

    try:
        return queued_jobs(store, sweep)
    except ConfigError as error:
        warn(str(error))
        return None


def _print_queued(queued: Sequence[QueuedJob]) -> None:
    if not queued:
        return
    counts = Counter((job.executor, job.state.lower()) for job in queued)
    summary = ", ".join(f"{count} {state} in {where}" for (where, state), count in counts.items())
    echo()
    echo_line(f"jobs: {summary}")
    print_columns(
        ["job", "state", "why"],
        [[job.job, job.state.lower(), job.reason or "-"] for job in queued[:_LISTED]],
    )
    if len(queued) > _LISTED:
        echo_line(f"{len(queued) - _LISTED} more not shown; --format json lists all.", err=True)


def _print_status(sweep: str | None, found: SweepStatus) -> None:
    from advsweep.cli.runs import print_tuning

    states = [f"{count} {state.value}" for state, count in found.states.items() if count]
    what = f"sweep {sweep}" if sweep else "all sweeps"
    echo_line(f"{what}: {', '.join([counted(found.runs, 'run'), *states])}")
    if (tuning := found.tuning) is not None:
        echo()
        print_tuning(tuning)
    if collapsed := found.collapsed:
        listed = ", ".join(map(str, collapsed[:_LISTED])) + (" ..." if collapsed[_LISTED:] else "")
        echo_line(f"collapsed in training: {counted(len(collapsed), 'run')} ({listed})")
    if found.running:
        echo()
        print_columns(
            ["run", "estimator", "seed", "step", "stage", "steps/s", "left", "heartbeat", "where"],
            [
                [
                    *(str(r.id), r.estimator, str(r.seed), f"{r.step}/{r.steps}"),
                    f"{r.stage or 'starting'}{', stopping' if r.stop_requested else ''}",
                    "-" if r.steps_per_second is None else f"{r.steps_per_second:.3g}",
                    duration(r.seconds_left),
                    f"{duration(r.heartbeat_age)} ago",
                    f"{r.host}:{r.pid}",
                ]
                for r in found.running
            ],
        )
    if found.failures:
        echo()
        print_columns(
            ["run", "estimator", "seed", "step", "status", "why"],
            [
                [
                    *(str(f.id), f.estimator, str(f.seed), f"{f.step}/{f.steps}"),
                    *(f.status.value, f.error.partition("\n")[0]),
                ]
                for f in found.failures
            ],
        )


# show and logs


def show(
    run: options.RunKey, store: options.Store = None, how: options.Record = RecordFormat.TEXT
) -> None:
    """Also says where its folder and its checkpoints are, and why it failed.

    Examples:
        advsweep show last
        advsweep show 12 --format json
    """
    from advsweep.cli import runs
    from advsweep.store import open_store

    opened = open_store(store, create=False)
    record = opened.runs.find(run)
    if how is RecordFormat.JSON:
        print_json(runs.full_record(opened, record))
    else:
        runs.print_run(opened, record)


def logs(
    run: options.RunKey,
    follow: bool = False,
    store: options.Store = None,
) -> None:
    """The log is a file in the run's folder, on the machine that trained it.

    Options:
        --follow, -f: Keep printing new lines until the run ends.

    Examples:
        advsweep logs last
        advsweep logs 12 --follow
    """
    from advsweep.cli.runs import Tail, follow_log, log_path
    from advsweep.store import open_store

    with open_store(store, create=False) as opened:
        record = opened.runs.find(run)
        path = log_path(record)
        if follow:
            try:
                for text in follow_log(opened, record):
                    echo(text, nl=False)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
    if not path.is_file():
        raise NotFoundError(
            f"run {record.id} has no log at {path}: the run has not started on this machine, or "
            "its folder was removed"
        )
    tail = Tail(path)
    while text := tail.read():
        echo(text, nl=False)


# stop


def stop(
    targets: options.Targets,
    kill: bool = False,
    store: options.Store = None,
) -> None:
    """The runs end as interrupted. Also prevents pending, interrupted and lost runs from being
    started by a worker or a queued job. The runs stay stopped until `advsweep retry`, or their
    `run` or `sweep` command, starts them again.

    Options:
        --kill: Kill processes on this machine now, without a checkpoint.

    Examples:
        advsweep stop 12
        advsweep stop demo
    """
    from advsweep.cli.runs import find_targets
    from advsweep.store import Status, open_store

    with open_store(store, create=False) as opened:
        runs = find_targets(opened, targets).runs
        running = [run for run in runs if run.status is Status.RUNNING]
        open_ = (Status.PENDING, Status.INTERRUPTED, Status.LOST)
        waiting = [run for run in runs if run.status in open_]
        for run in [*running, *waiting]:
            opened.leases.request_stop(run.id)
        killed = [run for run in running if kill and _kill(opened, run.id)]
    echo(
        f"Requested a stop of {len(running)} running and {counted(len(waiting), 'waiting run')}; "
        f"{len(runs) - len(running) - len(waiting)} had already ended.",
        err=True,
    )
    if kill:
        left = len(running) - len(killed)
        rest = (
            f"; {left} are on other machines, have just ended, or are not advsweep" if left else ""
        )
        echo(f"Killed {counted(len(killed), 'process', 'processes')}{rest}.", err=True)


def _kill(store: Store, run_id: int) -> bool:
    """Kill the process of a run; return whether it was running on this machine."""
    owner = store.leases.owner(run_id)
    # The system may have reused the pid, and other users may write to the store.
    if owner is None or not owner.is_here() or owner.has_ended() or not _is_advsweep(owner.pid):
        return False
    try:
        os.kill(owner.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _is_advsweep(pid: int) -> bool:
    """Return whether a command line names advsweep; true if the system does not show it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return not Path("/proc/self/cmdline").exists()
    # Compare file names only: the interpreter may be installed below a folder of that name.
    return any(b"advsweep" in os.path.basename(word) for word in words)


# samples


def samples(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's id, the start of its identity, or 'last'.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    step: int | None = None,
    models: bool = False,
    store: options.Store = None,
    how: options.Record = RecordFormat.TEXT,
) -> None:
    """Each evaluation keeps the first answers to at most 8 problems, spread over the levels; a long
    answer loses its middle. Evaluations of the same problems keep answers to the same ones, so
    that the answers before and after training can be compared.

    Options:
        --step N >= 0: Show the evaluation after this step; 0 is the base model (default:
            the last).
        --models: Show those of models evaluated by `advsweep eval --model` instead.

    Examples:
        advsweep samples last
        advsweep samples last --step 0
        advsweep samples last --format json
    """
    from advsweep.store import open_store

    if models == (run is not None):
        raise ConfigError("expected either a run or --models")
    if models and step is not None:
        raise ConfigError("--step: valid only with a run; a model has no steps")
    opened = open_store(store, create=False)
    evaluations: Sequence[EvaluationRecord] = []
    others: list[int] = []
    if run is None:
        evaluations = opened.evaluations.of_models()
    else:
        record = opened.runs.find(run)
        found = opened.evaluations.select([record.id], split=None)
        if not found:
            raise NotFoundError(
                f"run {record.id} has no evaluation yet; `advsweep eval {record.id}` makes one"
            )
        steps = sorted({e.step for e in found if e.step is not None})
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise NotFoundError(
                f"--step: expected a step with an evaluation of run {record.id} "
                f"({', '.join(map(str, steps))}), got {step}"
            )
        evaluations = [e for e in found if e.step == chosen]
        others = [step for step in steps if step != chosen]
    kept = opened.evaluations.samples([e.identity for e in evaluations])
    if how is RecordFormat.JSON:
        print_json(
            [
                {
                    "run": e.run_id,
                    "step": e.step,
                    "task": e.task,
                    "settings": e.settings,
                    "samples": [_sample_record(s) for s in kept.get(e.identity, [])],
                }
                for e in evaluations
            ]
        )
        return
    for evaluation in evaluations:
        _print_samples(evaluation, kept.get(evaluation.identity, []))
    if others:
        echo(f"--step shows other evaluations: {', '.join(map(str, others))}", err=True)


def _sample_record(sample: AnswerSample) -> dict[str, Any]:
    keys = ("problem_id", "level", "prompt", "answer", "length", "read", "verdict", "reward")
    return {key: getattr(sample, key) for key in keys}


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
        echo(
            "  no answers were kept: the evaluation was made by an older version, "
            "or by another program"
        )
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
