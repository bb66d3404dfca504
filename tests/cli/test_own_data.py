"""`advsweep init --data`: what it reads in a file, and a sweep file that can be planned."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import yaml

from advsweep.cli import own_data
from advsweep.cli.own_data import propose
from advsweep.errors import ConfigError
from advsweep.tasks.dataset_forms import FormError

SUMS = [(f"What is {a} + {a}?", str(2 * a)) for a in range(20)]
SUM_ROWS = [{"question": q, "answer": a} for q, a in SUMS]


def write_lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(own_data.shutil, "which", lambda name: None)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_spreadsheet(tmp_path, ending):
    sign = {"csv": ",", "tsv": "\t"}[ending]
    lines = [sign.join(("Id", "Question", "Answer"))]
    lines += [sign.join((str(i), f'"{q}"', a)) for i, (q, a) in enumerate(SUMS)]
    path = tmp_path / f"p.{ending}"
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    proposal = propose(str(path))
    task = proposal.task
    assert (task["question_column"], task["gold_column"]) == ("Question", "Answer")
    assert (task["verifier"], proposal.rows, proposal.held_out) == ("numeric", 20, 4)
    assert proposal.sentences[0] == "20 rows; questions in 'Question', answers in 'Answer'"


WORDS = {"name": "regex", "ignore_case": True}


@pytest.mark.parametrize(
    ("answers", "verifier"),
    [
        (["4", "1,001", "-3.5", "$7", "50%"], "numeric"),
        (["so 2 + 2\n#### 4", "5 #### 1,000"], "numeric"),
        (["so 4\n#### 4\nThe answer is: 4", "The answer is: 5."], "numeric"),
        ([3, 4.5], "numeric"),
        ([3.0, 2.0, 1e20], "numeric"),
        (["A", "C", "B"], "choice"),
        ([r"it is \boxed{\sqrt2}", r"\boxed{3}"], "boxed_math"),
        (["4", "x + 1"], "boxed_math"),
        (["4", "3/4"], "numeric"),  # what the verifier reads, and not what float() does
        (["4", "\\text{even}", "x^2"], "boxed_math"),
        (["Paris", "Lake Como", "1984"], WORDS),
        ([True, False, True], WORDS),
    ],
)
def test_answers_choose_the_verifier(tmp_path, answers, verifier):
    rows = [{"problem": f"Why {i}?", "answer": answer} for i, answer in enumerate(answers)]
    proposal = propose(write_lines(tmp_path / "p.jsonl", [*rows, *rows]))
    assert proposal.task["question_column"] == "problem"
    assert proposal.task["verifier"] == verifier


def test_columns_are_not_told_by_their_length(in_process, tmp_path):
    rows = [{"n": 1, "sum": q, "outcome": a, "note": None} for q, a in SUMS]
    data = write_lines(tmp_path / "p.jsonl", rows)
    command = ["init", str(tmp_path / "a"), "--data", data, "--model", "owner/model"]
    code, out, err = in_process(*command)
    assert code == 2
    assert not out
    assert not (tmp_path / "a").exists()
    first, *shown = err.splitlines()
    assert "expected a column of questions, got 'n', 'sum', 'outcome', 'note'" in first
    assert "--question COL --answer COL" in first
    assert shown == [
        *("row 1:", "  n        1", "  sum      'What is 0 + 0?'", "  outcome  '0'"),
        "  note     None",
        *("row 2:", "  n        1", "  sum      'What is 1 + 1?'", "  outcome  '2'"),
        "  note     None",
    ]
    code, out, err = in_process(*command, "--question", "sum", "--answer", "outcome")
    assert code == 0, err
    assert "Read: 20 rows; questions in 'sum', answers in 'outcome'." in out


@pytest.mark.parametrize("gpu", [True, False])
def test_the_sweep_file_can_be_planned(in_process, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_data.shutil, "which", lambda name: "/usr/bin/x" if gpu else None)
    # Quotes, signs of YAML and an interpolation in a name stay what they are.
    monkeypatch.setenv("HF_TOKEN", "hf_SECRET")
    column = "the 'question': $data # ${oc.env:HF_TOKEN} \\${x}"
    name = "p ${oc.env:HF_TOKEN} \U0001f600 'x'.jsonl"
    write_lines(tmp_path / name, [{column: q, "answer": a} for q, a in SUMS])
    command = ["init", "my folder", "--data", name, "--model", "owner/model"]
    code, out, err = in_process(*command, "--question", column)
    assert code == 0, err
    assert "Read: verifier numeric: all answers are numbers." in out
    assert ("Read: no GPU here" in out) is not gpu
    assert out.splitlines()[-1] == "Next: cd 'my folder' && advsweep sweep sweep.yaml"
    monkeypatch.chdir(tmp_path / "my folder")
    written = yaml.safe_load((tmp_path / "my folder" / "sweep.yaml").read_text())
    code, out, err = in_process("sweep", "sweep.yaml", "--dry-run", "--format", "json")
    assert code == 0, err
    assert "hf_SECRET" not in out + err
    runs = json.loads(out)["runs"]
    assert len(runs) == (9 if gpu else 6)
    assert runs[0]["config"]["task"]["question_column"] == column
    assert runs[0]["config"]["task"]["data"] == str(tmp_path / name)
    assert "warning" not in err
    assert written["generation"]["max_tokens"] == (512 if gpu else 10)  # 8 around two digits


def test_the_first_problem_is_shown_as_the_model_gets_it(in_process, tmp_path, no_gpu):
    rows = [
        {
            "passage": f"Ann has {n} pens.",
            "question": "Has she five?",
            "answer": n == 5,
            "id": n,
        }
        for n in range(3, 10)
    ]
    data = write_lines(tmp_path / "p.jsonl", rows)
    code, out, err = in_process("init", str(tmp_path / "a"), "--data", data, "--model", "o/m")
    assert code == 0, err
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("--- the first problem"))
    assert lines[-2] == "--- gold: any of no, false"
    *examples, question, asked = lines[start + 1 : -2]
    assert (question, asked) == ("Ann has 3 pens.", "Has she five?")
    assert len(examples) == 9  # three solved problems with a blank line after each
    assert all(line.startswith("Ann has ") for line in examples[::3])
    assert {line.removeprefix("Has she five? The answer is ") for line in examples[1::3]} <= {
        *("yes", "no")
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "Why?"}], "expected a column of answers, got 'question'; questions are in"),
        ([{"question": "Why?", "answer": {"a": 1}}], "expected a column of answers"),
        (
            [{"question": f"{i}?", "answer": "It is so. " * 30} for i in range(4)],
            "no column of answers can be read by a verifier: 'answer' has running texts",
        ),
        (
            [{"question": f"{i}?", "answer": i, "target": i + 1} for i in range(9)],
            "both 'answer' and 'target' may be the answers, and differ, such as 0 and 1 in row 1: "
            "--answer answer or --answer target says which",
        ),
        (
            [{"question": f"{i}?", "answer": [f"{i}", f"{i + 1}"]} for i in range(9)],
            "row 1 has several answers in 'answer', ['0', '1']: --set gold_lists=any if one",
        ),
        (
            [{"question": f"{i}?", "choices": list("wxyz"), "answer": 1 + i % 3} for i in range(9)],
            "numbers from 1 to 3, and the first of 4 options may be 0 or 1: --set first_option=0",
        ),
        (
            [{"question": "What is it?", "image": "a.png", "answer": "3"}] * 3,
            "expected problems of text alone, got images in 'image' (row 1)",
        ),
        (
            [{"question": [{"role": "user", "content": "Hi"}] * 2, "answer": "3"}] * 3,
            "expected a column of questions",
        ),
        (
            [*SUM_ROWS, {"question": "Odd?", "answer": {"a": 1}}],
            "expected an answer, not an object, in 'answer' of row 21",
        ),
    ],
)
def test_what_is_not_known_is_refused_with_two_rows(in_process, tmp_path, rows, message):
    data = write_lines(tmp_path / "p.jsonl", rows)
    folder = str(tmp_path / "mine")
    code, out, err = in_process("init", folder, "--data", data, "--model", "owner/model")
    assert code == 2
    assert message in err.splitlines()[0]
    assert not out
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["gold_lists=any"], {"gold_lists": "any", "verifier": "numeric"}),
        (["gold_lists=all"], {"gold_lists": "all", "verifier": "boxed_math"}),
    ],
)
def test_a_doubt_is_settled_by_the_words_of_the_refusal(in_process, tmp_path, settings, expected):
    rows = [{"question": f"{i}?", "answer": [f"{i}", f"{i + 1}"]} for i in range(9)]
    data = write_lines(tmp_path / "p.jsonl", rows)
    command = ["init", str(tmp_path / "a"), "--data", data, "--model", "owner/model"]
    code, _, err = in_process(*command, *(word for text in settings for word in ("--set", text)))
    assert code == 0, err
    written = yaml.safe_load((tmp_path / "a" / "sweep.yaml").read_text())
    assert {key: written["task"][key] for key in expected} == expected


def test_one_odd_row_changes_no_column(in_process, tmp_path):
    rows = [{**row, "level": n % 3} for n, row in enumerate(SUM_ROWS)]
    del rows[5]["question"]
    rows[7]["answer"] = None
    data = write_lines(tmp_path / "p.jsonl", rows)
    code, out, err = in_process("init", str(tmp_path / "a"), "--data", data, "--model", "o/m")
    assert code == 0, err
    assert "questions in 'question', answers in 'answer', levels in 'level'." in out
    assert "Note: left out 1 training problem: row 6 has no question." in out
    assert "Note: left out 1 training problem: row 8 has no answer." in out


def test_examples_are_answers_where_some_rows_have_no_steps(tmp_path, no_gpu):
    rows = [{**row, "solution": "Add them." if n % 2 else None} for n, row in enumerate(SUM_ROWS)]
    proposal = propose(write_lines(tmp_path / "p.jsonl", rows))
    assert proposal.task["solution_column"] == "answer"
    assert "Add them" not in proposal.problem.prompt
    rows = [{**row, "solution": "Add them."} for row in SUM_ROWS]
    proposal = propose(write_lines(tmp_path / "q.jsonl", rows))
    assert "solution_column" not in proposal.task
    assert proposal.problem.prompt.count("? Add them.\n\\boxed{") == 3


def test_equal_questions_and_long_unused_columns_are_named(tmp_path):
    rows = [
        {"question": f"What is it ({n % 8})?", "answer": n % 9, "table": "| a | b |\n" * 9}
        for n in range(16)
    ]
    notes = "\n".join(propose(write_lines(tmp_path / "p.jsonl", rows)).notes)
    assert "left out 8 training problems, the same as an earlier one" in notes
    assert "50 % of the rows" in notes
    # Rows 1 and 9 have 0 and 8, rows 2 and 10 have 1 and 0, and so on.
    assert "8 training problems with the question of an earlier one and another answer" in notes
    assert "rows 1 and 9, 2 and 10," in notes
    assert "unused, with longer texts than the questions: 'table'" in notes


def test_a_folder_of_splits(tmp_path):
    for split, rows in (("train", SUM_ROWS[:15]), ("validation", SUM_ROWS[15:])):
        (tmp_path / "set" / split).mkdir(parents=True)
        write_lines(tmp_path / "set" / split / "part-0.jsonl", rows)
    proposal = propose(str(tmp_path / "set"))
    assert (proposal.rows, proposal.held_out) == (15, 5)
    assert proposal.task["held_out_split"] == "validation"
    assert "held_out" not in proposal.task
    shutil.rmtree(tmp_path / "set" / "validation")
    proposal = propose(str(tmp_path / "set"))
    assert (proposal.held_out, proposal.task["held_out_split"]) == (3, "")


def test_a_ragged_spreadsheet_is_refused_with_its_row(in_process, tmp_path):
    (tmp_path / "p.csv").write_text("question,answer\nWhy?,4\nHow?\n")
    data = str(tmp_path / "p.csv")
    code, _, err = in_process("init", str(tmp_path / "a"), "--data", data, "--model", "owner/model")
    assert code == 2
    assert "p.csv: line 3: expected 2 cells as in the header, got 1: How?" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "p.jsonl"], "--data and --model: expected both or none"),
        (["--question", "q"], "--question, --answer and --set: expected --data with them"),
        (["--data", "p.jsonl", "--model", "nowhere"], "--model: expected a folder with a model"),
        (["--data", "p.jsonl", "--model", "."], "has no config.json"),
        (["--data", "none.jsonl", "--model", "o/m"], "there is no"),
        (["--data", "owner/set", "--model", "o/m"], "hub:owner/set is the data set"),
        (
            ["--data", "https://me:word@host/p.jsonl", "--model", "o/m"],
            "got the URL https://me:***@host/p.jsonl",
        ),
        (["--data", "p.jsonl", "--model", "o/m", "--question", "q"], "no column 'q'"),
        (["--data", "p.jsonl", "--model", "o/m", "--set", "golds=1"], "golds"),
    ],
)
def test_what_cannot_be_is_refused_and_writes_nothing(
    in_process, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "p.jsonl", SUM_ROWS)
    code, out, err = in_process("init", "mine", *options)
    assert code == 2
    assert message in err.splitlines()[0]
    assert "word" not in err
    assert not out
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["first", "mine.v2-a", '"quoted"', "'quoted'"])
def test_the_makefile_has_the_name_of_the_sweep(in_process, tmp_path, name):
    if shutil.which("make") is None:
        pytest.skip("no make")
    data = write_lines(tmp_path / "p.jsonl", SUM_ROWS)
    code, _, err = in_process("init", str(tmp_path / "a"), "--data", data, "--model", "o/m")
    assert code == 0, err
    path = tmp_path / "a" / "sweep.yaml"
    path.write_text(path.read_text().replace("name: first  ", f"name: {name}  "))
    command = ["make", "--no-print-directory", "-n", "report"]
    printed = subprocess.check_output(command, cwd=tmp_path / "a", text=True)
    plain = name.strip("'\"")
    assert printed.splitlines()[0] == f"advsweep report {plain}"


def test_a_url_is_no_data(in_process):
    with pytest.raises(ConfigError, match=r"got the URL https://me:\*\*\*@host"):
        propose("https://me:word@host/p.jsonl")
    code, _, err = in_process("describe", "file", "--set", "data=https://me:word@host/p.jsonl")
    assert code == 2
    assert "word" not in err


def refused(path, **options):
    """Returns the message of a refusal, which shows two rows."""
    with pytest.raises(FormError) as raised:
        propose(path, **options)
    rows = [line for line in raised.value.details if line.startswith("row ")]
    assert rows == ["row 1:", "row 2:"]
    return str(raised.value)


def test_an_odd_row_is_refused_with_two_rows(tmp_path, no_gpu):
    rows = [*SUM_ROWS, {"question": "How many?", "answer": {"value": 5}}]
    message = refused(write_lines(tmp_path / "p.jsonl", rows))
    assert "in 'answer' of row 21, got {'value': 5}" in message
    assert message.endswith("name other columns: --question COL --answer COL")


def test_answers_that_no_verifier_reads_are_refused_with_two_rows(tmp_path, no_gpu):
    rows = [{"question": f"Sort {n}.", "answer": f"1 3 {n}"} for n in range(8)]
    path = write_lines(tmp_path / "p.jsonl", rows)
    assert "--answer COL, --set gold_part=PART or --set verifier=NAME" in refused(path)
    chosen = propose(path, settings={"verifier": "regex"})
    assert chosen.task["verifier"] == "regex"


def test_equal_questions_alone_are_refused_with_the_reason(tmp_path, no_gpu):
    rows = [{"question": "Which one?", "answer": n} for n in range(8)]
    message = refused(write_lines(tmp_path / "p.jsonl", rows))
    assert "got 1 in 8 rows; left out 7" in message
    assert "another answer: rows 1 and 2" in message


def test_a_context_may_be_left_out(tmp_path, no_gpu):
    rows = [{**row, "context": {"title": ["a"], "sentences": [["A is."]]}} for row in SUM_ROWS]
    path = write_lines(tmp_path / "p.jsonl", rows)
    assert "leave it out: --set context_column=" in refused(path)
    proposal = propose(path, settings={"context_column": ""})
    assert proposal.problem.prompt.endswith(rows[0]["question"])


@pytest.mark.parametrize("letters", [["A", "(B)"], ["(A)", "(C)"]])
def test_letters_in_brackets_are_a_choice(tmp_path, no_gpu, letters):
    rows = [{"question": f"Which, (A) or (B) {n}?", "answer": letters[n % 2]} for n in range(8)]
    assert propose(write_lines(tmp_path / "p.jsonl", rows)).task["verifier"] == "choice"


def test_decimal_commas_are_named(tmp_path, no_gpu):
    rows = [{"question": f"Half of {n}?", "answer": f"{n},5"} for n in range(8)]
    reason = propose(write_lines(tmp_path / "p.jsonl", rows)).reason
    assert "'0,5' is read as two numbers: if it is one, write its decimal comma as a" in reason


def test_a_folder_of_subsets_names_them(tmp_path):
    for name in ("main", "socratic"):
        (tmp_path / "set" / name).mkdir(parents=True)
        write_lines(tmp_path / "set" / name / "train.jsonl", SUM_ROWS)
    with pytest.raises(ConfigError, match=r"folders main, socratic .* --set subset=main"):
        propose(str(tmp_path / "set"))
    proposal = propose(str(tmp_path / "set"), settings={"subset": "main", "held_out": 4})
    assert (proposal.rows, proposal.held_out) == (20, 4)
