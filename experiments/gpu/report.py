"""Writes what the runs of a GPU cost, and whether they agree with those on a CPU.

    python experiments/gpu/report.py FOLDER --cpu experiments/gpu/cpu.csv

FOLDER is that of study.py; its `results` gets three tables, each as CSV and in report.md:

    bases      what was pretrained, from FOLDER/bases/*.json
    speed      by estimator: steps per second, parts of a step, memory, vLLM's distance
    agreement  by estimator and metric: the difference to RLOO on the GPU, paired by seed, with
               the spread of all estimators, beside the CPU's. `agrees`: both 95 % intervals lie on
               the same side of 0; `contradicts`: on opposite sides; `cannot tell`: one of them
               holds 0.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

import advsweep
from advsweep.statistics import compare_arms

SWEEP = "gpu-routes"
BASELINE = "rloo"
METRICS = {
    "pass@1": "pass@1",
    # The floor is the same for all rows, so that it leaves differences as they are.
    "pass@32": "pass@32[above=guess]",
    "entropy/right": "entropy/right",
    "collapse/acr@first30": "collapse/acr@first30",
}
"""Columns that are compared, and their names in the report of the CPU's."""
PARTS = ("time/rollout", "time/reward", "time/estimator", "time/update")
MEMORY = ("memory/peak_mb", "memory/peak_gpu_mb")
GAP = "sampler/log_prob_gap"


def bases(folder: Path) -> pd.DataFrame:
    found = sorted((folder / "bases").glob("*.json"))
    return pd.DataFrame([json.loads(path.read_text("utf-8")) for path in found])


def speed(metrics: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per estimator.

    Args:
        metrics: a row per run and step: `estimator`, `run` and metrics. Evaluations and
            checkpoints take no part in the times.

    A run counts with the medians of its steps, so that the first steps, which load and compile,
    do not; with the largest memory; and with the mean distance of vLLM's log-probabilities.
    An estimator's numbers are means over its runs.
    """
    frame = metrics.reindex(columns=["estimator", "run", *PARTS, *MEMORY, GAP])
    frame["step"] = frame[list(PARTS)].sum(axis=1, skipna=False)
    grouped = frame.groupby(["estimator", "run"], sort=False)
    step = grouped["step"].median()
    runs = pd.DataFrame(
        {
            "steps_per_second": 1 / step,
            "estimator_ms": 1000 * grouped["time/estimator"].median(),
            **{
                f"{part.removeprefix('time/')}_share": grouped[part].median()
                / grouped["step"].median()
                for part in PARTS
            },
            "peak_mb": grouped["memory/peak_mb"].max(),
            "peak_gpu_mb": grouped["memory/peak_gpu_mb"].max(),
            "log_prob_gap": grouped[GAP].mean(),
        }
    )
    by_estimator = runs.groupby("estimator", sort=False)
    return by_estimator.mean().assign(runs=by_estimator.size()).reset_index()


def agreement(runs: pd.DataFrame, cpu: pd.DataFrame | None) -> pd.DataFrame:
    """Returns a row per estimator and metric; see the module's text.

    Args:
        runs: a row per run: `estimator`, `seed` and the metrics.
        cpu: the report of the runs on a CPU, with the columns of `advsweep report --format csv`;
            None: there is none.
    """
    there = None if cpu is None else cpu.set_index("estimator")
    rows = []
    for metric, cpu_column in METRICS.items():
        by_seed = {
            name: dict(zip(group["seed"], group[metric], strict=True))
            for name, group in runs.groupby("estimator", sort=False)
        }
        for estimator in by_seed:
            if estimator == BASELINE:
                continue
            ours = compare_arms(by_seed, estimator, BASELINE)
            gpu = {"difference": ours.difference, "low": ours.low, "high": ours.high}
            theirs = dict.fromkeys(gpu, math.nan)
            if there is not None and estimator in there.index:
                row = there.loc[estimator]
                theirs = {
                    "difference": row[f"{cpu_column}_difference"],
                    "low": row[f"{cpu_column}_difference_low"],
                    "high": row[f"{cpu_column}_difference_high"],
                }
            rows.append(
                {
                    "estimator": estimator,
                    "metric": metric,
                    "pairs": ours.n,
                    **{f"gpu_{key}": value for key, value in gpu.items()},
                    **{f"cpu_{key}": value for key, value in theirs.items()},
                    "verdict": verdict(gpu, theirs),
                }
            )
    return pd.DataFrame(rows)


def verdict(gpu: dict[str, float], cpu: dict[str, float]) -> str:
    if math.isnan(cpu["difference"]):
        return "no CPU result"
    signs = [side(interval) for interval in (gpu, cpu)]
    if 0 in signs:
        return "cannot tell"
    return "agrees" if signs[0] == signs[1] else "contradicts"


def side(interval: dict[str, float]) -> int:
    """Returns the sign of a difference; 0 if its interval holds 0 or is not known."""
    return int(interval["low"] > 0) - int(interval["high"] < 0)


def markdown(title: str, frame: pd.DataFrame) -> str:
    header = [*map(str, frame.columns)]
    lines = [header, ["---"] * len(header), *(map(cell, row) for row in frame.values.tolist())]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "–" if math.isnan(value) else f"{value:.4g}"


def main(folder: Path, cpu: Path | None) -> None:
    store = folder / "study.db"
    runs = advsweep.load_runs(store, sweep=SWEEP, where="status=done", columns=[*METRICS])
    metrics = advsweep.load_metrics(store, sweep=SWEEP, where="status=done", wide=True)
    tables = {
        "bases": bases(folder),
        "speed": speed(metrics),
        "agreement": agreement(runs, pd.read_csv(cpu) if cpu else None),
    }
    results = folder / "results"
    results.mkdir(exist_ok=True)
    for name, frame in tables.items():
        frame.to_csv(results / f"{name}.csv", index=False)
    text = "\n".join(markdown(name, frame) for name, frame in tables.items())
    (results / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", type=Path, help="the report of the runs on a CPU (CSV)")
    options = parser.parse_args()
    main(options.folder, options.cpu)
