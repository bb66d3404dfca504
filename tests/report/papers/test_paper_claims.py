"""The map of the papers' claims, their judges, and recorded verdicts."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from advsweep.errors import ConfigError, ReportError
from advsweep.report import ClaimVerdict, claim_lists, evaluate_claims, read_claim_list
from advsweep.report.papers.paper_claims import (
    THEORY,
    PaperClaim,
    PartVerdict,
    Scale,
    judge_papers,
    paper_claim_of,
    read_paper_claims,
)
from advsweep.report.papers.recorded_verdicts import (
    RECORDED,
    RecordedVerdict,
    read_recorded,
    record_verdicts,
    with_recorded,
)
from advsweep.report.papers.render_paper_claims import render_paper_claims
from advsweep.writing import FORMATS

REWARD = "reward/mean"
HOLDS, CONTRADICTED = ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED
CANNOT_TELL, NOT_JUDGED = ClaimVerdict.CANNOT_TELL, ClaimVerdict.NOT_JUDGED


def test_the_map_has_all_117_claims():
    claims = read_paper_claims()
    papers = {"AV": 30, "AG": 22, "AA": 15, "TS": 18, "FA": 32}
    assert Counter(claim.id[:2] for claim in claims) == papers
    assert len({claim.id for claim in claims}) == 117
    assert sum(claim.judge == THEORY for claim in claims) == 27
    assert all(bool(claim.judge) is not bool(claim.why) for claim in claims)
    assert all(claim.why.endswith(".") for claim in claims if claim.why)


def test_the_checks_of_theorems_are_those_of_the_map():
    from advsweep.theory import CHECKS

    mapped = {claim.id for claim in read_paper_claims() if claim.judge == THEORY}
    assert {check.id for check in CHECKS} == mapped


def test_the_map_and_the_lists_agree():
    claims = read_paper_claims()
    named = {claim.judge for claim in claims} - {"", THEORY}
    for name, path in claim_lists().items():
        if name not in named:
            continue
        listed = {paper_claim_of(claim.id) for claim in read_claim_list(path).claims} - {None}
        mapped = {claim.id for claim in claims if claim.judge == name}
        for claim in claims:
            for letter in claim.parts.split() if claim.judge == name else []:
                id = claim.id + letter.strip("-")
                assert id in {listed.id for listed in read_claim_list(path).claims}, id
        assert mapped <= listed, f"{name} does not have them"
        elsewhere = {claim.id for claim in claims if claim.judge not in ("", name)}
        assert listed <= mapped | elsewhere, f"{name} judges what the map does not say"


@pytest.mark.parametrize("extra", [{}, {"judge": "theory", "why": "so"}, {"jugde": "theory"}])
def test_an_entry_needs_one_of_judge_and_why(tmp_path, extra):
    path = tmp_path / "map.yaml"
    entry = {"section": "1", "says": "so", **extra}
    path.write_text(yaml.safe_dump({"x": {"title": "X", "claims": {"AV01": entry}}}))
    with pytest.raises(ConfigError, match="AV01: expected section, says, and one of judge and why"):
        read_paper_claims(path)


@pytest.fixture
def lab(lab, constant):
    """Three seeds of a and b; the reward of b is above that of a by 0.05, 0.06 and 0.07."""
    for estimator, rewards in {"a": (0.5, 0.6, 0.4), "b": (0.55, 0.66, 0.47)}.items():
        for seed, reward in enumerate(rewards):
            lab.run(estimator, seed, points=constant(reward__mean=reward), sweep="main")
    return lab


@pytest.fixture
def lists(tmp_path):
    """A list of claims about two sweeps, of which the lab has the first."""

    def entry(id, direction, sweep="main"):
        names = {"metric": REWARD, "of": "b", "than": "a", "direction": direction}
        return {"id": id, "says": "so", "sweep": sweep, "setting": "bandit, exact, small", **names}

    claims = [
        entry("AV01", "higher"),
        entry("AV02a", "higher"),
        entry("AV02b", "lower"),
        entry("AV03a", "higher"),
        entry("AV03b", "higher", "absent"),
        entry("AV04", "higher", "absent"),
        entry("other", "higher"),
    ]
    path = tmp_path / "ours.yaml"
    path.write_text(yaml.safe_dump({"title": "ours", "claims": claims}))
    return {"ours": path}


def _claims(*ids, judge="ours"):
    return [PaperClaim(id, "X", "1", f"says {id}", judge) for id in ids]


def _recorded(claim, verdict=HOLDS, day="2026-01-31", name="ours", p_value="0.01"):
    numbers = "1", "0", "2", p_value, "0.01"
    return RecordedVerdict(name, claim, verdict, 5, *numbers, "bandit", "why", day)


def test_the_worst_part_decides_and_a_part_without_data_withholds(lab, lists):
    judged = judge_papers(_claims("AV01", "AV02", "AV03", "AV04"), [], lab.store, [], lists)
    assert [v.verdict for v in judged] == [HOLDS, CONTRADICTED, CANNOT_TELL, NOT_JUDGED]
    one, two, three, four = judged
    assert [part.id for part in two.deciding.parts] == ["AV02a", "AV02b"]
    assert two.deciding.deciding.id == "AV02b"
    part = one.deciding.deciding
    assert (part.n, part.setting) == (3, "bandit, exact, small")
    assert "+0.0600" in one.reason
    assert three.deciding.missing == ("AV03b",)
    assert three.reason.startswith("AV03b without data; ")
    assert four.reason == "the store has no runs for it (ours), and no study has recorded it"


def test_recorded_verdicts_stand_in_for_runs_that_a_store_lacks(lab, lists):
    recorded = [
        _recorded("AV01", CONTRADICTED),
        _recorded("AV03b"),
        _recorded("AV04", ClaimVerdict.NOT_SETTLED),
        _recorded("AV04", CONTRADICTED, name="another"),
    ]
    claims = _claims("AV01", "AV03", "AV04")
    one, three, four = judge_papers(claims, [], lab.store, recorded, lists)
    assert (one.verdict, one.recorded) == (HOLDS, "")
    assert (three.verdict, three.recorded) == (HOLDS, "2026-01-31")
    assert [part.recorded for part in three.deciding.parts] == ["", "2026-01-31"]
    assert four.verdict is ClaimVerdict.NOT_SETTLED
    # Without a store all of them are recorded ones.
    one, *_ = judge_papers(claims, [], None, recorded, lists)
    assert (one.verdict, one.recorded, one.reason) == (CONTRADICTED, "2026-01-31", "why")


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
    ],
)
def test_the_largest_scale_that_decides_gives_the_verdict(tmp_path, model, bandit, verdict, scale):
    path = tmp_path / "two.yaml"
    common = {"says": "so", "statement": "a[b] > 0"}
    claims = [
        {"id": "AV01a", "setting": "bandit with a map", **common},
        {"id": "AV01b", "setting": "tiny model on routes", **common},
        {"id": "AV01c", "setting": "tiny model on routes", **common},
    ]
    path.write_text(yaml.safe_dump({"claims": claims}))
    settings = {"AV01a": "bandit with a map", "AV01b": "tiny model on routes"}
    verdicts = {"AV01a": bandit, "AV01b": model}
    recorded = [
        replace(_recorded(id, ClaimVerdict(v), name="two"), setting=settings[id])
        for id, v in verdicts.items()
        if v
    ]
    # AV01c is a variant that does not count.
    recorded.append(_recorded("AV01c", CONTRADICTED, name="two"))
    claim = replace(_claims("AV01", judge="two")[0], parts="a b")
    (judged,) = judge_papers([claim], [], None, recorded, {"two": path})
    assert (judged.verdict.value, judged.deciding.scale.value) == (verdict, scale)
    line = render_paper_claims([judged], "markdown")
    if model and bandit not in (verdict, None):
        assert f"bandit: {bandit}" in line


@pytest.mark.parametrize(
    ("setting", "scale"),
    [
        ("exact", Scale.EXACT),
        ("bandit, exact, small", Scale.BANDIT),
        ("toy of three actions", Scale.TOY),
        ("routes, widths 64 and 32", Scale.TINY),
        ("", Scale.TINY),
    ],
)
def test_the_first_word_of_a_setting_names_its_scale(setting, scale):
    assert Scale.of(setting) is scale


def test_parts_are_corrected_among_themselves(lists):
    """Holm: of p = .02 and .3 the first is .04; of .03 and .3 it is .06."""

    def judged(first, second, verdict=CANNOT_TELL):
        recorded = [
            _recorded("AV02a", CONTRADICTED, p_value=first),
            _recorded("AV02b", verdict, p_value=second),
        ]
        [result] = judge_papers(_claims("AV02"), [], None, recorded, lists)
        return result

    assert judged("0.02", "0.3").verdict is CONTRADICTED
    lost = judged("0.03", "0.3", HOLDS)
    assert lost.verdict is ClaimVerdict.NOT_SETTLED
    assert lost.reason == "why; p = 0.06 among its parts (Holm)"
    # Without a test there is nothing to correct.
    assert judged("", "0.3").verdict is CONTRADICTED
    # To hold, all parts must: their p are not corrected.
    recorded = [_recorded(f"AV02{letter}", p_value="0.04") for letter in "ab"]
    [both] = judge_papers(_claims("AV02"), [], None, recorded, lists)
    assert both.verdict is HOLDS


def test_exact_checks_and_empirical_claims_have_tallies_of_their_own(lists):
    theory = [PartVerdict("FA01", HOLDS, 7, "exact", "2, expected 2")]
    claims = [*_claims("FA01", judge=THEORY), *_claims("AV01", "AV02", "AV04")]
    recorded = [_recorded("AV01"), _recorded("AV02a", CONTRADICTED), _recorded("AV02b")]
    text = render_paper_claims(judge_papers(claims, theory, None, recorded, lists), "markdown")
    assert "- 1 exact check: 1 hold, 0 contradicted\n" in text
    assert "- 3 empirical claims: 1 hold, 1 contradicted, 1 not judged\n" in text
    assert "- of these 2 by the bandit: 1 hold, 1 contradicted\n" in text
    # The scale stands with each empirical verdict.
    assert "| FA01 | holds |" in text
    assert "| AV02 | contradicted: bandit |" in text
    assert "| AV04 | not judged |" in text


def test_theorems_and_claims_that_nothing_judges(lists):
    claims = [
        *_claims("FA01", judge=THEORY),
        replace(_claims("AV04", judge="")[0], why="It needs more."),
        *_claims("AV05"),
        *_claims("AV06", judge="absent"),
    ]
    theory = [PartVerdict("FA01", CONTRADICTED, 7, "exact", "2, expected 1")]
    judged = judge_papers(claims, theory, None, [], lists)
    assert [v.verdict for v in judged] == [CONTRADICTED, NOT_JUDGED, NOT_JUDGED, NOT_JUDGED]
    assert [v.reason for v in judged] == [
        "2, expected 1",
        "It needs more.",
        "the list ours does not have it",
        "the list absent does not have it",
    ]


def test_verdicts_are_recorded_and_replace_those_of_their_list(lab, lists, tmp_path):
    path = tmp_path / "recorded.csv"
    results = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    assert record_verdicts(lab.store, "ours", results, path) == 5
    assert record_verdicts(lab.store, "another", results, path) == 5
    first = path.read_bytes()
    assert record_verdicts(lab.store, "ours", results, path) == 5
    assert path.read_bytes() == first
    rows = read_recorded(path)
    assert [row.list for row in rows] == ["another"] * 5 + ["ours"] * 5
    row = rows[5]
    assert (row.claim, row.verdict, row.n, row.difference) == ("AV01", HOLDS, 3, "0.06")
    assert row.reason == results.results[0].reason
    finished = [run.finished for run in lab.store.runs.select(sweep="main")]
    assert row.study == max(finished).date().isoformat()
    # What was recorded is judged as the store was.
    claims = _claims("AV01", "AV02", "AV03")
    live = judge_papers(claims, [], lab.store, [], lists)
    stored = judge_papers(claims, [], None, rows, lists)
    assert [v.verdict for v in live] == [v.verdict for v in stored]


def test_claims_of_another_store_keep_their_verdicts(lab, lists, tmp_path):
    path = tmp_path / "recorded.csv"
    results = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    record_verdicts(lab.store, "ours", results, path)
    text = path.read_text().replace("ours,AV01,holds", "ours,AV04,contradicted")
    path.write_text(text.replace("ours,AV03a", "ours,dropped"))
    record_verdicts(lab.store, "ours", results, path)
    verdicts = {row.claim: row.verdict for row in read_recorded(path)}
    assert list(verdicts) == ["AV01", "AV02a", "AV02b", "AV03a", "AV04", "other"]
    assert (verdicts["AV01"], verdicts["AV04"]) == (HOLDS, CONTRADICTED)


def test_recorded_verdicts_follow_what_the_list_says_now(lab, lists, tmp_path):
    """The numbers of a study stay where its runs are not; what may be said of them may change."""
    path = tmp_path / "recorded.csv"
    results = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    record_verdicts(lab.store, "ours", results, path)
    document = yaml.safe_load(lists["ours"].read_text())
    first, two_a, two_b, *_ = document["claims"]
    for entry in document["claims"]:
        # `other` alone is judged again.
        entry["sweep"] = "main" if entry["id"] == "other" else "elsewhere"
    first["confounded"] = "step not matched"
    two_a |= {"seeds": 6, "setting": "bandit, one table"}
    two_b["direction"] = "higher"  # another claim than the one that was judged
    lists["ours"].write_text(yaml.safe_dump(document))
    changed = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    assert record_verdicts(lab.store, "ours", changed, path) == 1
    rows = {row.claim: row for row in read_recorded(path)}
    assert list(rows) == ["AV01", "AV02a", "AV03a", "other"]
    one, two = rows["AV01"], rows["AV02a"]
    assert (one.verdict.value, one.n, one.difference) == ("not judged: step not matched", 3, "0.06")
    assert one.reason.startswith(f"not judged: step not matched: {REWARD}[b] > {REWARD}[a]: ")
    assert (two.verdict, two.setting) == (CANNOT_TELL, "bandit, one table")
    assert two.reason.endswith("; the claim asks for 6 seeds, and there are 3")
    assert rows["AV03a"].reason == results.results[3].reason
    # Once more changes nothing.
    before = path.read_bytes()
    record_verdicts(lab.store, "ours", changed, path)
    assert path.read_bytes() == before
    # Differences of 0 for every seed were recorded as contradictions once.
    text = path.read_text().replace(",0.06,0.0351586,0.0848414,", ",0,0,0,")
    path.write_text(text.replace("AV03a,holds", "AV03a,contradicted"))
    record_verdicts(lab.store, "ours", changed, path)
    assert {r.claim: r.verdict for r in read_recorded(path)}["AV03a"] is ClaimVerdict.EQUAL
    path.write_bytes(before)
    # The results of the list show them where the store has none.
    shown = with_recorded(changed, "ours", read_recorded(path)).results
    verdicts = [result.verdict for result in shown]
    assert verdicts == [one.verdict, CANNOT_TELL, NOT_JUDGED, HOLDS, *[NOT_JUDGED] * 2, HOLDS]
    assert shown[0].reason.startswith(f"recorded {one.study}: not judged: step not matched: ")
    assert shown[0].difference == pytest.approx(0.06)


def test_a_store_without_the_runs_erases_nothing(lab, lists, tmp_path):
    path = tmp_path / "recorded.csv"
    results = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    record_verdicts(lab.store, "ours", results, path)
    before = path.read_bytes()
    none = replace(results, results=tuple(replace(r, n=0) for r in results.results))
    with pytest.raises(ReportError, match="expected runs that judge a claim at least"):
        record_verdicts(lab.store, "ours", none, path)
    assert path.read_bytes() == before


def test_another_file_is_not_overwritten(lab, lists, tmp_path):
    path = tmp_path / "recorded.csv"
    path.write_text("a,b\n1,2\n")
    results = evaluate_claims(lab.store, read_claim_list(lists["ours"]))
    with pytest.raises(ConfigError, match="expected the columns list, claim"):
        record_verdicts(lab.store, "ours", results, path)
    assert path.read_text() == "a,b\n1,2\n"


def test_the_recorded_file_of_the_package_can_be_read():
    known = {claim.id for claim in read_paper_claims()}
    lists = {name: read_claim_list(path) for name, path in claim_lists().items()}
    for row in read_recorded(RECORDED):
        assert row.claim in {claim.id for claim in lists[row.list].claims}
        assert paper_claim_of(row.claim) in known | {None}
        assert row.verdict is not NOT_JUDGED


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_every_claim(lab, lists, format):
    claims = _claims("AV01", "AV02", "AV03", "AV04")
    judged = judge_papers(claims, [], lab.store, [_recorded("AV03b")], lists)
    text = render_paper_claims(judged, format)
    assert text.endswith("\n")
    if format == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["claim"] for row in rows] == ["AV01", "AV02", "AV03", "AV04"]
        assert rows[2]["recorded"] == "2026-01-31"
    elif format == "json":
        entries = json.loads(text)["claims"]
        parts = [[len(scale["parts"]) for scale in entry["scales"]] for entry in entries]
        assert parts == [[1], [2], [2], []]
    else:
        assert "4 empirical claims: 2 hold, 1 contradicted, 1 not judged" in text
        assert "bandit, exact" in text
        assert "AV04 not judged: the store has no runs" in text
        assert "2026-01-31" in text
