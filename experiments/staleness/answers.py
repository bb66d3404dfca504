"""What the answer of the study of stale rollouts says of its tables, and the page's tables."""

from __future__ import annotations

from pathlib import Path

import page_queries
import yaml

FOLDER = Path(__file__).resolve().parent
REPORT = "staleness/report.csv"
AT_16 = "staleness/report_16.csv"
RATES = "staleness/rates.csv"
AGES = (0, 1, 4, 16)
_TOKEN = ("objective=clipped", "objective.ratio=token")
LOSSES = {
    "clip": (*_TOKEN, "objective.correction=none"),
    "clip, truncated weights": (*_TOKEN, "objective.correction=decoupled_token_is"),
    "CISPO": ("objective=cispo",),
    "DPPO": ("objective=dppo",),
    "GSPO": ("objective=clipped", "objective.ratio=sequence"),
    "SAPO": ("objective=sapo",),
}
CONTROLS = {"A/A": ("rloo (A/A)",), "placebo": ("rloo (placebo)",)}
TUNING_RATES = (1e-4, 4e-4)


def _row(file: str, conditions: tuple[str, ...]) -> dict[str, float] | None:
    try:
        row = page_queries.only_row(file, conditions)
    except page_queries.QueryError:
        return None
    return row


def arm(loss: str) -> str:
    """Return the words that choose a loss's row in `report_16.csv`."""
    return "&".join(("rloo", *LOSSES[loss]))


def losses() -> list[float]:
    return [len(LOSSES)]


def ends_at_16() -> list[float]:
    """The least and the largest pass@1 at an age of 16 steps."""
    ends = [_row(REPORT, ("rloo", *LOSSES[loss], "backend.stale_steps=16")) for loss in LOSSES]
    values = [row["pass@1"] for row in ends if row]
    return [min(values), max(values)]


def learn_at_16() -> list[float]:
    """No value; an error unless the claims hold that all losses learn at an age of 16 steps."""
    claims = page_queries.rows("staleness/claims.csv", ["verdict=holds"])["claim"]
    learning = [claim for claim in claims if claim.startswith("learns-")]
    if len(learning) != len(LOSSES):
        raise page_queries.QueryError(f"these losses learn: {learning}")
    return []


def to_clip(loss: str, outcome: str) -> list[float]:
    """The difference to the clipped loss of the same age, 16 steps."""
    return page_queries.difference(AT_16, *arm(loss).split("&"), outcome)


def verdict_to_clip(*losses: str) -> list[str]:
    """Whether losses differ significantly in pass@1 from the clipped loss of the same age."""
    return page_queries.verdict(AT_16, "pass@1", *(arm(loss) for loss in losses))


def verdict_to_clip_is(wanted: str, *losses: str) -> list[str]:
    """No value; an error unless all of these losses have this verdict."""
    if verdict_to_clip(*losses) != [wanted]:
        raise page_queries.QueryError(f"{', '.join(losses)} are not all {wanted}")
    return []


def equal_to_clip_within(*losses: str) -> list[float]:
    """The smallest margin within which losses are equivalent to the clipped one of the same age."""
    return page_queries.equal_within(AT_16, "pass@1", *(arm(loss) for loss in losses))


def best_and_worst(best: str, worst: str) -> list[float]:
    """No value; an error unless these losses end highest and lowest at an age of 16 steps."""
    ends = {
        loss: _row(REPORT, ("rloo", *LOSSES[loss], "backend.stale_steps=16"))["pass@1"]
        for loss in LOSSES
    }
    if (max(ends, key=ends.get), min(ends, key=ends.get)) != (best, worst):
        raise page_queries.QueryError(f"pass@1 at 16 steps: {ends}")
    return []


def tests() -> list[float]:
    """How many differences the table's correction is over."""
    table = page_queries.table(REPORT)
    columns = [name for name in table.columns if name.endswith("_p_adjusted")]
    return [int(table[columns].notna().sum().sum())]


def table() -> str:
    """pass@1 by loss and age, with the differences to the clipped loss on fresh rollouts."""
    lines = [f"| age in steps | {' | '.join(str(age) for age in AGES)} |"]
    lines.append(f"| :-- | {' | '.join([':--'] * len(AGES))} |")
    for name, conditions in {**LOSSES, **CONTROLS}.items():
        chosen = conditions if name in CONTROLS else ("rloo", *conditions)
        rows = [_row(REPORT, (*chosen, f"backend.stale_steps={age}")) for age in AGES]
        lines.append(f"| {name} | {' | '.join(_cell(row) for row in rows)} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, float] | None) -> str:
    if row is None:
        return ""
    rate = f"({page_queries.rate_text(row['optimizer.lr'])})"
    end = page_queries.share_text(row["pass@1"])
    difference = page_queries.difference_text(row, "pass@1")
    # The baseline has no difference to itself.
    return f"{end}, {difference} {rate}" if difference else f"{end} {rate}"


def tuning_table() -> str:
    """pass@1 of the tuning at a small and a large rate, on fresh and on old rollouts."""
    headers = [
        f"{page_queries.rate_text(rate)}, {'fresh' if age == 0 else f'{age} steps'}"
        for rate in TUNING_RATES
        for age in (0, 16)
    ]
    lines = [f"| pass@1, tuning | {' | '.join(headers)} |"]
    lines.append(f"| :-- | {' | '.join(['--:'] * len(headers))} |")
    for loss, conditions in LOSSES.items():
        rows = [
            _row(RATES, (*conditions, f"backend.stale_steps={age}", f"optimizer.lr={rate}"))
            for rate in TUNING_RATES
            for age in (0, 16)
        ]
        cells = [page_queries.share_text(row["pass@1"]) if row else "" for row in rows]
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def excluded_gain() -> list[float]:
    """The upper end of the interval of the correction's difference at 16 steps."""
    return to_clip("clip, truncated weights", "pass@1")[2:]


def margin() -> list[float]:
    """The margin that the list of claims declares for all equivalences."""
    listed = yaml.safe_load((FOLDER / "claims.yaml").read_text("utf-8"))["claims"]
    (declared,) = {claim["margin"] for claim in listed if "margin" in claim}
    return [float(declared)]
