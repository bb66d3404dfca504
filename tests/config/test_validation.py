"""Which problems choose a checkpoint, and which are reported: never the same."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.config.settings import EvaluationSettings
from advsweep.config.validation import check_validation, reported_problems, validation_problems
from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split

COUNTDOWN = TASKS.build({"name": "countdown", "held_out_per_level": 6})


def settings(**select_on):
    return EvaluationSettings.build({"select_on": select_on}, where="evaluation")


def ids(task, chosen):
    reported, (_, validating) = reported_problems(task, chosen), validation_problems(task, chosen)
    return [p.id for p in reported], [p.id for p in validating]


@given(st.floats(0.001, 0.999))
def test_a_share_divides_the_problems_of_each_level(share):
    chosen = settings(share=share)
    reported, validating = ids(COUNTDOWN, chosen)
    everything = COUNTDOWN.problems(Split.HELD_OUT)
    assert sorted(reported + validating) == sorted(p.id for p in everything)
    levels = {p.id: p.level for p in everything}
    assert set(Counter(levels[i] for i in validating).values()) <= {int(share * 6 + 0.5)}


def test_tasks_of_each_seed_are_divided_into_equally_many_of_each_level():
    """So that evaluations of runs with task.seed=seed are alike."""
    levels = []
    for seed in (0, 1):
        task = TASKS.build({"name": "routes", "seed": seed, "held_out_per_level": 5})
        reported = reported_problems(task, settings(share=0.5))
        levels.append([problem.level for problem in reported])
    # Of 5 problems 5 x .5 + .5 = 3 validate.
    assert levels[0] == levels[1] == [level for level in range(7) for _ in range(2)]


def test_other_settings_of_the_task_give_other_problems():
    """More held-out problems: those that are reported, too, are left out."""
    more = settings(task={"held_out_per_level": 9})
    reported, validating = ids(COUNTDOWN, more)
    assert len(reported) == len(COUNTDOWN.problems(Split.HELD_OUT))
    assert validating
    assert not set(reported) & set(validating)


def _data(folder, name, questions):
    rows = [{"question": q, "answer": str(i)} for i, q in enumerate(questions)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_a_question_with_another_prompt_is_the_same_problem(tmp_path):
    reported = _data(tmp_path, "reported", ["one?", "two?", "three?"])
    others = _data(tmp_path, "others", ["one?", "four?"])
    train = _data(tmp_path, "train", ["five?"])
    task = TASKS.build({"name": "dataset", "data": train, "held_out_data": reported})
    _, found = ids(task, settings(task={"held_out_data": others, "prompt": "{question} Think."}))
    assert len(found) == 1
    with pytest.raises(ConfigError, match=r"got 0 and 3 held-out"):
        check_validation(task, settings(task={"prompt": "{question} Think."}))


@pytest.mark.parametrize(
    ("select_on", "message"),
    [
        ("{task: {seed: 0}}", r": expected validation problems .* got 0 and 14 "),
        ("{task: {sed: 1}}", r"\.task\.sed: countdown has no parameter 'sed'"),
        ("{share: 0.1}", r": expected validation problems .* got 0 and 14 "),
        ("{share: 0.9}", r": expected validation problems .* got 14 and 0 "),
    ],
)
def test_equal_or_no_problems_are_refused_before_anything_starts(select_on, message):
    base = ["backend=fake", "steps=2", "prompts_per_step=4", "task.held_out_per_level=2"]
    with pytest.raises(ConfigError, match=rf"^evaluation\.select_on{message}"):
        make_plan([*base, f"evaluation.select_on={select_on}"])
