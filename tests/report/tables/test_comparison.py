"""Rows compared with a baseline."""

from __future__ import annotations

import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.report.tables.render import lay_out, render
from advsweep.report.tables.request import ReportRequest
from advsweep.statistics import compare_paired


@pytest.fixture
def rewards(lab, constant):
    """`rewards(NAME=VALUES)`: rewards of the seeds of each estimator, and the sweep's report."""

    def added(options=None, size=8, **values):
        for estimator, listed in values.items():
            for seed, value in enumerate(listed):
                points = constant(reward__mean=value)
                lab.run(estimator, seed, points=points, group_size=size, solved=None)
        return build_report(
            lab.store, ReportRequest("demo", columns=["reward/mean@end"], **(options or {}))
        )

    return added


def test_p_values_are_adjusted_over_all_differences(rewards):
    report = rewards(
        a=[0.5, 0.6, 0.4], b=[0.55, 0.66, 0.47], c=[0.52, 0.60, 0.43], d=[0.1, 0.9, 0.4]
    )
    p = [d.comparison.p_value for d in report.differences]
    adjusted = [d.p_adjusted for d in report.differences]
    # m/i times the i-th smallest, from the largest down.
    assert p == sorted(p)
    assert adjusted == pytest.approx([3 * p[0], 1.5 * p[1], p[2]])


def test_permutations_from_six_pairs_on(rewards):
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    more = [value + 0.05 + i / 100 for i, value in enumerate(values)]
    report = rewards(a=values, b=more)
    [d] = report.differences
    # All six differences have one sign: 2 of 64 patterns are as far from 0.
    assert d.comparison.p_permutation == pytest.approx(2 / 64)
    table = lay_out(report).tables[1]
    assert "p perm" in table.columns


def test_seeds_for_a_given_difference(rewards):
    report = rewards({"target": 0.01}, a=[0.5, 0.6, 0.4], b=[0.55, 0.66, 0.47])
    [d] = report.differences
    # As large as its standard deviation: 10 pairs by the noncentral t distribution.
    assert (d.seeds, d.target) == (10, 0.01)
    notes = "\n".join(lay_out(report).notes)
    assert "pairs that would give 80 % power for a difference of 0.01" in notes


def test_seeds_needed_are_capped(rewards):
    # 0.04/3 is 0.11 of the standard deviation of .1, -.1 and .04: some 600 seeds.
    report = rewards(a=[0.5, 0.6, 0.4], b=[0.6, 0.5, 0.44])
    assert lay_out(report).tables[1].lines[0].entries[-1].text == "> 100"
    assert report.differences[0].seeds == MOST_SEEDS + 1


def test_rows_are_compared_with_the_baseline_of_their_own_setting(rewards):
    rewards(size=4, grpo=[0.5, 0.6], fade=[0.6, 0.8])
    report = rewards(size=8, fade=[0.7, 0.8], grpo=[0.4, 0.6])
    assert report.baseline == "grpo"
    assert [
        (report.rows[d.row].group, report.rows[d.baseline].group) for d in report.differences
    ] == [
        ({"estimator": "fade", "group_size": size}, {"estimator": "grpo", "group_size": size})
        for size in (4, 8)
    ]


@pytest.mark.parametrize("named", [None, "a", "estimator=a"])
def test_an_estimator_with_rollouts_of_its_own_is_compared_with_the_only_baseline(
    lab, constant, named
):
    """It cannot have been trained with those of the baseline, whether that is named or not."""
    arms = [("a", "plain"), ("b", "plain"), ("c", "vine")]
    for estimator, policy in arms:
        for seed, value in enumerate([0.5, 0.6]):
            points = constant(reward__mean=value)
            lab.run(estimator, seed, points=points, solved=None, rollout={"name": policy})
    request = ReportRequest("demo", columns=["reward/mean@end"], baseline=named)
    report = build_report(lab.store, request)
    assert report.baseline == "a, rollout=plain"
    compared = [report.rows[d.row].group["estimator"] for d in report.differences]
    assert compared == ["b", "c"]


def test_rollouts_that_the_baseline_was_trained_with_both_are_settings(lab, constant):
    for estimator in ("a", "b"):
        for policy in ("plain", "vine"):
            for seed, value in enumerate([0.5, 0.6]):
                points = constant(reward__mean=value)
                lab.run(estimator, seed, points=points, solved=None, rollout={"name": policy})
    report = build_report(lab.store, ReportRequest("demo", columns=["reward/mean@end"]))
    assert report.baseline == "a"
    pairs = [(report.rows[d.row].group, report.rows[d.baseline].group) for d in report.differences]
    assert all(row["rollout"] == baseline["rollout"] for row, baseline in pairs)
    assert len(pairs) == 2


def test_named_baseline(rewards):
    report = rewards({"baseline": "b"}, a=[0.5, 0.6], b=[0.6, 0.8], c=[0.1, 0.2])
    assert {report.rows[d.row].group["estimator"] for d in report.differences} == {"a", "c"}
    assert rewards({"baseline": "none"}).differences == ()
    report = rewards({"baseline": "estimator=a group_size=4"}, size=4, a=[0.5, 0.6])
    # Rows of another group size have another estimator too, but not another setting of it.
    assert [report.rows[d.row].group for d in report.differences] == [
        {"estimator": name, "group_size": 8} for name in ("a", "b", "c")
    ]


@pytest.mark.parametrize(
    ("baseline", "error", "message"),
    [
        ("d", NotFoundError, "no row has estimator=d; known: a, b"),
        ("estimator=a,b", ReportError, "expected KEY=VALUE, got 'estimator=a,b'"),
        ("group_size>=8", ReportError, "expected KEY=VALUE, got 'group_size>=8'"),
    ],
)
def test_unknown_baselines(rewards, baseline, error, message):
    with pytest.raises(error, match=message):
        rewards({"baseline": baseline}, a=[0.5, 0.6], b=[0.6, 0.8])


def test_ambiguous_baseline(lab):
    for seed in range(2):
        for eps in (0.0, 0.1):
            lab.run("grpo", seed, estimator__eps=eps)
        lab.run("fade", seed)
    with pytest.raises(ReportError, match=r"fade could be compared with grpo, estimator.eps=0 and"):
        build_report(lab.store, ReportRequest("demo", baseline="grpo"))
    # Of itself a table takes the first of them.
    assert build_report(lab.store, ReportRequest("demo")).baseline == "grpo, estimator.eps=0"


def _with_bases(lab, *, shared):
    """Three seeds, with bases that solve 1, 2 and 3 of 8 samples, or 1 of 8 for all of them."""
    for seed in range(3):
        solved = (1, 0) if shared else (1 + seed, 0)
        base = "base:0" if shared else f"base:{seed}"
        lab.run("grpo", seed, solved=(4, seed % 2), base=base, base_solved=solved)
        lab.run("rloo", seed, solved=(3, 0), base=base, base_solved=solved)


@pytest.mark.parametrize("shared", [False, True])
def test_differences_to_the_base_are_to_that_of_each_seed(lab, shared):
    _with_bases(lab, shared=shared)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"], baseline="base"))
    assert report.baseline == "base"
    of_pass = [d for d in report.differences if d.column.name == "pass@1"]
    grpo, rloo = (d.comparison for d in of_pass)
    assert [report.rows[d.baseline].group for d in of_pass] == [{"estimator": "base"}] * 2
    bases = [1 / 8] * 3 if shared else [1 / 8, 2 / 8, 3 / 8]
    expected = compare_paired([4 / 8, 5 / 8, 4 / 8], bases)
    assert vars(grpo) == pytest.approx(vars(expected), nan_ok=True)
    assert rloo.difference == pytest.approx(3 / 8 - sum(bases) / 3)
    assert rloo.paired
    assert rloo.n == 3


def test_large_tables_need_a_named_baseline(lab):
    for i in range(31):
        for seed in range(2):
            lab.run(f"e{i}", seed)
    report = build_report(lab.store, ReportRequest("demo"))
    assert report.differences == ()
    assert "not compared, with more than 30 rows: --baseline names one" in lay_out(report).notes
    # pass@1 and the entropy of correct answers are tested, pass@2 of four samples is described.
    report = build_report(lab.store, ReportRequest("demo", baseline="e3"))
    assert len(report.differences) == 3 * 30
    assert report.family.startswith("0 differences: 2 primary outcomes x 30 arms, less 60")


def test_rows_are_sorted_by_the_intervals_of_their_ranks(rewards):
    report = rewards(
        {"rank": "reward/mean@end"},
        weak=[0.10, 0.13, 0.11, 0.14],
        strong=[0.60, 0.63, 0.62, 0.64],
        equal=[0.61, 0.62, 0.64, 0.63],
    )
    places = {
        row.group["estimator"]: (report.ranks[i].low, report.ranks[i].high)
        for i, row in enumerate(report.rows)
    }
    assert places == {"strong": (1, 2), "equal": (1, 2), "weak": (3, 3)}
    assert report.rows[-1].group["estimator"] == "weak"
    text = render(report, "markdown")
    assert "| 1-2 |" in text
    assert "after Holm" in text
    assert render(report, "csv").startswith("estimator,n,rank,rank_low,rank_high,reward/mean@end,")


def test_a_ranking_needs_a_column_with_a_better_direction(lab, constant):
    lab.run("a", 0, points=constant(entropy__token=1.0), solved=None)
    with pytest.raises(ReportError, match="whose higher or lower values are better"):
        build_report(
            lab.store, ReportRequest("demo", columns=["entropy/token"], rank="entropy/token")
        )
    with pytest.raises(NotFoundError, match="has no column 'pass@1'"):
        build_report(lab.store, ReportRequest("demo", columns=["entropy/token"], rank="pass@1"))
