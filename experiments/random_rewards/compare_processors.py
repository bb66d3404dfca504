"""Compare the runs with the same on another processor's vector code.

    ATEN_CPU_CAPABILITY=default advsweep sweep +experiment=random_rewards/study --store plain.db
    python experiments/random_rewards/compare_processors.py plain.db

The base models of processors.csv are those of the other runs, from the cache; with another
`ADVSWEEP_CACHE` they are pretrained anew.

Writes processors.csv: a row for each difference to the base in a primary outcome, of report.csv
(vector) and of that store (plain), with their adjusted p. Prints how many verdicts moved.
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
# The diversity of right answers is not tested, as models without right answers have none.
OUTCOMES = ("pass@1", "pass@32[above=guess]")
KEYS = ["estimator", "objective.clip_low", "optimizer.lr", "backend.inner_epochs"]


def compare(store: str) -> pd.DataFrame:
    report = study.advsweep(
        *("report", "random-rewards", "--columns", ",".join(OUTCOMES)),
        *("--baseline", "base", "--format", "csv"),
        store=store,
    )
    tables = {
        "vector": pd.read_csv(FOLDER / "report.csv"),
        "plain": pd.read_csv(io.StringIO(report)),
    }
    return processors.compare(tables, KEYS, OUTCOMES)


if __name__ == "__main__":
    found = compare(sys.argv[1])
    found.to_csv(FOLDER / "processors.csv", index=False, float_format="%.6g")
    moved = processors.moved(found, ["vector", "plain"])
    print(f"{moved.sum()} of {len(found)} verdicts moved")
    print(found[moved].to_string())
