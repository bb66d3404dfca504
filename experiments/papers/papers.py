"""The claims of five papers with their verdicts, the exact checks, and the papers' tables.

    make papers                                     # prints all, and writes ledger.csv
    python experiments/papers/papers.py --csv       # prints ledger.csv alone

`map.yaml` says what judges each claim: an exact check, or the claims with its id (AV13, or AV13a
and AV13b) in the list of a study, whose numbers are in `experiments/STUDY/claims.csv`. `ledger.py`
judges these parts by sign and size. At each scale the worst of them counts, corrected for their
number; the largest scale that decides gives the verdict.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

import exact_fade  # noqa: F401  registers its checks and those of exact_advantages
import pandas as pd
import tables
import yaml
from exact import CHECKS, Finding
from ledger import DECIDED, LedgerVerdict, judge_part

from advsweep.report.claims.lists import read_claim_list
from advsweep.statistics import holm

FOLDER = Path(__file__).resolve().parent
LEDGER = FOLDER / "ledger.csv"
WORST_FIRST = [verdict.value for verdict in LedgerVerdict]
DECIDING = [verdict.value for verdict in DECIDED]
HOLDING = [LedgerVerdict.IN_SIGN.value, LedgerVerdict.IN_SIZE.value]
SIZES = ["found", "low", "high", "printed", "least", "printed_in"]
NOT_JUDGED = "not judged"
SCALES = ("exact", "tiny transformer", "toy", "bandit")
"""Where a claim was judged; the first that decides gives the verdict."""


def read_map() -> pd.DataFrame:
    """Return the papers' claims by id: paper, section, says, and judge (with parts) or why."""
    papers = yaml.safe_load((FOLDER / "map.yaml").read_text("utf-8"))
    entries = [
        {"claim": id, "paper": paper["title"], "judge": "", "parts": "", "why": "", **entry}
        for paper in papers.values()
        for id, entry in paper["claims"].items()
    ]
    return pd.DataFrame(entries).set_index("claim")


def read_parts(study: str) -> pd.DataFrame:
    """Return the parts of claims in a study's list with their verdicts; none without runs."""
    listed = read_claim_list(FOLDER.parent / study / "claims.yaml").claims
    recorded = pd.read_csv(FOLDER.parent / study / "claims.csv", index_col="claim")
    records = []
    for claim in listed:
        record = {"part": claim.id, "setting": claim.setting, "scale": _scale_of(claim.setting)}
        if claim.id in recorded.index:
            own = recorded.loc[claim.id]
            reason = own["reason"].removeprefix(f"{own['verdict']}: ")
            record |= {name: own[name] for name in ("n", "p_value", "study")}
            record |= {"reason": reason, **judge_part(claim, own)}
        records.append(record)
    return pd.DataFrame(records).set_index("part")


def _scale_of(setting: str) -> str:
    first = setting.partition(" ")[0]
    return first if first in SCALES else "tiny transformer"


def describe(finding: Finding) -> str:
    def number(value: float) -> str:
        return f"{0.0 if abs(value) < 1e-12 else value:.4g}"

    expected = f"{finding.relation} {number(finding.expected)}"
    return f"{finding.quantity}: {number(finding.got)}, expected {expected}"


def judge_exact(id: str) -> dict[str, object]:
    holds, finding, n = CHECKS[id].run()
    verdict = "holds" if holds else "contradicted"
    reason = f"{describe(finding)}. {CHECKS[id].note}".rstrip()
    return {"verdict": verdict, "scale": "exact", "n": n, "setting": "exact", "reason": reason}


def judge_scale(parts: pd.DataFrame) -> pd.Series:
    """Return the part of a claim that decides at one scale, with the verdict on the claim.

    The claim holds as its worst part does; it is contradicted if one is, after the correction of
    Holm for the number of parts. With a part that has no verdict it does not hold as a whole.
    """
    known = parts.dropna(subset="verdict").copy()
    tested = known["p_value"].dropna()
    for part, p in zip(tested.index, holm(tested.tolist()), strict=True):
        if known.at[part, "verdict"] == LedgerVerdict.CONTRADICTED.value and p > 0.05:
            known.at[part, "verdict"] = LedgerVerdict.CANNOT_TELL.value
            known.at[part, "reason"] += f"; p = {p:.3g} among its parts (Holm)"
    deciding = known.loc[known["verdict"].map(WORST_FIRST.index).idxmin()].copy()
    if missing := ", ".join(parts.index.difference(known.index)):
        deciding["reason"] = f"{missing} without data; {deciding['reason']}"
        if deciding["verdict"] in HOLDING:
            deciding["verdict"] = LedgerVerdict.CANNOT_TELL.value
    return deciding


def judge_parts(parts: pd.DataFrame) -> dict[str, object]:
    """Return the verdict on a claim by its parts: that of the first scale that decides.

    Without one that decides it is the first that judges, or else the first of all.
    """
    scales = [
        judge_scale(own)
        for scale in SCALES
        if (own := parts[parts["scale"] == scale])["verdict"].notna().any()
    ]
    if not scales:
        return {"verdict": NOT_JUDGED, "reason": "no study has a verdict on it"}
    decided = [one for one in scales if one["verdict"] in DECIDING]
    judged = [one for one in scales if not one["verdict"].startswith(NOT_JUDGED)]
    chosen = [*decided, *judged, *scales][0]
    others = [one for one in scales if one["verdict"] != chosen["verdict"]]
    return {
        "part": chosen.name,
        **chosen[["verdict", "scale", "n", "setting", "reason", "study", *SIZES]],
        "elsewhere": ", ".join(f"{other['scale']}: {other['verdict']}" for other in others),
    }


def judge(claims: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of `read_map` with verdict, scale, n, setting, reason and study."""
    studies = {name: read_parts(name) for name in set(claims["judge"]) - {"", "exact"}}
    verdicts = []
    for id, claim in claims.iterrows():
        if claim["judge"] == "exact":
            verdicts.append(judge_exact(id))
        elif claim["judge"]:
            parts = studies[claim["judge"]]
            letters = claim["parts"].replace("-", "").split(" ") if claim["parts"] else None
            own = parts.index.str.fullmatch(f"{id}[a-z]?")
            chosen = [letters is None or part[4:] in letters for part in parts.index]
            verdicts.append(judge_parts(parts[own & chosen]))
        else:
            verdicts.append({"verdict": NOT_JUDGED, "reason": claim["why"]})
    found = claims.drop(columns=["parts", "why"]).join(pd.DataFrame(verdicts, index=claims.index))
    return found.astype({"n": "Int64"})


def describe_claims(found: pd.DataFrame) -> list[str]:
    """Return a line for each claim, and below them tallies and why claims are not judged."""
    texts = ["scale", "elsewhere", "study", "part"]
    found = found.fillna(dict.fromkeys(texts, ""))
    lines = []
    for paper, own in found.groupby("paper", sort=False):
        lines += ["", paper]
        lines += [f"  {id}  {_describe_claim(claim)}" for id, claim in own.iterrows()]
    lines.append("")
    empirical = found[found["judge"] != "exact"]
    lines.append(_tally("exact checks", found[found["judge"] == "exact"]))
    lines.append(_tally("empirical claims", empirical))
    for scale in SCALES[1:]:
        lines.append(_tally(f"of these by the {scale}", empirical[empirical["scale"] == scale]))
    why = found[found["judge"] == ""].groupby("reason", sort=False)
    return lines + [f"{', '.join(own.index)} not judged: {reason}" for reason, own in why]


def _describe_claim(claim: pd.Series) -> str:
    """Return the verdict on a claim, the claim, and what the verdict rests on."""
    if claim["judge"] in ("", "exact"):
        by = " (exact)" if claim["judge"] else ""
        return f"{claim['verdict']}: {claim['says']}{by}"
    facts = [f"{claim['judge']} {claim['part']} {claim['study']}, n={claim['n']}"]
    if not math.isnan(claim["found"]):
        facts.append(_describe_size(claim))
    if claim["elsewhere"]:
        facts.append(claim["elsewhere"])
    return f"{claim['verdict']}, {claim['scale']}: {claim['says']} ({'; '.join(facts)})"


def _describe_size(claim: pd.Series) -> str:
    """Return what was found, with its interval, what is printed and what counts."""
    interval = f"[{claim['low']:+.3g}, {claim['high']:+.3g}]"
    parts = [f"found {claim['found']:+.3g} {interval}"]
    if not math.isnan(claim["printed"]):
        parts.append(f"printed {claim['printed']:.3g} ({claim['printed_in']})")
    if claim["least"] > 0:
        parts.append(f"counts from {claim['least']:.2g}")
    return ", ".join(parts)


def _tally(name: str, found: pd.DataFrame) -> str:
    counts = Counter(found["verdict"])
    order = ["holds", *reversed(WORST_FIRST), NOT_JUDGED]
    shown = [verdict for verdict in order if counts[verdict]]
    return f"{len(found)} {name}: {', '.join(f'{counts[verdict]} {verdict}' for verdict in shown)}"


def describe_checks(found: pd.DataFrame) -> list[str]:
    """Return a line for each exact check: what was computed, and the comparison that decides."""
    return [
        f"  {id}  {claim['verdict']} ({claim['section']}): {CHECKS[id].computes}; {claim['reason']}"
        for id, claim in found[found["judge"] == "exact"].iterrows()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", action="store_true", help="print the claims alone, as CSV")
    options = parser.parse_args()
    found = judge(read_map())
    if options.csv:
        found.to_csv(sys.stdout, float_format="%.6g")
        return
    found.to_csv(LEDGER, float_format="%.6g")
    print("The papers' claims", *describe_claims(found), sep="\n")
    print("\nExact checks", *describe_checks(found), sep="\n")
    for name in tables.TABLES:
        print(f"\n{name}\n{tables.lay_out(name).to_string()}")


if __name__ == "__main__":
    main()
