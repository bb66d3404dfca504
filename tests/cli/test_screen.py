"""The full-screen view, driven by keys as a user does."""

from __future__ import annotations

import asyncio
import io
import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static
from typer.testing import CliRunner

from advsweep.cli import screen
from advsweep.cli.app import app
from advsweep.cli.runs import log_path
from advsweep.cli.screen import (
    ConfirmScreen,
    KeysScreen,
    LogScreen,
    Snapshot,
    SnapshotReader,
    Watch,
    sparkline,
)
from advsweep.errors import ConfigError, StoreError
from advsweep.store import NewRun, Owner, Status, Store, open_store

Drive = Callable[[Pilot[Any]], Awaitable[None]]


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    """Run 1 is running at step 3 of 9, run 2 failed, run 3 is pending; all are of `three`."""
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        opened.sweeps.add("three", {})
        names = enumerate(("grpo", "fade", "avspo"))
        opened.runs.add([new_run(name, seed) for seed, name in names], "three")
        for run_id in (1, 2):
            opened.leases.claim(run_id, Owner.current())
        opened.metrics.record(1, [("reward/mean", step, float(step)) for step in (1, 2, 3)])
        opened.metrics.record(1, [("time/update", step, 2.0) for step in (1, 2, 3)])
        opened.leases.heartbeat(1, step=3, stage="training")
        opened.leases.finish(2, Status.FAILED, error="[red] herring")
        yield opened


def new_run(estimator: str, seed: int) -> NewRun:
    return NewRun(
        identity=f"{seed}" * 64,
        config_hash=estimator,
        seed=seed,
        config={},
        steps=9,
        estimator=estimator,
        backend="fake",
    )


def drive(store: Store, keys: Drive, sweep: str | None = "three") -> None:
    """Opens the view, waits for its first picture and plays the keys."""

    async def play() -> None:
        view = Watch(store, sweep)
        async with view.run_test(size=(160, 40)) as pilot:
            await until(pilot, lambda: view.query_one(DataTable).row_count > 0)
            await keys(pilot)

    asyncio.run(play())


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not happen in time")


def rows(pilot: Pilot[Any]) -> list[list[str]]:
    table = pilot.app.screen_stack[0].query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(i)] for i in range(table.row_count)]


def text(pilot: Pilot[Any], name: str) -> str:
    return str(pilot.app.query_one(name, Static).render())


def messages(pilot: Pilot[Any]) -> list[str]:
    return [notification.message for notification in pilot.app._notifications]


def test_curves_in_one_line():
    assert sparkline([0.0, 1.0]) == "▁█"
    # Means of stretches of two: 0.5, 2.5, 4.5, of which the middle is half way: 3.5 of 7.
    assert sparkline([0, 1, 2, 3, 4, 5], width=3) == "▁▅█"
    assert sparkline([0.0, math.nan, 7.0]) == "▁ █"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([]) == sparkline([math.nan]) == ""


def test_runs_come_in_order_with_their_progress(store):
    async def keys(pilot: Pilot[Any]) -> None:
        running, failed, pending = rows(pilot)
        assert running[:6] == ["1", "grpo", "0", "running", "3/9", "0:00:12"]
        assert running[6] == "▁▅█"
        assert failed[3] == "failed"
        assert pending[:5] == ["3", "avspo", "2", "pending", "0/9"]
        assert text(pilot, "#head") == "sweep three: 1 pending, 1 running, 1 failed"
        assert f"running on: {socket.gethostname()} 1" in text(pilot, "#foot")
        store.leases.heartbeat(1, step=4)
        store.metrics.record(1, [("reward/mean", 4, 0.0)])
        await until(pilot, lambda: rows(pilot)[0][4] == "4/9")
        assert len(rows(pilot)[0][6]) == 4

    drive(store, keys)


def test_a_filter_by_words(store):
    async def keys(pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"seed=1")
        await until(pilot, lambda: [row[0] for row in rows(pilot)] == ["2"])
        await pilot.press("enter", "escape")
        await until(pilot, lambda: len(rows(pilot)) == 3)
        assert pilot.app.focused is pilot.app.query_one(DataTable)

    drive(store, keys)
    assert [r.id for r in SnapshotReader(store, None).read("pending avspo").runs] == [3]
    assert SnapshotReader(store, None).read("2222222222").runs[0].id == 3


def test_a_log_is_opened_and_grows(store):
    [run] = store.runs.select(ids=[1])
    run.directory.mkdir(parents=True)
    log_path(run).write_text("step 1 [of] 9\n")

    async def keys(pilot: Pilot[Any]) -> None:
        shown = [b.description for _, b, _, _ in pilot.app.active_bindings.values() if b.show]
        assert "Log" in shown
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, LogScreen))
        log = pilot.app.screen.query_one(RichLog)
        await until(pilot, lambda: [line.text.rstrip() for line in log.lines] == ["step 1 [of] 9"])
        with open(log_path(run), "a") as file:
            file.write("step 2\n")
        await until(pilot, lambda: len(log.lines) == 2)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, LogScreen))

    drive(store, keys)


def test_stop_asks_the_selected_run_alone(store):
    async def keys(pilot: Pilot[Any]) -> None:
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(pilot.app.screen, ConfirmScreen)
        assert not store.leases.stop_requested(1)
        await pilot.press("n")
        await pilot.pause()
        assert not store.leases.stop_requested(1)
        await pilot.press("s")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await until(pilot, lambda: rows(pilot)[0][3] == "stopping")
        await pilot.press("down", "s")  # failed long ago
        await pilot.pause()

    drive(store, keys)
    assert [run.id for run in store.runs.select() if run.stop_requested] == [1]


def test_a_key_explains_the_keys(store):
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(pilot.app.screen, KeysScreen)
        shown = str(pilot.app.screen.query_one(Static).render())
        keys = [line.split()[0] for line in shown.splitlines()]
        assert {"s", "r", "q", "/", "?"} <= set(keys)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(pilot.app.screen, KeysScreen)

    drive(store, play)


def test_start_again_is_for_runs_that_need_it(store, monkeypatch):
    started = []

    class Refused:
        returncode = 2

        stderr = io.StringIO("advsweep: it cannot be")

        def poll(self) -> int:
            return 2

    def restart(store: Store, run_id: int, settings: list[str]) -> Refused:
        started.append(run_id)
        return Refused()

    monkeypatch.setattr(screen, "restart", restart)

    async def keys(pilot: Pilot[Any]) -> None:
        await pilot.press("r", "down", "r")
        assert started == [2]
        await until(pilot, lambda: "advsweep: it cannot be" in messages(pilot))

    drive(store, keys)


def test_restart_disables_the_rule_that_pruned_a_run(store, monkeypatch):
    started = []

    def restart(store: Store, run_id: int, settings: list[str]) -> None:
        started.append((run_id, settings))
        raise AssertionError("the view is closed with this")

    store.leases.claim(3, Owner.current())
    store.leases.finish(3, Status.PRUNED, error="its ACR is high")
    store.leases.finish(1, Status.DONE)

    async def keys(pilot: Pilot[Any]) -> None:
        assert [row[3] for row in rows(pilot)] == ["failed", "pruned", "done"]
        await pilot.press("down", "r")

    monkeypatch.setattr(screen, "restart", restart)
    with pytest.raises(AssertionError, match="the view is closed"):
        drive(store, keys)
    assert started == [(3, ["stopping=none"])]


def test_a_restart_is_a_process_of_its_own(store):
    process = screen.restart(store, 1, [])  # which is running
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "No runs to restart" in errors


def test_the_screen_needs_a_terminal(store):
    result = CliRunner().invoke(app, ["status", "--watch", "--store", store.url])
    assert isinstance(result.exception, ConfigError)
    assert "omit --watch" in str(result.exception)


def test_an_empty_filter_result_has_nothing_to_act_on(store):
    async def keys(pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"nothing like it", "enter")
        await until(pilot, lambda: rows(pilot) == [])
        await pilot.press("s", "r")
        await pilot.pause()

    drive(store, keys)
    assert not any(run.stop_requested for run in store.runs.select())


def test_a_store_that_cannot_be_read_for_once_does_not_end_the_view(store, monkeypatch):
    read, failures = SnapshotReader.read, [0]

    def sometimes(reader: SnapshotReader, words: str) -> Snapshot:
        failures[0] += 1
        if failures[0] == 2:
            raise StoreError("it is locked")
        return read(reader, words)

    monkeypatch.setattr(SnapshotReader, "read", sometimes)

    async def keys(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "it is locked" in messages(pilot))
        store.leases.heartbeat(1, step=5)
        await until(pilot, lambda: rows(pilot)[0][4] == "5/9")

    drive(store, keys)
