"""Audit the papers' tables with `advsweep audit`, by what the papers say of their design.

    python experiments/papers/audit.py > experiments/papers/audit.md
    python experiments/papers/audit.py --tables FOLDER    # writes what the command reads

`designs.yaml` has the problems, samples and runs of each benchmark.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd
import tables
import yaml

from advsweep.report.audit import audit, lay_out, read_cells
from advsweep.writing import write

FOLDER = Path(__file__).resolve().parent
COLUMN = r"^pass@(?P<k>\d+)(?:\[(?P<benchmark>.+)\])?$"
INTRODUCTION = FOLDER / "audit_introduction.txt"


def tidy(name: str, design: dict[str, dict[str, int | None]]) -> pd.DataFrame:
    """Return a printed table as `advsweep audit` reads it."""
    long = tables.printed(name)
    parts = long["column"].str.extract(COLUMN)
    long = long.assign(benchmark=parts["benchmark"].fillna(long["task"]), k=parts["k"])
    long = long[long["k"].notna()]
    known = long["benchmark"].map(lambda benchmark: design.get(benchmark, {}))
    bare = long["text"].str.partition("±")[0]
    return pd.DataFrame(
        {
            "name": long["method"],
            "group": long["model"],
            "benchmark": long["benchmark"],
            "value": bare.str.rstrip("*_"),
            "size": known.str.get("size"),
            "samples": known.str.get("samples"),
            "k": long["k"],
            "seeds": known.str.get("seeds"),
            "bold": long["text"].str.endswith("*").astype(int),
        }
    ).astype(dict.fromkeys(("size", "samples", "seeds"), "Int64"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, help="a folder for the tables; prints nothing")
    options = parser.parse_args()
    designs = yaml.safe_load((FOLDER / "designs.yaml").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.tables or Path(scratch)
        folder.mkdir(exist_ok=True)
        for name, design in designs.items():
            tidy(name, design).to_csv(folder / f"{name}.csv", index=False)
        if options.tables:
            return
        print(INTRODUCTION.read_text("utf-8"))
        for name in designs:
            print(f"## {name.replace('-table', ', Table ')}\n")
            print(write(lay_out(audit(read_cells(folder / f"{name}.csv"))), "markdown"))


if __name__ == "__main__":
    main()
