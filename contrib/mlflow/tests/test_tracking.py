"""Runs of a store in MLflow, read back with MLflow's client."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
from dataclasses import dataclass

import pytest
from advsweep_mlflow.tracking import LAST_STEP_TAG

from advsweep.cli import main
from advsweep.store import NewRun, Owner, Status, open_store
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import Sender, run_key, sync

# MLflow makes the tables of a new database one by one, which takes seconds.
pytestmark = pytest.mark.slow

HOSTILE = "../../x\x1b]52;c;eA==\x07\u202e"


@dataclass(frozen=True)
class Shown:
    """What MLflow has of a run."""

    status: str
    params: dict[str, str]
    tags: dict[str, str]
    points: list[tuple[str, int, float]]

    def curve(self, name):
        return sorted((step, value) for each, step, value in self.points if each == name)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database of MLflow's without runs."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def folder(tmp_path, empty_database, monkeypatch):
    """The folder of a database without runs."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "out"
    path.mkdir()
    shutil.copy(empty_database, path / "mlflow.db")
    return path


@pytest.fixture
def tracking(folder):
    return TRACKINGS.build("mlflow").in_folder(folder)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened


def new_run(seed=0, **fields):
    values = {
        "identity": hashlib.sha256(str(seed).encode()).hexdigest(),
        "config_hash": "c0ffee" * 10,
        "config": {"estimator": {"name": "grpo", "epsilon": 1e-4}, "seed": seed, "fast": True},
        "steps": 10,
        "estimator": "grpo",
        "backend": "tiny",
    }
    return NewRun(seed=seed, **{**values, **fields})


def client_of(folder):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def read(folder, run):
    client = client_of(folder)
    experiment = client.get_experiment_by_name("advsweep").experiment_id
    [found] = client.search_runs([experiment], f"tags.`advsweep.run` = '{run_key(run)}'")
    assert found.info.run_name == run.directory.name
    points = [
        (name, metric.step, metric.value)
        for name in found.data.metrics
        for metric in client.get_metric_history(found.info.run_id, name)
    ]
    return Shown(found.info.status, found.data.params, found.data.tags, points)


def record_of(store, run_id):
    [record] = store.runs.select(ids=[run_id])
    return record


def send(store, run_id, tracking):
    return list(sync(store, [record_of(store, run_id)], tracking))


def train(store, run_id, steps, value, status):
    assert store.leases.claim(run_id, Owner.current())
    store.metrics.truncate(run_id, after_step=steps[0] - 1)
    points = [("reward/mean", step, value) for step in steps]
    store.metrics.record(run_id, [*points, ("pass@8", steps[-1], value / 4)], step=steps[-1])
    store.leases.finish(run_id, status)


def test_a_run_that_was_resumed_or_is_sent_again_is_there_once(store, tracking, folder):
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 6), 1.0, Status.INTERRUPTED)
    assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    assert read(folder, record_of(store, run_id)).status == "KILLED"
    train(store, run_id, range(4, 9), 2.0, Status.DONE)
    for _ in range(2):
        assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    shown = read(folder, record_of(store, run_id))
    # The steps 4 and 5 were sent before they were trained again.
    assert shown.curve("reward/mean") == [(s, 1.0 if s < 6 else 2.0) for s in range(1, 9)]
    assert shown.curve("pass_at_8") == [(5, 0.25), (8, 0.5)]
    assert len(shown.curve("time/run")) <= 2  # once for each end
    assert (shown.status, shown.params["estimator.name"]) == ("FINISHED", "grpo")
    assert float(shown.params["estimator.epsilon"]) == 1e-4
    assert shown.tags["advsweep.status"] == "done"
    assert shown.tags[LAST_STEP_TAG] == "8"


def test_a_run_in_training_is_running_there_again_after_a_resume(store, tracking, folder):
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 6), 1.0, Status.INTERRUPTED)
    send(store, run_id, tracking)
    assert store.leases.claim(run_id, Owner.current())
    store.metrics.record(run_id, [("reward/mean", step, 0.5) for step in (6, 7)], step=7)
    sender = Sender(store, tracking)
    sender.send(record_of(store, run_id))
    assert read(folder, record_of(store, run_id)).status == "RUNNING"
    # As at the end of a command that does not wait for its runs.
    sender.send(record_of(store, run_id), last=True)
    shown = read(folder, record_of(store, run_id))
    assert shown.status == "RUNNING"
    assert [step for step, _ in shown.curve("reward/mean")] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (Status.DONE, "FINISHED"),
        (Status.PRUNED, "FINISHED"),
        (Status.FAILED, "FAILED"),
        (Status.INTERRUPTED, "KILLED"),
    ],
)
def test_every_end_of_a_run_has_its_state_there(store, tracking, folder, status, shown):
    [run_id] = store.runs.add([new_run()])
    assert store.leases.claim(run_id, Owner.current())
    error = "no module named x" if status is Status.FAILED else None
    store.leases.finish(run_id, status, error=error)
    assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    run = read(folder, record_of(store, run_id))
    assert (run.status, run.tags["advsweep.status"]) == (shown, status.value)
    assert run.tags.get("advsweep.error") == error


def test_a_lost_answer_costs_no_step_and_doubles_none(store, tracking, folder, monkeypatch):
    """A server that goes away in the middle is sent what it lacks when it is back."""
    import mlflow

    original = mlflow.MlflowClient.log_batch
    calls = []

    def unreliable(self, run_id, metrics=(), **rest):
        calls.append(len(metrics))
        if metrics and len([count for count in calls if count]) in (2, 4):
            raise ConnectionError("no answer")
        return original(self, run_id, metrics=metrics, **rest)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", unreliable)
    monkeypatch.setattr("advsweep_mlflow.tracking._MOST_METRICS", 4)
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 11), 1.0, Status.DONE)
    sender = Sender(store, tracking)
    run = record_of(store, run_id)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            sender.send(run, last=True)
    sender.send(run, last=True)
    shown = read(folder, run)
    assert shown.curve("reward/mean") == [(step, 1.0) for step in range(1, 11)]
    assert shown.status == "FINISHED"


def test_a_step_with_more_metrics_than_a_request_has(store, tracking, folder):
    [run_id] = store.runs.add([new_run(config={"estimator": {f"p{i}": i for i in range(230)}})])
    assert store.leases.claim(run_id, Owner.current())
    store.metrics.record(run_id, [(f"m{i}", 1, float(i)) for i in range(1100)], step=1)
    store.leases.finish(run_id, Status.DONE)
    assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    shown = read(folder, record_of(store, run_id))
    assert {value for name, _, value in shown.points if name.startswith("m")} >= {0.0, 1099.0}
    assert len([name for name, _, _ in shown.points if re.fullmatch(r"m\d+", name)]) == 1100
    assert len(shown.params) == 230


def test_mlflow_prints_no_address_where_json_is_expected(store, tracking, monkeypatch):
    """With a server it prints the page of each run that ends, unless its variable says no."""
    from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT as SUPPRESSED

    monkeypatch.delenv(SUPPRESSED.name, raising=False)
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 3), 1.0, Status.DONE)
    send(store, run_id, tracking)
    assert SUPPRESSED.get()


def test_another_value_of_a_key_without_effect_is_no_error(store, tracking, folder):
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 3), 1.0, Status.INTERRUPTED)
    assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    run = record_of(store, run_id)
    run.config["fast"] = False
    assert list(sync(store, [run], tracking)) == [(run_id, "sent", "")]
    assert read(folder, run).params["fast"] == "true"


def test_numbers_that_are_none_are_taken(store, tracking, folder):
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, range(1, 2), math.nan, Status.DONE)
    send(store, run_id, tracking)
    [(step, value)] = read(folder, record_of(store, run_id)).curve("reward/mean")
    assert (step, math.isnan(value)) == (1, True)


@pytest.mark.security
def test_texts_of_a_store_stay_texts(store, tracking, folder, tmp_path):
    config = {"estimator": {"name": HOSTILE, "epsilon": 1e-4}, HOSTILE: HOSTILE, "step": 3}
    store.sweeps.add(HOSTILE, {})
    [run_id] = store.runs.add([new_run(config=config)], HOSTILE)
    assert store.leases.claim(run_id, Owner.current())
    names = [HOSTILE, "../../../y", "/etc/passwd", "step", "time", "", ".", "a" * 500]
    store.metrics.record(run_id, [(name, 1, float(i)) for i, name in enumerate(names)])
    store.leases.finish(run_id, Status.FAILED, error=HOSTILE)
    before = set(tmp_path.rglob("*"))
    assert send(store, run_id, tracking) == [(run_id, "sent", "")]
    shown = read(folder, record_of(store, run_id))
    assert sorted(value for _, _, value in shown.points) == [float(i) for i in range(len(names))]
    texts = json.dumps([shown.params, shown.tags, shown.points], ensure_ascii=False)
    assert not {"\x1b", "\x07", "\u202e"} & set(texts)
    made = {str(path) for path in set(tmp_path.rglob("*")) - before}
    allowed = (str(folder), str(store.runs_directory))
    assert all(path.startswith(allowed) or ".db" in path for path in made), made


def test_a_sweep_is_tracked_from_the_command_line(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADVSWEEP_STORE", raising=False)
    small = ["backend=bandit", "task=bandit", "model=table", "optimizer=sgd", "steps=3"]
    small += ["estimator=grpo,psr", "seed=0", "evaluation.n=2", "executor=debug", "--name", "two"]
    where = f"tracking.uri=sqlite:///{folder}/mlflow.db"
    arguments = ["advsweep", "sweep", *small, "tracking=mlflow", where]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "deprecated" not in capsys.readouterr().err
    with open_store(str(tmp_path / "advsweep.db"), create=False) as store:
        runs = store.runs.select(sweep="two")
        assert len(runs) == 2
        for run in runs:
            shown = read(folder, run)
            assert shown.status == "FINISHED"
            assert json.loads(shown.tags["advsweep.tags"]) == ["two"]
            assert [step for step, _ in shown.curve("reward/mean")] == [1, 2, 3]
            assert any(re.match(r"evaluation/bandit-\w+/pass_at_1$", n) for n, *_ in shown.points)
