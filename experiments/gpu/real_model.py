"""A real model on a GPU in eight minutes: a study in small, shared prompts, the reservation.

    python experiments/gpu/real_model.py FOLDER [--gguf FILE | --hub]
    python experiments/gpu/real_model.py FOLDER --size small     # a test of the script on a CPU

FOLDER gets SmolLM2-135M-Instruct with its problems (experiments/real_model/prepare.py), the stores
and `results`: what a step costs, how the arms ended, and `summary.json` with the card's name. The
three parts, of which a finished one is not done again:

    study         RLOO and PSR with three seeds, side by side on a share of the GPU each; weights
                  in float32, computed in bfloat16
    sharing       a step with `share_prompts` on, off and auto, for short and for long prompts, one
                  run at a time
    reservation   two sweeps started together, whose runs want the whole GPU: none may overlap
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import advsweep

PREPARE = Path(__file__).resolve().parents[1] / "real_model" / "prepare.py"
PRETRAIN = Path(__file__).resolve().parent / "pretrain.py"
ADVSWEEP = ("-c", "from advsweep.cli import main; main()")
SHARED = "backend.share_prompts"
# Solved lines before a question; ten times as many make prompts of some 250 tokens.
SHORT_PROMPT = "3 * 4 = 12\n9 + 7 = 16\n8 * 6 = 48\n{question}"
LONG_PROMPT = "3 * 4 = 12\n9 + 7 = 16\n8 * 6 = 48\n" * 10 + "{question}"
STEP_TIMES = ("time/rollout", "time/update")


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        overrides: of every sweep.
        seeds: of the study.
        steps, timed_steps: of the study's runs, and of the runs that are timed.
        share, whole: GPUs of a run of the study, and of a run that wants a whole GPU.
        prompts: overrides for each length of prompts.
    """

    overrides: tuple[str, ...]
    seeds: int
    steps: int
    timed_steps: int
    share: float
    whole: float
    prompts: dict[str, tuple[str, ...]]


def quoted(prompt: str) -> str:
    """Return an override of the prompt, quoted for Hydra."""
    return "task.prompt=" + json.dumps(prompt)


FULL = Size(
    overrides=("+experiment=real_model/study", "sweep.tune=null", "sweep.controls=[]"),
    seeds=3,
    steps=20,
    timed_steps=6,
    share=0.25,
    whole=1,
    prompts={"short": (quoted(SHORT_PROMPT),), "long": (quoted(LONG_PROMPT),)},
)
# A model of characters, on the task that it knows, without a GPU.
SMALL = Size(
    overrides=(
        *("backend=trl", "model=hf", "model.path=tiny", "optimizer=adamw", "optimizer.lr=1e-3"),
        *("task=countdown", "task.levels=[0]", "task.held_out_per_level=2"),
        *("prompts_per_step=4", "group_size=4", "evaluation.n=4", "evaluation.k=[1]"),
        *("evaluation.every=0", "evaluation.n_between=null", "backend.checkpoint_every=0"),
    ),
    seeds=2,
    steps=2,
    timed_steps=3,
    share=0,
    whole=0,
    prompts={"short": ()},
)


def main(folder: Path, size: Size, prepare: Callable[[Path], None]) -> None:
    """Do the parts that are missing, and write the results."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ADVSWEEP_RUNS"] = str(folder.resolve() / "runs")
    started = time.monotonic()
    prepare(folder)
    study(folder, size)
    sharing(folder, size)
    reservation(folder, size)
    results = folder / "results"
    results.mkdir(exist_ok=True)
    ends = study_table(folder)
    steps = sharing_table(folder, size)
    ends.to_csv(results / "study.csv", index=False)
    steps.to_csv(results / "sharing.csv", index=False)
    summary = {
        "card": card(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        # Runs that want no GPU may overlap.
        "overlapping": overlapping(folder) if size.whole else None,
    }
    (results / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(ends.to_string(index=False), steps.to_string(index=False), summary, sep="\n\n")


def study(folder: Path, size: Size) -> None:
    seeds = ",".join(map(str, range(size.seeds)))
    sweep(
        folder,
        "study",
        *size.overrides,
        *("estimator=rloo,psr", f"seed={seeds}", f"steps={size.steps}"),
        f"resources.gpus={size.share}",
    ).wait_for_success()


def sharing(folder: Path, size: Size) -> None:
    for length, prompt in size.prompts.items():
        sweep(
            folder,
            f"sharing-{length}",
            *size.overrides,
            *prompt,
            *("estimator=rloo", "seed=0", f"steps={size.timed_steps}", "evaluation.every=0"),
            f"resources.gpus={size.whole}",
            # What is not in a run's identity is not swept over: each has a store of its own.
            variants=[(f"{SHARED}={value}", value) for value in ("false", "true", "auto")],
        ).wait_for_success()


def reservation(folder: Path, size: Size) -> None:
    """Start two sweeps together, from stores of their own."""
    started = [
        sweep(
            folder,
            f"reservation-{number}",
            *size.overrides,
            *("estimator=rloo", f"seed={number},{number + 2}", "steps=2", "evaluation.every=0"),
            f"resources.gpus={size.whole}",
        )
        for number in range(2)
    ]
    for each in started:
        each.wait_for_success()


class Commands:
    """Programs that run, of which each must succeed."""

    def __init__(self, programs: Sequence[subprocess.Popen[bytes]]) -> None:
        self._programs = programs

    def wait_for_success(self) -> None:
        for program in self._programs:
            if program.wait():
                raise SystemExit(program.returncode)


def sweep(
    folder: Path, name: str, *overrides: str, variants: Sequence[tuple[str, str]] = ()
) -> Commands:
    """Start a sweep; with variants one after the other, each with a store of its own."""
    started = []
    for override, suffix in variants or [("", "")]:
        store = f"{name}-{suffix}.db" if suffix else f"{name}.db"
        chosen = [*overrides, override] if override else overrides
        arguments = ["sweep", *chosen, "--name", name, "--store", store]
        program = subprocess.Popen([sys.executable, *ADVSWEEP, *arguments], cwd=folder)
        started.append(program)
        if variants:
            program.wait()
    return Commands(started)


def study_table(folder: Path) -> pd.DataFrame:
    """Return a row per run of the study."""
    columns = ["pass@1", "entropy/answer", *STEP_TIMES]
    runs = advsweep.load_runs(folder / "study.db", where="status=done", columns=columns)
    return runs[["estimator", "seed", *columns]]


def sharing_table(folder: Path, size: Size) -> pd.DataFrame:
    """Return the median seconds of a step's rollouts and updates, and the speed beside `false`."""
    rows: list[dict[str, Any]] = []
    for length in size.prompts:
        for value in ("false", "true", "auto"):
            store = folder / f"sharing-{length}-{value}.db"
            points = advsweep.load_metrics(store, names=STEP_TIMES, wide=True)
            # The first step loads and compiles.
            steps = points[points["step"] > 1][list(STEP_TIMES)]
            rows.append({"prompts": length, "share_prompts": value, **steps.median().to_dict()})
    table = pd.DataFrame(rows)
    table["step"] = table[list(STEP_TIMES)].sum(axis=1)
    separate = table[table["share_prompts"] == "false"].set_index("prompts")["step"]
    table["times_the_speed"] = table["prompts"].map(separate) / table["step"]
    return table


def overlapping(folder: Path) -> int:
    """Return how many pairs of runs of the two sweeps trained at the same time."""
    stores = [folder / f"reservation-{number}.db" for number in range(2)]
    runs = [advsweep.load_runs(store)[["started", "finished"]] for store in stores]
    return sum(
        first.started < second.finished and second.started < first.finished
        for first in runs[0].itertuples()
        for second in runs[1].itertuples()
    )


def card() -> str:
    """Return the name of the GPU, or of none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def prepare_real_model(folder: Path, source: Sequence[str]) -> None:
    if not (folder / "smollm2" / "config.json").exists():
        subprocess.run([sys.executable, str(PREPARE), str(folder), *source], check=True)


def prepare_tiny_model(folder: Path) -> None:
    if not (folder / "tiny.json").exists():
        arguments = ["--size", "small", "--seed", "0", "tiny"]
        subprocess.run([sys.executable, str(PRETRAIN), *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--gguf", type=Path, help="a file of weights, as of prepare.py")
    weights.add_argument("--hub", action="store_true", help="weights from the Hugging Face hub")
    options = parser.parse_args()
    if options.size == "small":
        main(options.folder, SMALL, prepare_tiny_model)
    else:
        chosen = ["--gguf", str(options.gguf.resolve())] if options.gguf else []
        chosen += ["--hub"] if options.hub else []
        main(options.folder, FULL, lambda folder: prepare_real_model(folder, chosen))
