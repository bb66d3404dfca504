"""The map of the papers' claims, and their verdicts from exact checks and studies."""

from __future__ import annotations

import math
import re
from collections import Counter

import pandas as pd
import papers
import pytest
import yaml
from exact import CHECKS

from advsweep.report.claims.kinds import Statements
from advsweep.report.claims.lists import read_claim_list

EXPERIMENTS = papers.FOLDER.parent
STUDIES = sorted(path.parent.name for path in EXPERIMENTS.glob("*/study.yaml"))


def test_the_map_has_all_117_claims():
    claims = papers.read_map()
    counts = {"AV": 30, "AG": 22, "AA": 15, "TS": 18, "FA": 32}
    assert Counter(id[:2] for id in claims.index) == counts
    assert claims.index.is_unique
    assert set(claims.index[claims["judge"] == "exact"]) == set(CHECKS)
    assert ((claims["judge"] == "") == claims["why"].str.endswith(".")).all()
    document = yaml.safe_load((papers.FOLDER / "map.yaml").read_text("utf-8"))
    keys = {
        key for paper in document.values() for entry in paper["claims"].values() for key in entry
    }
    assert keys == {"section", "says", "judge", "parts", "why"}


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "leaderboard"])
def test_the_map_and_the_lists_agree(study):
    claims = papers.read_map()
    parts = set(papers.read_parts(study).index)
    own = claims[claims["judge"] == study]
    for id, letters in own["parts"].items():
        assert {id + letter.strip("-") for letter in letters.split()} <= parts
    judged = {match[0] for part in parts if (match := re.match(r"[A-Z]{2}\d{2}(?=[a-z]?$)", part))}
    assert set(own.index) <= judged
    assert judged <= set(claims.index[claims["judge"] != ""])


@pytest.mark.parametrize("study", STUDIES)
def test_recorded_verdicts_are_on_what_the_list_says_now(study):
    recorded = pd.read_csv(EXPERIMENTS / study / "claims.csv", index_col="claim")
    for claim in read_claim_list(EXPERIMENTS / study / "claims.yaml").claims:
        verdict = recorded.loc[claim.id]
        kind = claim.kind
        texts = [a.text for a in kind.assertions] if isinstance(kind, Statements) else [kind.text]
        # Of an equivalence that is open the reason names its nearer side.
        if verdict["verdict"] != "cannot tell" or " within " not in texts[0]:
            assert any(text in verdict["reason"] for text in texts), claim.id
        assert verdict["setting"] == claim.setting
        assert claim.confounded is (verdict["verdict"] == "not judged: step not matched")
        if verdict["verdict"] in ("holds", "contradicted"):
            assert verdict["n"] >= claim.seeds


@pytest.fixture(scope="module")
def found():
    return papers.judge(papers.read_map())


def test_verdicts_of_the_papers_claims(found):
    counts = {
        "exact": {"holds": 25, "contradicted": 2},
        "tiny transformer": {
            "holds": 5,
            "contradicted": 10,
            "cannot tell": 33,
            "not settled": 4,
            "not judged: step not matched": 2,
        },
        "toy": {"holds": 4},
        "bandit": {"holds": 9, "contradicted": 6, "cannot tell": 3},
    }
    own = found.groupby("scale")["verdict"].value_counts()
    assert {scale: own[scale].to_dict() for scale in counts} == counts
    assert found.loc["AV03", "elsewhere"] == "tiny transformer: not judged: step not matched"
    assert (found.loc[["AV02", "AV10", "AV21"], "verdict"] == [
        *("contradicted", "holds", "not judged")
    ]).all()  # fmt: skip
    assert "relative change -4.2%" in found.loc["AV02", "reason"]


def parts(*rows):
    columns = ["part", "scale", "verdict", "p_value", "n", "setting", "reason", "study"]
    rows = [(*row, 3, "", "why", "2026-01-31") for row in rows]
    return pd.DataFrame(rows, columns=columns).set_index("part")


@pytest.mark.parametrize(
    ("model", "bandit", "verdict", "scale"),
    [
        ("holds", "contradicted", "holds", "tiny transformer"),
        ("contradicted", "holds", "contradicted", "tiny transformer"),
        ("cannot tell", "contradicted", "contradicted", "bandit"),
        ("not settled", "holds", "holds", "bandit"),
        ("cannot tell", "not settled", "cannot tell", "tiny transformer"),
        (None, "not settled", "not settled", "bandit"),
        ("not judged: step not matched", "cannot tell", "cannot tell", "bandit"),
        ("cannot tell", "not judged: at chance", "cannot tell", "tiny transformer"),
        (None, None, "not judged", ""),
    ],
)
def test_the_largest_scale_that_decides_gives_the_verdict(model, bandit, verdict, scale):
    given = parts(
        ("AV01a", "bandit", bandit, math.nan), ("AV01b", "tiny transformer", model, math.nan)
    )
    judged = papers.judge_parts(given)
    assert (judged["verdict"], judged.get("scale", "")) == (verdict, scale)


def test_the_worst_part_decides_after_holm_and_a_part_without_data_withholds():
    def judged(*rows):
        return papers.judge_scale(
            parts(*((f"AV02{letter}", "toy", *row) for letter, row in zip("ab", rows, strict=True)))
        )

    # Of p = .02 and .3 the first is .04; of .03 and .3 it is .06.
    assert judged(("contradicted", 0.02), ("holds", 0.3))["verdict"] == "contradicted"
    lost = judged(("contradicted", 0.03), ("holds", 0.3))
    assert lost["verdict"] == "not settled"
    assert lost["reason"] == "why; p = 0.06 among its parts (Holm)"
    # Without a test there is nothing to correct; to hold, all parts must.
    assert judged(("contradicted", math.nan), ("holds", 0.3))["verdict"] == "contradicted"
    assert judged(("holds", 0.04), ("holds", 0.04))["verdict"] == "holds"
    withheld = judged(("holds", 0.01), (None, math.nan))
    assert (withheld["verdict"], withheld["reason"]) == ("cannot tell", "AV02b without data; why")


@pytest.mark.slow
def test_everything_is_printed(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["papers.py"])
    papers.main()
    out = capsys.readouterr().out
    assert "27 exact checks: 25 holds, 2 contradicted" in out
    assert "AV02  contradicted, tiny transformer: AVSPO lowers the collapse rate" in out
    assert "FA07, FA31 not judged: Not studied" in out
    assert "two_stage-table4" in out
    monkeypatch.setattr("sys.argv", ["papers.py", "--csv"])
    papers.main()
    assert len(capsys.readouterr().out.splitlines()) >= 118
