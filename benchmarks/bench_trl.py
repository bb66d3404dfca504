"""What our estimators, diagnostics and loss add to a step of TRL, compared with TRL's own trainer.

    python benchmarks/bench_trl.py [--steps 40]

Two trainings of the tiny model take turns in one process, a step each: one by backend=trl, one
by TRL's GRPOTrainer alone, which is given the same problems and seeds and therefore draws the
same rollouts, makes the same updates and has the same losses to the last bit; that is checked.
A step is 64 prompts x 8 rollouts with two updates. Figures are medians over the steps, in
milliseconds of CPU time of one thread. Estimator and diagnostics are to take less than 1 ms of
any step, and no more than 1 % of this one together with what is taken down of the sampling
distributions, which grows with the tokens that are generated.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import runpy
import statistics
import tempfile
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.update(
    {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
)

import torch
from bench_estimators import OPTIONS, SMALL, batch
from figures import head, show
from transformers import TrainerCallback

from advsweep.backends import training_loop
from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.tiny.pretraining import base_weights
from advsweep.backends.tiny.weights import export_folder
from advsweep.backends.trl import trainer as our_trainer
from advsweep.backends.trl.sampling import StatisticsRecorder
from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import ESTIMATORS, build_estimator

PROMPTS, GROUP, UPDATES = 64, 8, 2
WARM_UP = 3
CALLS = 200
TARGET_MS, TARGET_SHARE = 1.0, 0.01
JUDGING = "estimator and diagnostics"
SIGNALS = "entropies and such, while it generates"

train_stock: Callable[..., Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "tests" / "backends" / "trl" / "stock.py")
)["train_stock"]
"""Settings of TRL alone, equal to those of the tests that compare it with `backend=trl`."""


def make_run(folder: Path, steps: int) -> Run:
    """Returns TRL's GRPO trainer on an export of the tiny base model."""
    nodes: dict[str, Any] = {
        "estimator": {"name": "grpo", "preset": "trl"},
        "objective": "clipped",
        "rollout": "plain",
        "task": "countdown",
        "model": {"name": "tiny", "pretraining_seed": 0},
        "optimizer": "adamw",
        "generation": "sampling",
        "evaluation": {"name": "standard", "every": 0},
        "backend": "tiny",
    }
    numbers = {"group_size": GROUP, "prompts_per_step": PROMPTS, "steps": steps, "seed": 0}
    tiny: Any = build_run({**nodes, **numbers})
    export_folder(
        folder, base_weights(tiny.model, tiny.task), tiny.model, tiny.task, temperature=1.0
    )
    nodes["model"] = {"name": "hf", "path": str(folder)}
    nodes["backend"] = {
        "name": "trl",
        "minibatches": UPDATES,
        "gradient_checkpointing": False,
        "checkpoint_every": 0,
    }
    return build_run({**nodes, **numbers})


class Turns:
    """Runs trainings alternately, one step each, and times their steps.

    Attributes:
        seconds: of CPU time, of each training's steps.
    """

    def __init__(self, *names: str) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self._order = deque(names)
        self._changed = threading.Condition()
        self._started = 0.0

    def within(self, name: str, train: Callable[[], Any]) -> Any:
        """Runs a training, which must end its steps by `end_step`, and returns its result."""
        self._wait(name)
        try:
            return train()
        finally:
            with self._changed:
                self._order.remove(name)
                self._changed.notify_all()

    def end_step(self, name: str) -> None:
        """Blocks until it is the training's turn again."""
        self.seconds[name].append(time.process_time() - self._started)
        with self._changed:
            self._order.rotate(-1)
            self._changed.notify_all()
        self._wait(name)

    def _wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._order[0] == name)
        self._started = time.process_time()


class Clocks:
    """Measures the CPU seconds per step of chosen functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._present: dict[str, float] = defaultdict(float)

    def timed(self, owner: Any, name: str, what: str) -> None:
        """Wraps a function to measure all its calls."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.thread_time()
            result = function(*arguments, **named)
            self._present[what] += time.thread_time() - started
            return result

        setattr(owner, name, call)

    def end_step(self) -> None:
        for what, seconds in self._present.items():
            self.seconds[what].append(seconds)
        self._present.clear()


class StepReporter:
    """A reporter that handles only the ends of steps."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step

    def metrics(self, *_: Any) -> None:
        self._end_step()

    def ignore(self, *_: Any) -> None: ...

    evaluate = checkpoint = pruned = resumed = progress = log = ignore

    def stop_requested(self) -> bool:
        return False


class StepCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % UPDATES == 0:
            self._end_step()


def train_both(run: Run, folder: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns CPU seconds of the steps of both trainings, and of the parts of ours."""
    turns, clocks = Turns("ours", "stock"), Clocks()
    losses: list[float] = []
    compute_loss = our_trainer.EstimatorTrainer._compute_loss

    def recorded(*arguments: Any) -> torch.Tensor:
        loss = compute_loss(*arguments)
        # Record those of TRL's trainer too.
        losses.append(loss.item())
        return loss

    our_trainer.EstimatorTrainer._compute_loss = recorded  # type: ignore[method-assign]
    clocks.timed(training_loop, "compute_advantages", JUDGING)
    clocks.timed(training_loop, "stacked_rollout_metrics", JUDGING)
    clocks.timed(StatisticsRecorder, "__call__", SIGNALS)
    clocks.timed(StatisticsRecorder, "statistics", SIGNALS)

    def end_our_step() -> None:
        clocks.end_step()
        turns.end_step("ours")

    def train() -> None:
        run.backend.train(run, folder / "ours", StepReporter(end_our_step))

    def train_stock_in_turn() -> list[float]:
        callback = StepCallback(lambda: turns.end_step("stock"))
        return train_stock(run, folder / "stock", callbacks=[callback], loss_type="grpo")[0]

    with contextlib.redirect_stdout(None), ThreadPoolExecutor(2) as pool:
        ours = pool.submit(turns.within, "ours", train)
        stock = pool.submit(turns.within, "stock", train_stock_in_turn)
        ours.result()
        assert losses == stock.result()
    return turns.seconds, clocks.seconds


def milliseconds(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3


def dearest_estimator() -> tuple[str, float]:
    """Returns the slowest estimator, with the metrics of a step, and its milliseconds."""
    inputs, costs = batch(*SMALL), {}
    for name in ESTIMATORS:
        estimator = build_estimator(name, **OPTIONS.get(name, {}))
        seconds = []
        for _ in range(CALLS):
            started = time.thread_time()
            rollout_metrics(inputs, estimator.compute(inputs))
            seconds.append(time.thread_time() - started)
        costs[name] = milliseconds(seconds)
    dearest = max(costs, key=costs.__getitem__)
    return dearest, costs[dearest]


def main() -> None:
    parser = argparse.ArgumentParser(description="What we add to a step of TRL.")
    parser.add_argument("--steps", type=int, default=40, help="steps of each that are timed")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        run = make_run(Path(scratch) / "base", steps + WARM_UP)
        of_steps, of_parts = train_both(run, Path(scratch))
    ours, stock = (of_steps[name][WARM_UP:] for name in ("ours", "stock"))
    ratios = [a / b for a, b in zip(ours, stock, strict=True)]
    low, _, high = statistics.quantiles(ratios)

    head("CPU ms")
    peer = "GRPOTrainer of TRL, the same rollouts and losses"
    show("a step", f"{milliseconds(ours):.0f}", "", f"{milliseconds(stock):.0f}", peer)
    show("  ratio to the peer's same step", f"{statistics.median(ratios):.3f}")
    show("  its quartiles", f"{low:.3f}-{high:.3f}")
    parts = {what: seconds[WARM_UP:] for what, seconds in of_parts.items()}
    for what, seconds in parts.items():
        target = "" if what == SIGNALS else f"{TARGET_MS:g}"
        show(f"  {what}", f"{milliseconds(seconds):.2f}", target)
    shares = [sum(each) / whole for *each, whole in zip(*parts.values(), ours, strict=True)]
    show("  these, in % of the step", f"{statistics.median(shares):.2%}", f"{TARGET_SHARE:.0%}")
    name, cost = dearest_estimator()
    show(f"the dearest estimator ({name}) and diagnostics", f"{cost:.2f}", f"{TARGET_MS:g}")


if __name__ == "__main__":
    main()
