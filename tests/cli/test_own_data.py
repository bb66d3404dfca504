"""`advsweep init --data`: what it sees in a file, and a sweep file that can be planned."""

from __future__ import annotations

import json

import pytest
import yaml

from advsweep.cli import own_data
from advsweep.cli.own_data import guess_settings

SUMS = [(f"What is {a} + {a}?", str(2 * a)) for a in range(20)]


def write_lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_spreadsheet(tmp_path):
    lines = ["Id,Question,Answer", *(f'{i},"{q}",{a}' for i, (q, a) in enumerate(SUMS))]
    (tmp_path / "p.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    guess = guess_settings(str(tmp_path / "p.csv"))
    assert (guess.question, guess.gold, guess.verifier) == ("Question", "Answer", "numeric")
    assert (guess.rows, guess.held_out) == (20, 4)
    assert guess.sentences[0] == "20 rows; questions in 'Question', answers in 'Answer'"


@pytest.mark.parametrize(
    ("answers", "verifier"),
    [
        (["4", "1,001", "-3.5", "$7", "50%"], "numeric"),
        (["so 2 + 2\n#### 4", "5 #### 1,000"], "numeric"),
        ([3, 4.5], "numeric"),
        (["A", "C", "B"], "choice"),
        ([r"it is \boxed{\frac12}", r"\boxed{3}"], "boxed_math"),
        (["4", "x + 1"], "boxed_math"),
        (["4", "3/4"], "numeric"),  # what the verifier reads, and not what float() does
        (["4", "nan"], "boxed_math"),
    ],
)
def test_answers_choose_the_verifier(tmp_path, answers, verifier):
    rows = [{"problem": f"Why {i}?", "answer": answer} for i, answer in enumerate(answers)]
    guess = guess_settings(write_lines(tmp_path / "p.jsonl", rows))
    assert guess.question == "problem"
    assert guess.verifier == verifier


def test_columns_of_other_names_are_told_by_their_length(tmp_path):
    rows = [{"n": 1, "frage": q, "loesung": a, "note": None} for q, a in SUMS]
    guess = guess_settings(write_lines(tmp_path / "p.jsonl", rows))
    assert (guess.question, guess.gold) == ("frage", "loesung")


@pytest.mark.parametrize("gpu", [True, False])
def test_the_sweep_file_can_be_planned(in_process, tmp_path, monkeypatch, gpu):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_data.shutil, "which", lambda name: "/usr/bin/x" if gpu else None)
    # Quotes, signs of YAML and a dollar in a name stay what they are.
    column = "the 'question': $data # x"
    write_lines(tmp_path / "p.jsonl", [{column: q, "answer": a} for q, a in SUMS])
    code, out, err = in_process("init", "mine", "--data", "p.jsonl", "--model", "owner/model")
    assert code == 0, err
    assert "Guessed: verifier numeric: all answers are numbers." in out
    assert ("Guessed: no GPU here" in out) is not gpu
    monkeypatch.chdir(tmp_path / "mine")
    written = yaml.safe_load((tmp_path / "mine" / "sweep.yaml").read_text())
    assert written["task"]["question_column"] == column
    assert written["task"]["data"] == str(tmp_path / "p.jsonl")
    code, out, err = in_process("sweep", "sweep.yaml", "--dry-run", "--format", "json")
    assert code == 0, err
    runs = json.loads(out)["runs"]
    assert len(runs) == (9 if gpu else 6)
    assert "warning" not in err
    assert written["generation"]["max_tokens"] == (512 if gpu else 10)  # 8 around two digits


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "Why?"}], "expected a column of questions and one of answers"),
        ([{"question": "Why?", "answer": ["a"]}], "got 'question', 'answer'"),
        ([{"question": "Why?", "answer": "4"}, {"question": "How?"}], "without gaps"),
    ],
)
def test_a_file_without_questions_and_answers(in_process, tmp_path, rows, message):
    data = write_lines(tmp_path / "p.jsonl", rows)
    folder = str(tmp_path / "mine")
    code, _, err = in_process("init", folder, "--data", data, "--model", "owner/model")
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "mine").exists()


def test_a_ragged_spreadsheet_is_refused_with_its_row(in_process, tmp_path):
    (tmp_path / "p.csv").write_text("question,answer\nWhy?,4\nHow?\n")
    data = str(tmp_path / "p.csv")
    code, _, err = in_process("init", str(tmp_path / "a"), "--data", data, "--model", "owner/model")
    assert code == 2
    assert "expected as many values as columns in every row, not in 3" in err


def test_data_wants_a_model(in_process, tmp_path):
    code, _, err = in_process("init", str(tmp_path / "mine"), "--data", "p.csv")
    assert code == 2
    assert "--data and --model: expected both or none" in err
