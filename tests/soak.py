"""A soak test: `make soak`. One sweep, killed at random or in peace.

At first an undisturbed sweep on this machine says what is to come out. Then the same sweep is
made again, each time in a store of its own:

    local      on this machine's cores, while random runs and the sweep itself are killed every
               few seconds; it is started again until it is done
    workers    by two workers, in a store on a PostgreSQL server that is started for it

Each has to end complete, with the same table byte for byte and the same metric points but for
times, and no kill may have cost more than one checkpoint interval.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conftest import PostgresServer, postgres_binaries

from advsweep.store import RunRecord, Status, Store, open_store

EVERY = 5
"""Steps between checkpoints."""
STEPS = 20
"""Steps of a run, so few that its log has a line for each."""

BACKENDS = {
    "fake": ["prompts_per_step=8", "backend.step_seconds=0.1"],
    "tiny": ["prompts_per_step=48"],
}

Command = list[str]
Points = dict[str, list[tuple[str, int, float]]]


def main() -> int:
    """Exit code 0 when everything came out as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS, default="tiny")
    parser.add_argument("--runs", type=int, default=200, help="an even number")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--through", choices=ROUTES, nargs="+", default=list(ROUTES))
    parser.add_argument(
        "--disturb", choices=ROUTES, nargs="*", default=["local"], help="where there are kills"
    )
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two blows")
    parser.add_argument(
        "--commands", type=float, default=0.15, help="share of blows that hit a command as well"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the stores, to go on with later")
    options = parser.parse_args()
    sweep = Sweep(options.backend, options.runs, options.jobs)
    sound = True
    with _folder(options.keep) as folder:
        # It also pretrains the base model, which no run could under so many kills.
        peace = Blows(0.0, 0.0, 0)
        expected = _made("undisturbed", "local", sweep, folder, peace)
        for route in options.through:
            pause = options.pause if route in options.disturb else 0.0
            blows = Blows(pause, options.commands, options.seed)
            made = _made(route, route, sweep, folder, blows)
            most = max(made.costs, default=0)
            points, table = made.points == expected.points, made.table == expected.table
            print(f"  {blows.runs} kills of runs, {blows.commands} of commands")
            print(f"  steps trained twice: at most {most} per kill, {sum(made.costs)} in all")
            print(f"  points and table as undisturbed: {_yes(points)}, {_yes(table)}", flush=True)
            for line in difflib.unified_diff(expected.table, made.table, n=0, lineterm=""):
                print(f"  {line}")
            sound = sound and points and table and most <= EVERY
    return 0 if sound else 1


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Sweep:
    """The sweep that is made again and again, as commands."""

    backend: str
    runs: int
    jobs: int

    def command(self, *overrides: str) -> Command:
        """The whole sweep; overrides may choose a part of it, or another executor."""
        seeds = f"seed=range({self.runs // 2})"
        chosen = [f"backend={self.backend}", "estimator=grpo,fade", seeds]
        chosen += ["task.train_per_level=200", "task.held_out_per_level=2"]
        chosen += ["evaluation.n=8", "evaluation.k=[1,8]", "evaluation.every=0"]
        chosen += [f"steps={STEPS}", f"backend.checkpoint_every={EVERY}"]
        chosen += BACKENDS[self.backend]
        names = [override.partition("=")[0] for override in overrides]
        kept = [override for override in chosen if override.partition("=")[0] not in names]
        options = ["--name=soak", f"--jobs={self.jobs}", "--retries=1000"]
        return _advsweep("sweep", *options, *kept, *overrides)


def _advsweep(*arguments: str) -> Command:
    return [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments]


@dataclass
class Blows:
    """Kills runs and commands at random.

    Attributes:
        pause: mean seconds between two blows, counted while there is a run; 0: there are none.
        share: how many of them hit a command as well.
        runs: how many runs were killed.
        commands: how many commands were killed.
    """

    pause: float
    share: float
    seed: int
    runs: int = 0
    commands: int = 0
    _moments: random.Random = field(init=False)
    _looked: float = field(init=False)
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._moments = random.Random(self.seed)
        self._looked = time.monotonic()
        self._wait()

    def _wait(self) -> None:
        self._left = self._moments.uniform(0.0, 2 * self.pause)

    def strike(self, store: Store, commands: list[subprocess.Popen[bytes]]) -> None:
        """Kills one or two of the runs that are being trained, and a command now and then.

        Only time in which there is a run counts: a sweep that takes long to begin, or a run
        that has to rest, would else be hit each time just when it begins.
        """
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        running = store.runs.select(status=Status.RUNNING) if self.pause else []
        if not running:
            return
        self._left -= passed
        if self._left > 0:
            return
        number = min(len(running), self._moments.choice((1, 1, 2)))
        for run in self._moments.sample(running, number):
            assert run.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)
                self.runs += 1
        if self._moments.random() < self.share:
            alive = [command for command in commands if command.poll() is None]
            for command in self._moments.sample(alive, min(len(alive), 1)):
                command.kill()
                command.wait()
                self.commands += 1
        self._wait()


@dataclass(frozen=True)
class Made:
    """What a sweep has come to.

    Attributes:
        points: what each run measured, times left out, by its identity.
        table: the report as CSV.
        costs: the steps that each start of a run but its first trained again.
    """

    points: Points
    table: list[str]
    costs: list[int]


def _made(name: str, route: str, sweep: Sweep, folder: Path, blows: Blows) -> Made:
    """Makes the sweep until it is done."""
    started = time.monotonic()
    with ROUTES[route](name, folder) as url, open_store(url) as store:
        commands = _COMMANDS[route]
        if route != "local":
            _add_runs(sweep, store)
        while store.runs.count(status=Status.DONE) < sweep.runs:
            _go_on(commands(sweep, store), store, blows, name)
        assert store.runs.count() == sweep.runs
        seconds = time.monotonic() - started
        print(f"{name}: {sweep.runs} runs done in {seconds:.0f} s", flush=True)
        report = _advsweep("report", "soak", "--format", "csv", "--store", url)
        return Made(
            points=_measured(store),
            table=subprocess.run(report, check=True, stdout=subprocess.PIPE)
            .stdout.decode()
            .splitlines(),
            costs=[cost for run in store.runs.select() for cost in _costs(run)],
        )


def _add_runs(sweep: Sweep, store: Store) -> None:
    """Puts the runs into the store: a sweep does so first of all, and is stopped then."""
    command = subprocess.Popen([*sweep.command(), "--store", store.url], stderr=subprocess.DEVNULL)
    while store.runs.count() < sweep.runs:
        assert command.poll() is None, f"exit status {command.returncode}"
        time.sleep(0.1)
    command.terminate()
    command.wait()


def _go_on(commands: list[Command], store: Store, blows: Blows, name: str) -> None:
    """Starts commands, and returns when they have ended."""
    before = store.runs.count(status=Status.DONE), blows.runs + blows.commands
    told = time.monotonic()
    # The last words of a command that fails are all that there is to go by.
    with tempfile.TemporaryFile() as errors:
        processes = [subprocess.Popen([*c, "--store", store.url], stderr=errors) for c in commands]
        while any(process.poll() is None for process in processes):
            time.sleep(0.1)
            blows.strike(store, processes)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                done = store.runs.count(status=Status.DONE)
                print(f"  {name}: {done} runs done", file=sys.stderr, flush=True)
        errors.seek(0)
        words = errors.read().decode().splitlines()[-20:]
    if (store.runs.count(status=Status.DONE), blows.runs + blows.commands) == before:
        sys.exit("\n".join([f"{name}: nothing was done, and nobody was killed", *words]))


def _costs(run: RunRecord) -> list[int]:
    """Steps that each start of a run but the first trained again, from its log."""
    text = (run.directory / "log.txt").read_text(encoding="utf-8")
    steps = [int(step) for step in re.findall(r" step (\d+) of \d+: reward", text)]
    return [before - now + 1 for before, now in itertools.pairwise(steps) if now <= before]


def _measured(store: Store) -> Points:
    return {
        run.identity: [
            p for p in store.metrics.points(run.id) if not p[0].startswith(("time/", "memory/"))
        ]
        for run in store.runs.select()
    }


@contextmanager
def _in_a_file(name: str, folder: Path) -> Iterator[str]:
    yield str(folder / f"{name}.db")


@contextmanager
def _on_a_server(name: str, folder: Path) -> Iterator[str]:
    binaries = postgres_binaries()
    if binaries is None:
        sys.exit("workers: no PostgreSQL server is installed (no initdb on the PATH)")
    server = PostgresServer(binaries)
    os.environ["ADVSWEEP_RUNS"] = str(folder / f"{name}-runs")
    try:
        server.ask("postgres", "CREATE DATABASE soak")
        yield server.url("soak")
    finally:
        del os.environ["ADVSWEEP_RUNS"]
        server.stop()
        shutil.rmtree(server.folder)


def _local(sweep: Sweep, store: Store) -> list[Command]:
    return [sweep.command()]


def _workers(sweep: Sweep, store: Store) -> list[Command]:
    # Workers leave alone what has failed, as those that are killed too often do.
    failed = store.runs.count(status=Status.FAILED)
    workers = [_advsweep("worker", "soak", f"--jobs={max(1, sweep.jobs // 2)}")] * 2
    return [*workers, sweep.command()] if failed else workers


ROUTES = {"local": _in_a_file, "workers": _on_a_server}
_COMMANDS: dict[str, Callable[[Sweep, Store], list[Command]]] = {
    "local": _local,
    "workers": _workers,
}

if __name__ == "__main__":
    sys.exit(main())
