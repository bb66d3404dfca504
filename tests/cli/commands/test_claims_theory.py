"""`advsweep claims theory`: every format, and its exit code."""

from __future__ import annotations

import csv
import io
import json

import pytest


def test_checks_are_data(in_process):
    code, out, err = in_process("claims", "theory", "--format", "json")
    assert (code, err) == (0, "")
    checks = json.loads(out)["checks"]
    assert len(checks) == 27
    first = checks[0]
    assert first["claim"] == "AV10"
    assert first["paper"].startswith("AVSPO")
    assert first["findings"][0]["holds"] is True
    contradicted = {c["claim"] for c in checks if c["verdict"] == "contradicted"}
    assert contradicted == {"FA03", "FA16"}


@pytest.mark.parametrize("how", ["table", "markdown", "latex", "csv"])
def test_every_format_has_every_check(in_process, how):
    code, out, _ = in_process("claims", "theory", "--format", how)
    assert code == 0
    assert "TS17" in out
    assert "contradicted" in out
    if how == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert len(rows) == 27
        assert all(float(row["got"]) == float(row["got"]) for row in rows)


def test_strict_fails_as_long_as_a_theorem_is_contradicted(in_process):
    assert in_process("claims", "theory", "--strict")[0] == 1


def test_a_misspelt_name_suggests_it(in_process):
    code, _, err = in_process("claims", "theroy")
    assert code == 2
    assert "did you mean 'theory'" in err
