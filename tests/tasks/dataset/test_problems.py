"""Rows become problems: columns, levels, duplicates, splits; and what makes two tasks the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset import Dataset

Write = Callable[..., str]


def make(data: str, **fields: Any) -> Dataset:
    return Dataset(**{"data": data, "verifier": "numeric", **fields})


def train(task: Dataset) -> list[Problem]:
    return list(task.problems(Split.TRAIN))


def held_out(task: Dataset) -> list[Problem]:
    return list(task.problems(Split.HELD_OUT))


def test_a_file_is_cut_in_two_parts_that_share_nothing(sums: str) -> None:
    task = make(sums, held_out=5)
    assert (len(train(task)), len(held_out(task))) == (15, 5)
    assert len({p.id for p in (*train(task), *held_out(task))}) == 20
    other = make(sums, held_out=5, seed=1)
    assert held_out(other) != held_out(task)
    assert held_out(make(sums, held_out=5)) == held_out(task)


def test_a_prompt_is_made_of_the_question(sums: str) -> None:
    problem = train(make(sums, held_out=1))[0]
    text = "Please reason step by step, and put your final answer within \\boxed{}."
    assert problem.prompt == f"What is 0 + 0?\n{text}\n"
    assert problem.messages == [{"role": "user", "content": problem.prompt}]
    assert problem.text == problem.prompt
    assert problem.reference == {"answer": "0", "solution": "\\boxed{0}"}
    task = make(sums, held_out=1, prompt="boxed_system")
    assert task.has_system_messages
    chat = train(task)[0]
    assert chat.text == f"{text}\n\nWhat is 0 + 0?"
    assert chat.messages == [
        {"role": "system", "content": text},
        {"role": "user", "content": "What is 0 + 0?"},
    ]
    own = train(make(sums, held_out=1, prompt="Q: {question} \\boxed{}\nA:"))[0]
    assert own.prompt == "Q: What is 0 + 0? \\boxed{}\nA:"


def test_splits_of_a_folder_and_a_file_beside(write: Write, tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(6)]
    first = write("set/train.jsonl", rows[:4])
    second = write("set/test.jsonl", rows[4:])
    folder = make(str(tmp_path / "set"))
    assert [p.reference["answer"] for p in train(folder)] == ["0", "1", "2", "3"]
    assert [p.reference["answer"] for p in held_out(folder)] == ["4", "5"]
    files = make(first, held_out_data=second)
    assert files.identity() == folder.identity()
    assert len(train(make(str(tmp_path / "set"), train=3))) == 3
    assert len(held_out(make(str(tmp_path / "set"), held_out=1))) == 1
    only = make(second, train_split="")
    assert not only.can_train
    assert len(held_out(only)) == 2


def test_problems_are_known_by_what_they_are_not_by_where_they_lie(write: Write, sums: str) -> None:
    rows = [{"q": f"What is {i} + {i}?", "a": f"{2 * i}", "hard": 1 + i % 4} for i in range(20)]
    names = {"question_column": "q", "gold_column": "a", "level_column": "hard"}
    renamed = make(write("other/place.jsonl", rows), held_out=5, title="other", **names)
    task = make(sums, held_out=5, level_column="level")
    assert renamed.identity() == task.identity()
    assert (task.label, renamed.label) == ("sums", "other")
    for change in (
        {"held_out": 6},
        {"prompt": "plain"},
        {"seed": 1},
        {"levels": [1, 2]},
        {"verifier": "boxed_math"},
        {"reward": "cosine"},
        {"deadline": 1.0},
    ):
        base = {"held_out": 5, "level_column": "level"}
        assert make(sums, **{**base, **change}).identity() != task.identity()
    for key, value in (("q", "What?"), ("a", "7"), ("hard", 7)):
        changed = [{**rows[0], key: value}, *rows[1:]]
        other = make(write(f"other/{key}.jsonl", changed), held_out=5, **names)
        assert other.identity() != task.identity()


def test_levels_are_read_and_chosen(sums: str, write: Write) -> None:
    task = make(sums, held_out=2, level_column="level", levels=[4, 2])
    assert task.levels == (2, 4)
    assert Counter(p.level for p in (*train(task), *held_out(task))) == {2: 5, 4: 5}
    plain = make(sums, held_out=2)
    assert {p.level for p in train(plain)} == {0}
    odd = [{"question": "a?", "answer": 1, "level": "Level ?"}]
    odd += [{"question": f"{i}?", "answer": i, "level": level} for i, level in enumerate([3, 2.0])]
    with pytest.warns(AdvsweepWarning, match="left out 1 training problem, without a level"):
        found = train(make(write("odd.jsonl", odd), held_out=1, level_column="level", seed=0))
    assert len(found) == 1


def test_a_file_of_levels_chooses_training_problems_alone(write: Write, tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": i, "id": f"p{i}", "level": 5} for i in range(6)]
    write("set/train.jsonl", rows[:4])
    write("set/test.jsonl", rows[4:])
    levels = write("levels.jsonl", [{"id": f"p{i}", "level": i} for i in (0, 1, 2, 3, 4)])
    fields = {"id_column": "id", "level_column": "level", "level_file": levels}
    task = make(str(tmp_path / "set"), levels=[1, 2], **fields)
    assert [(p.id, p.level) for p in train(task)] == [("p1", 1), ("p2", 2)]
    assert [(p.id, p.level) for p in held_out(task)] == [("p4", 4), ("p5", 5)]
    with pytest.raises(ConfigError, match=r"levels: expected some of \[0, 1, 2, 3\], got \[7\]"):
        train(make(str(tmp_path / "set"), levels=[7], **fields))


def test_training_problems_that_are_all_held_out_are_refused(write: Write) -> None:
    path = write("a.jsonl", [{"question": "0?", "answer": 0}])
    task = make(path, held_out_data=path)
    with pytest.raises(
        ConfigError, match=r"expected a training problem, got none: left out 1 .*, held out, too"
    ):
        train(task)


def test_duplicates_are_left_out(write: Write) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(4)]
    first = write("a.jsonl", [*rows, {"question": " 0?", "answer": 5}])
    second = write("b.jsonl", rows[3:])
    task = make(first, held_out_data=second)
    with pytest.warns(AdvsweepWarning) as found:
        assert [p.reference["answer"] for p in train(task)] == ["0", "1", "2"]
    assert [p.reference["answer"] for p in held_out(task)] == ["3"]
    assert sorted(str(w.message).partition(" (")[0] for w in found) == [
        "1 training problem with the question of an earlier one and another answer: rows 1 and 5; "
        "the first answer counts",
        "20 % of the rows have the prompt of an earlier one; a part of the question may be in "
        "another column",
        "left out 1 training problem, held out, too",
        "left out 1 training problem, the same as an earlier one",
    ]


@pytest.mark.parametrize(
    ("value", "part", "answer"),
    [
        ("She has 48.\n#### 1,080", "auto", "1,080"),
        (r"so \boxed{3} or \boxed{4}", "auto", "4"),
        ("#### 7", "whole", "#### 7"),
        (r"#### 7 \boxed{8}", "boxed", "8"),
        (r"so \fbox{3}", "boxed", "3"),
        (r"so \fbox{3} or \boxed{4}", "boxed", "4"),
        # Numbers of a solution are not taken for its answer.
        ("with $x = 3$ it is 17", "boxed", ""),
        ("with $x = 3$ it is 17", "hashes", ""),
        (r"with $x = 3$ it is \boxed{17", "auto", ""),
        (27.0, "auto", "27"),
        (0, "auto", "0"),
        (1e23, "auto", "1" + 23 * "0"),
        (-9007199254740993, "auto", "-9007199254740993"),
        (0.1, "auto", "0.1"),
        ("So\n#### 7\nThe answer is: 7", "auto", "7"),
        ("We add.\nSo the final answer is: $\\frac12$.", "auto", "$\\frac12$"),
        ("We add.\nAnswer: 3 apples", "stated", "3 apples"),
        ("We add.", "stated", ""),
        (["$3$", "$4$"], "whole", "3, 4"),
        (["$3$"], "whole", "3"),
    ],
)
def test_reference_answers_are_read_from_their_column(
    write: Write, value: Any, part: str, answer: str
) -> None:
    path = write("a.jsonl", [{"question": "a?", "answer": value}])
    task = make(path, train_split="", gold_part=part, verifier="regex")
    assert held_out(task)[0].reference["answer"] == answer


def test_options_and_tests_become_part_of_the_prompt(write: Write) -> None:
    choice = {"question": "Which?", "options": ["one", "two"], "answer": "B"}
    fields = {"train_split": "", "options_column": "options", "prompt": "choice"}
    task = make(write("c.jsonl", [choice]), verifier="choice", **fields)
    assert held_out(task)[0].prompt.startswith("Which?\nA. one\nB. two\nPlease")
    index = make(write("d.jsonl", [{**choice, "answer": 1}]), verifier="choice", **fields)
    assert index.identity() == task.identity()
    program = {"text": "Double.", "tests": ["assert f(1) == 2"], "setup": "", "code": "x"}
    code = make(
        write("e.jsonl", [program]),
        train_split="",
        question_column="text",
        tests_column="tests",
        setup_column="setup",
        prompt="code",
        verifier="code",
    )
    problem = held_out(code)[0]
    assert problem.prompt.startswith("Double.\nThe code has to pass these tests:\nassert f(1) == 2")
    assert problem.reference["tests"] == ["assert f(1) == 2"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"question_column": "text"}, "question_column: the data has no column 'text'; it has pro"),
        ({"gold_column": ["a", "b"]}, "gold_column: the data has no column 'a' or 'b'; it has"),
        ({"level_column": "hardness"}, "level_column: the data has no column 'hardness'; it has"),
        (
            {"level_column": "level", "levels": [9]},
            r".*levels: expected some of \[1, 2, 3, 4\], got",
        ),
        ({"level_column": "problem"}, "data: .* left out 20 training problems, without a level"),
        ({"held_out": 0}, "held_out: expected how many problems to hold out, .* got 0"),
        ({"held_out": 20}, "held_out: expected fewer than the 20 problems of the data, got 20"),
        ({"id_column": "level"}, "id_column: expected another 'level' in every row, got 'Level 1'"),
        ({"options_column": "level"}, "options_column: expected a list of 1 to 26 options"),
        ({"tests_column": "level"}, "tests_column: expected a list of tests, .* of row 1"),
        ({"data": "/none.jsonl"}, "data: expected a file .* there is no '/none.jsonl'"),
    ],
)
def test_bad_data_is_refused(sums: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.{message}"):
        make(**{"data": sums, "held_out": 5, **fields}).check()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"question": "a?", "answer": None}, "answer"),
        ({"question": "a?", "answer": []}, "answer"),
        ({"question": "a?", "answer": " "}, "answer"),
        ({"question": "a?", "answer": float("nan")}, "answer"),
        ({"question": "a?", "answer": 12345678901234567890.0}, "exact answer"),
        ({"question": " ", "answer": 1}, "question"),
        ({"question": None, "answer": 1}, "question"),
        ({"answer": 1}, "question"),
    ],
)
def test_rows_with_gaps_are_left_out_and_named(
    write: Write, row: dict[str, Any], what: str
) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(3)]
    task = make(write("a.jsonl", [*rows, row, *rows[:1], row]), train_split="")
    with pytest.warns(AdvsweepWarning, match=f"left out 2 held-out .*: rows 4, 6 have no {what}"):
        assert len(held_out(task)) == 3
    with pytest.raises(ConfigError, match=r"task\.data: expected"):
        held_out(make(write("b.jsonl", [row, row]), train_split=""))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": 7, "answer": 1}, "question_column: expected a text.* of row 4, got 7"),
        ({"question": "a?", "answer": {"x": 1}}, "gold_column: expected an answer.* of row 4"),
        ({"question": "a?", "answer": float("inf")}, "gold_column: expected a finite number"),
    ],
)
def test_rows_that_hold_something_else_are_refused(
    write: Write, row: dict[str, Any], message: str
) -> None:
    rows = [{"question": f"{i}?", "answer": i} for i in range(3)]
    with pytest.raises(ConfigError, match=message):
        held_out(make(write("a.jsonl", [*rows, row]), train_split=""))


def test_a_level_file_needs_ids_and_levels(sums: str, write: Write) -> None:
    path = write("levels.jsonl", [{"id": "x", "level": "3"}])
    with pytest.raises(ConfigError, match=r"task\.level_file: expected lines with an id and a lev"):
        make(sums, held_out=5, level_file=path).check()


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prompt: expected a text with \{question\}.*'boxed'"):
        make("a.jsonl", prompt="boxd")


def test_solved_training_problems_stand_before_each_question(sums: str) -> None:
    task = make(sums, held_out=5, shots=2, prompt="question_answer", verifier="boxed_math")
    plain = make(sums, held_out=5, prompt="question_answer", verifier="boxed_math")
    solved = {
        p.prompt: f"{p.prompt} {p.reference['worked']}" for p in task._problems.splits[Split.TRAIN]
    }
    shown: Counter[str] = Counter()
    for split in Split:
        for problem, own in zip(task.problems(split), plain.problems(split), strict=True):
            *examples, question = problem.prompt.split("\n\n")
            assert (problem.id, question) == (own.id, own.prompt)
            assert len(examples) == 2
            assert set(examples) <= set(solved.values())
            assert solved.get(question) not in examples
            shown.update(examples)
    # Two for all but themselves, and a third for these two: 20 problems have 40 examples.
    assert sorted(shown.values()) == [2, 19, 19]
    assert train(task)[0].prompt.startswith("Question: What is ")
    again = make(sums, held_out=5, shots=2, prompt="question_answer", verifier="boxed_math")
    assert again.identity() == task.identity() != plain.identity()
    assert "examples" not in plain.identity()
    assert task.protocol()["shots"] == "2"


def test_the_verifier_finds_the_answers_of_examples(write: Write) -> None:
    rows = [
        {"question": f"{i} + 1?", "answer": f"One more than {i}.\n#### {i + 1}"} for i in range(6)
    ]
    task = make(write("gsm.jsonl", rows), held_out=2, shots=1, prompt="question_answer")
    example, _ = held_out(task)[0].prompt.split("\n\n")
    number = int(example.removeprefix("Question: ").split(" ")[0])
    solution = f"One more than {number}.\n\\boxed{{{number + 1}}}"
    assert example == f"Question: {number} + 1?\nAnswer: {solution}"
    (shown,) = (p for p in train(task) if p.prompt.endswith(f" {number} + 1?\nAnswer:"))
    assert task.score([shown], [solution]).tolist() == [1]


def test_examples_of_answers_without_steps_are_the_answers(write: Write) -> None:
    rows = [{"question": f"{i} + 1?", "answer": float(i + 1)} for i in range(6)]
    data = write("bare.jsonl", rows)
    task = make(data, held_out=2, shots=1, prompt="{question}", verifier="numeric")
    example, _ = held_out(task)[0].prompt.split("\n\n")
    number = int(example.split(" ")[0])
    assert example == f"{number} + 1? \\boxed{{{number + 1}}}"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"answer": "3", "solution": None}, {}, "expected a solution.* 'solution' of row 1"),
        ({"answer": "3"}, {"solution_column": "steps"}, "the data has no column 'steps'"),
        ({"answer": "so 3\n#### 3"}, {"shots": 4}, "shots: expected fewer than the 4 training pro"),
        ({"tests": ["f()"]}, {"tests_column": "tests", "verifier": "code"}, "program_column"),
    ],
)
def test_examples_need_solutions(
    write: Write, rows: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    data = write("a.jsonl", [{"question": f"{i}?", **rows} for i in range(6)])
    with pytest.raises(ConfigError, match=f"task.{message}" if ":" in message else message):
        held_out(make(data, **{"held_out": 2, "shots": 1, **options}))
