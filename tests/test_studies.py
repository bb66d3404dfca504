"""The committed results of the studies: what a study needs before its verdicts mean anything."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
import yaml
from scipy.special import stdtrit
from scipy.stats import nct

import advsweep
from advsweep.cli.app import app
from advsweep.report.claims.lists import claim_lists, read_claim_list
from advsweep.statistics import compare_paired, pool_spread

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
STUDIES = sorted(path.parent.name for path in FOLDER.glob("*/study.yaml"))
# Three have RANGES, negative weights and long walks begin beyond the gates, and a model
# of others has no floor and no ratios.
OTHERS = ("leaderboard", "speed", "turns", "negative_weights", "real_model", "scale", "random_real")
TRAINED = [f"{n}/report" for n in STUDIES if n not in OTHERS]
RANGES = [
    *("leaderboard/hard", "leaderboard/middle", "leaderboard/easy"),
    *("speed/hard", "speed/easy"),
    *("turns/table_short", "turns/tiny_short"),
]
NOT_DRAWN_YET = {("fade", "forest.svg"), ("a_grae", "forest.svg")}
"""The stores of these studies are gone; the figures are drawn when the studies are run again."""
ROOT: Any = typer.main.get_command(app)
Rows = list[dict[str, str]]


def read(name: str) -> Rows:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(rows: Rows, name: str) -> dict[str, str]:
    return next(row for row in rows if row["estimator"] == name)


@pytest.mark.parametrize("name", STUDIES)
def test_every_file_of_a_study_is_there_and_named_on_its_page(name: str) -> None:
    study = yaml.safe_load((FOLDER / name / "study.yaml").read_text("utf-8"))
    files = [f"{table['file']}.csv" for table in study["tables"]]
    files += [figure["file"] for figure in study.get("figures", [])]
    for entry in study.get("matched", []):
        files.append(f"{entry['file']}.csv")
        if entry.get("drawn", True):
            files.append(f"{entry['file']}.svg")
    files += ["claims.csv", "runs.csv"]
    page = (FOLDER / name / "README.md").read_text("utf-8")
    for file in files:
        assert (FOLDER / name / file).is_file() or (name, file) in NOT_DRAWN_YET, file
    for file in ("claims.csv", "runs.csv"):
        assert file in page


@pytest.mark.parametrize("name", STUDIES)
def test_the_commands_have_the_options_of_a_study(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import study

    described = yaml.safe_load((FOLDER / name / "study.yaml").read_text("utf-8"))
    for kind, command, options, others in (
        ("tables", "report", study.TABLE_OPTIONS, {"file", "sweep", "columns"}),
        ("figures", "plot", study.FIGURE_OPTIONS, {"file", "sweep", "records"}),
    ):
        for entry in described.get(kind, []):
            assert set(entry) <= {*options, *others}
        offered = {
            opt for parameter in ROOT.get_command(None, command).params for opt in parameter.opts
        }
        assert {f"--{option}" for option in options} <= offered


@pytest.mark.parametrize("name", [*TRAINED, *RANGES])
def test_the_base_is_above_chance_and_has_room_to_learn(name: str) -> None:
    """The gates: pass@1 of the base from .1 to .5, and its pass@32 at least .3 above guessing."""
    base = row(read(name), "base")
    assert int(base["n"]) >= 3
    assert 0.1 <= float(base["pass@1"]) <= 0.5
    assert float(base["pass@32[above=guess]"]) >= 0.3


@pytest.mark.parametrize("name", [*TRAINED, *RANGES])
def test_every_arm_has_three_seeds_and_an_interval(name: str) -> None:
    trained = [r for r in read(name) if r["estimator"] not in ("base", "guess", "walker")]
    assert len(trained) >= 4
    for arm in trained:
        assert int(arm["n"]) >= 3, arm["estimator"]
        assert float(arm["pass@1_low"]) < float(arm["pass@1"]) < float(arm["pass@1_high"])


@pytest.mark.parametrize("name", [*TRAINED, *RANGES])
def test_ratios_leave_the_clip_range_where_a_study_compares_them(name: str) -> None:
    rows = read(name)
    if "loss/clip_fraction" in rows[0]:
        assert max(float(r["loss/clip_fraction"] or 0) for r in rows) >= 0.01
    else:
        # Cross-entropy has no ratio: each rollout is used once, and the page says so.
        page = (FOLDER / name).parent / "README.md"
        assert "every rollout is used once" in page.read_text("utf-8")


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_has_a_verdict_that_names_n(name: str) -> None:
    listed = {claim.id for claim in read_claim_list(claim_lists()[name]).claims}
    judged = {r["claim"]: r for r in read(f"{name}/claims")}
    assert listed <= set(judged)
    assert set(judged) <= listed
    for verdict in judged.values():
        assert verdict["verdict"] != "not judged", verdict["claim"]
        if verdict["verdict"] in ("holds", "contradicted"):
            assert int(verdict["n"]) >= 2


@pytest.mark.parametrize(("of", "best"), [("hard", 0.0002), ("middle", 0.0004), ("easy", 0.0002)])
def test_the_table_of_the_leaderboard_follows_from_the_values_of_its_runs(
    of: str, best: float
) -> None:
    """Means, and paired differences to RLOO, from the values at the end of each run."""
    ends: dict[str, dict[int, float]] = {}
    for run in read("leaderboard/runs"):
        if run["sweep"] == f"leaderboard-{of}" and run["step"] == "150":
            ends.setdefault(run["row"], {})[int(run["seed"])] = float(run["pass@1"])
    values = np.array([[own[seed] for seed in range(8)] for own in ends.values()])
    assert values.shape == (18, 8)
    places = {name: place for place, name in enumerate(ends)}
    rloo = values[places[f"rloo optimizer.lr={best:g}"]]
    spread = pool_spread(values)
    assert spread is not None
    trained = [r for r in read(f"leaderboard/{of}") if r["optimizer.lr"]]
    assert len(trained) == 18
    for row in trained:
        name = f"{row['estimator']} optimizer.lr={float(row['optimizer.lr']):g}"
        scope = row["estimator.scope"]
        place = places[name if not scope else f"{name} estimator.scope={scope}"]
        assert values[place].mean() == pytest.approx(float(row["pass@1"]), abs=1e-5)
        if row["pass@1_difference"]:
            pooled = None if spread.wider[place] else spread.pooled
            found = compare_paired(values[place], rloo, pooled=pooled)
            for end, column in (("difference", ""), ("low", "_low"), ("high", "_high")):
                recorded = float(row[f"pass@1_difference{column}"])
                assert getattr(found, end) == pytest.approx(recorded, abs=2e-5), name


MATCHED = [
    (name, entry)
    for name in ("leaderboard", "speed")
    for entry in yaml.safe_load((FOLDER / name / "study.yaml").read_text("utf-8"))["matched"]
]


def matched_pairs(entry: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Rows of `runs.csv` and what each is compared with, in the order of the recorded lines."""
    if "pairs" not in entry:
        (rloo,) = [name for name in names if name.startswith("rloo optimizer")]
        return {name: rloo for name in names if name != rloo}
    found = {}
    for pair in entry["pairs"].items():
        rates = [(short.split()[0], float(short.split()[1])) for short in pair]
        row, other = [f"{estimator} optimizer.lr={rate:g}" for estimator, rate in rates]
        found[row] = other
    return found


@pytest.mark.parametrize(
    ("name", "entry"), MATCHED, ids=[f"{name}-{entry['file']}" for name, entry in MATCHED]
)
def test_differences_at_equal_pass_1_are_those_of_the_runs(
    name: str, entry: dict[str, Any]
) -> None:
    """Each run and the other of its seed, where pass@1 first comes to one level.

    The level is that of the entry, or the lower of the ends of the two.
    """
    runs = pd.read_csv(FOLDER / name / "runs.csv", low_memory=False)
    runs = runs[runs["sweep"] == entry["sweep"]].sort_values("step", kind="stable")
    pairs = matched_pairs(entry, list(dict.fromkeys(runs.sort_index()["row"])))
    curves = {
        key: of[["pass@1", "entropy/right_rarefied"]] for key, of in runs.groupby(["row", "seed"])
    }
    recorded = read(f"{name}/{entry['file']}")
    entropies = [line for line in recorded if line["outcome"] == "entropy/right_rarefied"]
    compared = 0
    for line, (row, other) in zip(entropies, pairs.items(), strict=True):
        assert line["row"].split()[0] == row.split()[0]
        differences = []
        for seed in runs["seed"].unique():
            pair = [curves[of, seed].to_numpy().T for of in (row, other)]
            level = entry.get("level", min(x[-1] for x, _ in pair))
            values = []
            for x, y in pair:
                after = int(np.argmax(x >= level))
                gap = 0.0 if x[after] == level else x[after] - x[after - 1]
                if x[0] > level or x.max() < level or gap > (level - x[0]) / 2:
                    values.append(np.nan)
                    continue
                share = (x[after] - level) / gap if gap else 0.0
                values.append(y[after] - share * (y[after] - y[after - 1]))
            differences.append(values[0] - values[1])
        told = np.array(differences)[np.isfinite(differences)]
        assert int(line["n"]) == len(told)
        if len(told) > 1:
            half = stdtrit(len(told) - 1, 0.975) * told.std(ddof=1) / math.sqrt(len(told))
            ends = [float(line[end]) for end in ("difference", "low", "high")]
            mean = told.mean()
            assert ends == pytest.approx([mean, mean - half, mean + half], abs=2e-5), row
            compared += 1
    assert compared >= min(15, len(pairs))


def test_psr_comes_to_the_level_in_a_share_of_the_steps_of_rloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps to the first crossing of .45 on hard prompts, by a line from the evaluation before."""
    monkeypatch.syspath_prepend(str(FOLDER.parent / "tools"))
    import page_queries

    runs = pd.read_csv(FOLDER / "speed" / "runs.csv")
    runs = runs[(runs["sweep"] == "speed-hard") & (runs["optimizer.lr"] == 2e-4)]
    reached = {}
    for (estimator, seed), of in runs.sort_values("step").groupby(["estimator", "seed"]):
        steps, values = of["step"].to_numpy(), of["pass@1"].to_numpy()
        after = next(place for place, value in enumerate(values) if value >= 0.45)
        ends = slice(after - 1, after + 1)
        reached[estimator, seed] = np.interp(0.45, values[ends], steps[ends])
    shares = [reached["psr", seed] / reached["rloo", seed] for seed in range(400, 412)]
    half = stdtrit(11, 0.975) * np.std(shares, ddof=1) / math.sqrt(12)
    expected = [np.mean(shares), np.mean(shares) - half, np.mean(shares) + half]
    assert page_queries.evaluate("speed.share_of_steps hard 2e-4") == pytest.approx(expected)


def test_psr_on_a_real_model_has_the_seeds_that_its_rule_asks_for() -> None:
    """By the power of a paired t test of .046 at 1e-5, whose spread of the first six is larger."""
    runs = pd.read_csv(FOLDER / "scale" / "runs.csv")
    ends = runs[runs["step"] == 20].pivot(index="seed", columns="row", values="pass@1")
    differences = ends["psr optimizer.lr=1e-05"] - ends["rloo optimizer.lr=1e-05"]
    effect = 0.046 / differences.loc[500:505].std(ddof=1)

    def power(n: int) -> float:
        return float(nct.sf(stdtrit(n - 1, 0.975), n - 1, effect * math.sqrt(n)))

    needed = next(n for n in range(2, 100) if power(n) >= 0.8)
    assert 6 <= needed <= 16
    assert ends.index.tolist() == list(range(500, 500 + needed))
    assert ends.notna().all(axis=None)
    # The other rate, with the spread that the report pools, asks for fewer.
    rows = [row for row in read("scale/first") if row["estimator"] == "psr"]
    assert max(int(row["pass@1_seeds_needed"]) for row in rows) == needed


def test_figures_at_equal_pass_1_need_the_recorded_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import study

    runs = pd.read_csv(FOLDER / "leaderboard" / "runs.csv", low_memory=False)
    _, entry = MATCHED[0]
    runs[runs["sweep"] == entry["sweep"]].to_csv(tmp_path / "runs.csv", index=False)
    study.write_matched({"matched": [entry]}, tmp_path)
    made, recorded = (
        pd.read_csv(folder / f"{entry['file']}.csv")
        for folder in (tmp_path, FOLDER / "leaderboard")
    )
    pd.testing.assert_frame_equal(made, recorded, rtol=1e-4)
    assert (tmp_path / f"{entry['file']}.svg").read_text("utf-8").startswith("<?xml")
    # A sweep that is not in the store keeps its lines.
    store = str(tmp_path / "studies.db")
    advsweep.store.open_store(store).close()
    kept = study.recorded_or_stored(entry["sweep"], tmp_path, store)
    assert len(kept) == 1296


STUDIED = ["a_grae", "demo", "fade", "gpu", "leaderboard", "negative_weights", "real_model"]
STUDIED += ["staleness", "two_stage"]
NUMBER = r"[+-]?\d*\.\d+"
ON_A_PAGE = re.compile(rf"(?<![\d.])({NUMBER})(?:\*\*)? \[({NUMBER}), ({NUMBER})\]")
IN_A_REASON = re.compile(rf"({NUMBER}), 95 % interval \[({NUMBER}), ({NUMBER})\]")


def intervals(folder: Path) -> list[tuple[float, ...]]:
    """Every number with its interval in a study's CSVs, in the reasons of its verdicts too."""
    found = []
    for path in folder.rglob("*.csv"):
        rows = read(str(path.relative_to(FOLDER).with_suffix("")))
        named = [(name, f"{name}_low", f"{name}_high") for name in rows[0]]
        named += [(name, "low", "high") for name in ("difference", "off")]
        sides = ("gpu", "cpu", "vector", "plain", "seeds")
        named += [(f"{of}_difference", f"{of}_low", f"{of}_high") for of in sides]
        columns = [names for names in named if set(names) <= set(rows[0])]
        for row in rows:
            texts = [[row[name] for name in names] for names in columns]
            texts += IN_A_REASON.findall(row.get("reason", ""))
            found += [tuple(map(float, text)) for text in texts if all(text)]
    return found


@pytest.mark.parametrize("name", STUDIED)
def test_the_intervals_on_a_page_are_those_of_its_files(name: str) -> None:
    known = np.array(intervals(FOLDER / name))
    page = (FOLDER / name / "README.md").read_text("utf-8")
    printed = ON_A_PAGE.findall(page)
    assert len(printed) > 5
    for texts in printed:
        # A page may turn a difference round, or give its size.
        ways = [known, -known[:, [0, 2, 1]]]
        digits = len(texts[1].partition(".")[2])
        wanted = np.array([float(text) for text in texts])
        least = min(np.abs(way - wanted).max(axis=1).min() for way in ways)
        assert least <= 0.51 * 10**-digits, texts


def test_verdicts_that_stay_with_other_bits_keep_their_sign() -> None:
    found = pd.read_csv(FOLDER / "leaderboard" / "processors.csv")
    here, there = (found[f"{name}_p_adjusted"] <= 0.05 for name in ("vector", "plain"))
    same = found["vector_difference"] * found["plain_difference"] > 0
    assert (here & there).sum() > 1
    assert same[here & there].all()
    page = (FOLDER / "leaderboard" / "README.md").read_text("utf-8")
    assert "pass their test in both, with the same sign" in page


def test_the_phase_diagram_and_its_rules_follow_from_the_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER / "negative_weights"))
    import phase

    table, recorded = phase.cells(), pd.read_csv(FOLDER / "negative_weights" / "cells.csv")
    pd.testing.assert_frame_equal(table, recorded, check_dtype=False, rtol=1e-5)
    broken = table["broken"] > table["seeds"] / 2
    by_rule, by_fit = phase.is_right(table), phase.fitted(table)
    page = (FOLDER / "negative_weights" / "README.md").read_text("utf-8")
    assert f"{by_rule.sum()} of {len(table)} cells right" in page
    assert f"all {by_rule[broken].sum()} broken cells, but {(~by_rule[~broken]).sum()} more" in page
    assert f"none broken would be right in {(~broken).sum()}" in page
    assert (
        f"has {by_fit.sum()} right and finds {by_fit[broken].sum()} of the {broken.sum()}" in page
    )
    ends = table.set_index(["level", "weight", "lr"])["end"]
    names = {math.inf: "successes alone", 0.0: "failures alone"}
    for weight in table["weight"].unique():
        cells = [f"{ends[level, weight, 3e-4]:.3f}"[1:] for level in (0, 3, 6)]
        name = names.get(weight, f"λ = {weight:g}")
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert [cell.split(",")[0].strip() for cell in line.split("|")[2:5]] == cells


@pytest.mark.parametrize("name", ["staleness", "leaderboard"])
def test_the_differences_of_a_study_are_those_of_its_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every interval, degree of freedom and p, from the runs by the rule of today's reports."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import judge_runs

    runs = judge_runs.StudyRuns(FOLDER / name)
    compared = 0
    for table in runs.study["tables"]:
        if "pass@1_difference" not in read(f"{name}/{table['file']}")[0]:
            continue
        report, records = judge_runs.make_report(runs, table)
        assert not judge_runs.has_other_intervals(report, records), table["file"]
        for difference in report.differences:
            column = difference.column.name
            line = records[difference.row]
            assert float(line[f"{column}_df"]) == pytest.approx(difference.comparison.df)
            if difference.is_primary and line[f"{column}_p_adjusted"]:
                recorded = float(line[f"{column}_p_adjusted"])
                assert recorded == pytest.approx(difference.p_adjusted, rel=2e-3, abs=2e-4)
            compared += 1
    assert compared > 50


def test_the_verdicts_on_staleness_are_those_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import judge_runs

    runs = judge_runs.StudyRuns(FOLDER / "staleness")
    recorded = {row["claim"]: row for row in read("staleness/claims")}
    found = judge_runs.judge_claims_of(runs).results
    assert len(found) == len(recorded)
    for finding in found:
        assert finding.claim is not None
        line = recorded[finding.claim.id]
        assert line["verdict"] == finding.verdict.value
        assert float(line["low"]) == pytest.approx(finding.low, rel=1e-4)
        assert line["reason"] == finding.reason


def test_the_repetition_of_the_baseline_goes_through_the_tests_of_its_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of staleness: the A/A arm has the spread, the family and the equivalence test of the others.

    The clipped loss at an age of one step and the A/A arm differ by the same .015 from it.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    import judge_runs

    runs = judge_runs.StudyRuns(FOLDER / "staleness")
    report, _ = judge_runs.make_report(runs, runs.study["tables"][0])
    of = {}
    for difference in report.primary:
        group = report.rows[difference.row].group
        if difference.column.name == "pass@1" and group["objective"] == "clipped":
            key = (group["estimator"], group["backend.stale_steps"], group["objective.correction"])
            if group["objective.ratio"] == "token":
                of[key] = difference
    again, aged = of["rloo (A/A)", 0, "none"], of["rloo", 1, "none"]
    assert again.comparison.sd == aged.comparison.sd
    assert again.comparison.difference == pytest.approx(aged.comparison.difference, abs=5e-4)
    assert min(again.p_adjusted, aged.p_adjusted) > 0.05
    error = again.comparison.sd / math.sqrt(again.comparison.n)
    half = stdtrit(again.comparison.df, 0.95) * error
    assert abs(again.comparison.difference) + half < 0.03


@pytest.mark.slow
def test_the_values_of_a_study_s_runs_are_those_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import study

    store = str(tmp_path / "studies.db")
    options = ("steps=4", "seed=0,1", "evaluation.every=2", "evaluation.n=8", "evaluation.k=[1,2]")
    study.advsweep(
        "sweep", "backend=bandit", "model=table", "task=bandit", "optimizer=sgd", *options,
        "estimator=rloo,power_alpha", "executor=debug", "--name", "small", store=store,
    )  # fmt: skip
    runs = study.runs_of("small", store)
    found = set(runs[["row", "seed", "step"]].itertuples(index=False, name=None))
    assert found == {(n, s, i) for n in ("rloo", "power_alpha") for s in (0, 1) for i in (0, 2, 4)}
    ends = runs[runs["step"] == 4].set_index(["row", "seed"])["pass@1"].sort_index()
    direct = advsweep.load_runs(store, columns="pass@1").set_index(["estimator", "seed"])
    assert ends.tolist() == pytest.approx(direct["pass@1"].sort_index().tolist())
    assert set(runs["n"]) == {8}

    claims = "common: {sweep: small, seeds: 2}\nclaims:\n"
    for id, sweep in (("a", "small"), ("b", "absent"), ("c", "absent")):
        claims += f"  - {{id: {id}, says: so, statement: 'pass@1[rloo] > -1', sweep: {sweep}}}\n"
    (tmp_path / "claims.yaml").write_text(claims)
    # A claim whose runs are elsewhere keeps its verdict; one that left the list loses it.
    recorded = pd.DataFrame(
        [[id, "contradicted", *[1] * 6, "", "why", "2026-01-31"] for id in ("a", "b", "gone")],
        columns=study.VERDICT,
    )
    recorded.to_csv(tmp_path / "claims.csv", index=False)
    judged = study.judge_claims(tmp_path, store).set_index("claim")
    assert judged["verdict"].to_dict() == {"a": "holds", "b": "contradicted"}
    assert judged["n"].tolist() == [2, 1]
    ended = advsweep.load_runs(store)["finished"].max().date().isoformat()
    assert judged["study"].tolist() == [ended, "2026-01-31"]


@pytest.mark.parametrize("length", ["short", "long"])
def test_credit_and_learning_are_correlated_by_ranks_over_the_arms_of_each_seed(
    length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spearman's coefficient 1 - 6 Σd² / (m (m² - 1)) of m arms, from the values of the runs."""
    monkeypatch.syspath_prepend(str(FOLDER.parent / "tools"))
    import page_queries

    runs = pd.read_csv(FOLDER / "turns" / "runs.csv", low_memory=False)
    runs = runs[(runs["sweep"] == f"turns-table-{length}") & (runs["step"] == 60)]
    ends = {(row["estimator"], row["seed"]): row["pass@1"] for row in runs.to_dict("records")}
    credit = {}
    for row in read(f"turns/credit_table_{length}"):
        if row["seed"] and row["estimator.base"] != "psr":
            key = row["estimator"], int(row["seed"])
            credit[key] = float(row["credit/correlation@first5"])
    arms = ("rloo", "grpo", "psr", "turn_return", "gigpo", "by_turn")
    found = []
    for seed in range(16):
        # The turn form of PSR has the pass@1 of PSR, and is no arm of its own.
        by_turn = runs[(runs["seed"] == seed) & runs["row"].str.contains("base=rloo")]["pass@1"]
        values = [ends[arm, seed] if arm != "by_turn" else by_turn.item() for arm in arms]
        ranks = [np.argsort(np.argsort(x)) for x in (values, [credit[arm, seed] for arm in arms])]
        squares = float(np.sum((ranks[0] - ranks[1]) ** 2))
        found.append(1 - 6 * squares / (6 * 35))
    half = stdtrit(15, 0.975) * np.std(found, ddof=1) / 4
    expected = [np.mean(found), np.mean(found) - half, np.mean(found) + half]
    query = f"turns.rank_correlation table_{length} vine"
    assert page_queries.evaluate(query) == pytest.approx(expected)
