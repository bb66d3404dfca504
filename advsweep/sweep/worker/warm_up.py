"""Compiles the SQL statements of a worker by running each of them on an empty store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.store import AnswerSample, NewEvaluation, NewRun, Owner, ProblemCounts, Status

if TYPE_CHECKING:
    from advsweep.store import Store


def warm_up(store: Store) -> None:
    """Compiles a worker's statements, for the workers that are forked from this process.

    Compiling them takes a third of the time of a worker that trains nothing. A store on a
    database server is left alone: only a file can be replaced by a scratch copy.
    """
    if store.file is None:
        return
    with store.scratch() as scratch:
        _work(scratch)


def _work(store: Store) -> None:
    """Issues the statements of a run from its claim to its end, in the order of a worker."""
    me, checkpoint = Owner.current(), Path("checkpoint")
    # Several rows compile to another statement than one.
    points, summaries = [("a", 1, 0.0), ("b", 1, 0.0)], {"c": 0.0, "d": 0.0}
    [run_id] = store.runs.add([_RUN])
    store.leases.claim(run_id, me, holder=me)
    store.runs.select(ids=[run_id])
    store.runs.set_environment(run_id, {})
    store.metrics.truncate(run_id, after_step=0)
    store.leases.heartbeat(run_id)
    store.leases.heartbeat(run_id, step=0, stage="base evaluation")
    store.leases.stop_requested(run_id)
    store.metrics.record(run_id, points, step=1)
    store.evaluations.has(_EVALUATION.identity)
    store.evaluations.add(_EVALUATION, [_SAMPLE])
    store.evaluations.link(run_id, _EVALUATION.identity, 1)
    store.evaluations.select([run_id], identity=_EVALUATION.identity)
    store.checkpoints.add(run_id, 1, checkpoint)
    store.checkpoints.remove(run_id, checkpoint)
    store.metrics.series([run_id], "a")
    store.metrics.record(run_id, points)
    store.evaluations.identities(run_id)
    store.metrics.summaries([run_id])
    store.metrics.set_summaries(run_id, summaries)
    store.leases.finish(run_id, Status.DONE)


_DIGEST = "0" * 64
_RUN = NewRun(
    identity=_DIGEST,
    config_hash=_DIGEST,
    seed=0,
    config={},
    steps=1,
    estimator="none",
    backend="tiny",
)
_SAMPLE = AnswerSample(
    problem_id="", prompt="", level=0, answer="", length=0, read=None, reward=None
)
_EVALUATION = NewEvaluation(
    identity=_DIGEST,
    subject="",
    run_id=1,
    step=1,
    task="",
    settings={},
    problems=[
        ProblemCounts(
            problem_id="",
            prompt="",
            level=0,
            n=1,
            c=0,
            distinct=1,
            unscorable=0,
            answer_entropy=0.0,
        )
    ],
)
