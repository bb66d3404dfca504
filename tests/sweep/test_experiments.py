"""Every sweep file that is shipped: it composes, fits the dataclasses, and can be planned."""

from __future__ import annotations

import functools
import re

import pytest

from advsweep.config.groups import conf_directory
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks import dataset_rows as rows

FOLDER = conf_directory() / "experiment"
NAMES = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.yaml")
    # tests/test_gpu_study.py plans the one for GPUs, which needs vLLM.
    if not path.stem.startswith("_") and path.parent.name != "gpu"
)
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
    """Tables of papers need data, weights and GPUs that are not here, and nothing else does."""
    plan, is_paper = planned(name), bool(re.search(r"/(table\d|lcb)", name))
    assert plan.runs
    assert not plan.duplicates
    assert bool(plan.absent) == is_paper
    assert (plan.executor.resources.gpus >= 1) == is_paper
    identities = {run.run.identity for run in plan.runs}
    assert len(identities) == len(plan.runs)
    assert all(identity.startswith("?") == is_paper for identity in identities)
    if is_paper:
        assert plan.name == re.sub("[/_]", "-", name)
    if "study" in name:
        assert len({run.run.seed for run in plan.runs}) > 2


@pytest.mark.slow
def test_gpu_hours_are_those_that_the_paper_prints():
    left = estimate(planned("avspo/table1_qwen25_math_1_5b"), None, slots=1)
    # Five methods at 31.1 GPU-hours.
    assert left.gpu_hours == pytest.approx(155.5)
    assert left.sources == ["AVSPO, Table 7: 13,987 s on 8 GPUs; its App. A says 2.5 h"]
    left = estimate(planned("aapo/table1_1_5b"), None, slots=1)
    # 100 steps of 567 s with GRPO and 826 s with AAPO, on two GPUs; GPG's are not printed.
    assert left.gpu_hours == pytest.approx(2 * 100 * (567 + 826) / 3600, abs=0.1)
    assert left.unknown == 1
    left = estimate(planned("aapo/table1_7b"), None, slots=1)
    # One epoch of 266 steps of 384 s on eight GPUs.
    assert left.gpu_hours == pytest.approx(8 * 266 * 384 / 3600, abs=0.5)
