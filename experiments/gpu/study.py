"""Five estimators on a GPU: pretrains the bases, trains, and writes the report.

    python experiments/gpu/study.py                    # 25 million weights, TRL and vLLM
    python experiments/gpu/study.py --size large       # 83 million
    python experiments/gpu/study.py --size small       # a test of the scripts on a CPU
    python experiments/gpu/study.py optimizer.lr=1e-5  # overrides as of advsweep sweep

The working folder's `gpu-study-SIZE` (or --folder) takes the bases, the store and the runs;
started again the study goes on. The results are in its folder `results`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CPU = FOLDER / "cpu.csv"
SEEDS = 5
SMALL = (
    # What a base of 80 updates solves sometimes, so that some group is mixed.
    *("task=countdown", "task.levels=[0]", "task.held_out_per_level=2", "seed=0,1"),
    *("generation=transformers", "steps=2", "prompts_per_step=8", "resources.gpus=0"),
    "optimizer.lr=1e-3",
    *("evaluation.n=32", "evaluation.n_between=null", "evaluation.k=[1,32]", "evaluation.every=0"),
    "backend.checkpoint_every=0",
)
"""What a test changes: all of the study's parts but vLLM, the GPU and routes."""
SMALL_SEEDS = 2


def main(size: str, folder: Path, jobs: int, overrides: Sequence[str]) -> None:
    small = size == "small"
    (folder / "bases").mkdir(parents=True, exist_ok=True)
    os.environ["ADVSWEEP_RUNS"] = str(folder.resolve() / "runs")
    for seed in range(SMALL_SEEDS if small else SEEDS):
        if not (folder / "bases" / str(seed)).exists():
            base = ["--size", size, "--seed", str(seed), f"bases/{seed}"]
            run(folder, str(FOLDER / "pretrain.py"), *base)
    advsweep = ["-c", "from advsweep.cli import main; main()"]
    sweep = ["sweep", "+experiment=gpu/routes", *(SMALL if small else ()), *overrides]
    run(folder, *advsweep, *sweep, "--jobs", str(jobs), "--store", "study.db")
    # A test trains on another task.
    cpu = [] if small else ["--cpu", str(CPU)]
    run(folder, str(FOLDER / "report.py"), ".", *cpu)


def run(folder: Path, *arguments: str) -> None:
    """Runs a Python program in a folder; ends with its exit code if it fails."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=("small", "full", "large"), default="full")
    parser.add_argument("--folder", type=Path, help="default: gpu-study-SIZE")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one a GPU")
    parser.add_argument("overrides", nargs="*", help="as of advsweep sweep")
    options = parser.parse_args()
    chosen = options.folder or Path(f"gpu-study-{options.size}")
    main(options.size, chosen, options.jobs, options.overrides)
