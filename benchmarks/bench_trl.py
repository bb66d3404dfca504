"""What our estimators, diagnostics and loss add to a step of TRL, compared with TRL's own trainer.

    python benchmarks/bench_trl.py [--steps 40] [--model FOLDER | --no-model]

First, two trainings of the tiny model take turns in one process, a step each: one by backend=trl,
one by TRL's GRPOTrainer alone, which is given the same problems and seeds and therefore draws the
same rollouts, makes the same updates and has the same losses to the last bit; that is checked.
A step is 64 prompts x 8 rollouts with two updates. Figures are medians over the steps, in
milliseconds of CPU time of one thread. Estimator and diagnostics are to take less than 1 ms of
any step, and no more than 1 % of this one together with what is taken down of the sampling
distributions, which grows with the tokens that are generated.

Then three trainings of SmolLM2-135M take turns in the same way: TRL's, ours with separate rows,
and ours with `share_prompts=auto`, for prompts of 35 and of 200 tokens and answers of 6 and of 64.
A step is 4 prompts x 8 rollouts, or 1 x 8 with the long prompts, with one update, in float32. Each
shape has a process of its own. The folder is made if it is missing, from a package of PyPI; this
part takes 35 minutes and 16 GB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

os.environ.update(
    {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
)

import numpy as np
import torch
from bench_estimators import OPTIONS, SMALL, batch
from figures import head, show
from transformers import AutoConfig, AutoTokenizer, TrainerCallback

from advsweep.backends import training_loop
from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.reporter import SilentReporter
from advsweep.backends.tiny.pretraining import base_weights
from advsweep.backends.tiny.weights import export_folder
from advsweep.backends.trl import trainer as our_trainer
from advsweep.backends.trl.sampling import StatisticsRecorder
from advsweep.diagnostics import rollout_metrics
from advsweep.estimators import ESTIMATORS, build_estimator
from advsweep.tasks.dataset import Dataset

if TYPE_CHECKING:
    from advsweep.tasks.base import Problem

PROMPTS, GROUP, UPDATES = 64, 8, 2
WARM_UP = 3
CALLS = 200
TARGET_MS, TARGET_SHARE = 1.0, 0.01
# Of the real model.
MODEL = Path(__file__).parent / "real_model" / "smollm2"
PREPARE = Path(__file__).parents[1] / "experiments" / "real_model" / "prepare.py"
NEVER_SAMPLED = "<filename>"
# Prompts of a step by the tokens of each: three trainings must fit into the memory together.
MODEL_PROMPTS, ANSWER_TOKENS = {35: 4, 200: 1}, (6, 64)
MODEL_WARM_UP, MODEL_STEPS = 1, 2
JUDGING = "estimator and diagnostics"
SIGNALS = "entropies and such, while it generates"

train_stock: Callable[..., Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "tests" / "backends" / "trl" / "stock.py")
)["train_stock"]
"""Settings of TRL alone, equal to those of the tests that compare it with `backend=trl`."""


def make_tiny_run(folder: Path, steps: int) -> Run:
    """Return a run of GRPO, as TRL has it, on an export of the tiny base model."""
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
        # As TRL does, to have the same losses to the last bit.
        "share_prompts": False,
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


class StepReporter(SilentReporter):
    """A reporter that handles only the ends of steps."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._end_step()


class StepCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, updates: int, end_step: Callable[[], None]) -> None:
        self._updates = updates
        self._end_step = end_step

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step % self._updates == 0:
            self._end_step()


def take_turns(trainings: dict[str, Callable[[Callable[[], None]], Any]]) -> tuple[Turns, Any]:
    """Runs trainings in turns, a step each; each gets what it calls at the end of a step.

    Returns:
        The turns with the times of all steps, and the result of each training.
    """
    turns = Turns(*trainings)
    with contextlib.redirect_stdout(None), ThreadPoolExecutor(len(trainings)) as pool:
        running = {}
        for name, train in trainings.items():
            end_step = functools.partial(turns.end_step, name)
            running[name] = pool.submit(turns.within, name, functools.partial(train, end_step))
        return turns, {name: future.result() for name, future in running.items()}


@contextlib.contextmanager
def recorded_losses() -> Iterator[dict[Any, list[float]]]:
    """Records the losses of our trainings meanwhile, by their `share_prompts`."""
    losses: dict[Any, list[float]] = defaultdict(list)
    compute_loss = our_trainer.EstimatorTrainer._compute_loss

    def recorded(trainer: Any, *arguments: Any) -> torch.Tensor:
        loss = compute_loss(trainer, *arguments)
        # Record those of TRL's trainer too, so that both take the same time.
        losses[trainer._options.share_prompts].append(loss.item())
        return loss

    our_trainer.EstimatorTrainer._compute_loss = recorded  # type: ignore[method-assign]
    try:
        yield losses
    finally:
        our_trainer.EstimatorTrainer._compute_loss = compute_loss  # type: ignore[method-assign]


def our_training(run: Run, folder: Path, end_step: Callable[[], None]) -> None:
    run.backend.train(run, folder, StepReporter(end_step))


def stock_training(run: Run, folder: Path, end_step: Callable[[], None]) -> list[float]:
    """Trains with TRL alone and returns the losses."""
    callback = StepCallback(run.backend.layout_of(run).updates, end_step)
    losses: list[float] = train_stock(run, folder, callbacks=[callback], loss_type="grpo")[0]
    return losses


def train_both(run: Run, folder: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns CPU seconds of the steps of both trainings, and of the parts of ours."""
    clocks = Clocks()
    clocks.timed(training_loop, "compute_advantages", JUDGING)
    clocks.timed(training_loop, "stacked_rollout_metrics", JUDGING)
    clocks.timed(StatisticsRecorder, "__call__", SIGNALS)
    clocks.timed(StatisticsRecorder, "statistics", SIGNALS)

    def ours(end_step: Callable[[], None]) -> None:
        def end_our_step() -> None:
            clocks.end_step()
            end_step()

        our_training(run, folder / "ours", end_our_step)

    stock = functools.partial(stock_training, run, folder / "stock")
    with recorded_losses() as losses:
        turns, results = take_turns({"ours": ours, "stock": stock})
    assert losses[False] == results["stock"]
    return turns.seconds, clocks.seconds


@dataclass(kw_only=True)
class EvenLength(Dataset):
    """Prompts of which an answer of even length is right, so that groups have gradients."""

    name: ClassVar[str] = "even_length"
    max_completion_length: ClassVar[int]

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> Any:
        return np.array([float(len(text) % 2 == 0) for text in completions])


def write_endless_model(source: Path, folder: Path) -> None:
    """Write the model with an end mark that it never samples: answers are as long as they may."""
    folder.mkdir()
    for file in source.iterdir():
        os.link(file, folder / file.name)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.eos_token = NEVER_SAMPLED
    config = AutoConfig.from_pretrained(source)
    config.eos_token_id = tokenizer.eos_token_id
    (folder / "generation_config.json").unlink()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    config.save_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)


def write_prompts(file: Path, tokenizer: Any, tokens: int) -> None:
    """Write prompts of so many tokens each: numbers after words."""
    lines = []
    for number in range(10, 40):
        words = "the sum of these numbers is " * tokens
        ids = tokenizer(f"{number} and {words}")["input_ids"][:tokens]
        question = tokenizer.decode(ids)
        assert len(tokenizer(question)["input_ids"]) == tokens
        lines.append(json.dumps({"question": question, "answer": "0"}))
    file.write_text("\n".join(lines), encoding="utf-8")


def make_model_run(
    folder: Path, data: Path, *, prompts: int, answer_tokens: int, share_prompts: Any
) -> Run:
    """Return a run of GRPO, as TRL has it, on a model of transformers; answers have one length."""
    task = EvenLength(data=str(data), prompt="plain", held_out=4)
    EvenLength.max_completion_length = answer_tokens
    run = build_run(
        {
            "estimator": {"name": "grpo", "preset": "trl"},
            "objective": "clipped",
            "rollout": "plain",
            "task": "countdown",
            "model": {"name": "hf", "path": str(folder)},
            "optimizer": "adamw",
            "generation": {"name": "transformers", "max_tokens": answer_tokens},
            "evaluation": {"name": "standard", "every": 0},
            "backend": {
                "name": "trl",
                "gradient_checkpointing": False,
                "checkpoint_every": 0,
                "share_prompts": share_prompts,
                "measured_weights": 0,
            },
            "group_size": GROUP,
            "prompts_per_step": prompts,
            "steps": MODEL_WARM_UP + MODEL_STEPS,
            "seed": 0,
        }
    )
    return replace(run, task=task)


def compare_sharing(model: Path) -> None:
    """Print the times of steps of a real model, with prompts shared and without."""
    head("CPU s")
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        folder = Path(scratch)
        write_endless_model(model, folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        for prompt_tokens in MODEL_PROMPTS:
            write_prompts(folder / prompt_file(prompt_tokens), tokenizer, prompt_tokens)
            for answer_tokens in ANSWER_TOKENS:
                # What a training holds is given back with its process.
                process = get_context("spawn").Process(
                    target=compare_one_shape, args=(folder, prompt_tokens, answer_tokens)
                )
                process.start()
                process.join()
                if process.exitcode != 0:
                    raise SystemExit(f"{prompt_tokens} + {answer_tokens} tokens failed")


def prompt_file(tokens: int) -> str:
    return f"prompts_{tokens}.jsonl"


def compare_one_shape(folder: Path, prompt_tokens: int, answer_tokens: int) -> None:
    torch.set_num_threads(1)
    make_run = functools.partial(
        make_model_run,
        folder / "model",
        folder / prompt_file(prompt_tokens),
        prompts=MODEL_PROMPTS[prompt_tokens],
        answer_tokens=answer_tokens,
    )
    shape = f"{prompt_tokens} + {answer_tokens}"
    separate = make_run(share_prompts=False)
    shared = make_run(share_prompts="auto")
    trainings = {
        "stock": functools.partial(stock_training, separate, folder / "stock"),
        "separate": functools.partial(our_training, separate, folder / "separate"),
        "shared": functools.partial(our_training, shared, folder / "shared"),
    }
    with recorded_losses() as losses:
        turns, results = take_turns(trainings)
    for name in trainings:
        shutil.rmtree(folder / name, ignore_errors=True)
    assert losses[False] == results["stock"]
    seconds = {name: times[MODEL_WARM_UP:] for name, times in turns.seconds.items()}
    stock = statistics.median(seconds["stock"])
    peer = "GRPOTrainer of TRL"
    for name, what in (("separate", "separate rows"), ("shared", "share_prompts=auto")):
        ours = statistics.median(seconds[name])
        show(f"a step with {shape} tokens, {what}", f"{ours:.1f}", "", f"{stock:.1f}", peer)
        ratios = [a / b for a, b in zip(seconds["stock"], seconds[name], strict=True)]
        show("  times the peer's speed", f"{statistics.median(ratios):.2f}")


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
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=Path, default=MODEL, help="a folder with SmolLM2-135M")
    model.add_argument("--no-model", action="store_true", help="only the tiny model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compare_tiny(options.steps)
    if options.no_model:
        return
    if not options.model.exists():
        subprocess.run([sys.executable, str(PREPARE), str(options.model.parent)], check=True)
    compare_sharing(options.model)


def compare_tiny(steps: int) -> None:
    """Print the times of steps of the tiny model, beside TRL alone."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        run = make_tiny_run(Path(scratch) / "base", steps + WARM_UP)
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
