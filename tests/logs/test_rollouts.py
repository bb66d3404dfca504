from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.logs.rollout_records import (
    INPUTS,
    GroupTurns,
    RolloutGroup,
    RolloutNotes,
    RolloutStep,
)
from advsweep.logs.rollouts import read_rollouts


def write_lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def of_verl(step: int, prompt: str, score: Any, uid: str | None = None) -> dict[str, Any]:
    """A line as verl 0.9.1 writes it."""
    line = {"input": prompt, "output": "out", "gts": "4", "score": score, "step": step}
    return line if uid is None else {**line, "uid": uid}


def rewards_of(path: Path, **options: Any) -> dict[int, list[list[float]]]:
    return {
        step: [group.rewards for group in groups] for step, groups in read_rollouts(path, **options)
    }


def test_a_verl_folder_is_read_step_by_step_in_the_order_of_numbers(tmp_path: Path) -> None:
    for step in (10, 2, 1):
        rows = [of_verl(step, p, s, f"{p}_{i}_0") for p in "ab" for i, s in enumerate([0.0, 1.0])]
        if step == 10:
            rows = [{k: v for k, v in row.items() if k != "step"} for row in rows]
        write_lines(tmp_path / f"{step}.jsonl", *rows)
    found = list(read_rollouts(tmp_path))
    assert [step.step for step in found] == [1, 2, 10]
    one = GroupTurns([1, 1])
    expected = [RolloutGroup(prompt=p, rewards=[0.0, 1.0], turns=one) for p in "ab"]
    assert found[0].groups == expected


PADDING = "pad" + "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("rows", "groups", "left_out"),
    [
        # One success with three outputs and three failures: 1 in 4, and not 3 in 6.
        (
            [("p", 1, f"u_0_{output}") for output in (2, 0, 1)]
            + [("p", 0, f"u_{session}_0") for session in (1, 2, 3)],
            [[1, 0, 0, 0]],
            {"outputs before the last of their session": 2},
        ),
        (
            [("p", i, f"u_{i}_0") for i in range(2)]
            + [("", 0, f"{PADDING}_{i}_0") for i in range(3)],
            [[0, 1]],
            {"rows that only fill up a batch": 3},
        ),
        # Keys that are shared by a group are no sessions.
        (
            [("p", s, uid) for uid, s in [("x_1_2", 0), ("x_1_2", 1), ("x_1_3", 1)]],
            [[0, 1], [1]],
            {},
        ),
        # The trainer before V1 writes no uid, and sorts rows by length.
        ([("a", 0, None), ("b", 1, None), ("a", 1, None), ("b", 1, None)], [[0, 1], [1, 1]], {}),
    ],
    ids=["sessions", "padding", "shared", "inputs"],
)
def test_the_groups_of_verl(
    tmp_path: Path, rows: list[tuple[str, float, str]], groups: object, left_out: object
) -> None:
    write_lines(tmp_path / "1.jsonl", *(of_verl(1, *row) for row in rows))
    notes = RolloutNotes()
    assert rewards_of(tmp_path, notes=notes) == {1: groups}
    assert notes.left_out == left_out


def test_json_lines_with_a_group_per_line(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "r.jsonl",
        {"step": 1, "prompt": "a", "rewards": [0, 1], "lengths": [3, 4]},
        {"step": 1, "prompt": "a", "rewards": [1, 1, 0], "token_entropy": [0.1, 0.2, 0.3]},
        {"step": 2, "prompt": [{"role": "user", "content": "b"}], "rewards": [True]},
    )
    first, second = read_rollouts(path)
    # Two lines of one prompt are two groups.
    assert first == RolloutStep(
        1,
        [
            RolloutGroup("a", [0.0, 1.0], [3, 4]),
            RolloutGroup("a", [1.0, 1.0, 0.0], inputs={"token_entropy": [0.1, 0.2, 0.3]}),
        ],
    )
    assert second.groups == [RolloutGroup('[{"role": "user", "content": "b"}]', [1.0])]


def test_the_reward_may_be_a_sum_of_fields(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "r.jsonl",
        {"step": 1, "prompt": "a", "acc": [1, 0], "form": [1, 0.5]},
        {"step": 1, "prompt": "b", "acc": [None, None], "form": [1, None]},
        {"step": 1, "prompt": "c"},
    )
    notes = RolloutNotes()
    found = rewards_of(path, rewards={"acc": 1.0, "form": 0.2}, notes=notes)
    assert found[1][0] == [1.2, 0.1]
    # What is missing does not count, as in TRL; without any reward a rollout is unscorable.
    assert found[1][1][0] == 0.2
    assert math.isnan(found[1][1][1])
    assert notes.left_out["lines without a reward"] == 1


def test_bad_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    good = json.dumps({"step": 1, "prompt": "a", "rewards": [1, math.nan, None, "x", 10**400]})
    lines = [
        good,
        '{"step": 2, "prompt": "b", "rew',
        "[" * 100_000,
        '{"step": -1, "prompt": "b", "rewards": [1]}',
        '{"step": 1, "prompt": "b", "rewards": []}',
        "",
        "\x00",
    ]
    path.write_text("\n".join(lines))
    notes = RolloutNotes()
    (step,) = read_rollouts(path, notes=notes)
    assert [math.isnan(r) for r in step.groups[0].rewards] == [False, True, True, True, True]
    assert notes.message() == (
        "left out: lines that are cut or damaged (3), lines without a reward (1), "
        "lines without a step (1), rewards that are no finite numbers, taken as unscorable (4)"
    )


def test_a_step_that_is_logged_again_after_a_resume_counts_as_its_last(tmp_path: Path) -> None:
    steps = [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 1)]
    rows = [{"step": s, "prompt": f"p{s}", "rewards": [r, r]} for s, r in steps]
    notes = RolloutNotes()
    found = rewards_of(write_lines(tmp_path / "r.jsonl", *rows), notes=notes)
    assert found == {1: [[0.0, 0.0]], 2: [[1.0, 1.0]], 3: [[1.0, 1.0]], 4: [[1.0, 1.0]]}
    assert notes.left_out == {"groups of steps that are logged again later": 2}


def test_steps_that_are_mixed_are_put_together(tmp_path: Path) -> None:
    steps = [(1, "a"), (2, "b"), (1, "c"), (2, "d")]
    rows = [{"step": s, "prompt": p, "rewards": [1]} for s, p in steps]
    found = list(read_rollouts(write_lines(tmp_path / "r.jsonl", *rows)))
    assert [[group.prompt for group in step.groups] for step in found] == [["a", "c"], ["b", "d"]]
    # A group may come in parts, if it has a name.
    rows = [
        {"step": s, "prompt": "a", "group": f"g{s}", "reward": r}
        for s, r in [(1, 0), (2, 0), (1, 1), (2, 1)]
    ]
    assert rewards_of(write_lines(tmp_path / "g.jsonl", *rows)) == {1: [[0, 1]], 2: [[0, 1]]}


def completions(folder: Path, step: int, rows: list[tuple[Any, str, float, float]]) -> Path:
    """Writes a table as TRL 1.16 does."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    prompts, texts, rewards, advantages = zip(*rows, strict=True)
    table = {
        "step": [step] * len(rows),
        "prompt": list(prompts),
        "completion": list(texts),
        "correct": list(rewards),
        "short": [0.5] * len(rows),
        "note": ["=1+1"] * len(rows),
        "advantage": list(advantages),
    }
    path = folder / f"completions_{step:05d}.parquet"
    pd.DataFrame(table).to_parquet(path)
    return path


def test_tables_of_trl(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "b"}]
    rows = [("a", "x", 1.0, 1.0), ("a", "y", math.nan, 0.0)]
    completions(tmp_path / "completions", 3, rows)
    completions(tmp_path / "completions", 12, [(conversation, "z", 0.0, 0.0)] * 2)
    notes = RolloutNotes()
    first, second = read_rollouts(tmp_path, notes=notes)
    group = RolloutGroup("a", [1.5, 0.5], advantages=[1.0, 0.0])
    assert first == RolloutStep(3, [group])
    assert second.step == 12
    assert json.loads(second.groups[0].prompt) == conversation
    assert notes.remarks == ["the reward is correct + short"]
    found = rewards_of(tmp_path, rewards={"correct": 2.0})
    assert found[3][0][0] == 2.0
    assert math.isnan(found[3][0][1])
    with pytest.raises(ConfigError, match="no column of rewards 'corect'; did you mean 'correct'"):
        list(read_rollouts(tmp_path, rewards={"corect": 1.0}))


def test_rollouts_that_trl_logs_at_several_steps_count_once(tmp_path: Path) -> None:
    rows = [("a", "x", 1.0, 1.0), ("a", "y", math.nan, 0.0)]
    for step in (1, 2):
        completions(tmp_path, step, rows)
    completions(tmp_path, 3, [("a", "x", 1.0, 1.0), ("a", "other", math.nan, 0.0)])
    notes = RolloutNotes()
    assert list(rewards_of(tmp_path, notes=notes)) == [1, 3]
    assert notes.left_out["tables with the rollouts of the table before"] == 1


def test_a_prompt_that_trl_draws_twice_in_sequence_makes_two_groups(tmp_path: Path) -> None:
    rows = [(p, "x", r, 0.0) for p, r in zip("aabbbbcc", [0, 1, 0, 1, 1, 1, 0, 0], strict=True)]
    path = completions(tmp_path, 1, rows)
    found = rewards_of(path, rewards={"correct": 1.0})
    assert found == {1: [[0, 1], [0, 1], [1, 1], [0, 0]]}


def test_advantages_of_trl_are_kept_where_a_table_has_them_all(tmp_path: Path) -> None:
    completions(tmp_path, 1, [("a", "x", 1.0, 0.5), ("a", "y", 0.0, -0.5), ("b", "z", 1.0, None)])
    (step,) = read_rollouts(tmp_path)
    assert [group.advantages for group in step.groups] == [[0.5, -0.5], None]


def test_a_damaged_table_does_not_hide_the_others(tmp_path: Path) -> None:
    completions(tmp_path, 1, [("a", "x", 1.0, 1.0)])
    (tmp_path / "completions_00002.parquet").write_bytes(b"PAR1 cut")
    notes = RolloutNotes()
    assert list(rewards_of(tmp_path, notes=notes)) == [1]
    (what,) = notes.left_out
    assert what.startswith("tables that cannot be read (such as completions_00002.parquet")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a file or a folder of logs, got nothing"),
        ("", "JSON lines of rollouts with rewards and a step, got none$"),
        ('{"step": 1, "loss": 1}\n', "got none .left out: lines without a reward .1."),
        (
            '{"step": 0.5, "prompt": "a", "rewards": [1]}\n',
            "got none .left out: lines without a step .1.",
        ),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        list(read_rollouts(path))


def test_a_batch_without_a_step_is_step_0(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = ['{"prompt": "a", "rewards": [1, 0]}', '{"prompt": "b", "rewards": [1e308, -1e99]}']
    path.write_text("\n".join([*lines, ""]))
    notes = RolloutNotes()
    (step,) = read_rollouts(path, notes=notes)
    assert step.step == 0
    assert step.groups[0].rewards == [1.0, 0.0]
    assert math.isnan(step.groups[1].rewards[0])
    assert step.groups[1].rewards[1] == -1e99
    path.write_text("\n".join([*lines, '{"step": 3, "prompt": "a", "rewards": [1, 0]}', ""]))
    assert [step.step for step in read_rollouts(path, notes=notes)] == [3]
    assert notes.left_out["lines without a step"] == 2


def test_a_fifo_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jsonl")
    write_lines(tmp_path / "2.jsonl", of_verl(2, "a", 1))
    assert rewards_of(tmp_path) == {2: [[1.0]]}


def test_inputs_have_the_names_of_the_batch() -> None:
    from advsweep.estimators.batch import (
        COUNTERS,
        PER_PART,
        PER_PROMPT,
        PER_TOKEN,
        PER_TURN,
        GroupBatch,
    )

    other = {"rewards", "mask", "lengths", "truncated", "part_weights"}
    other |= COUNTERS | PER_PART | PER_PROMPT | PER_TOKEN | PER_TURN
    assert set(INPUTS) == GroupBatch.__dataclass_fields__.keys() - other


TOOL = "\nuser\n<tool_response>\n4\n</tool_response>\nassistant\n"


def chat(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "text"} for role in roles]


def node(*mask: int) -> dict[str, Any]:
    return {"mask": list(mask)}


def of_prime_rl(*nodes: dict[str, Any]) -> dict[str, Any]:
    """An episode as prime-rl writes it, with what is read of it."""
    trace = {"agent": {"name": "solver"}, "nodes": list(nodes), "ok": True}
    return {
        "env": {"id": "walk"},
        "group": {"id": "g"},
        "run": {"work": {"step": 1}},
        "task": {"data": {"question": "?"}, "key": "k"},
        "traces": [{**trace, "rewards": {"solved": {"score": 1.0}}}],
    }


@pytest.mark.parametrize(
    ("rows", "turns"),
    [
        ([{"prompt": "a", "rewards": [1, 0], "turns": [2, 1]}], GroupTurns([2, 1])),
        (
            [{"prompt": "a", "reward": 1, "turn_rewards": [0.5, 0.5]}],
            GroupTurns([2], rewards=[[0.5, 0.5]]),
        ),
        # A line of a group, with the messages of each rollout.
        (
            [
                {
                    "prompt": "a",
                    "rewards": [1, 0],
                    "completions": [chat("assistant", "tool", "assistant"), chat("assistant")],
                }
            ],
            GroupTurns([2, 1]),
        ),
        (
            [{"prompt": "a", "reward": 1, "completion": chat("assistant", "assistant", "user")}],
            GroupTurns([1]),
        ),
        # verl: a text with tools, the last of which nobody has heard; a session of two outputs.
        ([{**of_verl(1, "a", 1), "output": f"2 + 2{TOOL}It is 4"}], GroupTurns([2])),
        ([{**of_verl(1, "a", 1), "output": f"2 + 2{TOOL}3 + 1{TOOL}"}], GroupTurns([2])),
        ([of_verl(1, "a", 1, "a_0_0"), of_verl(1, "a", 1, "a_0_1")], GroupTurns([2])),
        # prime-rl: two messages of the model, whose masks leave the template out.
        ([of_prime_rl(node(0, 0), node(0, 1, 1), node(0), node(1))], GroupTurns([2])),
        # Nothing tells the turns.
        ([{"prompt": "a", "reward": 1, "completion": "text"}], None),
    ],
    ids=["counts", "rewards", "messages", "one", "tools", "cut", "session", "prime-rl", "none"],
)
def test_turns_are_read_as_a_dump_tells_them(
    tmp_path: Path, rows: list[dict[str, Any]], turns: GroupTurns | None
) -> None:
    file = write_lines(tmp_path / "1.jsonl", *rows)
    (step,) = read_rollouts(file)
    assert step.groups[0].turns == turns


def test_states_of_turns_have_the_same_number_in_every_group(tmp_path: Path) -> None:
    rows = [{"prompt": p, "rewards": [1], "turn_states": [["x", [1, p]]]} for p in "ab"]
    (step,) = read_rollouts(write_lines(tmp_path / "1.jsonl", *rows))
    (first,), (second,) = (group.turns.states for group in step.groups if group.turns)
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    "turns",
    [
        {"turns": [2]},
        {"turns": [2, 1, 1]},
        {"turns": [2, 0]},
        {"turns": [2, "1"]},
        {"turns": [2, 10**9]},
        {"turns": 2},
        {"turns": [2, 1], "turn_rewards": [[1, 1], [1, 1]]},
        {"turn_rewards": [[1, None], [0]]},
        {"turn_states": [["x"], "y"]},
    ],
)
def test_turns_that_do_not_add_up_are_counted_and_left_out(
    tmp_path: Path, turns: dict[str, Any]
) -> None:
    row = {"step": 1, "prompt": "a", "rewards": [1, 0], **turns}
    notes = RolloutNotes()
    (step,) = read_rollouts(write_lines(tmp_path / "1.jsonl", row), notes=notes)
    assert step.groups[0].turns is None
    assert step.groups[0].rewards == [1, 0]
    assert "that do not add up to turns of the rollouts (1)" in notes.message()
