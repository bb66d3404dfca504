"""What becomes of a run, for every combination of its record and the end of its worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from advsweep.store import Failure, Status
from advsweep.sweep import events
from advsweep.sweep.events import EventKind
from advsweep.sweep.scheduler.causes import FailureCause
from advsweep.sweep.scheduler.verdicts import (
    End,
    Exit,
    ExitKind,
    Fail,
    GiveUp,
    RecordEnd,
    Start,
    TrainAlone,
    Verdict,
    Wait,
    judge_exit,
    judge_start,
    judge_waiting,
)

CAUSE = FailureCause(Failure.KILLED, "killed by signal 9 (SIGKILL)")
RECORDED = FailureCause(Failure.OOM, "as recorded")

VERDICTS: dict[str, Verdict] = {
    "start": Start(),
    "wait": Wait(),
    "skipped": End(EventKind.SKIPPED),
    "done": End(EventKind.DONE),
    "pruned": End(EventKind.PRUNED, "as recorded"),
    "interrupted": End(EventKind.INTERRUPTED, "as recorded"),
    "asked": End(EventKind.INTERRUPTED, "asked to stop"),
    "failed": Fail(RECORDED),
    "evaluation": Fail(FailureCause(Failure.KILLED, f"evaluation: {CAUSE.reason}, see its log")),
    "record": RecordEnd(CAUSE, is_stop=False),
    "record-stop": RecordEnd(CAUSE, is_stop=True),
    "alone": TrainAlone(CAUSE.reason),
    "given-up": TrainAlone("as recorded"),
}


def record(status: Status, *, stop_requested: bool = False) -> Any:
    failure = Failure.OOM if status is Status.FAILED else None
    return SimpleNamespace(
        status=status, error="as recorded", failure=failure, stop_requested=stop_requested
    )


# The rows: what the store has of the run. "lost", "pending" and "running": the worker recorded no
# end; "before": neither, but the run had such an end before its worker was started.
RUNS = {
    "pending": (Status.PENDING, False),
    "running": (Status.RUNNING, False),
    "lost": (Status.LOST, False),
    "complete": (Status.DONE, True),
    "done": (Status.DONE, False),
    "pruned": (Status.PRUNED, True),
    "failed": (Status.FAILED, True),
    "interrupted": (Status.INTERRUPTED, True),
    "failed-before": (Status.FAILED, False),
    "interrupted-before": (Status.INTERRUPTED, False),
    "pruned-before": (Status.PRUNED, False),
}

# One table for each kind of worker and of its end: for a single run or a stack, ended by itself, by
# the scheduler for a limit, or while the sweep is being stopped.
TABLES = {
    "single": """
                        WELL         STOPPED      ELSEWHERE  STORE_LOST   FAILED
    pending             record       interrupted  wait       record       record
    running             record       interrupted  wait       record       record
    lost                record       interrupted  wait       record       record
    complete            done         done         wait       done         done
    done                done         interrupted  wait       evaluation   evaluation
    pruned              pruned       pruned       wait       pruned       pruned
    failed              failed       failed       wait       failed       failed
    interrupted         interrupted  interrupted  wait       interrupted  interrupted
    failed-before       record       interrupted  wait       record       record
    interrupted-before  record       interrupted  wait       record       record
    pruned-before       record       interrupted  wait       record       record
    """,
    "single limit": """
                        WELL         STOPPED      ELSEWHERE  STORE_LOST   FAILED
    pending             record       record       wait       record       record
    running             record       record       wait       record       record
    lost                record       record       wait       record       record
    complete            done         done         wait       done         done
    done                done         evaluation   wait       evaluation   evaluation
    pruned              pruned       pruned       wait       pruned       pruned
    failed              failed       failed       wait       failed       failed
    interrupted         record       record       wait       record       record
    failed-before       record       record       wait       record       record
    interrupted-before  record       record       wait       record       record
    pruned-before       record       record       wait       record       record
    """,
    "single stop": """
                        WELL         STOPPED      ELSEWHERE  STORE_LOST   FAILED
    pending             record-stop  interrupted  wait       record-stop  record-stop
    running             record-stop  interrupted  wait       record-stop  record-stop
    lost                record-stop  interrupted  wait       record-stop  record-stop
    complete            done         done         wait       done         done
    done                done         interrupted  wait       evaluation   evaluation
    pruned              pruned       pruned       wait       pruned       pruned
    failed              failed       failed       wait       failed       failed
    interrupted         interrupted  interrupted  wait       interrupted  interrupted
    failed-before       record-stop  interrupted  wait       record-stop  record-stop
    interrupted-before  record-stop  interrupted  wait       record-stop  record-stop
    pruned-before       record-stop  interrupted  wait       record-stop  record-stop
    """,
    "stack": """
                        WELL         STOPPED      ELSEWHERE  STORE_LOST   FAILED
    pending             alone        alone        alone      record       alone
    running             wait         wait         wait       record       wait
    lost                alone        alone        alone      record       alone
    complete            done         done         done       done         done
    done                done         evaluation   evaluation evaluation   evaluation
    pruned              pruned       pruned       pruned     pruned       pruned
    failed              failed       failed       failed     failed       failed
    interrupted         interrupted  interrupted  given-up   record       given-up
    failed-before       alone        alone        alone      record       alone
    interrupted-before  alone        alone        alone      record       alone
    pruned-before       alone        alone        alone      record       alone
    """,
    "stack limit": """
                        WELL         STOPPED      ELSEWHERE  STORE_LOST   FAILED
    pending             alone        alone        alone      record       alone
    running             wait         wait         wait       record       wait
    lost                alone        alone        alone      record       alone
    complete            done         done         done       done         done
    done                done         evaluation   evaluation evaluation   evaluation
    pruned              pruned       pruned       pruned     pruned       pruned
    failed              failed       failed       failed     failed       failed
    interrupted         given-up     given-up     given-up   record       given-up
    failed-before       alone        alone        alone      record       alone
    interrupted-before  alone        alone        alone      record       alone
    pruned-before       alone        alone        alone      record       alone
    """,
    "stack stop": """
                        WELL         STOPPED      ELSEWHERE    STORE_LOST   FAILED
    pending             record-stop  record-stop  record-stop  record-stop  record-stop
    running             record-stop  record-stop  record-stop  record-stop  record-stop
    lost                record-stop  record-stop  record-stop  record-stop  record-stop
    complete            done         done         done         done         done
    done                done         evaluation   evaluation   evaluation   evaluation
    pruned              pruned       pruned       pruned       pruned       pruned
    failed              failed       failed       failed       failed       failed
    interrupted         interrupted  interrupted  interrupted  interrupted  interrupted
    failed-before       record-stop  record-stop  record-stop  record-stop  record-stop
    interrupted-before  record-stop  record-stop  record-stop  record-stop  record-stop
    pruned-before       record-stop  record-stop  record-stop  record-stop  record-stop
    """,
}


def cells() -> list[tuple[str, str, str, str]]:
    read = []
    for name, table in TABLES.items():
        header, *rows = (line.split() for line in table.strip().splitlines())
        assert header == [kind.name for kind in ExitKind if kind is not ExitKind.UNFIT]
        assert [row[0] for row in rows] == list(RUNS)
        for run, *verdicts in rows:
            read += [(name, run, kind, v) for kind, v in zip(header, verdicts, strict=True)]
    return read


@pytest.mark.parametrize(("worker", "run", "kind", "verdict"), cells())
def test_what_the_end_of_a_worker_means_for_a_run(
    worker: str, run: str, kind: str, verdict: str
) -> None:
    status, has_ended = RUNS[run]
    exit = Exit(
        kind=ExitKind[kind],
        cause=CAUSE,
        is_stack="stack" in worker,
        is_limit="limit" in worker,
        is_stop="stop" in worker,
    )
    judged = judge_exit(record(status), exit, has_ended=has_ended, is_complete=run == "complete")
    assert judged == VERDICTS[verdict]


@pytest.mark.parametrize("is_stop", [False, True])
def test_what_a_machine_lacks_is_no_end_of_a_run(is_stop: bool) -> None:
    exit = Exit(kind=ExitKind.UNFIT, cause=CAUSE, is_stop=is_stop)
    judged = judge_exit(record(Status.PENDING), exit, has_ended=False, is_complete=False)
    assert judged == GiveUp("as recorded")


@pytest.mark.parametrize("kind", ["WELL", "FAILED", "STORE_LOST"])
@pytest.mark.parametrize("is_stack", [False, True])
def test_a_request_to_one_run_is_a_stop_of_that_run(kind: str, is_stack: bool) -> None:
    exit = Exit(kind=ExitKind[kind], cause=CAUSE, is_stack=is_stack)
    running = record(Status.RUNNING, stop_requested=True)
    judged = judge_exit(running, exit, has_ended=False, is_complete=False)
    assert judged == RecordEnd(CAUSE, is_stop=True)
    interrupted = record(Status.INTERRUPTED, stop_requested=True)
    judged = judge_exit(interrupted, exit, has_ended=True, is_complete=False)
    assert judged == VERDICTS["interrupted"]


def test_a_limit_counts_more_than_a_request_to_one_run() -> None:
    exit = Exit(kind=ExitKind.STOPPED, cause=CAUSE, is_limit=True)
    interrupted = record(Status.INTERRUPTED, stop_requested=True)
    judged = judge_exit(interrupted, exit, has_ended=True, is_complete=False)
    assert judged == RecordEnd(CAUSE, is_stop=True)
    while_stopping = Exit(kind=ExitKind.STOPPED, cause=CAUSE, is_limit=True, is_stop=True)
    judged = judge_exit(interrupted, while_stopping, has_ended=True, is_complete=False)
    assert judged == VERDICTS["interrupted"]


def test_exit_codes_are_of_a_kind() -> None:
    kinds = {
        events.DONE: ExitKind.WELL,
        events.FAILED: ExitKind.FAILED,
        events.STOPPED: ExitKind.STOPPED,
        events.ELSEWHERE: ExitKind.ELSEWHERE,
        events.UNRECORDED: ExitKind.STORE_LOST,
        events.ORPHANED: ExitKind.FAILED,
        events.OUT_OF_MEMORY: ExitKind.FAILED,
        events.DISK_FULL: ExitKind.STORE_LOST,
        1: ExitKind.FAILED,
        -9: ExitKind.FAILED,
    }
    assert {code: ExitKind.of_code(code) for code in kinds} == kinds


# Before a start, with a request to stop in the store, and of a run that is waited for.
OTHERS = """
                 start        asked    waiting
    pending      start        asked    start
    running      wait         wait     wait
    lost         start        asked    start
    complete     skipped      skipped  done
    done         start        asked    start
    pruned       pruned       pruned   pruned
    failed       start        asked    failed
    interrupted  start        asked    start
"""


@pytest.mark.parametrize("row", OTHERS.strip().splitlines()[1:])
def test_what_the_record_of_a_run_means_before_its_start_and_while_it_waits(row: str) -> None:
    run, start, asked, waiting = row.split()
    status, is_complete = RUNS[run][0], run == "complete"
    judged = judge_start(record(status), is_complete=is_complete)
    assert judged == VERDICTS[start]
    judged = judge_start(record(status, stop_requested=True), is_complete=is_complete)
    assert judged == VERDICTS[asked]
    judged = judge_waiting(record(status), is_complete=is_complete)
    assert judged == VERDICTS[waiting]


def test_a_fault_of_the_machine_counts_more_than_what_the_run_recorded():
    gone = FailureCause(Failure.KILLED, "its GPU is gone")
    exit = Exit(kind=ExitKind.FAILED, cause=gone, is_machine_fault=True)
    failed = record(Status.FAILED)
    assert judge_exit(failed, exit, has_ended=True, is_complete=False) == Fail(gone)
