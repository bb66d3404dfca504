"""Do the tiny backend and TRL's train alike? One experiment on both, and their differences.

    python experiments/two_backends/study.py FOLDER [SEEDS] [STEPS]

FOLDER takes the store, the runs and the exported base model; started again it goes on. Prints
a table of the last third of the steps and of the whole training, and ends with code 1 unless the
90 % interval of each difference over the last third lies within ±0.03.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from advsweep.statistics import student_t_interval
from advsweep.store import open_store

MARGIN = 0.03
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
    # One base model for all seeds, which TRL starts from as well.
    one_base = "model.pretraining_seed=0"
    advsweep(folder, "sweep", one_base, *common, "--name", "tiny")
    if not base.exists():
        advsweep(folder, "export", "last", str(base), "--step", "0")
    model = ["model=hf", f"model.path={base.resolve()}"]
    advsweep(folder, "sweep", "backend=trl", *model, *common, "--name", "trl")

    series: dict[tuple[str, str], list[list[float]]] = {}
    with open_store(str(folder / "study.db"), create=False) as store:
        for backend in ("tiny", "trl"):
            runs = {run.seed: run.id for run in store.runs.select(sweep=backend)}
            for metric in METRICS:
                series[metric, backend] = [
                    [value for _, _, value in store.metrics.points(runs[seed], [metric])]
                    for seed in range(seeds)
                ]
    print("steps,metric,tiny,trl,difference,low,high,n,within")
    alike = True
    for label, window in (("last third", slice(-(steps // 3), None)), ("all", slice(None))):
        for metric in METRICS:
            tiny, trl = (
                [fmean(values[window]) for values in series[metric, backend]]
                for backend in ("tiny", "trl")
            )
            # Seeds share the problems of each step, so that the differences are paired.
            interval = student_t_interval([b - a for a, b in zip(tiny, trl, strict=True)], 0.9)
            within = interval.low >= -MARGIN and interval.high <= MARGIN
            alike &= within or label == "all"
            means = (fmean(tiny), fmean(trl), interval.mean, interval.low, interval.high)
            print(f"{label},{metric},{','.join(f'{x:.4f}' for x in means)},{seeds},{within}")
    return 0 if alike else 1


if __name__ == "__main__":
    given = sys.argv[2:]
    raise SystemExit(
        main(Path(sys.argv[1]), *(int(x) for x in [*given, *("5", "150")[len(given) :]]))
    )
