"""Tables as five papers print them, and a store's runs of their methods in the same layout.

    python experiments/papers/tables.py                                 # all tables, as printed
    python experiments/papers/tables.py avspo-table1 --store my.db      # our runs beside them

Each file of `printed/` is a table: `*` follows a bold number, `_` an underlined one, and a spread
follows a `±`. Accuracies are in percent. Columns have our names of metrics and tasks; where they
are the k of pass@k, each task has rows of its own. `methods.csv` has the filters that tell which
runs follow a paper's method. Numbers that are missing from our sources are left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import pandas as pd

from advsweep import load_evaluations, load_runs
from advsweep.errors import AdvsweepError, NotFoundError, ReportError
from advsweep.statistics import student_t_interval

FOLDER = Path(__file__).resolve().parent
TABLES = sorted(path.stem for path in (FOLDER / "printed").glob("*.csv"))
BASE = "Base"
KEYS = ["model", "task", "method"]
EVALUATED = ("pass@", "entropy/")


def printed(name: str) -> pd.DataFrame:
    """Return a table as printed: a row per number, its `task` empty where the column names it."""
    table = pd.read_csv(FOLDER / "printed" / f"{name}.csv", dtype=str)
    table = table if "task" in table else table.assign(task="")
    long = table.melt(KEYS, var_name="column", value_name="text").dropna(subset="text")
    return long.assign(source="printed")


def methods(paper: str) -> dict[str, str]:
    """Return the filter of each method of a paper, in the paper's order."""
    with (FOLDER / "methods.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["method"]: row["where"] for row in csv.DictReader(file) if row["paper"] == paper
        }


def ours(name: str, store: str, sweep: str | None = None) -> pd.DataFrame:
    """Return the means of a store's runs by model and method, as `printed` has them.

    Runs of other methods have the names of their estimators.

    Raises:
        AdvsweepError: the store cannot be read, or runs of one model and method differ in more
            than their seeds.
    """
    header = pd.read_csv(FOLDER / "printed" / f"{name}.csv", nrows=0).columns
    metrics = [c for c in header.difference(KEYS) if not c.startswith(EVALUATED)]
    chosen = {"store": store, "sweep": sweep}
    runs = load_runs(**chosen, where="status=done", columns=metrics).set_index("run")
    path = runs["model.path"].fillna(runs["model"]) if "model.path" in runs else runs["model"]
    runs["model"] = path.str.rstrip("/").str.rpartition("/")[2]
    runs["method"] = runs["estimator"]
    for method, where in methods(name.partition("-")[0]).items():
        try:
            runs.loc[load_runs(**chosen, where=["status=done", where])["run"], "method"] = method
        except NotFoundError:  # no run has a key of the filter
            continue
    configs = runs.groupby(["model", "method"])["config_hash"].nunique()
    if mixed := list(configs.index[configs > 1]):
        raise ReportError(f"expected one config per method, got several of {' '.join(mixed[0])}")

    found = load_evaluations(**chosen, where="status=done").sort_values("step")
    ends = found.groupby(["run", "task"]).tail(1)
    bases = found[found["step"] == 0].drop_duplicates(["seed", "task"]).assign(method=BASE)
    evaluated = pd.concat([bases, ends.assign(method=ends["run"].map(runs["method"]))])
    evaluated["model"] = evaluated["run"].map(runs["model"])
    scores = [column for column in evaluated if column.startswith(EVALUATED)]
    values = evaluated.melt([*KEYS, "seed"], scores, var_name="column")
    quantities = header.str.partition("[").get_level_values(0)
    values = values[values["column"].isin(quantities)]
    if "task" not in header:
        group = ["model", "method", "seed", "column"]
        means = values.groupby(group, as_index=False, sort=False)["value"].mean()
        values = pd.concat([values, means.assign(task="mean")])
        values["column"] += "[" + values["task"] + "]"
        numbers = runs.melt(["model", "method", "seed"], metrics, var_name="column")
        values = pd.concat([numbers, values]).assign(task="")
    means = values.groupby([*KEYS, "column"], sort=False)["value"].agg(list).reset_index()
    means["text"] = [_text(*pair) for pair in zip(means["column"], means["value"], strict=True)]
    return means.assign(source="ours").dropna(subset="text")


def _text(column: str, values: list[float]) -> str | None:
    """Return a mean ± half its 95 % interval over seeds; None without a value."""
    scale, digits = (100, 1) if column.startswith("pass@") else (1, 3)
    found = student_t_interval([scale * value for value in values if value == value])
    if not found.n:
        return None
    half = (found.high - found.low) / 2
    return f"{found.mean:.{digits}f}" + (f"±{half:.{digits}f}" if half > 0 else "")


def lay_out(name: str, store: str | None = None, sweep: str | None = None) -> pd.DataFrame:
    """Return a table in the paper's layout; with a store, our numbers follow the printed ones.

    Of printed models those that the store has are shown, or all if it has none of them.
    """
    numbers = printed(name)
    if store is not None:
        own = ours(name, store, sweep)
        shared = numbers[numbers["model"].isin(own["model"])]
        numbers = pd.concat([shared if len(shared) else numbers, own])
    order = [BASE, *methods(name.partition("-")[0])]
    keys = [key for key in KEYS if (numbers[key] != "").any()] + ["source"]
    table = numbers.pivot(index=keys, columns="column", values="text")
    table = table[list(dict.fromkeys(numbers["column"]))]
    place = {key: {v: i for i, v in enumerate(dict.fromkeys(numbers[key]))} for key in keys}
    place["method"] = {m: i for i, m in enumerate(dict.fromkeys([*order, *numbers["method"]]))}
    return table.sort_index(key=lambda level: level.map(place[level.name])).fillna("–")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="*", help=f"of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--store", help="a store with runs of the methods")
    parser.add_argument("--sweep", help="one of its sweeps")
    options = parser.parse_args()
    if unknown := set(options.name) - {*TABLES}:
        parser.error(f"expected some of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}")
    for name in options.name or TABLES:
        try:
            print(f"\n{name}\n{lay_out(name, options.store, options.sweep).to_string()}")
        except AdvsweepError as error:
            raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
