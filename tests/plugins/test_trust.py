"""A store does not choose the executors and trackers of installed packages either."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from advsweep.cli.app import app
from advsweep.cli.catalogue import plugin_registries
from advsweep.errors import ConfigError
from advsweep.store import Status, Store, open_store
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.runs import schedule_runs

pytestmark = pytest.mark.security

FAKE = ("backend=fake", "steps=2", "evaluation.n=2", "evaluation.k=[1]", "prompts_per_step=2")

WITNESS = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.sweep.executors.debug import DebugExecutor
from advsweep.sweep.tracking.base import Track, Tracking


@dataclass(kw_only=True)
class WitnessExecutor(DebugExecutor):
    name: ClassVar[str] = "witness"
    place: str = option("executed", help="what a start writes")

    def start(self, job):
        Path(self.place).write_text("started")
        return super().start(job)


@dataclass(kw_only=True)
class WitnessTracking(Tracking):
    name: ClassVar[str] = "witness"
    place: str = option("tracked", help="what a track writes")

    def open(self, record):
        return WitnessTrack(self.place)


class WitnessTrack(Track):
    def __init__(self, place):
        self._place = place

    def log(self, rows):
        Path(self._place).write_text("logged")

    def close(self, record, summaries):
        pass
"""


@pytest.fixture
def _witness(
    tmp_path: Path, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """An installed package with an executor and a tracker that leave files behind."""
    points = {
        "advsweep.executors": {"witness": "witness_of_others:WitnessExecutor"},
        "advsweep.trackings": {"witness": "witness_of_others:WitnessTracking"},
    }
    folder = install("witness-of-others", points, witness_of_others=WITNESS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    registries = [plugin_registries()[group] for group in points]
    for registry in registries:
        vars(registry).pop("_plugins", None)
    yield
    for registry in registries:
        vars(registry).pop("_plugins", None)
        registry._loaded.pop("witness", None)
    sys.modules.pop("witness_of_others", None)


@pytest.fixture
def store(tmp_path: Path, _witness: None) -> Iterator[Store]:
    """A store from elsewhere: a pending run whose sweep names both, with options."""
    with open_store(str(tmp_path / "old.db")) as store:
        schedule_runs(make_plan([*FAKE, "seed=0"], name="old"), store, force=False)
        settings = {"executor": {"name": "witness", "place": "executed-elsewhere"}}
        tracking = {"name": "witness", "place": "tracked-elsewhere"}
        store.sweeps.add("old", {"settings": settings, "tracking": tracking})
        yield store


def call(store: Store, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--store", store.url])


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(("exec", "track"))}


def test_an_executor_of_a_package_needs_trust(store: Store, tmp_path: Path) -> None:
    refused = call(store, "retry", "1")
    assert isinstance(refused.exception, ConfigError)
    assert "the store has 'witness' for these runs" in str(refused.exception)
    assert "witness_of_others" not in sys.modules
    assert written(tmp_path) == set()

    done = call(store, "retry", "1", "executor=debug")
    assert done.exit_code == 0, done.exception
    assert "witness_of_others" not in sys.modules
    assert written(tmp_path) == set()
    assert store.runs.select()[0].status is Status.DONE


def test_the_command_line_chooses_its_options(store: Store, tmp_path: Path) -> None:
    done = call(store, "retry", "1", "executor=witness")
    assert done.exit_code == 0, done.exception
    assert written(tmp_path) == {"executed"}


def test_trust_chooses_no_executor(store: Store, tmp_path: Path) -> None:
    assert isinstance(call(store, "retry", "1", "--trust-store").exception, ConfigError)
    assert written(tmp_path) == set()


def test_a_tracker_of_a_package_takes_its_options_from_the_command_line(
    store: Store, tmp_path: Path
) -> None:
    assert call(store, "retry", "1", "executor=debug").exit_code == 0
    sent = call(store, "export", "1", "--to", "witness")
    assert sent.exit_code == 0, sent.exception
    assert written(tmp_path) == {"tracked"}
