"""Every sweep file that is shipped: it composes, fits the dataclasses, and can be planned."""

from __future__ import annotations

import functools
import re

import pytest

from advsweep.config.groups import conf_directory
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks import dataset_rows as rows

FOLDER = conf_directory() / "experiment"
NAMES = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.yaml")
    # tests/test_gpu_study.py plans the one for GPUs, which needs vLLM.
    if not path.stem.startswith("_") and path.parent.name != "gpu"
)
PREPARED = ("real_model/study", "scale/study", "random_real/study")
"""Their problems are written by experiments/real_model/prepare.py."""
AVSPO = "avspo/table1_qwen25_math_1_5b"


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """No data is on this machine, and asking the hub for it is an error."""

    def refuse(*arguments):
        raise AssertionError(f"asked the hub for {arguments}")

    monkeypatch.setattr(rows, "_from_hub", refuse)
    monkeypatch.setattr(rows, "_is_cached", lambda name: False)


@functools.cache
def planned(name):
    return make_plan([f"+experiment={name}"], fetch=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_its_runs_are_planned(name):
    """Tables of papers need data, weights and GPUs that are not here; a study needs its data."""
    plan, is_paper = planned(name), bool(re.search(r"/(table\d|lcb)", name))
    needs_data = is_paper or name in PREPARED
    assert plan.runs
    assert not plan.duplicates
    assert bool(plan.absent) == needs_data
    assert (plan.executor.resources.gpus >= 1) == is_paper
    identities = {run.run.identity for run in plan.runs}
    assert len(identities) == len(plan.runs)
    assert all(identity.startswith("?") == needs_data for identity in identities)
    if is_paper:
        assert plan.name == re.sub("[/_]", "-", name)
    if "study" in name:
        assert len({run.run.seed for run in plan.runs}) > 2
