"""What the documents say of the demo, and the table of its page."""

from __future__ import annotations

import math

import page_queries
import pandas as pd

REPORT = "demo/report.csv"
VERDICTS = "demo/verdicts.csv"
TRAININGS = ("vector", "plain", "seeds")
CLAIMS = {"vector": "demo/claims.csv", "plain": "demo/claims_plain.csv"}
CLAIMS |= {"seeds": "demo/claims_seeds.csv"}
OUTCOMES = {"pass@1": "pass@1", "pass@32": "pass@32[above=guess]"}
OUTCOMES |= {"entropy": "entropy/right_rarefied"}
LEVEL = 0.05


def runs() -> list[float]:
    """How many runs the demo has: the seeds of each trained row."""
    return [float(_trained()["n"].sum())]


def estimators() -> list[float]:
    return [len(_trained())]


def tests() -> list[float]:
    """How many differences the correction of the report is over."""
    table = page_queries.table(REPORT)
    columns = [name for name in table.columns if name.endswith("_p_adjusted")]
    return [int(table[columns].notna().sum().sum())]


def not_significant(arm: str, outcome: str) -> list[float]:
    """No value; an error if a difference is significant."""
    if page_queries.verdict(REPORT, outcome, arm) != ["not significant"]:
        raise page_queries.QueryError(f"{outcome} of {arm} is significant")
    return []


def trainings() -> list[float]:
    """How many times the demo was trained."""
    return [len(TRAININGS)]


def alike() -> list[float]:
    """How many verdicts are the same in all trainings, with the same sign if significant."""
    return [len(_alike()), len(page_queries.table(VERDICTS))]


def closest(*verdicts: str) -> list[float]:
    """How many half-widths of its interval the closest of some differences is from 0.

    Each is an arm and an outcome, as `psr/pass@1`, in every training; an error unless all are
    significant in all.
    """
    alike = {f"{row.estimator}/{_short(row.outcome)}" for row in _alike().itertuples()}
    distances = []
    for verdict in verdicts:
        arm, _, outcome = verdict.partition("/")
        row = _row(arm, outcome)
        if verdict not in alike or any(row[f"{name}_p_adjusted"] > LEVEL for name in TRAININGS):
            raise page_queries.QueryError(f"{verdict} is not significant in every training")
        distances += [_distance(row, training) for training in TRAININGS]
    return [math.floor(10 * min(distances)) / 10]  # rounded down: none is closer


def fade_nowhere() -> list[float]:
    """How many differences FADE has in how many trainings; an error if any is significant."""
    table = page_queries.rows(VERDICTS, ["estimator=fade"])
    significant = table[[f"{name}_p_adjusted" for name in TRAININGS]] <= LEVEL
    if significant.to_numpy().any():
        raise page_queries.QueryError("a difference of FADE is significant")
    return [significant.size, len(TRAININGS)]


def claims_alike() -> list[float]:
    """How many claims have the same verdict in all trainings, of how many."""
    verdicts = [page_queries.table(file).set_index("claim")["verdict"] for file in CLAIMS.values()]
    joined = pd.concat(verdicts, axis=1)
    return [int((joined.nunique(axis=1) == 1).sum()), len(joined)]


def verdicts_table() -> str:
    """The differences to GRPO in every training, bold where they are significant."""
    titles = ("AVX-512", "without vector code", "other seeds")
    headers = ["outcome", "estimator", *titles]
    lines = [f"| {' | '.join(headers)} |", f"| :-- | :-- | {' | '.join(['--:'] * len(titles))} |"]
    for row in page_queries.table(VERDICTS).to_dict("records"):
        cells = [_short(row["outcome"]), row["estimator"]]
        cells += [_cell(row, training) for training in TRAININGS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, float], training: str) -> str:
    difference, low, high, p = (
        float(row[f"{training}_{part}"]) for part in ("difference", "low", "high", "p_adjusted")
    )
    text = f"{difference:+.3f}"
    if p <= LEVEL:
        text = f"**{text}**"
    return f"{text} [{low:+.3f}, {high:+.3f}], {_show_p(p)}"


def _show_p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def _alike() -> pd.DataFrame:
    table = page_queries.table(VERDICTS)
    significant = table[[f"{name}_p_adjusted" for name in TRAININGS]] <= LEVEL
    signs = table[[f"{name}_difference" for name in TRAININGS]] > 0
    same_sign = signs.all(axis=1) | ~signs.any(axis=1)
    return table[~significant.any(axis=1) | (significant.all(axis=1) & same_sign)]


def _short(outcome: str) -> str:
    return next(short for short, name in OUTCOMES.items() if name == outcome)


def _row(arm: str, outcome: str) -> dict[str, float]:
    conditions = [f"estimator={arm}", f"outcome={OUTCOMES[outcome]}"]
    row = page_queries.only_row(VERDICTS, conditions)
    return dict(row)


def _distance(row: dict[str, float], training: str) -> float:
    difference, low, high = (row[f"{training}_{part}"] for part in ("difference", "low", "high"))
    return abs(difference) / ((high - low) / 2)


def _trained() -> pd.DataFrame:
    table = page_queries.table(REPORT)
    return table[~table["estimator"].isin(["base", "guess", "walker"])]
