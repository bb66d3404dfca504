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
    own = found.groupby("scale")["verdict"].value_counts()
    assert own["exact"].to_dict() == {"holds": 25, "contradicted": 2}
    assert own["toy"].to_dict() == {"holds in sign": 4}
    verdicts = found["verdict"]
    # +.0125 of printed .04 to .06; -.0016 and -.016 at one rate for both.
    assert verdicts["AV03"] == "holds in sign"
    assert verdicts["AG13"] == verdicts["AG14"] == "not judged: step not matched"
    # The rates of collapse differ by .002, printed .17; three virtual-reward strategies are alike.
    assert verdicts["AV02"] == "holds in sign"
    assert verdicts["AV11"] == "no effect that counts"
    assert verdicts["AV08"] == "holds in size"
    assert verdicts["AG21"] == "holds in sign"
    assert verdicts["AV21"] == "not judged"
    assert found.loc["AV03", "elsewhere"] == "tiny transformer: not judged: step not matched"


def test_the_committed_ledger_is_what_make_papers_writes(found):
    written = found.to_csv(float_format="%.6g")
    assert papers.LEDGER.read_text("utf-8") == written


def parts(*rows):
    columns = ["part", "scale", "verdict", "p_value", "n", "setting", "reason", "study"]
    rows = [(*row, 3, "", "why", "2026-01-31") for row in rows]
    made = pd.DataFrame(rows, columns=columns).set_index("part")
    return made.assign(**dict.fromkeys(papers.SIZES, math.nan))


@pytest.mark.parametrize(
    ("model", "bandit", "verdict", "scale"),
    [
        ("holds in sign", "contradicted", "holds in sign", "tiny transformer"),
        ("no effect that counts", "holds in size", "no effect that counts", "tiny transformer"),
        ("cannot tell", "contradicted", "contradicted", "bandit"),
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
    assert judged(("contradicted", 0.02), ("holds in sign", 0.3))["verdict"] == "contradicted"
    lost = judged(("contradicted", 0.03), ("holds in sign", 0.3))
    assert lost["verdict"] == "cannot tell"
    assert lost["reason"] == "why; p = 0.06 among its parts (Holm)"
    # A claim holds in size if all its parts do.
    assert judged(("holds in size", 0.04), ("holds in sign", 0.04))["verdict"] == "holds in sign"
    assert judged(("holds in size", 0.04), ("holds in size", 0.04))["verdict"] == "holds in size"
    withheld = judged(("holds in size", 0.01), (None, math.nan))
    assert (withheld["verdict"], withheld["reason"]) == ("cannot tell", "AV02b without data; why")


@pytest.mark.slow
def test_everything_is_printed(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["papers.py"])
    monkeypatch.setattr("papers.LEDGER", tmp_path / "ledger.csv")
    papers.main()
    assert (tmp_path / "ledger.csv").exists()
    out = capsys.readouterr().out
    assert "27 exact checks: 25 holds, 2 contradicted" in out
    assert "AV02  holds in sign, bandit: AVSPO lowers the collapse rate" in out
    assert "printed 0.04 (sec. 5.2), counts from 0.02" in out
    assert "FA07, FA31 not judged: Not studied" in out
    assert "two_stage-table4" in out
    monkeypatch.setattr("sys.argv", ["papers.py", "--csv"])
    papers.main()
    assert len(capsys.readouterr().out.splitlines()) >= 118
