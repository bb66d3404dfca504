"""Which rows share a spread, and which have their own."""

from __future__ import annotations

import pytest

from advsweep.report.claims.assertions import compare_sides, parse_assertion
from advsweep.report.data.filters import parse_where
from advsweep.report.tables.build import build_report
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.request import ReportRequest
from advsweep.statistics import compare_paired, pool_spread

VALUES = {"a": [0.5, 0.6, 0.4], "b": [0.53, 0.64, 0.45], "c": [0.52, 0.58, 0.41]}
OUTCOME = "reward/mean@end"


def _fill(lab, constant, values, **config):
    for name, listed in values.items():
        for seed, value in enumerate(listed):
            if value is not None:
                points = constant(reward__mean=value)
                lab.run(name, seed, points=points, solved=None, **config)


def _pooled(report):
    return {report.rows[d.row].group["estimator"]: d.comparison.pooled for d in report.differences}


def test_rows_of_the_same_seeds_share_their_spread(lab, constant):
    _fill(lab, constant, VALUES)
    report = build_report(lab.store, ReportRequest("demo"))
    common = pool_spread(list(VALUES.values()))
    assert common is not None
    assert (common.pooled.df, common.wider.any()) == (4, False)
    for difference, name in zip(report.differences, ("b", "c"), strict=True):
        expected = compare_paired(VALUES[name], VALUES["a"], pooled=common.pooled)
        assert vars(difference.comparison) == pytest.approx(vars(expected), nan_ok=True)
    # Whichever row is the baseline, the same two rows compare alike.
    turned = build_report(lab.store, ReportRequest("demo", baseline="b"))
    [a] = [d for d in turned.differences if turned.rows[d.row].group["estimator"] == "a"]
    assert a.comparison.p_value == pytest.approx(report.differences[0].comparison.p_value)
    assert a.comparison.low == pytest.approx(-report.differences[0].comparison.high)


def test_only_the_seeds_that_two_rows_share_count_of_every_arm(lab, constant):
    _fill(lab, constant, {**VALUES, "d": [0.55, None, 0.44]})
    report = build_report(lab.store, ReportRequest("demo"))
    assert _pooled(report) == {"b": True, "c": True, "d": True}
    of = {report.rows[d.row].group["estimator"]: d.comparison for d in report.differences}
    # d has no seed 1: it lends nothing to the others, and has the spread of two seeds of all four.
    assert of["b"].sd == pytest.approx(pool_spread([*VALUES.values()]).pooled.sd)
    ends = [[own[0], own[2]] for own in VALUES.values()]
    common = pool_spread([*ends, [0.55, 0.44]])
    assert (of["d"].n, of["d"].df) == (2, common.pooled.df)
    assert of["d"].sd == pytest.approx(common.pooled.sd)


def test_rows_of_other_tasks_or_models_do_not_share_a_spread(lab, constant):
    _fill(lab, constant, VALUES, model__width=32)
    _fill(lab, constant, {"a": [0.1, 0.9, 0.2], "b": [0.7, 0.1, 0.3]}, model__width=64)
    report = build_report(lab.store, ReportRequest("demo", baseline="a"))
    found = {
        (report.rows[d.row].group["model.width"], report.rows[d.row].group["estimator"]): (
            d.comparison.pooled
        )
        for d in report.differences
    }
    # Of the wider model there are two arms, which have their own spread.
    assert found == {(32, "b"): True, (32, "c"): True, (64, "b"): False}


def test_rows_share_a_spread_whichever_key_varies(lab, constant):
    settings = [
        {"objective": {"name": "clipped"}, "group_size": 4},
        {"objective": {"name": "cross_entropy"}, "rollout": {"name": "x"}},
        {"backend": {"name": "tiny", "stale_steps": 4}, "optimizer": {"name": "adamw", "lr": 1e-3}},
    ]
    for config, (name, values) in zip(settings, VALUES.items(), strict=True):
        _fill(lab, constant, {name: values}, **config)
    report = build_report(lab.store, ReportRequest("demo", baseline="estimator=a group_size=4"))
    found = Spreads(report.arms).pooled(report.rows[0], report.rows[1], OUTCOME)
    assert found is not None
    assert found.sd == pytest.approx(pool_spread([*VALUES.values()]).pooled.sd)
    assert found.df == 4


def test_settings_that_change_no_result_do_not_part_a_design(lab, constant):
    for workers, (name, values) in enumerate(VALUES.items(), start=1):
        task = {"name": "dataset", "path": "problems.jsonl", "workers": workers}
        _fill(lab, constant, {name: values}, task=task)
    report = build_report(lab.store, ReportRequest("demo"))
    assert len({arm.design for arm in report.arms}) == 1


def test_seeds_that_start_from_other_bases_do_not_share_a_spread(lab):
    for name, base in (("a", "old"), ("b", "old"), ("c", "old"), ("d", "new")):
        for seed in range(3):
            own = {"base": f"base:{base}{seed}", "base_solved": (1, 0)}
            lab.run(name, seed, solved=(2 + seed % 2, seed * len(name) % 2), **own)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"]))
    designs = {arm.row.group["estimator"]: arm.starts_from({0: "base:old0"}) for arm in report.arms}
    assert designs == {"a": True, "b": True, "c": True, "d": False}


def test_a_row_of_a_larger_spread_has_its_own(lab, constant):
    wild = {"d": [0.9, 0.1, 0.8]}
    _fill(lab, constant, {**VALUES, **wild})
    report = build_report(lab.store, ReportRequest("demo"))
    assert _pooled(report) == {"b": True, "c": True, "d": False}
    common = pool_spread(list(VALUES.values()))
    assert common is not None
    assert report.differences[0].comparison.sd == pytest.approx(common.pooled.sd)


def test_bases_have_their_own_spread(lab):
    for seed in range(3):
        for i, name in enumerate(("a", "b", "c")):
            own = {"base": f"base:{seed}", "base_solved": (seed, 0)}
            lab.run(name, seed, solved=(2, (seed * i) % 3), **own)
    report = build_report(lab.store, ReportRequest("demo", baseline="base"))
    assert not any(d.comparison.pooled for d in report.differences)
    assert all(d.comparison.df == d.comparison.n - 1 for d in report.differences)


def test_the_same_runs_under_two_names_have_no_difference_to_test(lab, constant):
    _fill(lab, constant, {**VALUES, "twin": VALUES["a"]})
    report = build_report(lab.store, ReportRequest("demo"))
    [twin] = [d for d in report.differences if report.rows[d.row].group["estimator"] == "twin"]
    assert (twin.comparison.difference, twin.comparison.sd) == (0, 0)
    assert twin.p_adjusted != twin.p_adjusted
    assert report.family == "2 differences: 1 primary outcome x 3 arms, less 1 without a test"
    # They count once in the spread of the others.
    without = build_report(lab.store, ReportRequest("demo", where=[], baseline="b"))
    [c] = [d for d in without.differences if without.rows[d.row].group["estimator"] == "c"]
    common = pool_spread(list(VALUES.values()))
    assert common is not None
    assert c.comparison.sd == pytest.approx(common.pooled.sd)


def test_assertions_with_a_margin_have_the_same_spread(lab, constant):
    _fill(lab, constant, VALUES)
    report = build_report(lab.store, ReportRequest("demo", columns=[OUTCOME]))
    found = compare_sides(report, parse_assertion(f"{OUTCOME}[b] > {OUTCOME}[a] + 0.01"))
    plain = report.differences[0].comparison
    assert found is not None
    assert found.low == pytest.approx(plain.low - 0.01)
    assert found.df == plain.df
    sums = compare_sides(report, parse_assertion(f"2*{OUTCOME}[b] > {OUTCOME}[a]"))
    assert sums is not None
    assert not sums.pooled


def test_runs_that_were_evaluated_otherwise_neither_lend_nor_stop_a_report(lab):
    solved = {"a": (2, 1, 3), "b": (3, 1, 4), "c": (2, 2, 3), "d": (4, 1, 1)}
    for name, counts in solved.items():
        # d was evaluated with more samples.
        lab.samples = 8 if name == "d" else 4
        for seed, count in enumerate(counts):
            lab.run(name, seed, solved=(count, seed))
    where = parse_where("estimator=a,b")
    report = build_report(lab.store, ReportRequest("demo", where=where, columns=["pass@1"]))
    [found] = [d.comparison for d in report.differences if d.column.name == "pass@1"]
    values = [[(count + seed) / 8 for seed, count in enumerate(solved[name])] for name in "abc"]
    common = pool_spread(values)
    assert common is not None
    assert (found.df, found.sd) == (common.pooled.df, pytest.approx(common.pooled.sd))
