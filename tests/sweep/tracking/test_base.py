"""What a tracker is, and is not: a part of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import NoTracking, sync_command
from advsweep.sweep.tracking.wandb import Mode, WandbTracking


@pytest.mark.parametrize("name", TRACKINGS.names())
def test_tracking_never_enters_a_runs_identity(plan, name):
    [tracked], [plain] = plan(f"tracking={name}").runs, plan().runs
    assert tracked.run.identity == plain.run.identity
    assert tracked.run.config_hash == plain.run.config_hash
    assert "tracking" not in tracked.config


def test_a_sweep_remembers_its_tracking(plan):
    spec = plan("tracking=wandb", "tracking.tags=[a,b]", name="two").spec
    assert spec["tracking"]["name"] == "wandb"
    assert spec["tracking"]["tags"] == ["a", "b"]
    assert "tracking" not in plan(name="two").spec
    assert "tracking" not in plan("tracking=wandb", "tracking.mode=disabled", name="two").spec


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_missing_package_is_refused_with_the_extra_that_has_it(is_folder, tmp_path, monkeypatch):
    @dataclass(kw_only=True)
    class Lacking(NoTracking):
        name: ClassVar[str] = "lacking"
        package: ClassVar[str | None] = "no_such_package"

    if is_folder:  # such as the one that wandb makes in the working folder
        (tmp_path / "no_such_package").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install .*no_such_package`"):
        Lacking().check()


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_ours_can_be_had_here(name):
    TRACKINGS.build(name).check()


def test_a_tracker_without_files_is_no_target_of_an_export(tmp_path):
    with pytest.raises(ConfigError, match="omit DIR"):
        NoTracking().in_folder(tmp_path)


def test_the_command_to_send_runs_later_has_all_fields():
    tracking = WandbTracking(project="mine", mode=Mode.OFFLINE, tags=("a b", "c"), patience=5)
    options = """--set mode=offline --set project=mine --set 'tags=['"'"'a b'"'"', '"'"'c'"'"']'"""
    assert sync_command(tracking, "1") == f"`advsweep export 1 --to wandb {options}`"


def test_nobody_waits_for_ever():
    with pytest.raises(ConfigError, match="patience"):
        WandbTracking(patience=float("inf"))
