"""Ideas without a training: what is refused, and what is found by trying."""

from __future__ import annotations

import textwrap

import pytest

from advsweep.errors import AdvsweepError
from advsweep.judging.ideas import examine, read_idea
from advsweep.judging.plans import plan_judge, range_setting
from advsweep.judging.sentences import WIDTH, describe_examination, describe_relatives

RLOO = """
    def advantages(rewards):
        size = rewards.shape[1]
        return (rewards - rewards.mean(dim=1, keepdim=True)) * size / (size - 1)
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "idea.py") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), "utf-8")
        return str(path)

    return write


def test_rloo_by_another_name_is_rloo(write):
    idea = read_idea(write(RLOO))
    found = examine(idea)
    assert found.is_baseline
    assert found.relatives[0].name == "rloo"
    assert "This is rloo" in describe_relatives(found)
    lines = describe_examination(idea, found)
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[0].startswith("idea (idea.py:2, advantages)")


def test_turn_forms_are_relatives_of_turn_forms_alone(write):
    def names(word: str) -> list[str]:
        return [each.name for each in examine(read_idea(word)).relatives]

    assert "turn_return" not in names(write(RLOO))
    assert {"rloo", "by_turn"} <= set(names("turn_return"))
    # It is `rloo` of rollouts of one turn, and of others it is not.
    assert not examine(read_idea("turn_return")).is_baseline


def test_options_make_another_estimator(write):
    path = write(
        """
        def advantages(rewards, scale=1.0):
            return scale * (rewards - rewards.mean(dim=1, keepdim=True))
        """
    )
    found = examine(read_idea(path, ["estimator.scale=0.5"]))
    assert not found.is_baseline
    (dr_grpo,) = [each for each in found.relatives if each.name == "dr_grpo"]
    assert dr_grpo.shown_factor == "1/2"
    with pytest.raises(AdvsweepError, match=r"estimator\.scal"):
        read_idea(path, ["estimator.scal=0.5"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("xx yy", r"idea\.py:1: expected Python"),
        ("def one(rewards): return rewards\ndef two(rewards): return rewards", "expected one"),
        ("def advantages(rewards): return rewards / rewards.sum(1, True)", r"idea\.py:1.* got nan"),
        ("def advantages(rewards): return rewards.sum(1)", r"idea\.py:1.*shape \[9, 8\]"),
        ("def advantages(rewards): return rewards.long()", r"idea\.py:1.*as floats"),
        ("import time\ndef advantages(rewards): return rewards * time.time()", r"idea\.py:2.*time"),
        ("import torch\ndef advantages(rewards): return torch.rand_like(rewards)", "for the same"),
        ("def advantages(rewards): return rewards.sub_(1)", r"idea\.py:1.*changed rewards"),
        (
            "def advantages(rewards, step, total_steps):\n"
            "    return (rewards - 0.5) / (total_steps - step)",
            r"idea\.py:1.* got -inf .*\(step 100 of 100\)",
        ),
        (
            "from advsweep.errors import TrainingError\n"
            "def advantages(rewards, step):\n"
            "    if step > 40: raise TrainingError('too late')\n"
            "    return rewards - 0.5",
            r"idea\.py:2: advantages: too late \(step 50 of 100\)",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(write, body, words):
    with pytest.raises(AdvsweepError, match=words):
        read_idea(write(body))


def test_what_the_backend_lacks_is_refused_before_a_training(write):
    body = "def advantages(rewards, turn_states): return rewards + 0 * turn_states[..., 0]"
    idea = read_idea(write(body))
    with pytest.raises(AdvsweepError, match=r"idea\.py:1.* needs turn_states, which backend"):
        plan_judge(idea, range_setting("middle"), lambda name, signature: True)


def test_a_change_of_the_file_is_seen(write):
    path = write(RLOO)
    idea = read_idea(path)
    assert idea.changed_line == ""
    write(RLOO.replace("size - 1", "size"))
    assert idea.changed_line == "idea.py:4"
    assert read_idea("psr").changed_line == ""


def test_stages_of_a_judge(write):
    """Five rates on two bases; then twelve seeds beside RLOO at its own rate; then its A/A."""
    path = write("def advantages(rewards, s=1.0): return s * rewards", "scaled.py")
    idea = read_idea(path, ["estimator.s=2"])
    plans = plan_judge(idea, range_setting("middle"), lambda name, signature: "-2" in name)
    assert plans.name == "judge-scaled-middle-2"
    tuned = plans.tuning.plan(plans.tuning.grid)
    assert len(tuned.runs) == 10
    assert {planned.run.seed for planned in tuned.runs} == {1000, 1001}
    raced = plans.race(1e-4, None)
    assert len(raced.runs) == 24
    rates = {p.run.estimator.name: p.config["optimizer"]["lr"] for p in raced.runs}
    assert rates == {"rloo": 4e-4, "scaled": 1e-4}
    assert {p.config["estimator"].get("s") for p in raced.runs} == {None, 2.0}
    repeated = plans.repetition(raced, [500, 502])
    assert [planned.run.seed for planned in repeated.runs] == [500, 502]
    assert {planned.config["control"]["name"] for planned in repeated.runs} == {"aa"}
    assert repeated.name == raced.name


def test_ideas_share_the_runs_of_rloo(write):
    one = plan_judge(read_idea("psr"), range_setting("easy"), lambda name, signature: True)
    other = plan_judge(
        read_idea(write("def advantages(rewards): return rewards")),
        range_setting("easy"),
        lambda name, signature: True,
    )
    shared = [
        {p.run.identity for p in plans.race(2e-4, None).runs if p.run.estimator.name == "rloo"}
        for plans in (one, other)
    ]
    assert shared[0] == shared[1]
    assert len(shared[0]) == 12
