"""Lists of claims, and their evaluation on a store."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.report.claims.assertions import ClaimVerdict
from advsweep.report.claims.lists import (
    evaluate_claims,
    parse_claim_list,
    read_claim_list,
    render_claims,
)
from advsweep.statistics import regress

REWARD = "reward/mean"


@pytest.fixture
def lab(lab, constant):
    """Rewards of three seeds: b is above a by 0.05, 0.06 and 0.07; c by 0.1, -0.1 and 0.3.

    In the sweep `sizes` rewards rise by 0.1 from one group size to the next, give or take 0.01.
    """
    values = {"a": (0.5, 0.6, 0.4), "b": (0.55, 0.66, 0.47), "c": (0.6, 0.5, 0.7)}
    for estimator, rewards in values.items():
        for seed, reward in enumerate(rewards):
            points = constant(reward__mean=reward, collapse__acr=0.9 - reward)
            lab.run(estimator, seed, points=points, sweep="main")
    for i, size in enumerate((2, 4, 8, 16)):
        for seed in (0, 1):
            points = constant(
                reward__mean=0.2 + 0.1 * i + 0.01 * seed, noise=float((3 * i + seed) % 4)
            )
            lab.run("a", seed, points=points, sweep="sizes", group_size=size, steps=19)
    return lab


def _evaluate(lab, *claims, **common):
    entries = [{"id": str(i), "says": "so", **claim} for i, claim in enumerate(claims)]
    return evaluate_claims(
        lab.store, parse_claim_list({"common": common, "claims": entries})
    ).results


def _verdicts(lab, *claims, **common):
    return [result.verdict for result in _evaluate(lab, *claims, **common)]


def _compared(direction, margin=None, of="b", than="a"):
    claim = {"metric": REWARD, "of": of, "than": than, "direction": direction}
    return claim if margin is None else {**claim, "margin": margin}


DIRECTIONS = [
    (_compared("higher"), ClaimVerdict.HOLDS),
    (_compared("higher", 0.03), ClaimVerdict.HOLDS),
    (_compared("higher", 0.09), ClaimVerdict.CONTRADICTED),
    (_compared("lower", of="a", than="b"), ClaimVerdict.HOLDS),
    (_compared("not lower", 0.02), ClaimVerdict.HOLDS),
    (_compared("not higher", 0.09), ClaimVerdict.HOLDS),
    (_compared("within", 0.1), ClaimVerdict.HOLDS),
    (_compared("within", 0.03), ClaimVerdict.CONTRADICTED),
    (_compared("within", 0.07), ClaimVerdict.CANNOT_TELL),
    (_compared("higher", than=0.1), ClaimVerdict.HOLDS),
]


def test_directions(lab):
    claims, verdicts = zip(*DIRECTIONS, strict=True)
    assert _verdicts(lab, *claims, sweep="main") == list(verdicts)


def test_fewer_seeds_than_required_cannot_tell(lab):
    [result] = _evaluate(lab, _compared("higher"), sweep="main", seeds=5)
    assert (result.verdict, result.more) == (ClaimVerdict.CANNOT_TELL, 2)
    assert result.reason.startswith("cannot tell: reward/mean[")
    assert "the claim asks for 5 seeds, and there are 3" in result.reason


def test_what_does_not_exist_is_not_judged_and_leaves_the_others_alone(lab):
    results = _evaluate(
        lab,
        _compared("higher"),
        {**_compared("higher"), "metric": "reward/meen"},
        _compared("higher", of="bb"),
        {**_compared("higher"), "sweep": "mane"},
        {**_compared("higher"), "where": "group_size=3"},
        sweep="main",
    )
    assert [a.verdict for a in results] == [
        *(ClaimVerdict.HOLDS, *[ClaimVerdict.NOT_JUDGED] * 3, ClaimVerdict.CANNOT_TELL)
    ]
    for result, words in zip(
        results[1:],
        (
            "did you mean 'reward/mean'",
            "no row is called 'bb'",
            "did you mean 'main'",
            "group_size",
        ),
        strict=True,
    ):
        assert words in result.reason
        assert math.isnan(result.p_adjusted)


def test_rows_are_the_points_of_a_trend(lab):
    """Rewards of .205, .305, .405 and .505 at group sizes of 2, 4, 8 and 16."""
    trend = {"of": REWARD, "over": "group_size", "direction": "rises"}
    [result] = _evaluate(lab, {"trend": trend}, sweep="sizes", seeds=5)
    line = regress([2, 4, 8, 16], [0.205, 0.305, 0.405, 0.505])
    assert (result.low, result.high, result.n) == (
        *(pytest.approx(end) for end in (line.slope.low, line.slope.high)),
        4,
    )
    assert "over 4 rows; the claim asks for 5 rows, and there are 4" in result.reason


def test_a_trend_within_the_values_of_keys(lab, constant):
    """Rewards fall by 1 for each unit of the rate at every size, and rise over all of them."""
    for size in (2, 4, 8):
        for seed in range(3):
            rate = 0.1 * size + 0.01 * seed
            points = constant(reward__mean=0.2 * size - 0.01 * seed, collapse__acr=rate)
            lab.run("d", seed, points=points, sweep="simpson", group_size=size)
    trend = {"of": REWARD, "over": "collapse/acr", "direction": "falls", "points": "runs"}
    pooled, within, unknown = _evaluate(
        lab,
        {"trend": trend},
        {"trend": {**trend, "within": ["group_size"]}},
        {"trend": {**trend, "within": "optimizer.lr"}},
        sweep="simpson",
    )
    assert [pooled.verdict, within.verdict] == [ClaimVerdict.CONTRADICTED, ClaimVerdict.HOLDS]
    assert (within.difference, within.n) == (pytest.approx(-1), 9)
    assert "falls with collapse/acr within group_size: slope -1" in within.reason
    assert unknown.verdict is ClaimVerdict.CANNOT_TELL
    assert "'optimizer.lr', which the trend is within, tells no rows apart" in unknown.reason
    assert "group_size" in unknown.reason


def test_a_claim_may_not_be_settled_among_many(lab):
    """One p below .05 among so many does not survive the adjustment."""
    # c - a + 0.4 has p = .049.
    weak = {"statement": f"{REWARD}[c] > {REWARD}[a] - 0.4"}
    wrong = {"statement": f"{REWARD}[c] <= {REWARD}[a] - 0.4"}
    hopeless = {"statement": f"{REWARD}[c] > {REWARD}[a]"}
    [alone] = _evaluate(lab, weak, sweep="main")
    assert alone.verdict is ClaimVerdict.HOLDS
    result, other, *_ = _evaluate(lab, weak, wrong, *[hopeless] * 9, sweep="main")
    assert [result.verdict, other.verdict] == [ClaimVerdict.NOT_SETTLED] * 2
    assert result.p_value < 0.05 < result.p_adjusted
    assert result.reason.startswith("not settled: reward/mean[c] > ")
    assert (
        "alone it would hold, but it is not significant after Benjamini-Hochberg: p adj 0.272, "
        "adjusted over 11 tests of this list"
    ) in result.reason
    assert "alone it would be contradicted" in other.reason
    claims = [{"id": "w", "says": "so", **weak}, {"id": "h", "says": "so", **hopeless}]
    told = evaluate_claims(
        lab.store, parse_claim_list({"common": {"sweep": "main"}, "claims": claims})
    )
    assert "w: so. not settled: " in render_claims(told, "markdown")
    assert "0 contradicted, 1 cannot be told, 1 not settled\n" in render_claims(told, "markdown")


def test_formats(lab):
    claims = parse_claim_list(
        {
            "title": "Ours",
            "common": {"sweep": "main", "source": "a paper"},
            "claims": [{"id": "x", "says": "b > a", "statement": f"{REWARD}[b] > {REWARD}[a]"}],
        }
    )
    results = evaluate_claims(lab.store, claims)
    [row] = csv.DictReader(io.StringIO(render_claims(results, "csv")))
    assert (row["claim"], row["verdict"], row["n"], row["source"]) == ("x", "holds", "3", "a paper")
    assert float(row["difference"]) == pytest.approx(0.06)
    document = json.loads(render_claims(results, "json"))
    assert document["title"] == "Ours"
    assert document["claims"][0]["judged"] == f"{REWARD}[b] > {REWARD}[a]"
    assert any("sweep main: 9 runs" in line for line in document["provenance"])
    for name, words in {
        "table": "1 claim: 1 hold, 0 contradicted\n",
        "markdown": "| x | holds | mean reward | +0.06 | [+0.0352, +0.0848] | 3 |",
        "latex": "x & holds & mean reward & $+0.06$ & [$+0.0352$, $+0.0848$] & 3",
    }.items():
        text = render_claims(results, name)
        assert words in text
        assert text == render_claims(evaluate_claims(lab.store, claims), name)
    with pytest.raises(ConfigError, match="did you mean 'json'"):
        render_claims(results, "jsn")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"saying": "x"}, "claim x: no key is called 'saying'"),
        ({"says": None}, "claim x: says: expected a text"),
        ({"statement": None}, "claim x: statement: expected a text or several"),
        ({"statement": "reward/mean[b] ="}, "claim x: expected one of >="),
        ({"metric": "pass@1"}, "claim x: expected one of statement, metric, trend, got"),
        ({"seeds": 1}, "claim x: seeds: expected an integer >= 2"),
        ({"where": "estimator"}, "claim x: where: expected KEY=VALUE"),
        ({"at": "tokens!"}, "claim x: at: expected"),
    ],
)
def test_claims_that_cannot_be_read(change, message):
    claim = {"id": "x", "says": "so", "statement": "pass@1[a] > pass@1[b]", **change}
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_claim_list({"claims": [claim]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected a mapping with a list under 'claims'"),
        ({"claims": []}, "expected at least one claim"),
        ({"claims": ["x"]}, "claim 1: expected a mapping"),
        ({"claim": []}, "expected a mapping with a list"),
        ({"common": {"statement": "x"}, "claims": []}, "common: no key is called 'statement'"),
        (
            {"claims": [{"id": "x", "says": "so", "statement": "pass@1[a] > 0"}] * 2},
            "expected each id once, got 'x' twice",
        ),
    ],
)
def test_documents_that_are_no_lists(document, message):
    with pytest.raises(ConfigError, match=message):
        parse_claim_list(document)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml cannot be read"):
        read_claim_list(tmp_path / "nothing.yaml")
    (tmp_path / "bad.yaml").write_text("claims: [")
    with pytest.raises(ConfigError, match=r"bad\.yaml, line 1, column \d+: cannot be read as YAML"):
        read_claim_list(tmp_path / "bad.yaml")


def test_runs_that_claims_share_count_once(lab):
    claim = {"statement": f"{REWARD}[b] > {REWARD}[a]"}
    listed = [
        {"id": "ab", "says": "so", **claim, "where": "estimator=a,b"},
        {"id": "ac", "says": "so", "statement": f"{REWARD}[c] > {REWARD}[a]",
         "where": "estimator=a,c"},
    ]  # fmt: skip
    document = {"common": {"sweep": "main"}, "claims": listed}
    [line] = [
        line
        for line in evaluate_claims(lab.store, parse_claim_list(document)).provenance
        if "sweep main" in line
    ]
    assert "sweep main: 9 runs" in line


def test_a_condition_on_a_list_is_judged(lab, constant):
    for level in (0, 1):
        for seed in range(3):
            for estimator, reward in (("a", 0.4), ("b", 0.5 + 0.01 * seed - 0.3 * level)):
                points = constant(reward__mean=reward)
                lab.run(estimator, seed, points=points, sweep="lists", levels=[level])
    claim = {"statement": f"{REWARD}[b] > {REWARD}[a]"}
    found = _evaluate(lab, *({**claim, "where": f"levels=[{i}]"} for i in (0, 1)), sweep="lists")
    verdicts = [result.verdict for result in found]
    assert verdicts == [ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED], found[0].reason
