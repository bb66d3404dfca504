"""Trackers that keep runs in a folder, read back with the readers of their own packages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Owner, RunRecord, Status
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import run_key, sync
from advsweep.sweep.tracking.trackio import TrackioTracking

HOSTILE = "../../x\x1b]52;c;eA==\x07\u202e"
KEPT = "../../x\\x1b]52;c;eA==\\x07\\u202e"  # what trackers may have of it


@dataclass(frozen=True)
class Shown:
    """What a tracker shows of a run: points (name, step, value), one config key, and its state."""

    points: list[tuple[str, int, float]]
    epsilon: float
    estimator: str
    state: str
    texts: str


def read_tensorboard(folder, run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder / run.directory.name), size_guidance={"scalars": 0})
    events.Reload()
    points = [
        (name, event.step, event.value)
        for name in events.Tags()["scalars"]
        for event in events.Scalars(name)
    ]
    plugin = events.PluginTagToContent("hparams")
    params = HParamsPluginData.FromString(plugin["_hparams_/session_start_info"])
    hparams = params.session_start_info.hparams
    [config] = events.Tensors("config")[0].tensor_proto.string_val
    return Shown(
        points=points,
        epsilon=hparams["estimator.epsilon"].number_value,
        estimator=hparams["estimator.name"].string_value,
        state="done" if "_hparams_/session_end_info" in plugin else "not done",
        texts=config.decode(),
    )


def read_trackio(folder, run):
    import trackio

    project = trackio.Api().runs("advsweep")
    [found] = [shown for shown in project if shown.id == run_key(run)]
    assert found.name == run.directory.name
    assert trackio.SQLiteStorage.get_project_db_path("advsweep").parent == folder
    points = [
        (name, row["step"], value)
        for row in trackio.SQLiteStorage.get_logs("advsweep", run_id=found.id)
        for name, value in row.items()
        if name not in ("step", "timestamp")
    ]
    config = found.config
    return Shown(
        points=points,
        epsilon=config["estimator"]["epsilon"],
        estimator=config["estimator"]["name"],
        state="done" if config["status"] == "done" else "not done",
        texts=json.dumps(config, ensure_ascii=False),
    )


READERS: dict[str, Callable[[Path, RunRecord], Shown]] = {
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
}
FORGETFUL = ("tensorboard",)

each = pytest.mark.parametrize("name", [*READERS])


@pytest.fixture
def tracking(name, tmp_path, monkeypatch):
    """The tracker of the test's name, for the folder `out`."""
    folder = tmp_path / "out"
    folder.mkdir()
    if name == "trackio":
        # A process has one folder, which trackio takes from the environment.
        import trackio.sqlite_storage
        import trackio.utils

        for module in (trackio.utils, trackio.sqlite_storage):
            monkeypatch.setattr(module, "TRACKIO_DIR", folder)
    return TRACKINGS.build(name).in_folder(folder)


def send(store, runs, tracking):
    """The ids of the runs that were sent."""
    found = list(sync(store, store.runs.select(ids=runs), tracking))
    return [run_id for run_id, outcome, _ in found if outcome == "sent"]


def train(store, run_id, first, last, value, status):
    assert store.leases.claim(run_id, Owner.current())
    store.metrics.truncate(run_id, after_step=first - 1)
    points = [("reward/mean", s, value) for s in range(first, last + 1)]
    store.metrics.record(run_id, [*points, ("pass@8", last, value / 4)], step=last)
    store.leases.finish(run_id, status)


def curve(shown, name):
    return sorted((step, value) for own, step, value in shown.points if own == name)


def files(folder):
    return (str(path) for path in folder.rglob("*"))


def test_every_tracker_that_keeps_a_folder_is_read_here():
    # Those of other packages, such as contrib/mlflow, are read by the tests of these.
    unread = {*TRACKINGS.modules} - {*READERS, "wandb", "none"}
    assert unread == set(), (
        "write a function `read_NAME(folder, run)` in this file that returns what the tracker has "
        f"of a run, and add it to READERS: {', '.join(sorted(unread))}"
    )


@each
def test_a_run_that_was_resumed_or_is_sent_again_is_there_once(
    name, tracking, store, new_run, tmp_path
):
    [run_id] = store.runs.add([new_run()])
    train(store, run_id, 1, 5, 1.0, Status.INTERRUPTED)
    assert send(store, [run_id], tracking) == [run_id]
    train(store, run_id, 4, 8, 2.0, Status.DONE)
    for _ in range(2):
        assert send(store, [run_id], tracking) == [run_id]
    [run] = store.runs.select(ids=[run_id])
    shown = READERS[name](tmp_path / "out", run)
    # The steps 4 and 5 were sent before they were trained again. A tracker that cannot tell what
    # it has gets all steps again, and shows the new ones.
    first = 4 if name in FORGETFUL else 6
    assert curve(shown, "reward/mean") == [(s, 1.0 if s < first else 2.0) for s in range(1, 9)]
    assert curve(shown, "pass@8") == ([] if name in FORGETFUL else [(5, 0.25)]) + [(8, 0.5)]
    assert (shown.epsilon, shown.estimator, shown.state) == (1e-4, "grpo", "done")


@each
def test_numbers_that_are_none_and_runs_without_steps_are_taken(
    name, tracking, store, new_run, tmp_path
):
    ids = store.runs.add([new_run(seed=0), new_run(seed=1)])
    train(store, ids[0], 1, 1, math.nan, Status.DONE)
    assert store.leases.claim(ids[1], Owner.current())
    store.leases.finish(ids[1], Status.FAILED, error="no module")
    assert send(store, ids, tracking) == ids
    done, failed = store.runs.select(ids=ids)
    [(step, value)] = curve(READERS[name](tmp_path / "out", done), "reward/mean")
    assert (step, math.isnan(float(value))) == (1, True)
    shown = READERS[name](tmp_path / "out", failed)
    assert (shown.points, shown.state) == ([], "not done")


@each
@pytest.mark.security
def test_texts_of_a_store_stay_texts(name, tracking, store, new_run, tmp_path):
    config: dict[str, Any] = {"estimator": {"name": HOSTILE, "epsilon": 1e-4}, HOSTILE: HOSTILE}
    config |= {"_private": 1, "step": 3}
    store.sweeps.add(HOSTILE, {})
    [run_id] = store.runs.add([new_run(config=config)], HOSTILE)
    assert store.leases.claim(run_id, Owner.current())
    names = [HOSTILE, "../../../y", "/etc/passwd", "step", "time", "", ".", "a" * 500]
    store.metrics.record(run_id, [(own, 1, float(i)) for i, own in enumerate(names)])
    store.leases.finish(run_id, Status.FAILED, error=HOSTILE)
    before = set(files(tmp_path))
    assert send(store, [run_id], tracking) == [run_id]
    [run] = store.runs.select(ids=[run_id])
    shown = READERS[name](tmp_path / "out", run)
    assert sorted(value for _, _, value in shown.points) == [float(i) for i in range(len(names))]
    assert shown.estimator == KEPT
    for text in (shown.texts, *(point[0] for point in shown.points)):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    made = {path for path in set(files(tmp_path)) - before if ".db" not in path}
    allowed = (str(tmp_path / "out"), str(store.runs_directory))
    assert all(path.startswith(allowed) and "x1b" not in path for path in made), made


@pytest.mark.parametrize("project", ["", "a b", "../x", "a/b", "x" * 65])
def test_a_project_of_trackio_is_a_plain_name(project):
    with pytest.raises(ConfigError, match=r"tracking\.project"):
        TrackioTracking(project=project)
