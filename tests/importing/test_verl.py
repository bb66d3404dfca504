"""Importing what verl writes: its file logger, dumps of rollouts and validation, settings."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from advsweep.errors import ConfigError
from tests.importing.conftest import read as read_runs
from tests.importing.conftest import values

SETTINGS = {
    "data": {"train_batch_size": 2, "seed": 3, "max_response_length": 512},
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen2.5-0.5B"},
        "actor": {"optim": {"lr": 1e-6}, "ppo_mini_batch_size": 2},
        "rollout": {"n": 4, "temperature": 1.0},
    },
    "algorithm": {
        "_target_": "verl.trainer.config.AlgoConfig",
        "adv_estimator": "grpo",
        "norm_adv_by_std_in_grpo": False,
        "filter_groups": {"enable": False},
    },
    "trainer": {
        "total_training_steps": None,
        "experiment_name": "a-s3",
        "default_local_dir": "checkpoints/${trainer.project_name}",
    },
}
REWARDS = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def lines(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def log(path: Path, steps: Iterable[int] = (1, 2, 3)) -> Path:
    """Writes what the file logger does; NaN is null there."""
    values: dict[str, Any] = {
        "critic/score/mean": 0.5,
        "critic/rewards/mean": 0.4,
        "actor/entropy": 0.7,
        "response_length/mean": 10.0,
        "perf/mfu/actor": None,
    }
    return lines(path, [{"step": step, "data": values} for step in steps])


def dump(folder: Path, step: int, rewards: list[list[float]] = REWARDS, **more: Any) -> Path:
    """Writes rollouts as the V1 trainer does, sorted by uid."""
    return lines(
        folder / f"{step}.jsonl",
        [
            {"input": f"p{p}", "output": "o", "gts": "1", "score": r, "step": step}
            | {"uid": f"u{step}{p}_{s}_0"}
            | more
            for p, group in enumerate(rewards)
            for s, r in enumerate(group)
        ],
    )


def settings(folder: Path, **changes: Any) -> None:
    content = json.loads(json.dumps(SETTINGS))
    content["algorithm"] |= changes
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(content))


read = functools.partial(read_runs, "verl")


def test_a_whole_run(tmp_path: Path) -> None:
    log(tmp_path / "log.jsonl")
    settings(tmp_path)
    for step in (1, 2):
        dump(tmp_path / "rollouts", step)
    for step in (0, 2):
        dump(tmp_path / "val", step, [[1, 0], [1, 1]], reward=1.0)
    (run,) = read(tmp_path)
    assert run.source == "."
    assert run.config["estimator"] == {"name": "dr_grpo"}
    assert (run.config["prompts_per_step"], run.config["group_size"]) == (2, 4)
    assert (run.config["seed"], run.config["optimizer"]) == (3, {"lr": 1e-6})
    assert run.config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 2
    # What has a key of ours is there once; names of classes are no settings.
    assert run.config["algorithm"] == {"filter_groups": {"enable": False}}
    assert "train_batch_size" not in run.config["data"]
    assert "steps" not in run.config
    found = values(run)
    assert found[3]["reward/mean"] == 0.5
    assert found[3]["critic/rewards/mean"] == 0.4
    assert (found[3]["cost/rollouts"], found[3]["cost/tokens"]) == (1.0, 80.0)
    # Of the rollouts: 2 of 8 are right; ±1/2 in one of two groups.
    assert found[1]["reward/mean"] == 0.25
    assert found[1]["collapse/acr"] == 0.5
    assert found[1]["mass/success"] == 2 * 0.5 / 8
    assert found[1]["entropy/token"] == 0.7
    assert [(r.step, r.n, r.correct) for r in run.evaluations] == [
        *((0, 2, 1), (0, 2, 2)),
        *((2, 2, 1), (2, 2, 2)),
    ]
    # verl gives a problem another uid in each validation; its prompt names it.
    assert len({r.problem for r in run.evaluations}) == 2
    assert not run.left_out
    assert run.notes == [
        "advantages were computed from the rewards by estimator 'dr_grpo'",
        "1 step of the log without rollouts, the first is 3",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"name": "dr_grpo"}),
        ({"norm_adv_by_std_in_grpo": True}, {"name": "grpo", "preset": "verl"}),
        ({"adv_estimator": "rloo"}, {"name": "rloo"}),
        ({"adv_estimator": "gpg"}, {"name": "gpg", "alpha": "nonzero"}),
        # Its returns depend on a discount, and on a KL that the dumps do not have.
        ({"adv_estimator": "reinforce_plus_plus"}, {"name": "verl_reinforce_plus_plus"}),
        (
            {"adv_estimator": "advsweep", "advsweep": {"name": "asym_grpo", "delta": 0.5}},
            {"name": "asym_grpo", "delta": 0.5},
        ),
        ({"adv_estimator": ["x"]}, None),
    ],
)
def test_estimators(tmp_path: Path, changes: dict[str, Any], expected: object) -> None:
    log(tmp_path / "log.jsonl")
    settings(tmp_path, **changes)
    (run,) = read(tmp_path)
    assert run.config.get("estimator") == expected


def test_verdicts_come_before_scores(tmp_path: Path) -> None:
    """A sample without a verdict is not correct."""
    rows = [
        {"input": "p", "output": "", "score": 0.1, "reward": 0.1, "step": 5, "acc": acc}
        for acc in (True, False, None, 1.0)
    ]
    lines(tmp_path / "val" / "5.jsonl", rows)
    log(tmp_path / "log.jsonl")
    (run,) = read(tmp_path)
    assert [tuple(r)[2:4] for r in run.evaluations] == [(4, 2)]


def test_files_belong_to_the_run_whose_folder_they_share(tmp_path: Path) -> None:
    for name, estimator in (("a", "rloo"), ("b", "gae")):
        log(tmp_path / name / "log.jsonl")
        settings(tmp_path / name, adv_estimator=estimator)
        dump(tmp_path / name / "rollouts", 1)
    dump(tmp_path / "other", 1)
    first, second = read(tmp_path)
    assert (first.source, second.source) == ("a", "b")
    assert first.config["estimator"] == {"name": "rloo"}
    own, other = values(first)[1], values(second)[1]
    assert own["collapse/acr"] == other["collapse/acr"] == 0.5
    assert "mass/success" in own
    assert "mass/success" not in other
    assert first.notes[-1].startswith("left out 1 folder of files named by steps")
    assert first.notes[-1].endswith("such as other")


def test_damaged_files_do_not_hide_the_rest(tmp_path: Path) -> None:
    path = log(tmp_path / "log.jsonl")
    path.write_text(path.read_text() + '{"step": 4, "data": {"critic/sc')
    dump(tmp_path / "rollouts", 1)
    cut = dump(tmp_path / "rollouts", 2)
    cut.write_text(cut.read_text()[:-30])
    bad = dump(tmp_path / "rollouts", 3, [[math.nan, 1.0]])
    bad.write_text(bad.read_text() + "[1]\n")
    # Recognised by its first line, which has no number as its score.
    lines(tmp_path / "rollouts" / "4.jsonl", [{"input": "p", "score": 1}])
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("a: [")
    (run,) = read(tmp_path)
    found = values(run)
    assert sorted(found) == [1, 2, 3, 4]
    assert found[2]["reward/mean"] == pytest.approx(2 / 7)
    assert found[3]["reward/unscorable"] == 0.5
    assert dict(run.left_out) == {
        "lines that are cut or damaged": 2,
        "rewards that are no finite numbers, taken as unscorable": 1,
        "incomplete lines": 1,
    }
    assert run.notes[0].startswith("the settings were left out: ")


def test_hostile_settings_stay_text(tmp_path: Path) -> None:
    log(tmp_path / "log.jsonl")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "algorithm: {adv_estimator: 'x\\x1b]52;', a: !!python/object/apply:os.system ['touch x']}"
    )
    (run,) = read(tmp_path)
    assert run.config == {}
    assert run.notes[0].isprintable()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        'backend: {name: command, command: "rm -rf /"}\n'
        "estimator: x\nalgorithm: {_target_: os.system}"
    )
    (run,) = read(tmp_path)
    assert run.config == {"algorithm": {}}


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_of_verl_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="expected"):
        read(tmp_path / name)
