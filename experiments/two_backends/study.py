"""Do the tiny backend and TRL's train alike? One experiment on both, and their differences.

    python experiments/two_backends/study.py FOLDER [SEEDS] [STEPS]

FOLDER takes the store, the runs and the exported base model; started again it goes on. Prints
a table and ends with code 1 unless the 90 % interval of each difference lies within ±0.03.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from advsweep.statistics import student_t_interval
from advsweep.store import open_store

MARGIN = 0.03
LAST = 10
METRICS = ("reward/mean", "collapse/acr", "entropy/token")

COMMON = (
    "estimator=grpo",
    "backend.minibatches=1",
    "optimizer.lr=1e-3",
    "evaluation.every=0",
    "evaluation.n=1",
    "evaluation.k=[1]",
)


def advsweep(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments]
    subprocess.run([*command, "--store", str(folder / "study.db")], check=True)


def main(folder: Path, seeds: int, steps: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ADVSWEEP_RUNS"] = str(folder / "runs")
    base = folder / "base"
    common = [*COMMON, f"steps={steps}", f"seed={','.join(map(str, range(seeds)))}"]
    advsweep(folder, "sweep", *common, "--name", "tiny")
    if not base.exists():
        advsweep(folder, "export", "last", str(base), "--step", "0")
    model = ["model=hf", f"model.path={base.resolve()}"]
    advsweep(folder, "sweep", "backend=trl", *model, *common, "--name", "trl")

    ends: dict[str, dict[str, dict[int, float]]] = {}
    with open_store(str(folder / "study.db"), create=False) as store:
        for backend in ("tiny", "trl"):
            for run in store.runs(sweep=backend):
                for metric in METRICS:
                    values = [value for _, _, value in store.points(run.id, [metric])][-LAST:]
                    by_seed = ends.setdefault(metric, {}).setdefault(backend, {})
                    by_seed[run.seed] = sum(values) / len(values)
    alike = True
    print("metric,tiny,trl,difference,low,high,n,within")
    for metric, found in ends.items():
        tiny, trl = ([found[backend][seed] for seed in range(seeds)] for backend in found)
        # Seeds share the problems of each step, so that the differences are paired.
        interval = student_t_interval([b - a for a, b in zip(tiny, trl, strict=True)], 0.9)
        within = interval.low >= -MARGIN and interval.high <= MARGIN
        alike &= within
        means = (sum(tiny) / seeds, sum(trl) / seeds, interval.mean, interval.low, interval.high)
        print(f"{metric},{','.join(f'{x:.4f}' for x in means)},{seeds},{within}")
    return 0 if alike else 1


if __name__ == "__main__":
    given = sys.argv[2:]
    raise SystemExit(
        main(Path(sys.argv[1]), *(int(x) for x in [*given, *("5", "150")[len(given) :]]))
    )
