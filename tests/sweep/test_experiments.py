"""Every sweep file that is shipped: it composes, fits the dataclasses, and can be planned."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from advsweep.config.directory import conf_directory
from advsweep.sweep.estimate import estimate
from advsweep.sweep.plan import Plan, make_plan
from advsweep.tasks.dataset import rows

FOLDER = conf_directory() / "experiment"
NAMES = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix()
    for path in FOLDER.rglob("*.yaml")
    if not path.stem.startswith("_")
)
# Of the bandit, which needs neither data nor GPUs.
BANDITS = [
    "avspo/acr_predicts",
    "avspo/acr_predicts_shared",
    "two_stage/toy",
    "two_stage/toy_actions",
    "two_stage/toy_temperatures",
]
PAPERS = [name for name in NAMES if "/" in name and name not in BANDITS]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers.md"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data is on this machine, and asking the hub for it is an error."""

    def refuse(*arguments: object) -> rows.Rows:
        raise AssertionError(f"asked the hub for {arguments}")

    monkeypatch.setattr(rows, "_from_hub", refuse)
    monkeypatch.setattr(rows, "_is_cached", lambda name: False)


@functools.cache
def planned(name: str) -> Plan:
    return make_plan([f"+experiment={name}"], fetch=False)


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_s_runs_are_planned_without_data_and_weights(name: str) -> None:
    plan = planned(name)
    assert plan.runs
    assert not plan.duplicates
    assert plan.absent
    assert plan.name == re.sub("[/_]", "-", name)
    assert plan.executor.resources.gpus >= 1
    identities = {run.run.identity for run in plan.runs}
    assert len(identities) == len(plan.runs)
    assert all(identity.startswith("?") for identity in identities)


def test_gpu_hours_are_those_that_the_paper_prints() -> None:
    left = estimate(planned("avspo/table1_qwen25_math_1_5b"), None, slots=1)
    # Four methods at 31.1 GPU-hours.
    assert left.gpu_hours == pytest.approx(124.4)
    assert left.printed == ["AVSPO, Table 7: 13,987 s on 8 GPUs; its App. A says 2.5 h"]
    left = estimate(planned("aapo/table1_1_5b"), None, slots=1)
    # 100 steps of 567 s with GRPO and 826 s with AAPO, on two GPUs; GPG's are not printed.
    assert left.gpu_hours == pytest.approx(2 * 100 * (567 + 826) / 3600, abs=0.1)
    assert left.untold == 1


def test_the_page_of_papers_has_every_one_of_them() -> None:
    named = re.findall(r"^\| `([a-z_0-9]+/[a-z_0-9]+)`", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted([*PAPERS, *BANDITS])


@pytest.mark.parametrize("name", BANDITS)
def test_a_bandit_s_runs_are_planned(name: str) -> None:
    plan = planned(name)
    assert plan.name == re.sub("[/_]", "-", name)
    assert not plan.duplicates
    assert not plan.absent
    assert plan.executor.resources.gpus == 0
