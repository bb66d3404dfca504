"""Conditions that choose runs, and lists of names."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.report.data.filters import parse_where
from advsweep.report.data.keys import MISSING, value_of
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.store import Status


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a=1", 1, True),
        ("a=1", True, False),
        ("a=true", True, True),
        ("a=null", None, True),
        ("a=1,2", 2, True),
        ("a=x,y", "y", True),
        ("a=1e-4", 0.0001, True),
        ("a=[0,1],[2]", [0, 1], True),
        ("a!=1,2", 2, False),
        ("a>=8", 8, True),
        ("a<8", "x", False),
        ("a>0", True, False),
        ("a!=1", MISSING, False),
        ("a<1", math.nan, False),
        ("a='two words'", "two words", True),
        ("a=x", ("w", "x"), True),
        ("a!=x", ("w", "x"), False),
    ],
)
def test_matches_values(text, value, holds):
    [filter] = parse_where(text)
    assert filter.holds(value) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a condition such as"),
        ("a", "got 'a'"),
        ("a==1", "got 'a==1'"),
        ("a=", "expected KEY=VALUE,... KEY!=VALUE,... or KEY>=NUMBER, got 'a='"),
        ("a=1, b=2", "got 'a=1,'"),
        ("a>x", "got 'a>x'"),
        ("a>1,2", "got 'a>1,2'"),
        ("a='x", "quote that does not end"),
    ],
)
def test_wrong_filters(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_where(text)


def test_a_component_stands_for_its_name():
    config = {"estimator": {"name": "a_grae", "base": {"name": "grpo", "eps": 0.1}}, "steps": 3}
    run = SimpleNamespace(config=config)
    keys = ["estimator", "estimator.base", "estimator.base.eps", "steps"]
    assert [value_of(run, key) for key in keys] == ["a_grae", "grpo", 0.1, 3]
    assert value_of(run, "estimator.delta") is value_of(run, "steps.x") is MISSING


def _names(report):
    return [(row.group["estimator"], row.seeds) for row in report.rows if not row.is_untrained]


def _report(lab, text, **options):
    return build_report(lab.store, ReportRequest("demo", where=parse_where(text), **options))


def test_runs_by_config_and_seed(demo):
    assert _names(_report(demo, "estimator=fade,grpo seed>0")) == [
        ("grpo", (1, 2)),
        ("fade", (1, 2)),
    ]
    assert _names(_report(demo, "seed=0 estimator!=rloo")) == [("grpo", (0,)), ("fade", (0,))]
    assert _report(demo, "estimator=grpo").remarks == ("chosen by estimator=grpo",)


def test_runs_in_another_state(demo):
    demo.run("grpo", 7, status=Status.FAILED)
    report = _report(demo, "status=failed,done estimator=grpo")
    assert _names(report) == [("grpo", (0, 1, 2, 7))]
    assert report.left_out == {}
    assert _report(demo, "estimator=grpo").left_out == {Status.FAILED: 1}
    assert _report(demo, "estimator=fade").left_out == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("estimater=grpo", "no run has a key 'estimater'; did you mean 'estimator'"),
        ("pass@1>0", "no run has a key 'pass@1'"),
    ],
)
def test_unknown_keys(demo, text, message):
    with pytest.raises(NotFoundError, match=message):
        _report(demo, text)


def test_hashes_are_texts():
    [filter] = parse_where("config_hash!=12345678,00e12345,1e999999")
    assert filter.values == ("12345678", "00e12345", "1e999999")
    assert not filter.holds("12345678")
    assert filter.holds("abcdef01")
