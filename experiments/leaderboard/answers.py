"""What the answer of the leaderboard says of its tables, and the tables of its pages.

`make numbers` writes these into the documents (`tools/page_numbers.py`). A difference in bold has
an adjusted p of at most .05: Benjamini-Hochberg over the primary outcomes of all rows, as in the
report.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import page_queries
import pandas as pd
import yaml
from scipy import stats

from advsweep.report.tables.matched import Matching, compare_matched
from advsweep.statistics import benjamini_hochberg, compare_paired, value_at
from advsweep.statistics.comparison import spread_of_design

FOLDER = Path(__file__).resolve().parent
RANGES = ("hard", "middle", "easy")
CONTROLS = ("base", "guess", "walker", "rloo", "rloo (A/A)", "rloo (placebo)")
PLACEBO = "rloo (placebo)"
# Three arms weigh failures more than successes.
FAILURES = ("asym_grpo", "a_grae", "grpo_n")
PROCESSORS = "leaderboard/processors.csv"
OUTCOMES = {"pass@1": "Δ pass@1", "pass@32": "Δ pass@32", "entropy": "Δ entropy"}
LEVEL = 0.05
PSR_RATE = 4e-4  # on hard prompts
GOOD = 0.9
"""The share of the best rate's pass@1 from which on a rate counts as good."""
Row = dict[str, Any]


def file_of(difficulty: str) -> str:
    return f"leaderboard/{difficulty}.csv"


def read(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Arms: selections of a row, as queries have them


def selection(row: Row) -> str:
    """Return the words that choose a row: GRPO is there twice, with σ of the batch too."""
    if row["estimator"] != "grpo":
        return row["estimator"]
    is_batch = row["estimator.scope"] == "batch"
    return f"grpo&estimator.scope{'' if is_batch else '!'}=batch"


def arms() -> list[str]:
    """Return the estimators that are compared with RLOO."""
    return [selection(row) for row in read("hard") if row["estimator"] not in CONTROLS]


def is_significant(difficulty: str, outcome: str, arm: str) -> bool:
    return page_queries.verdict(file_of(difficulty), outcome, arm) == ["significant"]


def mean_change(difficulty: str, outcome: str, arm: str) -> float:
    return float(page_queries.change(file_of(difficulty), *arm.split("&"), outcome)[0])


def arms_alike() -> list[str]:
    """Return the arms without a significant difference in pass@1 in any range."""
    return [
        arm
        for arm in arms()
        if not any(is_significant(difficulty, "pass@1", arm) for difficulty in RANGES)
    ]


def arms_alike_but_easy() -> list[str]:
    """Return the arms that differ significantly in pass@1 on easy prompts alone."""
    return [
        arm
        for arm in arms()
        if is_significant("easy", "pass@1", arm)
        and not any(is_significant(of, "pass@1", arm) for of in ("hard", "middle"))
    ]


def rate_of(difficulty: str, arm: str) -> float:
    return float(page_queries.value(file_of(difficulty), *arm.split("&"), "optimizer.lr")[0])


# Queries


def compared() -> list[float]:
    """How many estimators are compared with RLOO."""
    return [len(arms())]


def estimators() -> list[float]:
    """How many estimators the study has, RLOO among them."""
    return [len(arms()) + 1]


def alike() -> list[float]:
    """How many arms do not differ significantly in pass@1 in any range, of how many."""
    return [len(arms_alike()), len(arms())]


def alike_verdict(*difficulties: str) -> list[str]:
    """Whether the arms that are alike differ significantly in pass@1."""
    return [page_queries.verdict(file_of(of), "pass@1", *arms_alike())[0] for of in difficulties]


def alike_equivalent(margin: str, *difficulties: str) -> list[str]:
    """Whether all arms that are alike are equivalent to RLOO in pass@1 within a margin."""
    return [
        str(page_queries.equivalent(file_of(of), "pass@1", margin, *arms_alike())[0])
        for of in difficulties
    ]


def alike_margin(difficulty: str) -> list[float]:
    """The smallest margin, in thousandths, within which all that are alike are equivalent."""
    margins = [
        page_queries.equivalence_margin(file_of(difficulty), "pass@1", arm) for arm in arms_alike()
    ]
    return [math.ceil(1000 * max(margins)) / 1000]


def alike_range(difficulty: str) -> list[float]:
    """Return the least and the largest difference in pass@1 of the arms that are alike."""
    changes = [mean_change(difficulty, "pass@1", arm) for arm in arms_alike()]
    return [min(changes), max(changes)]


def alike_but_easy() -> list[float]:
    """How many arms differ significantly on easy prompts alone."""
    return [len(arms_alike_but_easy())]


def flat_arms() -> list[str]:
    """Return the arms that are alike on hard and middle prompts, PSR and failures left out."""
    return [arm for arm in arms() if arm != "psr" and arm not in FAILURES]


def flat() -> list[float]:
    """How many arms are neither PSR nor weigh failures more."""
    return [len(flat_arms())]


def flat_verdict(difficulty: str) -> list[str]:
    """Whether the flat arms differ significantly in pass@1."""
    return page_queries.verdict(file_of(difficulty), "pass@1", *flat_arms())


def failures() -> list[float]:
    """How many estimators weigh failures more than successes."""
    return [len(FAILURES)]


def ranges() -> list[float]:
    return [len(RANGES)]


def alike_number() -> list[float]:
    return [len(arms_alike())]


def range_of(difficulty: str, outcome: str, *named: str) -> list[float]:
    """The smallest and the largest size of these arms' differences."""
    sizes = [abs(mean_change(difficulty, outcome, arm)) for arm in named]
    return [min(sizes), max(sizes)]


def _flat_at(difficulty: str, rate: str) -> list[str]:
    return [arm for arm in flat_arms() if rate_of(difficulty, arm) == float(rate)]


def count_at_rate(difficulty: str, rate: str) -> list[float]:
    """How many flat arms have a rate, and the rate."""
    return [len(_flat_at(difficulty, rate)), float(rate)]


def at_rate(difficulty: str, rate: str) -> list[float]:
    """How many flat arms have a rate, the rate, and how many of them differ in entropy."""
    named = _flat_at(difficulty, rate)
    differing = [arm for arm in named if is_significant(difficulty, "entropy", arm)]
    return [len(named), float(rate), len(differing)]


def entropy_verdict(difficulty: str, rate: str) -> list[str]:
    """Whether the flat arms at a rate differ significantly in entropy."""
    return page_queries.verdict(file_of(difficulty), "entropy", *_flat_at(difficulty, rate))


def only(difficulty: str, rate: str, named: str) -> list[float]:
    """No value; an error unless one flat arm alone at a rate differs significantly in entropy."""
    differing = [
        arm for arm in _flat_at(difficulty, rate) if is_significant(difficulty, "entropy", arm)
    ]
    if differing != [named]:
        raise page_queries.QueryError(f"of {difficulty} at {rate} {differing} differ in entropy")
    return []


def entropy_range(difficulty: str, rate: str) -> list[float]:
    """The differences in entropy of flat arms at a rate: nearest to 0 and farthest from it."""
    changes = [mean_change(difficulty, "entropy", arm) for arm in _flat_at(difficulty, rate)]
    return [min(changes, key=abs), max(changes, key=abs)]


def same_rows(difficulty: str, first: str, second: str) -> list[float]:
    """No value; an error unless two estimators end with the same numbers, seed by seed."""
    runs = page_queries.table("leaderboard/runs.csv")
    runs = runs[runs["sweep"] == f"leaderboard-{difficulty}"]
    keys = ["seed", "step"]
    columns = [*keys, "pass@1", "pass@32", "entropy/answer"]
    tables = []
    for name in (first, second):
        is_batch = runs["row"].str.contains("scope=batch")
        values = runs.loc[(runs["estimator"] == name) & ~is_batch, columns]
        tables.append(values.sort_values(keys).reset_index(drop=True))
    if not tables[0].equals(tables[1]):
        raise page_queries.QueryError(f"{first} and {second} differ on {difficulty} prompts")
    return []


def flat_rates() -> list[float]:
    """The least and the largest rate that flat arms got on hard and middle prompts."""
    rates = [rate_of(of, arm) for of in ("hard", "middle") for arm in flat_arms()]
    return [min(rates), max(rates)]


def frontier() -> list[float]:
    """How many estimators, rates and evaluations the frontier's figure has."""
    runs = page_queries.table("leaderboard/runs.csv")
    runs = runs[runs["sweep"] == "leaderboard-hard-tuning"]
    return [*estimators(), runs["optimizer.lr"].nunique(), runs["step"].nunique()]


def ranges_where(outcome: str, side: str, arm: str) -> list[float]:
    """In how many ranges an arm is significantly above or below RLOO."""
    sign = {"above": 1, "below": -1}[side]
    return [
        sum(
            is_significant(of, outcome, arm) and sign * mean_change(of, outcome, arm) > 0
            for of in RANGES
        )
    ]


def same_rate(difficulty: str, arm: str) -> list[float]:
    """No value; an error unless an arm has RLOO's rate."""
    if rate_of(difficulty, arm) != rate_of(difficulty, "rloo"):
        raise page_queries.QueryError(
            f"{arm} and RLOO have different rates on {difficulty} prompts"
        )
    return []


def last_steps() -> list[float]:
    """How many steps lie between the last two evaluations."""
    before, last = sorted(page_queries.table("leaderboard/runs.csv")["step"].unique())[-2:]
    return [float(last - before)]


def last_gain(difficulty: str) -> list[float]:
    """Return RLOO's gain in pass@1 between its last two evaluations."""
    runs = page_queries.table("leaderboard/runs.csv")
    rate = rate_of(difficulty, "rloo")
    name = f"rloo optimizer.lr={rate:g}"
    values = runs[(runs["sweep"] == f"leaderboard-{difficulty}") & (runs["row"] == name)]
    means = values.groupby("step")["pass@1"].mean().sort_index()
    return [float(means.iloc[-1] - means.iloc[-2])]


def still_rising(*difficulties: str) -> list[float]:
    """No value; an error unless RLOO's last gain in pass@1 is above 0 by a paired t-test."""
    runs = page_queries.table("leaderboard/runs.csv")
    for of in difficulties:
        rloo = runs[(runs["sweep"] == f"leaderboard-{of}") & (runs["estimator"] == "rloo")]
        by_step = rloo.pivot(index="step", columns="seed", values="pass@1").sort_index()
        gain = compare_paired(by_step.iloc[-1], by_step.iloc[-2])
        if gain.low <= 0:
            raise page_queries.QueryError(f"that pass@1 rises on {of} prompts is not settled")
    return []


def destroys_the_base(*difficulties: str) -> list[float]:
    """No value; an error unless the placebo ends below its bases by a paired t-test."""
    runs = page_queries.table("leaderboard/runs.csv")
    for of in difficulties:
        placebo = runs[(runs["sweep"] == f"leaderboard-{of}") & (runs["estimator"] == PLACEBO)]
        by_step = placebo.pivot(index="step", columns="seed", values="pass@1").sort_index()
        if compare_paired(by_step.iloc[-1], by_step.iloc[0]).high >= 0:
            raise page_queries.QueryError(f"that the placebo ends lower on {of} is not settled")
    return []


def declared_margin() -> list[float]:
    """The margin of the equivalences that were declared before the sweeps ran."""
    claims = yaml.safe_load((FOLDER / "claims.yaml").read_text("utf-8"))["claims"]
    margins = {claim["margin"] for claim in claims if claim["id"].endswith("-equal")}
    if len(margins) != 1:
        raise page_queries.QueryError(f"claims.yaml declares the margins {sorted(margins)}")
    return list(margins)


def parameters() -> list[float]:
    """The weights of the model, as the settings of the claims say (103k parameters)."""
    found = {
        float(match[1])
        for setting in page_queries.table("leaderboard/claims.csv")["setting"]
        for match in re.finditer(r"(\d+)k parameters", setting)
    }
    (thousands,) = found
    return [1000 * thousands]


def claims(difficulty: str, verdict: str = "") -> list[float]:
    """How many claims of a range have a verdict; without one, how many there are."""
    listed = page_queries.table("leaderboard/claims.csv")
    listed = listed[listed["claim"].str.startswith(difficulty)]
    return [int((listed["verdict"] == verdict).sum()) if verdict else len(listed)]


def steps() -> list[float]:
    return [page_queries.last_step("leaderboard/runs.csv")]


def frontier_distance(row: str) -> list[float]:
    """A row's mean distance from RLOO's frontier, with its interval."""
    conditions = [f"row={row}", "step="]
    return page_queries.interval("leaderboard/frontier_hard.csv", *conditions, "off")


def frontier_bound() -> list[float]:
    """The hundredth that no arm's mean distance from RLOO's frontier exceeds."""
    table = page_queries.table("leaderboard/frontier_hard.csv")
    means = table[table["step"].isna()]
    return [math.ceil(100 * means["off"].abs().max()) / 100]


def moved() -> list[float]:
    """How many verdicts move with other bits, of how many."""
    here, there = _significant_here(), _significant_there()
    return [int((here != there).sum()), len(here)]


def kept() -> list[float]:
    """How many verdicts are significant with both bits, and in neither."""
    here, there = _significant_here(), _significant_there()
    return [int((here & there).sum()), int((~here & ~there).sum())]


def on_one_side() -> list[float]:
    """How many verdicts are significant with these bits alone, and with the others alone."""
    here, there = _significant_here(), _significant_there()
    return [int((here & ~there).sum()), int((there & ~here).sum())]


def moved_details() -> list[float]:
    """The verdicts that are significant with one kind of bits alone, as the page tells them.

    Their number with these bits, the differences that the page prints, and their number with the
    others.
    """
    here_alone, there_alone = on_one_side()
    batch = "grpo&estimator.scope=batch"
    printed = [
        *_with_bits("vector", batch, "pass@1"),
        *_with_bits("plain", batch, "pass@1"),
        *_with_bits("plain", "passk_mix", "pass@1"),
        *_with_bits("vector", "maxrl", "pass@32[above=guess]"),
        *_with_bits("plain", "maxrl", "pass@32[above=guess]"),
    ]
    named = {
        (batch, "pass@1"),
        (batch, "pass@32[above=guess]"),
        ("passk_mix", "pass@1"),
        ("maxrl", "pass@32[above=guess]"),
    }
    table = page_queries.table(PROCESSORS)[_significant_here() & ~_significant_there()]
    found = {
        (selection({"estimator": row.estimator, "estimator.scope": scope}), row.outcome)
        for row, scope in zip(table.itertuples(), table["estimator.scope"], strict=True)
    }
    if found != named:
        raise page_queries.QueryError(f"significant with these bits alone are {sorted(found)}")
    return [here_alone, *printed, there_alone]


def _with_bits(bits: str, arm: str, outcome: str) -> list[float]:
    conditions = [*arm.split("&"), f"outcome={outcome}"]
    row = page_queries.only_row(PROCESSORS, conditions)
    return [row[f"{bits}_{end}"] for end in ("difference", "low", "high")]


def plain_verdict(arm: str, outcome: str) -> list[str]:
    """Whether a difference is significant with the other bits."""
    conditions = [*arm.split("&"), f"outcome={outcome}"]
    row = page_queries.only_row(PROCESSORS, conditions)
    return ["significant" if row["plain_p_adjusted"] <= LEVEL else "not significant"]


def plain_verdict_of_alike() -> list[str]:
    """Whether the arms that are alike differ significantly in pass@1 with the other bits."""
    (verdict,) = {plain_verdict(arm, "pass@1")[0] for arm in arms_alike()}
    return [verdict]


def _significant_here() -> pd.Series:
    return page_queries.table(PROCESSORS)["vector_p_adjusted"] <= LEVEL


def _significant_there() -> pd.Series:
    return page_queries.table(PROCESSORS)["plain_p_adjusted"] <= LEVEL


# At equal pass@1: matched_RANGE.csv, of `study.py leaderboard --recorded`

MATCHED_OUTCOMES = {"entropy": "entropy/right_rarefied", "pass@32": "pass@32"}


def matched_file(difficulty: str) -> str:
    return f"leaderboard/matched_{difficulty}.csv"


def _matched_rows(difficulty: str, outcome: str) -> list[Row]:
    """Return the rows of an outcome, with the estimator of each and its rate."""
    found = []
    for row in page_queries.table(matched_file(difficulty)).to_dict("records"):
        if row["outcome"] == MATCHED_OUTCOMES[outcome]:
            name, rate_text, scope = re.fullmatch(r"(.*?) (\de-\d)(.*)", row["row"]).groups()
            arm = f"{name}, σ of the batch" if "batch" in scope else name
            found.append({**row, "arm": arm, "rate": rate_text})
    return found


def _matched_row(difficulty: str, outcome: str, arm: str) -> Row:
    (row,) = [row for row in _matched_rows(difficulty, outcome) if row["arm"] == arm]
    return row


def _is_told(row: Row) -> bool:
    return row["p_adjusted"] <= LEVEL


def _own_rate(difficulty: str) -> str:
    return rate(rate_of(difficulty, "rloo"))


def matched(difficulty: str, outcome: str, arm: str) -> list[float]:
    """A difference to RLOO at equal pass@1, with its interval."""
    row = _matched_row(difficulty, outcome, arm)
    return [row["difference"], row["low"], row["high"]]


def matched_size(difficulty: str, outcome: str, arm: str) -> list[float]:
    """The size of a difference to RLOO at equal pass@1."""
    return [abs(matched(difficulty, outcome, arm)[0])]


def matched_verdict(difficulty: str, outcome: str, *named: str) -> list[str]:
    """Whether these arms differ significantly from RLOO at equal pass@1."""
    told = {_is_told(_matched_row(difficulty, outcome, arm)) for arm in named}
    if len(told) != 1:
        raise page_queries.QueryError(f"some of {named} are significant on {difficulty}, some not")
    return ["significant" if told.pop() else "not significant"]


def matched_told(difficulty: str, outcome: str, *named: str) -> list[float]:
    """No value; an error unless these arms differ significantly from RLOO at equal pass@1."""
    if matched_verdict(difficulty, outcome, *named) != ["significant"]:
        raise page_queries.QueryError(f"{named} do not differ significantly on {difficulty}")
    return []


def matched_own_rate(difficulty: str, outcome: str, *named: str) -> list[str]:
    """Significant; an error unless of the arms at RLOO's rate exactly these differ from it.

    Without names: not significant, if none of them does.
    """
    at_rate = [
        row
        for row in _matched_rows(difficulty, outcome)
        if row["rate"] == _own_rate(difficulty) and row["arm"] not in CONTROLS
    ]
    told = {row["arm"] for row in at_rate if _is_told(row)}
    if told != {*named}:
        raise page_queries.QueryError(f"on {difficulty} prompts, at RLOO's rate: {sorted(told)}")
    return ["significant" if named else "not significant"]


def _matched_at(difficulty: str, outcome: str, rate_text: str, left_out: str) -> list[Row]:
    """Return the rows at a rate without the controls and one arm; an error unless of one sign."""
    at_rate = [
        row
        for row in _matched_rows(difficulty, outcome)
        if row["rate"] == rate_text and row["arm"] not in (*CONTROLS, left_out)
    ]
    if len({row["difference"] > 0 for row in at_rate}) != 1:
        raise page_queries.QueryError(f"at {rate_text} on {difficulty} prompts are both signs")
    return at_rate


def matched_at(difficulty: str, outcome: str, rate_text: str, left_out: str) -> list[float]:
    """How many arms have a rate, it, and how many of them differ at equal pass@1."""
    at_rate = _matched_at(difficulty, outcome, rate_text, left_out)
    return [len(at_rate), float(rate_text), sum(_is_told(row) for row in at_rate)]


def matched_sizes(difficulty: str, outcome: str, rate_text: str, left_out: str) -> list[float]:
    """The smallest and the largest size of the differences of the arms at a rate."""
    at_rate = _matched_at(difficulty, outcome, rate_text, left_out)
    sizes = sorted(abs(row["difference"]) for row in at_rate)
    return [sizes[0], sizes[-1]]


def more_varied_at_half_rate(difficulty: str, left_out: str) -> list[float]:
    """How many arms have half of RLOO's rate; an error unless all are significantly more varied."""
    half = rate(rate_of(difficulty, "rloo") / 2)
    at_rate = _matched_at(difficulty, "entropy", half, left_out)
    if not all(_is_told(row) and row["difference"] > 0 for row in at_rate):
        raise page_queries.QueryError(f"not all at {half} are more varied on {difficulty} prompts")
    return [len(at_rate)]


def differ_by_rate(*difficulties: str) -> list[float]:
    """No value; an error unless the flat arms differ in entropy at equal pass@1 as their rates do.

    All but one of those at another rate than RLOO's differ, and at most one of those at its rate.
    """
    for of in difficulties:
        named = {row["arm"]: row for row in _matched_rows(of, "entropy")}
        flat_rows = [named[_name_of(arm)] for arm in flat_arms()]
        own = [row for row in flat_rows if row["rate"] == _own_rate(of)]
        others = [row for row in flat_rows if row["rate"] != _own_rate(of)]
        alike = sum(not _is_told(row) for row in others)
        if sum(map(_is_told, own)) > 1 or alike > 1:
            raise page_queries.QueryError(f"on {of} prompts diversity does not follow the rate")
    return []


def _name_of(arm: str) -> str:
    """Return the name of an arm in the tables for its selection."""
    name, _, scope = arm.partition("&")
    return f"{name}, σ of the batch" if scope == "estimator.scope=batch" else name


def matched_level(difficulty: str) -> list[float]:
    """RLOO's A/A arm: the mean pass@1 at which it is compared with RLOO."""
    return [_matched_row(difficulty, "entropy", "rloo (A/A)")["level"]]


def matched_gap(difficulty: str) -> list[float]:
    """The longest line between evaluations that a value is read from, in pass@1."""
    return [max(row["gap"] for row in _matched_rows(difficulty, "entropy") if row["n"])]


def matched_pairs(difficulty: str, arm: str) -> list[float]:
    """How many seeds of an arm come to an equal pass@1, of how many."""
    row = _matched_row(difficulty, "entropy", arm)
    return [row["n"], row["seeds"]]


def matched_others_have_all(*excepted: str) -> list[float]:
    """No value; an error unless all other arms but the placebo have all pairs in all ranges.

    Args:
        excepted: RANGE/ARM.
    """
    fewer = {
        f"{of}/{row['arm']}"
        for of in RANGES
        for row in _matched_rows(of, "entropy")
        if row["n"] < row["seeds"] and row["arm"] != PLACEBO
    }
    if fewer != {*excepted}:
        raise page_queries.QueryError(f"with fewer pairs are {sorted(fewer)}")
    return []


def matched_family(difficulty: str) -> list[float]:
    """How many differences of a range at equal pass@1 are adjusted together."""
    return [int(page_queries.table(matched_file(difficulty))["p_adjusted"].notna().sum())]


def matched_together() -> list[float]:
    """How many verdicts would change if the p of all ranges were adjusted together, of how many."""
    found = pd.concat([page_queries.table(matched_file(of)) for of in RANGES])
    found = found[found["p_adjusted"].notna()]
    together = benjamini_hochberg(found["p"])
    changed = (together <= LEVEL) != (found["p_adjusted"] <= LEVEL).to_numpy()
    return [int(changed.sum()), len(found)]


def psr_at_its_rate() -> list[float]:
    """How much less varied PSR is on hard prompts than the flat arms that have its rate.

    How many these are, the smallest and the largest difference at equal pass@1, in size; an error
    unless all are significant, adjusted over these arms.
    """
    runs = page_queries.table("leaderboard/runs.csv")
    points = runs[(runs["sweep"] == "leaderboard-hard") & (runs["optimizer.lr"] == PSR_RATE)]
    names = list(points["row"].unique())
    (psr,) = [name for name in names if name.startswith("psr ")]
    pairs = {name: psr for name in names if name != psr}
    found = compare_matched(points, pairs, Matching("pass@1", ["entropy/right_rarefied"]))
    sizes = [one.comparison.difference for one in found]
    if min(sizes) <= 0 or any(one.p_adjusted > LEVEL for one in found):
        raise page_queries.QueryError("an arm with PSR's rate is not more varied than PSR")
    return [len(sizes), min(sizes), max(sizes)]


def steps_to_the_end_of_rloo(difficulty: str) -> list[float]:
    """After how many steps PSR first comes to the pass@1 of RLOO's end, in the mean over seeds."""
    runs = page_queries.table("leaderboard/runs.csv")
    runs = runs[runs["sweep"] == f"leaderboard-{difficulty}"].sort_values("step")
    found = []
    for _, of_seed in runs.groupby("seed"):
        psr = of_seed[of_seed["estimator"] == "psr"]
        end = of_seed.loc[of_seed["estimator"] == "rloo", "pass@1"].iloc[-1]
        found.append(float(value_at(psr["pass@1"], psr["step"], end)))
    if any(map(math.isnan, found)):
        raise page_queries.QueryError("a seed of PSR never comes to RLOO's end")
    return [math.fsum(found) / len(found)]


def alike_omnibus(outcome: str) -> list[float]:
    """How many arms are those that are alike, RLOO and A/A, and a p that tells them apart.

    The F test of a randomised block design, seeds as blocks; equal runs count once. The p is the
    largest of the three ranges, rounded up.
    """
    runs = page_queries.table("leaderboard/runs.csv")
    named = [*(arm.partition("&")[0] for arm in arms_alike()), "rloo", "rloo (A/A)"]
    p_values = []
    for of in RANGES:
        ends = runs[(runs["sweep"] == f"leaderboard-{of}") & (runs["step"] == steps()[0])]
        ends = ends[ends["estimator"].isin(named) & ~ends["row"].str.contains("batch")]
        table = ends.pivot(index="row", columns="seed", values=outcome)
        p_values.append(_block_p(table.drop_duplicates().to_numpy()))
    return [len(named), math.ceil(1e5 * max(p_values)) / 1e5]


def _block_p(table: np.ndarray) -> float:
    """Return p of the hypothesis that the rows of a table of arms and seeds have one mean."""
    arms_of, seeds = table.shape
    of_arm = table.mean(axis=1, keepdims=True)
    residuals = table - of_arm - table.mean(axis=0) + table.mean()
    df = (arms_of - 1) * (seeds - 1)
    between = seeds * float(((of_arm - table.mean()) ** 2).sum()) / (arms_of - 1)
    ratio = between / (float((residuals**2).sum()) / df)
    return float(stats.f.sf(ratio, arms_of - 1, df))


def matched_table() -> str:
    """The differences to RLOO at equal pass@1 in all ranges, with the rate of each arm."""
    rates = {of: _own_rate(of) for of in RANGES}
    headers = ["arm"]
    for of in RANGES:
        headers += [f"{of}: rate (RLOO {rates[of]})", "Δ entropy", "Δ pass@32"]
    lines = [f"| {' | '.join(headers)} |", f"| :-- |{' --: |' * (len(headers) - 1)}"]
    arms_listed = [row["arm"] for row in _matched_rows("easy", "entropy")]
    by_easy = {row["arm"]: row["difference"] for row in _matched_rows("easy", "entropy")}
    # A row without a pair comes last.
    arms_listed.sort(key=lambda arm: (arm not in CONTROLS, -by_easy[arm], by_easy[arm]))
    for arm in arms_listed:
        cells = [arm]
        for of in RANGES:
            own = _matched_row(of, "entropy", arm)["rate"]
            cells.append(f"{own} =" if own == rates[of] else own)
            cells += [_matched_cell(_matched_row(of, outcome, arm)) for outcome in MATCHED_OUTCOMES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _matched_cell(row: Row) -> str:
    fewer = "" if row["n"] == row["seeds"] else f" ({row['n']} of {row['seeds']} seeds)"
    if math.isnan(row["low"]):
        return fewer.strip()
    value = f"{row['difference']:+.3f}"
    if _is_told(row):
        value = f"**{value}**"
    return f"{value} [{row['low']:+.3f}, {row['high']:+.3f}]{fewer}"


# The tuning


def _tuning_ends(difficulty: str) -> pd.DataFrame:
    """Return the ends of a range's tuning runs, with the arm of each."""
    runs = page_queries.table("leaderboard/runs.csv")
    ends = runs[
        (runs["sweep"] == f"leaderboard-{difficulty}-tuning") & (runs["step"] == steps()[0])
    ]
    is_batch = ends["row"].str.contains("scope=batch")
    return ends.assign(arm=ends["estimator"].where(~is_batch, "grpo, σ of the batch"))


def tuning_end(difficulty: str, arm: str, rate_text: str) -> list[float]:
    """The rate of an arm's tuning runs, and their means of pass@1, pass@32 and entropy."""
    ends = _tuning_ends(difficulty)
    found = ends[(ends["arm"] == arm) & (ends["optimizer.lr"] == float(rate_text))]
    columns = ["pass@1", "pass@32", "entropy/right_rarefied"]
    return [float(rate_text), *(float(found[name].mean()) for name in columns)]


def least_significant_difference(difficulty: str) -> list[float]:
    """The difference in pass@1 of two rates that the tuning's bases can tell (Fisher's).

    That is t(.975, df) s √(2/n) with the spread pooled over all arms and rates of the range, as
    reports have it.
    """
    ends = _tuning_ends(difficulty)
    by_row = {
        row: dict(zip(of["seed"], of["pass@1"], strict=True)) for row, of in ends.groupby("row")
    }
    seeds = tuple(sorted(ends["seed"].unique()))
    spread = spread_of_design(by_row, seeds).pooled
    return [float(stats.t.ppf(1 - LEVEL / 2, spread.df) * spread.sd / math.sqrt(len(seeds)))]


def smallest_rates(difficulty: str) -> list[Row]:
    """Return each arm's means at the smallest rate that is within noise of its best one.

    Within noise: its pass@1 is below that of the best rate by no more than the least significant
    difference.
    """
    (noise,) = least_significant_difference(difficulty)
    columns = ["pass@1", "entropy/right_rarefied", "pass@32"]
    found = []
    for arm, of_arm in _tuning_ends(difficulty).groupby("arm", sort=False):
        means = of_arm.groupby("optimizer.lr")[columns].mean()
        good = means[means["pass@1"] >= means["pass@1"].max() - noise]
        best = means["pass@1"].idxmax()
        found.append({"arm": arm, "rate": good.index[0], "best": best, **good.iloc[0].to_dict()})
    return found


def smallest_rate(difficulty: str, arm: str) -> list[float]:
    """The smallest rate within noise of the best, with pass@1, entropy and pass@32 there."""
    (row,) = [row for row in smallest_rates(difficulty) if row["arm"] == arm]
    return [row["rate"], row["pass@1"], row["entropy/right_rarefied"], row["pass@32"]]


def smallest_rates_table() -> str:
    """The smallest rate within noise of the best in all ranges, with the numbers there."""
    found = {of: {row["arm"]: row for row in smallest_rates(of)} for of in RANGES}
    headers = ["arm"]
    for of in RANGES:
        headers += [f"{of}: rate (best)", "pass@1", "entropy", "pass@32"]
    lines = [f"| {' | '.join(headers)} |", f"| :-- |{' --: |' * (len(headers) - 1)}"]
    for arm in found["hard"]:
        cells = [arm]
        for of in RANGES:
            row = found[of][arm]
            cells.append(f"{rate(row['rate'])} ({rate(row['best'])})")
            cells += [
                f"{row[name]:.3f}" for name in ("pass@1", "entropy/right_rarefied", "pass@32")
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# Tables


def label(row: Row) -> str:
    """Name a row by its estimator; GRPO with σ of the batch is a variant of GRPO."""
    is_variant = row["estimator"] == "grpo" and row["estimator.scope"] == "batch"
    return "grpo, σ of the batch" if is_variant else row["estimator"]


def rate(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def good_rates(difficulty: str) -> dict[str, str]:
    """Return, for each estimator, the least and the greatest rate near its best in the tuning."""
    scores: dict[str, dict[float, float]] = defaultdict(dict)
    for row in read(f"{difficulty}_rates"):
        if row["optimizer.lr"]:
            scores[label(row)][float(row["optimizer.lr"])] = float(row["pass@1"])
    ranges = {}
    for estimator, by_rate in scores.items():
        good = [lr for lr, score in by_rate.items() if score >= GOOD * max(by_rate.values())]
        least, greatest = rate(min(good)), rate(max(good))
        ranges[estimator] = least if least == greatest else f"{least} to {greatest}"
    return ranges


def difference(difficulty: str, row: Row, outcome: str) -> str:
    """Return a difference with its 95 % interval, bold if it is significant."""
    column = page_queries.column_of(file_of(difficulty), outcome, "_difference")
    ends = [row[f"{column}_difference{end}"] for end in ("", "_low", "_high")]
    if not ends[0]:
        return ""
    value, low, high = (f"{float(end):+.3f}" for end in ends)
    adjusted = row.get(f"{column}_p_adjusted")
    if adjusted and float(adjusted) <= LEVEL:
        value = f"**{value}**"
    return f"{value} [{low}, {high}]"


def sorted_rows(difficulty: str) -> list[Row]:
    """Return the rows of a range: floors first, then the arms, the best first."""
    return sorted(
        read(difficulty), key=lambda row: (bool(row["optimizer.lr"]), -float(row["pass@1"]))
    )


def short_table(difficulty: str) -> str:
    """The table of README.md: rate, pass@1 and its difference to RLOO."""
    return _table(difficulty, outcomes=["pass@1"], with_good_rates=False)


def full_table(difficulty: str) -> str:
    """The table of the study's page: all primary outcomes and the rates of the tuning."""
    return _table(difficulty, outcomes=list(OUTCOMES), with_good_rates=True)


def _table(difficulty: str, outcomes: list[str], *, with_good_rates: bool) -> str:
    good = good_rates(difficulty)
    headers = ["rate", "pass@1", *(OUTCOMES[outcome] for outcome in outcomes)]
    if with_good_rates:
        headers.append("good rates")
    lines = [f"| | {' | '.join(headers)} |", f"| :-- | {' | '.join(['--:'] * len(headers))} |"]
    for row in sorted_rows(difficulty):
        cells = [label(row), rate(float(row["optimizer.lr"])) if row["optimizer.lr"] else ""]
        cells.append(f"{float(row['pass@1']):.3f}")
        cells += [difference(difficulty, row, outcome) for outcome in outcomes]
        if with_good_rates:
            cells.append(good.get(label(row), ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


REPORTED = ("rloo", "psr", "maxrl", "passk_mix")


def report_of_four_arms() -> str:
    """What `advsweep report` prints of four arms of the middle range, without some columns."""
    rows = {row["estimator"]: row for row in read("middle")}
    headers = ["estimator", "n", "p@1", "p@32 - guess", "Δ p@1 [95 % interval]"]
    cells = [headers]
    for name in ("base", *REPORTED):
        row = rows[name]
        differing = difference("middle", row, "pass@1").replace("*", "")
        cells.append(
            [
                name,
                row["n"],
                _starred(row, "pass@1"),
                _starred(row, "pass@32[above=guess]"),
                differing,
            ]
        )
    widths = [max(len(line[place]) for line in cells) for place in range(len(headers))]
    lines = [_aligned(line, widths) for line in cells]
    lines.insert(1, "─" * max(len(line) for line in lines))
    lines += ["", *(_sentence(rows[name]) for name in REPORTED[1:])]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _sentence(row: Row) -> str:
    """Say what the tests of pass@1 and pass@32 settle of an arm."""
    parts = []
    for outcome, name in (("pass@1", "p@1"), ("pass@32", "p@32 - guess")):
        if not is_significant("middle", outcome, row["estimator"]):
            continue
        word = "better" if mean_change("middle", outcome, row["estimator"]) > 0 else "worse"
        parts.append(f"{word} {name}, {difference('middle', row, outcome).replace('*', '')}")
    settled = "; ".join(parts) or "no significant difference"
    return f"{row['estimator']} against rloo: {settled}."


def _starred(row: Row, column: str) -> str:
    adjusted = row.get(f"{column}_p_adjusted")
    star = "*" if adjusted and float(adjusted) <= LEVEL else " "
    return f"{float(row[column]):.3f}{star}"


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *others = line
    padded = [first.ljust(widths[0])]
    padded += [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
    return "  ".join(padded).rstrip()
