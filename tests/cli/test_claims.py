"""`advsweep claims`: its lists, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def claims(in_process: Called, tmp_path: Path) -> Called:
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
