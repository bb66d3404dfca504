"""Dumps of prime-rl, NeMo-RL and open-instruct, in the shape of their sources (`logs/forms.py`)."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.logs.base import ProblemCount
from advsweep.logs.dump_checks import problem_counts
from advsweep.logs.forms import rows_of
from advsweep.logs.json_lines import DAMAGED
from advsweep.logs.rollout_records import RolloutNotes
from advsweep.logs.rollouts import read_rollouts
from tests.importing.conftest import read, values


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def episode(step: int, group: str, reward: float, *, kind: str = "train", **more: Any) -> Any:
    """What `Episode.to_record` of verifiers 0.4.0 makes, without what nothing reads."""
    nodes = [{"mask": [False]}, {"mask": [False, True, True], **more.pop("node", {})}]
    trace = {
        "task": {"type": "T", "data": {"idx": 0}},
        "agent": {"name": "solver", "trainable": True},
        "nodes": nodes,
        "rewards": {"right": {"score": reward, "weight": 1.0}, "form": {"score": 1, "weight": 0.5}},
        "ok": True,
        **more,
    }
    judge = {**trace, "agent": {"name": "judge", "trainable": False}}
    return {
        "env": {"id": "gsm8k", "name": "maths"},
        "task": {"type": "T", "data": {"idx": 0, "prompt": f"of {group[:1]}"}},
        "group": {"id": group},
        "run": {"type": "train", "id": "r", "work": {"type": kind, "step": step}},
        "ok": True,
        "traces": [judge, trace],
    }


def of_nemo(reward: float, prompt: int, length: int, advantage: float, **more: Any) -> Any:
    """A line of `log_batched_dict_as_jsonl`: each value in a list of one."""
    mask = [0, 0] + [1] * length + [0] * (3 - length)
    row = {
        "content": ["q", "a"],
        "rewards": reward,
        "token_ids": [9, prompt, *[5] * 3],
        "token_loss_mask": mask,
        "advantages": [advantage] * 5,
        **more,
    }
    return {name: [value] for name, value in row.items()} | {"idx": 0}


def of_open_instruct(step: int, sample: int, prompt: int, reward: float) -> Any:
    return {
        "step": step,
        "sample_idx": sample,
        "prompt_idx": sample // 2,
        "prompt_tokens": [1, prompt],
        "response_tokens": [7] * (sample + 1),
        "reward": reward,
        "advantage": reward - 5.0,
        "finish_reason": "stop",
    }


def test_a_run_of_prime_rl(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    folder = run / "rollouts"
    failed = episode(1, "a1", 0.0, ok=False, rewards={"right": None})
    first = [episode(1, "a1", 1.0), failed, episode(1, "b1", 0.0)]
    # The group ends in the window of the next step, whose first group asks for the same problem.
    second = [episode(2, "a2", 1.0), episode(1, "b1", 1.0), episode(2, "a2", 0.0)]
    lines(folder / "step_1/train/all/traces.jsonl", *first)
    lines(folder / "step_2/train/all/traces.jsonl", *second)
    # The part that was trained on.
    lines(folder / "step_1/train/effective/traces.jsonl", *first[:1])
    checked = [episode(2, g, r, kind="eval") for g, r in (("c", 1.0), ("c", 0.0), ("d", 0.0))]
    lines(folder / "step_2/eval/all/traces.jsonl", *checked)
    lines(run / "metrics.jsonl", {"step": 1, "loss/mean": 0.5, "optim/lr": 1e-6})
    notes = RolloutNotes()
    steps = list(read_rollouts(run, rewards={"right": 1.0}, notes=notes))
    assert [[group.rewards for group in groups] for _, groups in steps] == [
        [pytest.approx([1.0, float("nan")], nan_ok=True), [0.0, 1.0]],
        [[1.0, 0.0]],
    ]
    assert steps[1].groups[0].lengths == [2, 2]
    (found,) = read("rollouts", tmp_path / "runs", success_at=1.5)
    assert (found.source, found.config) == ("a", {"prompts_per_step": 2, "group_size": 2})
    # Rewards are 1.5 with the form, .5 without a right answer; one of step 1 failed.
    own = values(found)
    assert own[1]["reward/mean"] == pytest.approx((1.5 + 0.5 + 1.5) / 3)
    assert own[1]["reward/unscorable"] == 0.25
    assert (own[1]["reward/best"], own[1]["reward/worst"]) == (1.5, 1.0)
    assert (own[1]["loss/policy"], own[1]["optim/lr"]) == (0.5, 1e-6)
    assert own[2]["solved/1"] == 1.0
    assert [(c.step, c.n, c.correct, c.task) for c in found.evaluations] == [
        (2, 2, 1, "maths"),
        (2, 1, 0, "maths"),
    ]


def test_the_advantages_of_prime_rl_are_means_of_its_tokens() -> None:
    """Tokens without credit have 0 (`scalar_advantage` of prime-rl)."""
    nodes: list[dict[str, Any]] = [{"advantages": a} for a in ([0.5, 0.0], [0.0, 0.0])]
    rows = [rows_of(episode(1, "a", 1.0, node=node), Counter()) for node in [*nodes, {}]]
    assert [row["advantage"] for (row,) in rows] == [0.5, 0.0, None]


def test_scores_of_prime_rl_have_no_weight_but_in_the_reward() -> None:
    (row,) = rows_of(episode(1, "a", 0.0), Counter())
    assert (row["right"], row["form"], row["reward"]) == (0.0, 1.0, 0.5)  # 0 * 1 + 1 * .5


@pytest.mark.security
def test_a_text_is_not_repeated_as_often_as_its_weight_says() -> None:
    left_out: Counter[str] = Counter()
    line = episode(1, "a", 0.0, rewards={"right": {"score": "a", "weight": 2**60}})
    assert rows_of(line, left_out) == []
    assert left_out == {DAMAGED: 1}


@pytest.mark.parametrize(
    ("line", "step", "rewards"),
    [
        ({"step": 1, "epoch": 1, "id": 3, "scores": [0, 1, 1]}, 1, [0, 1, 1]),
        ({"idx": 1, "content": "q", "prompt": "q", "rewards": [0, 1, 1]}, 7, [0, 1, 1]),
        ({"step": 1, "prompt_idx": 1, "sample_idx": 1, "reward": 1}, 1, [1]),
        ({"named": 3, "group": "a", "reward": 1}, 7, [1]),
    ],
)
def test_lines_of_other_programs_may_have_some_of_their_names(
    tmp_path: Path, line: Any, step: int, rewards: list[float]
) -> None:
    (found,) = read_rollouts(lines(tmp_path / "7.jsonl", line))
    assert (found.step, [group.rewards for group in found.groups]) == (step, [rewards])


def test_a_run_without_rollouts_does_not_hide_the_others(tmp_path: Path) -> None:
    lines(tmp_path / "a_rollouts_000000.jsonl")
    lines(tmp_path / "b_rollouts_000000.jsonl", of_open_instruct(1, 0, 1, 1.0))
    runs = {run.source: run for run in read("rollouts", tmp_path)}
    assert runs["a"].left_out == {"dumps without a rollout that can be read": 1}
    assert list(values(runs["b"])) == [1]


def test_a_run_of_nemo_rl(tmp_path: Path) -> None:
    run = tmp_path / "exp_001"
    rows = [of_nemo(1, 1, 2, 0.5), of_nemo(0, 1, 3, -0.5), of_nemo(1, 2, 1, 0.0)]
    lines(run / "train_data_step1.jsonl", *rows)
    # With dynamic sampling `rewards` are of the batch before the filter.
    filtered = [of_nemo(0, 1, 1, a, filtered_rewards=r) for r, a in ((1, 1.0), (0, -1.0))]
    lines(run / "train_data_step2.jsonl", *filtered)
    said = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": a}] for a in "xy"]
    judged = [
        {"content": [m], "rewards": [r], "idx": 0} for m, r in zip(said, (1.0, 0.0), strict=True)
    ]
    lines(run / "val_data_step2.jsonl", *judged)
    first, second = read_rollouts(run)
    assert [group.rewards for group in first.groups] == [[1.0, 0.0], [1.0]]
    assert first.groups[0].lengths == [2, 3]
    assert first.groups[0].advantages == [0.5, -0.5]
    assert second.groups[0].rewards == [1.0, 0.0]
    (found,) = read("rollouts", run)
    assert found.source == "exp_001"
    assert values(found)[2]["mass/success"] == 0.5
    (counted,) = found.evaluations
    assert counted == ProblemCount(2, counted.problem, 2, 1)


def test_runs_of_open_instruct(tmp_path: Path) -> None:
    """Two runs in one folder, of which one was resumed after its first step."""
    for name in ("a", "b_rollouts_x"):
        lines(tmp_path / f"{name}_metadata.jsonl", {"run_name": name, "git_commit": "c"})
        for step in (1, 2, 3):
            rows = [of_open_instruct(step, i, i // 2, 10.0 * (i == 0)) for i in range(4)]
            lines(tmp_path / f"{name}_rollouts_000000.jsonl", *rows)
    again = [of_open_instruct(2, i, i // 2, 10.0) for i in range(4)]
    lines(tmp_path / "a_rollouts_000000.jsonl", *again)
    with pytest.raises(ConfigError, match="expected rollouts of one run, got a, b_rollouts_x"):
        list(read_rollouts(tmp_path))
    notes = RolloutNotes()
    steps = dict(read_rollouts(tmp_path / "a_rollouts_000000.jsonl", notes=notes))
    assert [group.rewards for group in steps[1]] == [[10.0, 0.0], [0.0, 0.0]]
    assert [group.rewards for group in steps[2]] == [[10.0, 10.0]] * 2
    assert steps[1][0].advantages == [5.0, -5.0]
    assert steps[1][1].lengths == [3, 4]
    assert notes.left_out == {"groups of steps that are logged again later": 2}
    runs = read("rollouts", tmp_path, success_at=10)
    assert [run.source for run in runs] == ["a", "b_rollouts_x"]
    own, other = map(values, runs)
    assert own[1]["solved/1"] == 0.5
    assert list(own) == list(other) == [1, 2, 3]


def test_no_dump_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "log.jsonl", {"step": 1, "reward": 1.0})
    with pytest.raises(ConfigError, match=r"NAME_rollouts_NNNNNN\.jsonl .*got none"):
        read("rollouts", tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.security
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), which=st.integers(0, 3), value=JSON)
def test_any_value_may_be_of_any_type(
    tmp_path: Path, data: st.DataObject, which: int, value: Any
) -> None:
    """A line is read, or left out with a reason."""
    validation = {"content": [[{"role": "user"}]], "rewards": [1], "idx": 0}
    made = (episode(1, "a", 1), of_nemo(1, 1, 2, 0.5), of_open_instruct(1, 0, 1, 1.0), validation)
    node = made[which]
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        key = data.draw(st.sampled_from(keys))
        inner = node[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            node[key] = value
            break
        node = inner
    path = tmp_path / "val_data_step1.jsonl"
    path.write_text(json.dumps(made[which]))
    with contextlib.suppress(ConfigError):
        assert list(read_rollouts(path))
    problem_counts([path], 1.0, Counter())
