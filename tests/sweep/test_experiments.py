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
    if not path.stem.startswith("_")
)
# Papers' experiments on the bandit, without data and GPUs; and the project's own studies.
BANDITS = [
    name for name in NAMES if re.search(r"/(acr_predicts(_shared)?$|toy|temperatures$)", name)
]
STUDIES = [
    name for name in NAMES if re.search(r"(^leaderboard|/study|_(rloo|rollouts|tiny)$)", name)
]
# tests/test_gpu_study.py plans it; it needs vLLM.
GPU = ["gpu/routes"]
PAPERS = [name for name in NAMES if "/" in name and name not in [*BANDITS, *STUDIES, *GPU]]
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


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.slow
def test_a_paper_s_runs_are_planned_without_data_and_weights(name):
    plan = planned(name)
    assert plan.runs
    assert not plan.duplicates
    assert plan.absent
    assert plan.name == re.sub("[/_]", "-", name)
    assert plan.executor.resources.gpus >= 1
    identities = {run.run.identity for run in plan.runs}
    assert len(identities) == len(plan.runs)
    assert all(identity.startswith("?") for identity in identities)


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


@pytest.mark.parametrize("name", BANDITS)
def test_a_bandit_s_runs_are_planned(name):
    plan = planned(name)
    assert plan.name == re.sub("[/_]", "-", name)
    assert not plan.duplicates
    assert not plan.absent
    assert plan.executor.resources.gpus == 0


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.slow
def test_a_study_s_runs_are_planned(name):
    plan = planned(name)
    assert plan.runs
    assert not plan.duplicates
    assert not plan.absent
    assert plan.executor.resources.gpus == 0
    assert len({run.run.seed for run in plan.runs}) > 2
