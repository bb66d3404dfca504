"""A soak test: `make soak`. One sweep, in peace and then killed at random.

At first an undisturbed sweep says what is to come out. Then the same sweep is made again in
another store, while random runs and the sweep itself are killed every few seconds; it is started
again until it is done. It has to end with the same table byte for byte and the same metric points
but for times, and no kill may have cost more than one checkpoint interval.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from advsweep.store import RunRecord, Status, Store, open_store

EVERY = 5
"""Steps between checkpoints."""
STEPS = 20
"""Steps of a run, so few that its log has a line for each."""

BACKENDS = {
    "fake": ["prompts_per_step=8", "backend.step_seconds=0.1"],
    "tiny": ["prompts_per_step=48"],
}


def main() -> int:
    """Exit code 0 when everything came out as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS, default="tiny")
    parser.add_argument("--runs", type=int, default=200, help="an even number")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two blows")
    parser.add_argument(
        "--commands", type=float, default=0.15, help="share of blows that hit the sweep as well"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        # It also pretrains the base model, which no run could under so many kills.
        points, table, _ = make_sweep("undisturbed", options, Path(folder), None)
        blows = Blows(options.pause, options.commands, random.Random(options.seed))
        found, shown, costs = make_sweep("disturbed", options, Path(folder), blows)
    print(f"  {blows.runs} kills of runs, {blows.sweeps} of the sweep")
    print(f"  steps trained twice: at most {max(costs, default=0)} per kill, {sum(costs)} in all")
    same = {True: "yes", False: "NO"}
    print(f"  points and table as undisturbed: {same[found == points]}, {same[shown == table]}")
    for line in difflib.unified_diff(table, shown, n=0, lineterm=""):
        print(f"  {line}")
    return 0 if found == points and shown == table and max(costs, default=0) <= EVERY else 1


@dataclass
class Blows:
    """Kills runs and the sweep at random.

    Attributes:
        pause: mean seconds between two blows, counted while there is a run.
        share: how many of them hit the sweep as well.
        runs: how many runs were killed.
        sweeps: how many times the sweep was killed.
    """

    pause: float
    share: float
    moments: random.Random
    runs: int = 0
    sweeps: int = 0
    looked: float = 0.0
    left: float | None = None

    def strike(self, store: Store, sweep: subprocess.Popen[bytes]) -> None:
        """Kills one or two of the runs that are being trained, and the sweep now and then.

        Only time in which there is a run counts: a sweep that takes long to begin, or a run
        that has to rest, would else be hit each time just when it begins.
        """
        passed, self.looked = time.monotonic() - self.looked, time.monotonic()
        running = store.runs.select(status=Status.RUNNING)
        if not running:
            return
        if self.left is None:
            self.left = self.moments.uniform(0.0, 2 * self.pause)
            return
        self.left -= passed
        if self.left > 0:
            return
        number = min(len(running), self.moments.choice((1, 1, 2)))
        for run in self.moments.sample(running, number):
            assert run.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)
                self.runs += 1
        if self.moments.random() < self.share and sweep.poll() is None:
            sweep.kill()
            self.sweeps += 1
        self.left = None


def _advsweep(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments]


def make_sweep(
    name: str, options: argparse.Namespace, folder: Path, blows: Blows | None
) -> tuple[dict[str, list[tuple[str, int, float]]], list[str], list[int]]:
    """Make the sweep until it is done.

    Returns:
        What each run measured, times left out, by its identity; the report as lines of CSV; and
        the steps that each start of a run but its first trained again.
    """
    started, url = time.monotonic(), str(folder / f"{name}.db")
    chosen = [f"backend={options.backend}", "estimator=grpo,fade"]
    chosen += [f"seed=range({options.runs // 2})", *BACKENDS[options.backend]]
    chosen += ["task.train_per_level=200", "task.held_out_per_level=2"]
    chosen += ["evaluation.n=8", "evaluation.k=[1,8]", "evaluation.every=0"]
    chosen += [f"steps={STEPS}", f"backend.checkpoint_every={EVERY}"]
    limits = ["--name=soak", f"--jobs={options.jobs}", "--retries=1000", "--store", url]
    with open_store(url) as store:
        while (done := store.runs.count(status=Status.DONE)) < options.runs:
            kills = blows.runs + blows.sweeps if blows else 0
            # The last words of a command that fails are all that there is to go by.
            with tempfile.TemporaryFile() as errors:
                command = _advsweep("sweep", *limits, *chosen)
                sweep = subprocess.Popen(command, stderr=errors)
                while sweep.poll() is None:
                    time.sleep(0.1)
                    if blows:
                        blows.strike(store, sweep)
                errors.seek(0)
                words = errors.read().decode().splitlines()[-20:]
            is_killed = blows is not None and blows.runs + blows.sweeps > kills
            if store.runs.count(status=Status.DONE) == done and not is_killed:
                sys.exit("\n".join([f"{name}: nothing was done, and nobody was killed", *words]))
        assert store.runs.count() == options.runs
        seconds = time.monotonic() - started
        print(f"{name}: {options.runs} runs done in {seconds:.0f} s", flush=True)
        runs = store.runs.select()
        points = {
            run.identity: [
                p for p in store.metrics.points(run.id) if not p[0].startswith(("time/", "memory/"))
            ]
            for run in runs
        }
    report = _advsweep("report", "soak", "--format", "csv", "--store", url)
    table = subprocess.check_output(report, text=True).splitlines()
    return points, table, [cost for run in runs for cost in _costs(run)]


def _costs(run: RunRecord) -> list[int]:
    """Steps that each start of a run but the first trained again, from its log."""
    text = (run.directory / "log.txt").read_text(encoding="utf-8")
    steps = [int(step) for step in re.findall(r" step (\d+) of \d+: reward", text)]
    return [before - now + 1 for before, now in itertools.pairwise(steps) if now <= before]


if __name__ == "__main__":
    sys.exit(main())
