"""Benchmark a report of a large store: 10,000 runs, 10 columns, after imports.

    python benchmarks/bench_report.py
    python benchmarks/bench_report.py postgresql://USER@HOST/DATABASE   # an empty one, left filled

The runs are 400 configurations of five estimators with 25 seeds each, with a training curve of
100 steps and an evaluation of 140 problems after the last. Beside each figure by the clock
stands, in parentheses, this process's CPU time, which is what a machine with nothing else to do
would come near to.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from figures import head, show

from advsweep.cli.commands.report import report
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import render
from advsweep.store import NewEvaluation, NewRun, Owner, ProblemCounts, Status, Store, open_store
from advsweep.writing import FORMATS

RUNS = 10_000
SEEDS = 25
STEPS = 100
PROBLEMS = 140
SAMPLES = 128
ESTIMATORS = ("grpo", "fade", "avspo", "a_grae", "power_alpha")
COLUMNS = [
    *("collapse/acr@first100", "collapse/acr@end", "reward/mean@end", "entropy/token@end"),
    *("pass@1", "pass@8", "pass@64", "pass@128", "entropy/answer", "pass@1[level=3]"),
]
METRICS = ("collapse/acr", "reward/mean", "entropy/token")
SWEEP = "large"
REPEATS = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/advsweep.db"
        with open_store(url) as store:
            fill(store, RUNS, SEEDS)
            head("ms (CPU)")
            built = build_report(store, SWEEP, columns=COLUMNS)
            assert (len(built.rows), len(built.columns)) == (RUNS // SEEDS, len(COLUMNS))
            for output, target in (("csv", "2,000"), ("table", "")):
                one = _milliseconds(
                    lambda output=output: report(
                        SWEEP, columns=",".join(COLUMNS), store=store.url, output_format=output
                    )
                )
                name = f"`report --format {output}` over {RUNS:,} runs"
                show(f"{name}, {len(COLUMNS)} columns", one, target)
            for name in FORMATS:
                written = _milliseconds(lambda name=name: render(built, name))
                show(f"  of which writing it as {name}", written)
            by_default = _milliseconds(lambda: report(SWEEP, store=store.url, output_format="csv"))
            show("with the columns that it has of itself", by_default)


def fill(store: Store, runs: int, seeds: int) -> None:
    store.sweeps.add(SWEEP, {})
    ids = store.runs.add([plan_run(i, seeds) for i in range(runs)], SWEEP)
    rng = np.random.default_rng(0)
    curve = [(name, step, 1 / step) for name in METRICS for step in range(1, STEPS + 1)]
    for i, run_id in enumerate(ids):
        store.leases.claim(run_id, Owner.current())
        store.runs.set_environment(run_id, ENVIRONMENT)
        store.metrics.record(run_id, curve)
        store.evaluations.add(evaluate(i, run_id, rng))
        store.leases.finish(run_id, Status.DONE)


ENVIRONMENT = {
    "advsweep": "0.1.0",
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "python": "3.11.7",
    "packages": {f"package{i}": f"1.{i}.0" for i in range(20)},
    "cpu": "A CPU",
    "cores": 2,
    "memory_bytes": 2**33,
}


def plan_run(i: int, seeds: int) -> NewRun:
    configuration, seed = divmod(i, seeds)
    estimator = ESTIMATORS[configuration % len(ESTIMATORS)]
    variant = configuration // len(ESTIMATORS)
    return NewRun(
        identity=f"{i:064x}",
        config_hash=f"{configuration:064x}",
        seed=seed,
        config=_config(estimator, variant, seed),
        steps=STEPS,
        estimator=estimator,
        backend="tiny",
    )


def _config(estimator: str, variant: int, seed: int) -> dict[str, Any]:
    """Returns a config of the size of a run of the tiny backend."""
    return {
        "estimator": {"name": estimator, **{f"parameter{i}": 0.5 for i in range(5)}},
        "objective": {"name": "clipped", **{f"parameter{i}": 0.2 for i in range(7)}},
        "rollout": {"name": "plain"},
        "task": {"name": "countdown", "levels": [0, 1, 2, 3, 4, 5, 6], "seed": 0},
        "model": {"name": "tiny", **{f"parameter{i}": 64 for i in range(14)}},
        "optimizer": {"name": "adamw", "lr": 1e-4 * (1 + variant // 4), "match": "none"},
        "generation": {"name": "sampling", "temperature": 1.0},
        "evaluation": {"name": "standard", "n": SAMPLES, "k": [1, 8, 64, 128], "every": 0},
        "backend": {"name": "tiny", "checkpoint_every": 50, "keep_last": 2, "threads": 1},
        "group_size": 4 * 2 ** (variant % 4),
        "prompts_per_step": 64,
        "steps": STEPS,
        "seed": seed,
    }


def evaluate(i: int, run_id: int, rng: np.random.Generator) -> NewEvaluation:
    correct = rng.integers(0, SAMPLES + 1, PROBLEMS).tolist()
    return NewEvaluation(
        identity=f"evaluation {i}",
        subject=f"{i:064x}@{STEPS}",
        run_id=run_id,
        step=STEPS,
        task="countdown",
        settings={"n": SAMPLES, "k": [1, 8, 64, 128], "temperature": 1.0, "seed": 0},
        problems=[
            ProblemCounts(
                problem_id=f"countdown {j}",
                prompt=f"prompt {j}",
                level=j % 7,
                n=SAMPLES,
                c=c,
                distinct=1,
                unscorable=0,
                answer_entropy=c / SAMPLES,
            )
            for j, c in enumerate(correct)
        ],
    )


def _milliseconds(work: Callable[[], object]) -> str:
    """Formats the median wall-clock and CPU time of several calls."""
    goes = []
    for _ in range(REPEATS):
        began, cpu = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            work()
        goes.append((time.perf_counter() - began, time.process_time() - cpu))
    seconds, cpu = (statistics.median(each) for each in zip(*goes, strict=True))
    return f"{seconds * 1e3:,.0f} ({cpu * 1e3:,.0f})"


if __name__ == "__main__":
    main()
