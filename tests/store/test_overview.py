"""Where many runs stand: counts, lines, the newest ends and the newest means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from advsweep.errors import NotFoundError
from advsweep.store import Owner, Status


@pytest.fixture
def ids(store, new_run):
    """Runs 1 to 5 of the sweep `five`, of which 1 is running, 2 lost, 3 failed, 4 done; and 6."""
    store.sweeps.add("five", {})
    added = store.runs.add([new_run(seed) for seed in range(5)], "five")
    added += store.runs.add([new_run(5)])
    for run_id in added[:4]:
        owner = Owner.current()
        store.leases.claim(run_id, replace(owner, started=-1.0) if run_id == added[1] else owner)
    store.leases.finish(added[2], Status.FAILED, error="no reason")
    store.leases.finish(added[3], Status.DONE)
    return added


def test_a_tally_has_every_state(store, ids):
    assert store.runs.count_by_status("five") == {
        Status.PENDING: 1,
        Status.RUNNING: 1,
        Status.DONE: 1,
        Status.FAILED: 1,
        Status.INTERRUPTED: 0,
        Status.PRUNED: 0,
        Status.LOST: 1,
    }
    assert store.runs.count_by_status()[Status.PENDING] == 2
    with pytest.raises(NotFoundError, match="no sweep 'fife'"):
        store.runs.count_by_status("fife")


def test_lines_say_what_the_records_say(store, ids):
    for sweep in ("five", None):
        lines, records = store.runs.lines(sweep), store.runs.select(sweep=sweep)
        assert len(lines) == (5 if sweep else 6)
        for line, record in zip(lines, records, strict=True):
            assert vars(line) == {name: getattr(record, name) for name in vars(line)}


def test_outlines_say_what_the_records_say(store, ids, new_run):
    store.sweeps.add("other", {})
    store.runs.add([new_run(4), new_run(1)], "other")
    store.runs.set_stopping(ids[:1], {"name": "median"})
    for sweep in ("other", "five", None):
        outlines = store.runs.outlines(sweep)
        records = store.runs.select(sweep=sweep, newest_first=False)
        for outline, record in zip(outlines, records, strict=True):
            assert outline._asdict() == {name: getattr(record, name) for name in outline._fields}
    assert [run.id for run in store.runs.outlines("other")] == [ids[4], ids[1]]
    with pytest.raises(NotFoundError, match="no sweep 'fife'"):
        store.runs.outlines("fife")


def test_the_newest_ends_come_first(store, ids, clock):
    for run_id in (ids[5], ids[4]):
        clock.forward(1)
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.FAILED)
    assert store.runs.last_finished(Status.FAILED, limit=9) == [ids[4], ids[5], ids[2]]
    assert store.runs.last_finished(Status.FAILED, limit=2) == [ids[4], ids[5]]
    assert store.runs.last_finished(Status.FAILED, "five", limit=9) == [ids[4], ids[2]]


def test_recent_means_are_of_the_newest_steps(store, ids):
    run_id, other = ids[0], ids[1]
    store.metrics.record(run_id, [("time/update", step, float(step)) for step in range(1, 11)])
    store.metrics.record(run_id, [("time/reward", 10, 4.0), ("time/rollout", 10, math.nan)])
    store.leases.heartbeat(run_id, step=10)
    names = ["time/update", "time/reward", "time/rollout"]
    # The steps 8, 9 and 10 of the one metric; of another the only point there is.
    assert store.metrics.recent_means([run_id, other], names, 3) == {
        run_id: {"time/update": 9.0, "time/reward": 4.0}
    }


def test_peers_share_a_sweep(store, ids, new_run):
    store.sweeps.add("two", {})
    [other] = store.runs.add([new_run(6)], "two")
    store.runs.add([new_run(0)], "two")
    store.leases.claim(ids[0], Owner.current(), holder=Owner.current())
    store.leases.heartbeat(ids[0], step=3)
    peers = store.runs.peers(ids[0])
    assert [peer.id for peer in peers] == [*ids[:5], other]
    assert [peer.done for peer in peers] == [False, False, False, True, False, False]
    assert [peer.step for peer in peers] == [3, 0, 0, 0, 0, 0]
    assert [peer.id for peer in store.runs.peers(other)] == [ids[0], other]
    assert [peer.id for peer in store.runs.peers(ids[5])] == [ids[5]]


def test_means_of_peers_leave_out_what_is_not_finite_and_steps_outside(store, ids):
    values = [9.0, 1.0, math.nan, math.inf, 3.0, 9.0]
    store.metrics.record(ids[4], [("x", step, value) for step, value in enumerate(values, 1)])
    store.metrics.record(ids[0], [("x", 5, 0.5), ("y", 4, 8.0)])
    store.metrics.record(ids[5], [("x", 5, 7.0)])
    assert store.metrics.peers_means(ids[1], "x", 2, 5) == {ids[4]: 2.0, ids[0]: 0.5}
    assert store.metrics.peers_means(ids[1], "x", 3, 4) == {}
    assert store.metrics.peers_means(ids[5], "x", 1, 9) == {ids[5]: 7.0}
    assert store.metrics.peers_means(ids[1], "z", 1, 9) == {}
