"""Every sweep file that is shipped: it composes, fits the dataclasses, and can be planned."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import tables

from advsweep.backends.trl.backend import TrlBackend
from advsweep.config.groups import conf_directory
from advsweep.config.settings import Schedule
from advsweep.report.data.runs import parse_where, value_of
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.planning.plan import Plan, make_plan
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
@pytest.mark.slow
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
    # Five methods at 31.1 GPU-hours.
    assert left.gpu_hours == pytest.approx(155.5)
    assert left.published == ["AVSPO, Table 7: 13,987 s on 8 GPUs; its App. A says 2.5 h"]
    left = estimate(planned("aapo/table1_1_5b"), None, slots=1)
    # 100 steps of 567 s with GRPO and 826 s with AAPO, on two GPUs; GPG's are not printed.
    assert left.gpu_hours == pytest.approx(2 * 100 * (567 + 826) / 3600, abs=0.1)
    assert left.unknown == 1
    left = estimate(planned("aapo/table1_7b"), None, slots=1)
    # One epoch of 266 steps of 384 s on eight GPUs.
    assert left.gpu_hours == pytest.approx(8 * 266 * 384 / 3600, abs=0.5)


@pytest.mark.parametrize(
    ("name", "steps", "prompts", "warmup", "schedule"),
    [
        ("avspo/table1_qwen25_math_1_5b", 500, 1, 0, Schedule.CONSTANT),
        ("a_grae/table2", 140, 1024, 0, Schedule.CONSTANT),
        ("two_stage/table1", 140, 1024, 0, Schedule.CONSTANT),
        ("aapo/table1_1_5b", 100, 8, 10, Schedule.COSINE),
        ("aapo/table1_7b", 266, 32, 8, Schedule.CONSTANT),
        ("aapo/table1_llama_3b", 1065, 8, 32, Schedule.CONSTANT),
    ],
)
def test_lengths_and_schedules(
    name: str, steps: int, prompts: int, warmup: int, schedule: Schedule
) -> None:
    for planned_run in planned(name).runs:
        run = planned_run.run
        assert (run.steps, run.prompts_per_step) == (steps, prompts)
        assert (run.optimizer.warmup_steps, run.optimizer.schedule) == (warmup, schedule)


@pytest.mark.parametrize("name", PAPERS)
def test_rollouts_can_be_shared_out(name: str) -> None:
    for planned_run in planned(name).runs:
        run = planned_run.run
        assert isinstance(run.backend, TrlBackend)
        assert run.backend.layout_of(run).rollouts == run.prompts_per_step * run.group_size


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("avspo/table1_qwen25_math_7b", "avspo-table1"),
        ("a_grae/table2", "a_grae-table2"),
        ("a_grae/table4", "a_grae-table4"),
        ("aapo/table1_llama_1b", "aapo-table1"),
        ("two_stage/table1", "two_stage-table1"),
    ],
)
def test_a_table_s_methods_are_all_trained(name: str, table: str) -> None:
    plan = planned(name)
    path = plan.runs[0].config["model"]["path"]
    printed = tables.printed(table)
    printed = printed[[path.endswith(f"/{model}") for model in printed["model"]]]
    trained = {
        method
        for method, where in tables.methods(table.partition("-")[0]).items()
        if any(all(c.holds(value_of(r, c.key)) for c in parse_where(where)) for r in plan.runs)
    }
    assert trained == set(printed["method"]) - {tables.BASE}


def test_baselines_of_avspo_are_those_of_their_authors() -> None:
    configs = {r.config["estimator"]["name"]: r.config for r in planned(AVSPO).runs}
    assert configs["intuitor"]["estimator"]["eps"] == 1e-4
    assert configs["rent"]["estimator"]["no_answer"] == -7
    # The clip range that the paper prints is no other method's.
    bounds = {name: config["objective"]["clip_low"] for name, config in configs.items()}
    assert bounds.pop("dcpo") == 0.16
    assert set(bounds.values()) == {0.2}


def test_a_grae_trains_as_its_scripts_where_the_paper_is_silent() -> None:
    for name, kl_coef in (("a_grae/table2", 0.0), ("a_grae/table4", 0.001)):
        for planned_run in planned(name).runs:
            objective = planned_run.config["objective"]
            assert objective["kl_coef"] == kl_coef
            assert (objective["entropy_coef"], objective["dual_clip"]) == (0.001, 3.0)
            of_dapo = objective["aggregation"] == "token_mean"
            assert objective["clip_high"] == (0.28 if of_dapo else 0.2)


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


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.slow
def test_a_study_s_runs_are_planned(name: str) -> None:
    plan = planned(name)
    assert plan.runs
    assert not plan.duplicates
    assert not plan.absent
    assert plan.executor.resources.gpus == 0
    assert len({run.run.seed for run in plan.runs}) > 2
