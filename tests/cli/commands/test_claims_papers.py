"""`advsweep claims --papers` and `--record`."""

from __future__ import annotations

import csv
import io
import json

import pytest

from advsweep.report.papers.recorded_verdicts import read_recorded


def test_all_claims_are_shown_with_and_without_a_store(in_process, monkeypatch, tmp_path):
    code, out, err = in_process("claims", "--papers", "--format", "csv")
    assert (code, err) == (0, "")
    with_store = list(csv.DictReader(io.StringIO(out)))
    assert len(with_store) == 117
    theory = {row["claim"]: row["verdict"] for row in with_store if row["judge"] == "theory"}
    assert len(theory) == 27
    assert {id for id, verdict in theory.items() if verdict == "contradicted"} == {"FA03", "FA16"}
    monkeypatch.chdir(tmp_path)
    code, out, _ = in_process("claims", "--papers", "--format", "csv")
    assert code == 0
    # The store of the fixture has no sweep of a paper's list.
    assert list(csv.DictReader(io.StringIO(out))) == with_store


def test_a_store_that_was_given_must_exist(in_process, tmp_path):
    code, out, err = in_process("claims", "--papers", "--store", str(tmp_path / "none.db"))
    assert (code, out) == (2, "")
    assert "none.db" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected LIST or --papers, got neither"),
        (("demo", "--papers"), "expected LIST or --papers, got both"),
        (("--papers", "--strict"), "--strict needs a LIST"),
        (("--papers", "--record", "x.csv"), "--record needs a LIST of claims about runs"),
        (("theory", "--record", "x.csv"), "--record needs a LIST of claims about runs"),
    ],
)
def test_options_that_do_not_go_together(in_process, arguments, words):
    code, out, err = in_process("claims", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_verdicts_are_recorded_under_the_name_of_their_list(in_process, tmp_path):
    entry = {"id": "AV01", "says": "so", "statement": "pass@1[grpo] > -1", "seeds": 2}
    path, target = tmp_path / "mine.yaml", tmp_path / "recorded.csv"
    path.write_text(json.dumps({"common": {"sweep": "two"}, "claims": [entry]}))
    code, out, err = in_process("claims", str(path), "--record", str(target))
    assert code == 0
    assert "AV01" in out
    assert f"1 of 1 verdicts recorded in {target}" in err
    (row,) = read_recorded(target)
    assert (row.list, row.claim, row.verdict.value, row.n) == ("mine", "AV01", "holds", 3)
    assert len(row.study) == len("2026-01-31")
