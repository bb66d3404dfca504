"""A soak test: `make soak`. Kills runs and the parent of a sweep at random, until it is done.

The sweep is started again whenever its parent was killed. In the end it must be complete and
equal to an undisturbed one, and no kill may have cost more than one checkpoint interval.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from advsweep.store import RunRecord, Status, Store, open_store

EVERY = 5
"""Steps between checkpoints."""
STEPS = 20
"""Steps of a run, so few that its log has a line for each."""

BACKENDS = {
    "fake": ["backend.step_seconds=0.1"],
    "tiny": [],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="fake")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        disturbed, calm = Path(folder) / "disturbed.db", Path(folder) / "calm.db"
        command = _command(options.backend, options.runs, options.jobs)
        kills, parents, seconds = _disturb(command, disturbed, options.pause, options.seed)
        subprocess.run([*command, "--store", str(calm)], check=True, stderr=subprocess.DEVNULL)
        with open_store(str(disturbed)) as one, open_store(str(calm)) as other:
            costs = [cost for run in one.runs() for cost in _costs(run)]
            equal = _measured(one) == _measured(other)
            done = one.count_runs(status=Status.DONE)
    print(f"{done} of {options.runs} runs done in {seconds:.0f} s")
    print(f"{kills} kills of runs, {parents} of the parent")
    most, total = max(costs, default=0), sum(costs)
    print(f"steps trained twice: at most {most} per kill (interval {EVERY}), {total} in all")
    print(f"equal to an undisturbed sweep: {'yes' if equal else 'NO'}")
    sound = done == options.runs and equal and most <= EVERY
    return 0 if sound else 1


def _command(backend: str, runs: int, jobs: int) -> list[str]:
    advsweep = [sys.executable, "-c", "from advsweep.cli import main; main()"]
    seeds = f"seed=range({(runs + 1) // 2})"
    small = ["prompts_per_step=8", "task.held_out_per_level=2", "evaluation.n=8"]
    small += [
        "evaluation.k=[1,8]",
        "evaluation.every=0",
        f"steps={STEPS}",
        f"backend.checkpoint_every={EVERY}",
    ]
    overrides = [f"backend={backend}", "estimator=grpo,fade", seeds, *small, *BACKENDS[backend]]
    return [*advsweep, "sweep", f"--jobs={jobs}", "--retries=1000", "--name=soak", *overrides]


def _disturb(command: list[str], file: Path, pause: float, seed: int) -> tuple[int, int, float]:
    """Starts the sweep until it is done; returns kills of runs and of parents, and seconds."""
    moments, started = random.Random(seed), time.monotonic()
    kills = parents = 0
    while True:
        parent = subprocess.Popen([*command, "--store", str(file)], stderr=subprocess.DEVNULL)
        while parent.poll() is None:
            time.sleep(moments.uniform(0.0, 2 * pause))
            if not file.exists() or parent.poll() is not None:
                continue
            with open_store(str(file)) as store:
                kills += _kill_some(store, moments)
            if moments.random() < 0.2:
                parent.kill()
                parent.wait()
                parents += 1
        if parent.returncode == 0:
            return kills, parents, time.monotonic() - started
        if parent.returncode != -signal.SIGKILL:
            sys.exit(f"the sweep ended with exit status {parent.returncode}")


def _kill_some(store: Store, moments: random.Random) -> int:
    """Kills one or two of the runs that are being trained; returns how many."""
    running = store.runs(status=Status.RUNNING)
    killed = 0
    for run in moments.sample(running, min(len(running), moments.choice((1, 1, 2)))):
        assert run.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid, signal.SIGKILL)
            killed += 1
    return killed


def _costs(run: RunRecord) -> list[int]:
    """Steps that each start of a run but the first trained again, from its log."""
    text = (run.directory / "log.txt").read_text(encoding="utf-8")
    steps = [int(step) for step in re.findall(r" step (\d+) of \d+: reward", text)]
    return [before - now + 1 for before, now in itertools.pairwise(steps) if now <= before]


def _measured(store: Store) -> dict[str, list[tuple[str, int, float]]]:
    return {
        run.identity: [p for p in store.points(run.id) if not p[0].startswith("time/")]
        for run in store.runs()
    }


if __name__ == "__main__":
    sys.exit(main())
