"""Compare the easy range with the same runs on another processor's vector code.

    ATEN_CPU_CAPABILITY=default advsweep sweep +experiment=leaderboard/easy_rates --store plain.db
    python experiments/leaderboard/compare_processors.py plain.db

Writes processors.csv: a row for each difference to RLOO in a primary outcome, of easy.csv (vector)
and of that store (plain), with their adjusted p. Prints how many verdicts moved.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import study

FOLDER = Path(__file__).resolve().parent
OUTCOMES = ("pass@1", "pass@32[above=guess]", "entropy/right_rarefied")
KEYS = ["estimator", "estimator.scope"]
PARTS = {"difference": "_difference", "low": "_difference_low", "high": "_difference_high"}
PARTS |= {"p_adjusted": "_p_adjusted"}
LEVEL = 0.05


def differences(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a row per arm and outcome, with columns such as `plain_low`."""
    parts = []
    for outcome in OUTCOMES:
        found = table[[*KEYS, *(outcome + end for end in PARTS.values())]].copy()
        found.columns = [*KEYS, *(f"{name}_{part}" for part in PARTS)]
        parts.append(found.dropna(subset=[f"{name}_p_adjusted"]).assign(outcome=outcome))
    return pd.concat(parts)


def compare(store: str) -> pd.DataFrame:
    report = study.advsweep(
        *("report", "leaderboard-easy-rates", "--columns", ",".join(OUTCOMES)),
        *("--baseline", "estimator=rloo optimizer.lr=0.0002", "--format", "csv"),
        store=store,
    )
    tables = {"vector": pd.read_csv(FOLDER / "easy.csv"), "plain": pd.read_csv(io.StringIO(report))}
    parts = [differences(table.fillna({KEYS[1]: ""}), name) for name, table in tables.items()]
    return parts[0].merge(parts[1], on=["outcome", *KEYS])


def moved(found: pd.DataFrame) -> pd.Series:
    """Return which differences are significant with one of the two alone."""
    return (found["vector_p_adjusted"] <= LEVEL) != (found["plain_p_adjusted"] <= LEVEL)


if __name__ == "__main__":
    found = compare(sys.argv[1])
    found.to_csv(FOLDER / "processors.csv", index=False, float_format="%.6g")
    print(f"{moved(found).sum()} of {len(found)} verdicts moved")
    print(found[moved(found)].to_string())
