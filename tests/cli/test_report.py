"""`advsweep report` and `claims`: options, verdicts, and what the exit code says."""

from __future__ import annotations

import json
import re

import pytest

from advsweep.store import open_store
from advsweep.sweep.planning.plan import make_plan
from tests.cli.conftest import FAKE, _advsweep


@pytest.fixture
def report(in_process):
    """`report(ARGUMENTS)` of the finished sweep: exit code, stdout, stderr."""
    return lambda *arguments: in_process("report", *arguments)


def test_rows_columns_conditions_and_order(report):
    options = ("--columns", "pass@1,total/rollouts", "--sort", "estimator", "--baseline", "fade")
    code, out, _ = report("--where", "seed>0", "--where", "estimator=grpo,fade", *options)
    assert code == 0
    assert out.index("\nfade ") < out.index("\ngrpo ")
    assert "Differences to fade" in out
    assert "chosen by seed>0 estimator=grpo,fade" in out


def test_assertions_decide_the_exit_code(report):
    quiet = ("--columns", "pass@1", "--format", "csv")
    code, out, err = report(*quiet, "--assert", "pass@1[grpo] >= pass@1[fade] - 1")
    assert (code, out.startswith("estimator,n,pass@1")) == (0, True)
    assert err.startswith("holds: pass@1[grpo] >= pass@1[fade] - 1: ")
    code, out, err = report(
        *quiet,
        *("--assert", "pass@1[grpo] >= 0", "--assert", "pass@1[grpo] > 2"),
        *("--assert", "pass@1[estimator=base] > 0"),
    )
    assert code == 1
    assert out.startswith("estimator,n,pass@1")
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        *("holds", "contradicted", "cannot tell")
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--assert", "pass@1[grpo] >="], "--assert: expected numbers and COLUMN[ROW]"),
        (["--where", "estimator"], "--where: expected KEY=VALUE"),
        (["--at", "hours"], "--at: expected steps"),
        (["--margin", "0"], "--margin: expected a positive NUMBER, or OUTCOME=NUMBER with one of"),
        (["--margin", "0.1", "--baseline", "none"], "got --baseline none; leave out one"),
        (["--baseline", "estimator=grpo (A/A)"], 'in quotes: estimator="grpo (A/A)"'),
        (["-o", "table.pdf"], "--output: expected a file ending in .txt, .md, .tex, .csv, .json"),
        (["-o", "nowhere/table.tex"], "--output: expected a file in a folder that exists"),
        (["--margin", "pass@2=0.1"], "got 'pass@2=0.1'"),
        (["--outcomes", "entropy/token", "--margin", "0.1"], "one of entropy/token, got '0.1'"),
        (["--rows", "estimatr"], "did you mean 'estimator'"),
        (["--rows", "seed"], "differ in other keys as well (estimator: grpo, fade)"),
    ],
)
def test_mistakes_are_one_line(report, arguments, words):
    code, out, err = report("two", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_margin_tests_equivalence_in_every_format(report):
    code, out, _ = report("two", "--margin", "0.5")
    assert code == 0
    assert "Equivalent to grpo within 0.5 in p@1: fade." in out
    full = report("two", "--full", "--margin", "0.5")[1]
    assert "p equal" in full
    [difference] = [
        each
        for each in json.loads(report("two", "--margin", "0.5", "--format", "json")[1])[
            "differences"
        ]
        if each["metric"] == "pass@1"
    ]
    assert difference["margin"] == 0.5
    assert difference["p_equal"] <= 0.05
    assert abs(difference["difference"]) < difference["equal_within"] < 0.5


def test_tests_without_a_second_row_are_said_to_have_no_effect(report):
    alone = ("two", "--where", "estimator=grpo")
    for option in ("--margin", "--difference"):
        for form in ((), ("--full",)):
            code, out, _ = report(*alone, *form, option, "0.5")
            assert code == 0
            assert f"{option} has no effect: there is no other row to compare with" in out
    assert "no effect" not in report(*alone, "--full")[1]
    assert "no effect" not in report("two", "--full", "--margin", "0.5")[1]


def test_a_report_is_a_small_table_and_sentences(report):
    code, out, _ = report("two")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["estimator", "n", "p@1", "p@4"]
    assert lines[0].endswith("Δ p@1 [95 % interval]")
    table = lines[: lines.index("", 6)]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("fade against grpo: worse p@1, -0.05") for line in lines)
    assert any(line.startswith("means over 3 seeds; *: differs from grpo") for line in lines)
    assert "Differences" not in out
    assert len(lines) < 16
    assert "Differences to grpo: primary outcomes" in report("two", "--full")[1]
    by_rate = report("two", "--rows", "estimator,optimizer.lr,steps")[1]
    assert by_rate.split()[:4] == ["estimator", "steps", "lr", "n"]


TABLES = {
    ".txt": "estimator  n    p@1",
    ".md": "| estimator | n | p@1 |",
    ".tex": "estimator & n & ",
}


@pytest.mark.parametrize(("ending", "words"), TABLES.items())
def test_the_short_table_goes_into_a_file(report, tmp_path, ending, words):
    path = tmp_path / f"table{ending}"
    assert report("two", "-o", str(path)) == (0, f"{path}\n", "")
    short = path.read_text()
    assert words in short
    assert "Differences to" not in short
    assert "fade against grpo: worse p@1" in short
    report("two", "--full", "-o", str(path))
    assert "Differences to grpo: primary outcomes" in path.read_text()


def test_a_file_has_the_format_of_its_name_or_of_the_option(report, tmp_path):
    page, data, other = (tmp_path / name for name in ("a.html", "b.json", "c.dat"))
    for path, options in ((page, ()), (data, ()), (other, ("--format", "csv"))):
        assert report("two", "-o", str(path), *options)[0] == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(data.read_text())["baseline"] == "grpo"
    assert other.read_text().startswith("estimator,n,")


def test_latex_is_a_table_of_booktabs(report):
    text = report("two", "--format", "latex")[1]
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrrrr}"
    assert body[-1] == r"\end{tabular}"
    rows = [line for line in body if line.endswith(r" \\")]
    assert {line.count("&") for line in rows} == {5}
    assert r"p@4 $-$ guess" in rows[0]
    assert r"$\Delta$ p@1 [95 \% interval]" in rows[0]
    # A minus sign, not a hyphen.
    assert re.search(r"\$-0\.0\d+\$ \[\$-", rows[-1])


def test_a_page_is_not_printed_on_a_terminal(report, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, err = report("two", "--format", "html")
    assert (code, out) == (2, "")
    assert "expected a file for the page, got a terminal; -o FILE.html writes one" in err


@pytest.fixture
def claims(in_process, tmp_path):
    """`claims(STATEMENT, OPTIONS)` about the finished sweep: exit code, stdout, stderr."""

    def called(statement: str, *arguments: str) -> tuple[int, str, str]:
        entry = {"id": "one", "says": "so", "statement": statement, "seeds": 2}
        path = tmp_path / "list.yaml"
        path.write_text(json.dumps({"common": {"sweep": "two"}, "claims": [entry]}))
        return in_process("claims", str(path), *arguments)

    return called


def test_answers_are_data_and_only_strict_ones_fail(claims):
    code, out, err = claims("pass@1[grpo] >= pass@1[fade] - 1", "--strict", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["claims"][0]["verdict"] == "holds"
    code, out, _ = claims("pass@1[grpo] > 2", "--format", "csv")
    assert code == 0
    assert out.splitlines()[1].startswith("one,contradicted,")
    assert claims("pass@1[grpo] > 2", "--strict")[0] == 1
    assert "one    contradicted" in claims("pass@1[grpo] > 2")[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [("dmo", "did you mean 'demo'"), ("none.yaml", "none.yaml cannot be read")],
)
def test_lists_that_are_not_there(in_process, name, words):
    code, out, err = in_process("claims", name)
    assert (code, out) == (2, "")
    assert words in err


def test_a_statement_that_cannot_be_read_is_one_line(claims):
    code, out, err = claims("pass@1[grpo] =")
    assert (code, out) == (2, "")
    assert "claim one: expected one of >=" in err


@pytest.fixture(scope="module")
def method_folder(tmp_path_factory):
    """A folder with a sweep over presets, of which two have the same estimator."""
    folder = tmp_path_factory.mktemp("methods")
    done = _advsweep(
        folder,
        *("sweep", "--name=presets", "method=grpo,gspo,dapo", "optimizer.lr=1e-4,2e-4"),
        *("seed=0,1,2", "executor=debug", *FAKE),
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_rows_of_presets_have_their_names(method_folder, monkeypatch, called):
    monkeypatch.chdir(method_folder)
    code, out, _ = called("report", "presets", "--format", "csv", "--columns", "pass@1")
    assert code == 0
    header, *rows = out.splitlines()
    # What a method sets, such as its clip, is no column of its own; what was swept beside it is.
    assert header.startswith("method,estimator,optimizer.lr,n,pass@1")
    names = [row.split(",")[:3] for row in rows]
    assert [name for name in names if name[1]] == [
        [method, "grpo", rate]
        for method in ("grpo", "gspo", "dapo")
        for rate in ("0.0001", "0.0002")
    ]
    code, out, _ = called("report", "presets", "--baseline", "dapo")
    assert code == 0
    assert "from dapo in" in out or "against dapo" in out
    code, out, _ = called("report", "presets", "--where", "method=gspo", "--format", "csv")
    assert code == 0
    assert "dapo" not in out


def test_a_preset_is_a_name_of_the_sweep_and_not_of_the_run(method_folder, monkeypatch, called):
    """The same runs, planned without the preset, are the same runs under their own names."""
    monkeypatch.chdir(method_folder)
    with open_store("advsweep.db", create=False) as store:
        stored = {run.identity for run in store.runs.select()}
        assert set(store.sweeps.methods("presets").values()) == {"grpo", "gspo", "dapo"}
    plan = make_plan(["estimator=grpo", "optimizer.lr=1e-4", "seed=0", *FAKE], single=True)
    assert {planned.run.identity for planned in plan.runs} <= stored
