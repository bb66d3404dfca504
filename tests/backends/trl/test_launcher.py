"""Trainings in two processes, on the CPU by gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from advsweep.backends.base import Run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import TrainingError

MakeRun = Callable[..., Run]
DEADLINE = 240


@pytest.fixture
def two(small_run: MakeRun) -> MakeRun:
    """Builds a small run in two processes."""

    def build(**changes: Any) -> Run:
        backend = {"processes": 2, "skip_zero_advantages": False, **changes.pop("backend", {})}
        return small_run("trl", backend=backend, **changes)

    return build


@pytest.mark.slow
def test_two_processes_are_stock_trl_and_go_on_exactly(
    two: MakeRun, train: Any, stock_script: Path, tmp_path: Path
) -> None:
    run = two(
        steps=20,
        group_size=8,
        estimator={"name": "grpo", "preset": "trl"},
        evaluation={"every": 5},
        backend={"minibatches": 2, "device_batch": 8, "checkpoint_every": 10},
    )
    whole = train(run, tmp_path / "whole")
    assert whole.evaluated == [0, 5, 10, 15, 20]
    # Each process measures the KL from the base at its own share of the answers.
    kl = {step: answers.kl_base for step, answers in whole.evaluations.items()}
    assert np.nanmax(kl[0]) == 0
    assert np.nanmin(kl[20]) > 1e-6
    assert (~np.isnan(kl[20])).sum() == 2

    job = {"config": run.plain(), "processes": 2, "settings": {"loss_type": "grpo"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [*TORCHRUN, str(stock_script), str(tmp_path / "job.json"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=DEADLINE, capture_output=True)
    files = Checkpoints(tmp_path / "whole", run.identity).load(20).files
    weights = safetensors.torch.load(files["model.safetensors"])
    stock = safetensors.torch.load_file(tmp_path / "weights.safetensors")
    for name, weight in weights.items():
        assert torch.equal(weight, stock[name]), name
    # Of each step: two updates of two passes in each of two processes. TRL halves the losses.
    losses = torch.tensor(
        [json.loads((tmp_path / f"losses-{rank}.json").read_text()) for rank in (0, 1)]
    )
    expected = 2 * losses.view(2, 20, 4).mean(dim=(0, 2))
    ours = torch.tensor([whole.points[step]["loss/policy"] for step in range(1, 21)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)

    begun = train(run, tmp_path / "parts", stop_after=13)
    rest = train(run, tmp_path / "parts")
    assert rest.resumptions == [13]
    assert begun.lasting | rest.lasting == whole.lasting
    again = Checkpoints(tmp_path / "parts", run.identity).load(20).files
    assert dict(again) == dict(files)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.slow
def test_groups_that_are_chosen_come_from_both_processes(
    two: MakeRun, train: Any, tmp_path: Path
) -> None:
    """Draws of an odd number of rollouts, groups across processes, KL, a reference."""
    run = two(
        steps=2,
        group_size=5,
        prompts_per_step=4,
        rollout={"name": "dynamic_sampling", "draw_prompts": 3, "max_draws": 40},
        objective={"kl_coef": 0.1},
        backend={"minibatches": 2, "device_batch": 2, "skip_zero_advantages": True},
        evaluation={"every": 0},
    )
    points = train(run, tmp_path).points
    for values in points.values():
        assert values["collapse/acr_after"] == 0
        drawn = values["cost/rollouts"] * 20
        assert drawn == pytest.approx(round(drawn))
        assert values["cost/utilisation"] == pytest.approx(20 / drawn)
        assert values["optim/grad_norm"] > 0


@pytest.mark.slow
def test_advantages_of_tokens_reach_both_processes(
    two: MakeRun, train: Any, tmp_path: Path
) -> None:
    """Equal ones train as one per rollout, whatever the widths of the processes' completions."""
    points = []
    for number, estimator in enumerate(
        ({"name": "grpo"}, {"name": "entropy_shaped", "alpha": 0.0}, {"name": "entropy_shaped"})
    ):
        run = two(
            steps=2,
            group_size=5,
            prompts_per_step=4,
            estimator=estimator,
            rollout={"name": "dynamic_sampling", "draw_prompts": 3, "max_draws": 40},
            backend={"minibatches": 2, "device_batch": 2, "skip_zero_advantages": True},
            evaluation={"every": 0},
        )
        points.append(train(run, tmp_path / str(number)).points)
    whole, equal, shaped = points
    for step, values in whole.items():
        for name in ("loss/policy", "optim/grad_norm", "advantage/abs_mean", "entropy/token"):
            assert equal[step][name] == pytest.approx(values[name], rel=1e-5, abs=1e-7), name
    # A bonus that is never negative: right answers weigh more, wrong ones less.
    assert shaped[1]["mass/success"] > whole[1]["mass/success"]
    assert shaped[1]["mass/failure"] < whole[1]["mass/failure"]
    assert shaped[1]["optim/grad_norm"] != pytest.approx(whole[1]["optim/grad_norm"], rel=1e-3)


@pytest.mark.slow
def test_what_a_process_fails_with_is_raised(two: MakeRun, train: Any, tmp_path: Path) -> None:
    run = two(rollout={"name": "dynamic_sampling", "max_draws": 1})
    with pytest.raises(TrainingError, match="step 1: expected 8 groups with different verdicts"):
        train(run, tmp_path)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(
    two: MakeRun, tmp_path: Path, cache_directory: Path
) -> None:
    run = two(steps=100_000, backend={"checkpoint_every": 0}, evaluation={"every": 0})
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = tmp_path / "run.json"
    job.write_text(json.dumps(run.plain()))
    parent = subprocess.Popen(
        [sys.executable, str(program), str(job), str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + DEADLINE
        steps = tmp_path / "steps"
        while not steps.exists():
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = _descendants(parent.pid)
        assert len(children) >= 3  # torchrun and its two
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    while any(_is_alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)


PROGRAM = """
import json, sys
from pathlib import Path
from advsweep.backends.build import build_run

class Reporter:
    def __getattr__(self, name):
        return lambda *arguments: None

    def metrics(self, step, values):
        (Path(sys.argv[2]) / "steps").touch()

run = build_run(json.loads(Path(sys.argv[1]).read_text()))
run.backend.train(run, Path(sys.argv[2]) / "run", Reporter())
"""


def _descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# What the processes say to each other, without any


class Answering:
    """Weights that answer by what they are asked."""

    def sample(self, problems: Any, n: int, *, temperature: float, seed: int) -> Any:
        from advsweep.tasks.base import Completions

        return Completions(texts=[[f"{problem} {seed}"] * n for problem in problems])


class Interrupted(BaseException):
    """A request to stop, as it breaks into an evaluation."""


class Listener:
    """A reporter that takes down what it is told."""

    def __init__(self, ask: Callable[[Any], None]) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._ask = ask

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append(("metrics", step, values))

    def evaluate(self, step: int, sampler: Any) -> None:
        self.told.append(("evaluate", step))
        self._ask(sampler)

    def progress(self, stage: str, done: int, total: int) -> None:
        self.told.append(("progress", stage, done, total))

    def stop_requested(self) -> bool:
        self.told.append(("stop_requested",))
        return True


@pytest.fixture
def serve() -> Any:
    """Serves a training that runs in a thread; returns what its reporter was told."""
    from advsweep.backends.trl.processes import RemoteReporter, _Server

    def served(training: Callable[[Any, Connection], None], ask: Callable[[Any], None]) -> Any:
        ours, theirs = Pipe()
        life, their_life = Pipe()

        def work() -> None:
            training(RemoteReporter(theirs), their_life)
            theirs.close()
            their_life.close()

        listener = Listener(ask)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            _Server(ours, [life], listener).serve()  # type: ignore[arg-type]
        finally:
            thread.join()
        return listener.told

    return served


def test_progress_is_reported_while_samples_are_awaited(serve: Any) -> None:
    def training(reporter: Any, life: Connection) -> None:
        class Telling(Answering):
            def sample(self, *arguments: Any, **named: Any) -> Any:
                reporter.progress("base evaluation", 1, 2)
                return super().sample(*arguments, **named)

        reporter.progress("loading the model", 0, 1)
        reporter.evaluate(0, Telling())
        life.send(None)
        reporter._calls.send(("done", ()))

    sampled = []
    told = serve(
        training,
        lambda sampler: sampled.append(sampler.sample(["a"], 1, temperature=1.0, seed=3).texts),
    )
    assert told == [
        ("progress", "loading the model", 0, 1),
        ("evaluate", 0),
        ("progress", "base evaluation", 1, 2),
    ]
    assert sampled == [[["a 3"]]]


def test_an_evaluation_that_is_broken_off_leaves_the_calls_in_order(serve: Any) -> None:
    """The reporter takes the request to stop itself, as it has steps to save first."""
    release = threading.Event()

    class Slow(Answering):
        def sample(self, *arguments: Any, **named: Any) -> Any:
            release.wait()
            return super().sample(*arguments, **named)

    answers = []

    def training(reporter: Any, life: Connection) -> None:
        reporter.evaluate(1, Slow())
        answers.append(reporter.stop_requested())
        reporter.evaluate(2, Answering())
        life.send(None)
        reporter._calls.send(("done", ()))

    sampled = []

    def ask(sampler: Any) -> None:
        if not release.is_set():
            # What was asked goes on while the answer is no longer waited for.
            sampler._thread.submit(sampler._server.ask, ("sample", (["a"], 1, 1.0, 3)))
            release.set()
        else:
            sampled.append(sampler.sample(["b"], 1, temperature=1.0, seed=5).texts)

    told = serve(training, ask)
    assert told == [("evaluate", 1), ("stop_requested",), ("evaluate", 2)]
    assert sampled == [[["b 5"]]]


def test_a_process_that_ends_without_a_word(serve: Any) -> None:
    with pytest.raises(TrainingError, match="process of the training was killed"):
        serve(lambda reporter, life: reporter.metrics(1, {}), lambda sampler: None)


def test_errors_that_cannot_be_sent_are_told_in_words() -> None:
    from advsweep.backends.trl.processes import sendable

    class LocalError(Exception):
        pass

    told = sendable(LocalError("why"))
    assert isinstance(told, RuntimeError)
    assert str(told) == "LocalError: why"
    assert isinstance(sendable(TrainingError("step 3")), TrainingError)


def test_the_launcher_that_does_not_start(
    two: MakeRun, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from advsweep.backends.trl import processes as launcher

    monkeypatch.setattr(
        launcher, "_command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"]
    )
    with pytest.raises(TrainingError, match=r"could not be started: .* code 3"):
        train(two(), tmp_path)
