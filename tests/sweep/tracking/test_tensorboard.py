"""Event files, read back as TensorBoard reads them."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.api_pb2 import Status as Ends
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from advsweep.store import Owner, Status
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.tracking.client import sync
from advsweep.sweep.tracking.tensorboard import TensorboardTracking


def read(store, run):
    folder = store.runs_directory / "tensorboard" / run.directory.name
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def curve(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def hparams(events, tag):
    content = events.PluginTagToContent("hparams")[f"_hparams_/{tag}"]
    return HParamsPluginData.FromString(content)


def start(store, new_run):
    [run_id] = store.runs.add([new_run()])
    assert store.leases.claim(run_id, Owner.current())
    return run_id


def record_of(store, run_id):
    [record] = store.runs.select(ids=[run_id])
    return record


def test_a_sweep_is_there_with_every_metric_of_the_store(plan, store):
    outcome = execute(plan("estimator=grpo,fade", name="two"), store)
    runs = store.runs.select(ids=outcome.run_ids)
    assert sync(store, runs, lambda run: TensorboardTracking()).sent == outcome.run_ids
    for run in runs:
        events = read(store, run)
        kept = store.metrics.points(run.id)
        assert {"pass@1", "reward/mean", "collapse/acr"} <= {name for name, _, _ in kept}
        for name in store.metrics.names(run.id):
            stored = [(step, value) for n, step, value in kept if n == name]
            assert curve(events, name) == [(step, pytest.approx(v)) for step, v in stored]
        [(step, seconds)] = curve(events, "time/run")
        assert (step, seconds) == (
            20,
            pytest.approx(store.metrics.summaries([run.id])[run.id]["time/run"]),
        )


def test_the_config_is_there_as_text_and_as_hyperparameters(store, new_run):
    run_id = start(store, new_run)
    store.leases.finish(run_id, Status.DONE)
    run = record_of(store, run_id)
    sync(store, [run], lambda run: TensorboardTracking())
    events = read(store, run)
    [text] = events.Tensors("config")[0].tensor_proto.string_val
    assert json.loads(text.decode().removeprefix("```json").removesuffix("```")) == run.config
    started = hparams(events, "session_start_info").session_start_info
    assert started.group_name == "grpo-c0ffeec0"
    assert started.hparams["estimator.epsilon"].number_value == 1e-4
    assert started.hparams["estimator.name"].string_value == "grpo"
    assert started.hparams["fast"].bool_value is True
    assert hparams(events, "session_end_info").session_end_info.status == Ends.STATUS_SUCCESS


def test_files_go_where_they_are_asked_to(store, new_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_id = start(store, new_run)
    store.leases.finish(run_id, Status.DONE)
    run = record_of(store, run_id)
    sync(store, [run], lambda run: TensorboardTracking(directory="elsewhere"))
    assert list((tmp_path / "elsewhere" / run.directory.name).glob("events.out.tfevents.*"))
