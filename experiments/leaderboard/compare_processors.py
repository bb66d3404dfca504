"""Compare the easy range with the same runs on another processor's vector code.

    export ATEN_CPU_CAPABILITY=default ADVSWEEP_CACHE=plain-cache
    advsweep sweep +experiment=leaderboard/easy_rates --store plain.db
    python experiments/leaderboard/compare_processors.py plain.db

With another cache the base models are pretrained anew, too; those of processors.csv were not.

Writes processors.csv: a row for each difference to RLOO in a primary outcome, of easy.csv (vector)
and of that store (plain), with their adjusted p. Prints how many verdicts moved.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import processors
import study

FOLDER = Path(__file__).resolve().parent
KEYS = ["estimator", "estimator.scope"]


def compare(store: str) -> pd.DataFrame:
    report = study.advsweep(
        *("report", "leaderboard-easy-rates", "--columns", ",".join(processors.OUTCOMES)),
        *("--baseline", "estimator=rloo optimizer.lr=0.0002", "--format", "csv"),
        store=store,
    )
    tables = {"vector": pd.read_csv(FOLDER / "easy.csv"), "plain": pd.read_csv(io.StringIO(report))}
    filled = {name: table.fillna({KEYS[1]: ""}) for name, table in tables.items()}
    return processors.compare(filled, KEYS)


if __name__ == "__main__":
    found = compare(sys.argv[1])
    found.to_csv(FOLDER / "processors.csv", index=False, float_format="%.6g")
    moved = processors.moved(found, ["vector", "plain"])
    print(f"{moved.sum()} of {len(found)} verdicts moved")
    print(found[moved].to_string())
