"""`advsweep claims`: its lists, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from advsweep.cli import main

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def claims(
    fake_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Called:
    """`claims(STATEMENT, OPTIONS)` about the finished sweep: exit code, stdout, stderr."""
    monkeypatch.chdir(fake_folder)

    def called(statement: str, *arguments: str) -> tuple[int, str, str]:
        entry = {"id": "one", "says": "so", "statement": statement, "seeds": 2}
        path = tmp_path / "list.yaml"
        path.write_text(json.dumps({"common": {"sweep": "two"}, "claims": [entry]}))
        monkeypatch.setattr("sys.argv", ["advsweep", "claims", str(path), *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

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
def test_lists_that_are_not_there(monkeypatch, capsys, fake_folder, name, words):
    monkeypatch.chdir(fake_folder)
    monkeypatch.setattr("sys.argv", ["advsweep", "claims", name])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def test_a_statement_that_cannot_be_read_is_one_line(claims):
    code, out, err = claims("pass@1[grpo] =")
    assert (code, out) == (2, "")
    assert "claim one: expected one of >=" in err
