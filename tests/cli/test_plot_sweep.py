"""`advsweep plot`: what is written and printed, and what is refused."""

from __future__ import annotations

import csv
import io
import json

import pytest


@pytest.fixture
def plot(succeeds, monkeypatch, tmp_path, fake_folder):
    """`plot(ARGUMENTS)` in an empty folder, of the finished sweep: stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVSWEEP_STORE", str(fake_folder / "advsweep.db"))
    return lambda *arguments: succeeds("plot", *arguments)


@pytest.mark.slow
def test_figures_become_files_of_a_folder(plot, tmp_path):
    out, _ = plot(
        "two",
        "--figure",
        "curves,acr",
        "--figure",
        "diversity",
        "-o",
        "new/folder",
        "--format",
        "svg",
    )
    names = ["curves.svg", "acr.svg", "diversity.svg"]
    assert out.splitlines() == [f"new/folder/{name}" for name in names]
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == set(names)


@pytest.mark.slow
def test_a_figure_is_named_after_its_sweep(plot, tmp_path):
    assert plot("two", "--figure", "passk", "--format", "pdf")[0] == "two-passk.pdf\n"
    assert plot("1", "2", "--figure", "passk")[0] == "runs-1--2-passk.png\n"
    assert plot("--figure", "passk", "-o", "m.svg")[0] == "m.svg\n"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_figure_for_a_paper_is_as_wide_as_a_column(plot, tmp_path):
    out, err = plot("two", "forest", "-o", "figure.pdf")
    assert out == "figure.pdf\n"
    assert err.startswith("Caption of forest: Means with 95 % intervals, paired by seed")
    text = (tmp_path / "figure.pdf").read_bytes()
    # 3.25 inches of 72 points; fonts as TrueType.
    assert b"/MediaBox [ 0 0 234 " in text
    assert b"/Type3" not in text
    assert b"/CIDFontType2" in text


@pytest.mark.slow
def test_what_does_not_apply_is_left_out_in_silence(plot):
    assert plot("two", "-o", "all.png") == ("all.png\n", "")


@pytest.mark.slow
def test_numbers_instead_of_a_picture(plot, tmp_path):
    out, err = plot("two", "--figure", "curves", "--metric", "reward/mean", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["row"], row["step"]) for row in rows] == [
        (row, str(step)) for row in ("grpo", "fade") for step in range(1, 13)
    ]
    assert {row["n"] for row in rows} == {"3"}
    assert "95 % Student t bands over 3 seeds" in err
    out, _ = plot("two", "--where", "estimator=fade", "--format", "json")
    whole = {figure["figure"]: figure for figure in json.loads(out)}
    assert {row["row"] for row in whole["passk"]["values"]} == {"fade", "base", "guess"}
    assert whole["passk"]["title"] == "two: pass@k on countdown"
    assert "chosen by estimator=fade" in whole["passk"]["notes"]
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_word_may_be_a_figure(plot, in_process):
    code, _, err = in_process("plot", "two", "forst")
    assert code == 2
    assert "sweeps: known: two" in err
    assert "figures: did you mean 'forest'?" in err
    assert len(err.splitlines()) == 1


MISTAKES = {
    "figure": (["--figure", "pask"], ["'pask'", "'passk'"]),
    "suffix": (["-o", "a.gif"], [".png, .svg, .pdf", ".gif"]),
    "folder": (["-o", "nowhere/a.png"], ["nowhere", "make it"]),
    "two formats": (["-o", "a.png", "--format", "svg"], ["a.png", ".svg"]),
    "option of another figure": (["--figure", "acr", "--smooth", "5"], ["--smooth", "acr"]),
    "metric of another figure": (["--figure", "acr", "--metric", "a"], ["--metric", "acr"]),
    "keys of a figure without": (["--figure", "curves", "--x", "seed"], ["--x", "curves"]),
    "task of a figure without": (["--figure", "curves", "--task", "gsm8k"], ["--task", "curves"]),
    "no store": (["demo"], ["advsweep.db"]),
    "condition": (["--where", "nonsense"], ["--where", "KEY=VALUE"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, refused):
    arguments, words = MISTAKES[mistake]
    refused(words, "plot", *arguments)
