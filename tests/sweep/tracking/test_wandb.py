"""The real client of wandb, against a server of our own that records what reaches it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from advsweep.store import Owner, Status
from tests.sweep.tracking.conftest import WandbServer

pytestmark = pytest.mark.slow  # each process imports wandb and starts its service

PROGRAM = "from advsweep.cli import main; main()"


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def send(store, sweep, *arguments):
    command = ["export", sweep, "--to", "wandb", *arguments, "--store", store.url]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Rows that wandb has are not sent to it again.
    assert "WARNING" not in done.stderr
    # wandb itself says on stderr which credentials it has.
    return done.stderr.splitlines()[-1]


def wandb_id(run):
    return f"{run.identity[:32]}-{run.attempt}"


def metrics(server, run):
    """What the server has of a run, as the store would have it."""
    own = ("step", "_step", "_runtime", "_timestamp")
    return sorted(
        (name, row["step"], value)
        for row in server.history[wandb_id(run)]
        for name, value in row.items()
        if name not in own
    )


def train(store, run_id, first, last, value, status):
    """Trains from the step `first` on, whatever there was of it before."""
    assert store.leases.claim(run_id, Owner.current())
    store.metrics.truncate(run_id, after_step=first - 1)
    store.metrics.record(run_id, [("reward/mean", s, value) for s in range(first, last + 1)])
    store.leases.finish(run_id, status)


@pytest.mark.security
def test_settings_of_the_working_folder_are_not_obeyed(
    store, new_run, wandb_server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # The user's own file names the server.
    own = tmp_path / "wandb-config"
    own.mkdir()
    (own / "settings").write_text(f"[default]\nbase_url = {wandb_server.url}\n")
    monkeypatch.delenv("WANDB_BASE_URL")
    with WandbServer() as other:
        threading.Thread(target=other.serve_forever).start()
        for name in ("wandb", ".wandb"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "settings").write_text(f"[default]\nbase_url = {other.url}\n")
        [run_id] = store.runs.add([new_run()])
        train(store, run_id, 1, 5, 1.0, Status.DONE)
        send(store, str(run_id))
        other.shutdown()
    [run] = store.runs.select(ids=[run_id])
    assert other.requests == 0
    assert len(wandb_server.history[wandb_id(run)]) == 5


def test_a_run_goes_on_and_no_step_is_there_twice(
    store, new_run, wandb_server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, 1, 5, 1.0, Status.INTERRUPTED)
    send(store, str(run_id))
    [run] = store.runs.select(ids=[run_id])
    assert wandb_server.ends[wandb_id(run)] == 255
    train(store, run_id, 4, 8, 2.0, Status.FAILED)
    send(store, str(run_id))
    assert len(wandb_server.runs) == 1
    assert [row["_step"] for row in wandb_server.history[wandb_id(run)]] == [*range(1, 9)]
    assert [value for *_, value in metrics(wandb_server, run)] == [1.0] * 5 + [2.0] * 3
    assert wandb_server.ends[wandb_id(run)] == 1


@pytest.mark.security
def test_an_export_is_one_run_when_wandb_syncs_it(
    store, new_run, wandb_server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    hostile = "../x\x1b]52;c;eA==\x07"
    config = {"estimator": {"name": "grpo"}, hostile: hostile}
    [run_id] = store.runs.add([new_run(config=config)])
    train(store, run_id, 1, 5, 1.0, Status.DONE)
    export = [sys.executable, "-c", PROGRAM, "export", str(run_id), "out", "--store", store.url]
    assert call(*export, "--to", "wandb", "--set", "project=there") == "out\n"
    assert wandb_server.requests == 0
    [run] = store.runs.select(ids=[run_id])
    [folder] = (tmp_path / "out" / "wandb").glob("offline-run-*")
    call(sys.executable, "-m", "wandb", "sync", "--yes", str(folder))
    said = wandb_server.runs[wandb_id(run)]
    assert (said["project"], said["groupName"]) == ("there", f"grpo-{run.config_hash[:8]}")
    assert said["first_config"]["identity"]["value"] == run.identity
    assert said["first_config"]["../x\\x1b]52;c;eA==\\x07"]["value"] == "../x\\x1b]52;c;eA==\\x07"
    assert metrics(wandb_server, run) == store.metrics.points(run.id)
    assert wandb_server.ends[wandb_id(run)] == 0
