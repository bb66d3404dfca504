"""Write the files of this folder from three trainings of the demo.

    advsweep sweep +experiment=demo --store vector.db
    export ATEN_CPU_CAPABILITY=default ADVSWEEP_CACHE=plain-cache
    advsweep sweep +experiment=demo --store plain.db
    unset ATEN_CPU_CAPABILITY ADVSWEEP_CACHE
    advsweep sweep +experiment=demo 'seed=range(40,52)' --store seeds.db
    python experiments/demo/record.py vector.db plain.db seeds.db

`plain` has the seeds of `vector` and torch's code for the oldest processors. Its cache is its own,
as base models of `vector` would be taken from a common one. `seeds` has other seeds.
Of each it writes the report and the verdicts on the claims (vector: report.csv, claims.csv; the
others: report_plain.csv, ...), of all of them verdicts.csv: a row for each difference to GRPO in a
primary outcome. Prints which verdicts moved. The figures are of `vector`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import processors
import study

FOLDER = Path(__file__).resolve().parent
COLUMNS = (
    *("collapse/acr", "pass@1", "pass@8[above=guess]", "pass@32[above=guess]", "entropy/answer"),
    *("entropy/right_rarefied", "optim/change_norm@end"),
)
WIDTH = 900
"""Pixels of the picture on the page."""


def write(name: str, store: str) -> pd.DataFrame:
    """Write report and verdicts of a training; return the report."""
    suffix = "" if name == "vector" else f"_{name}"
    commands = {"report": ("report", "demo", "--full", "--columns", ",".join(COLUMNS))}
    commands["claims"] = ("claims", "demo")
    for file, command in commands.items():
        for form, ending in (("csv", "csv"), ("markdown", "md")):
            text = study.advsweep(*command, "--format", form, store=store)
            (FOLDER / f"{file}{suffix}.{ending}").write_text(text, encoding="utf-8")
    return pd.read_csv(FOLDER / f"report{suffix}.csv")


def draw(store: str) -> None:
    """Write the page of figures, scaled down."""
    path = FOLDER / "figures.png"
    study.advsweep("plot", "demo", "-o", str(path), store=store)
    with Image.open(path) as drawn:
        height = round(drawn.height * WIDTH / drawn.width)
        scaled = drawn.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
    scaled.quantize(256).save(path)


if __name__ == "__main__":
    tables = {
        name: write(name, store)
        for name, store in zip(("vector", "plain", "seeds"), sys.argv[1:], strict=True)
    }
    found = processors.compare(tables, ["estimator"])
    found.to_csv(FOLDER / "verdicts.csv", index=False, float_format="%.6g")
    moved = processors.moved(found, [*tables])
    print(f"{moved.sum()} of {len(found)} verdicts moved")
    print(found[moved].to_string())
    draw(sys.argv[1])
