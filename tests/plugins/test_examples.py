"""The packages of `examples/plugins`, used as a stranger would after `pip install`."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import Result

from advsweep.backends import BACKENDS
from advsweep.cli.catalogue import plugin_registries
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.logs import READERS, ImportOptions
from advsweep.logs.names import NameMap
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs
from advsweep.rollouts import ROLLOUTS
from advsweep.store import Status, open_store
from advsweep.sweep.registry import STOPPINGS
from advsweep.tasks import TASKS
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown
from advsweep.tasks.verifiers import VERIFIERS, Outcome

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plugged")]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples" / "plugins").iterdir() if path.is_dir())
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
KINDS = {
    "backend": "profiled",
    "estimator": "capped_grpo",
    "executor": "nice",
    "importer": "npz",
    "objective": "raft",
    "reward": "repetition",
    "rollout": "max_variance",
    "stopping": "plateau",
    "task": "gcd",
    "tracking": "json_lines",
    "verifier": "unordered",
}
QUICK = ["backend=fake", "evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"]
QUICK += ["prompts_per_step=4", "group_size=4"]

Command = Callable[..., Result]


def said(result: Result) -> str:
    """The output of a command that succeeded."""
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


# The packages


def test_there_is_one_for_each_kind() -> None:
    assert [path.name for path in EXAMPLES] == sorted(KINDS)
    documented = set(re.findall(r"\| `([a-z]+)`: ", PAGE))
    assert documented == set(KINDS)


def test_the_page_shows_a_package_as_it_is() -> None:
    folder = ROOT / "examples" / "plugins" / "stopping"
    [toml] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert toml == (folder / "pyproject.toml").read_text("utf-8")
    assert code == (folder / "advsweep_plateau.py").read_text("utf-8")


def test_the_page_names_every_group() -> None:
    named = set(re.findall(r"`advsweep\.(\w+)` \|", PAGE)) | {"models", "optimizers", "generations"}
    assert named == {group.removeprefix("advsweep.") for group in plugin_registries()}


def test_all_are_found_and_usable(advsweep: Command) -> None:
    listed = json.loads(said(advsweep("list", "plugins", "--format", "json")))
    ours = [row for row in listed if row["name"] in KINDS.values()]
    assert {row["name"]: row["state"] for row in ours} == dict.fromkeys(KINDS.values(), "usable")
    assert {row["group"].removeprefix("advsweep.")[:-1] for row in ours} == set(KINDS)


# Their values


def test_the_estimator_cuts_off_what_is_above_its_cap() -> None:
    # One success of 8: p = 1/8, σ = √7/8, so that (r - p)/σ is √7 = 2.646 and -1/√7 = -0.378.
    rewards = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]])
    advantages = build_estimator("capped_grpo").compute(GroupBatch(rewards=rewards))
    assert advantages.values[0].tolist() == pytest.approx([2.0, *[-1 / math.sqrt(7)] * 7], abs=1e-5)
    assert advantages.values[1].tolist() == pytest.approx([1.0] * 4 + [-1.0] * 4, abs=1e-5)
    assert advantages.info == {"capped": 1 / 16}


def test_the_objective_trains_on_gains_up_to_its_bound() -> None:
    # Ratios 1/2, 1, 4 with A = 1: -w/3 each, but for the last, which is clipped to 1.2.
    old = torch.full((1, 3), -2.0, dtype=torch.float64)
    log_probs = (old + torch.tensor([0.5, 1.0, 4.0]).log()).requires_grad_()
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=old,
        completion_mask=torch.ones(1, 3, dtype=torch.bool),
        advantages=torch.ones(1, dtype=torch.float64),
        rollouts=1,
        tokens=3,
    )
    output = OBJECTIVES.build("raft").loss(inputs)
    (gradient,) = torch.autograd.grad(output.loss, log_probs)
    assert gradient[0].tolist() == pytest.approx([-1 / 6, -1 / 3, 0.0])
    assert output.loss.item() == pytest.approx(-2.7 / 3)
    assert output.metrics["loss/clip_fraction"].item() == pytest.approx(1 / 3)


def test_the_policy_keeps_the_groups_that_differ_most() -> None:
    class Source:
        step = 1
        rows = torch.tensor([[0.0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]])

        def draw(self, prompts: int) -> torch.Tensor:
            return self.rows[:prompts]

    # Variances 3/16, 0, 1/4, 3/16: the best two are group 2 and the first of the equal ones.
    collected = ROLLOUTS.build("max_variance").collect(Source(), 2)  # type: ignore[arg-type]
    assert collected.groups.tolist() == [0, 2]


def test_the_task_has_disjoint_splits_and_right_answers() -> None:
    task = TASKS.build("gcd", held_out=10)
    train, held_out = (task.problems(split) for split in (Split.TRAIN, Split.HELD_OUT))
    assert not {p.id for p in train} & {p.id for p in held_out}
    assert [sum(p.level == level for p in held_out) for level in range(3)] == [10, 10, 10]
    for problem in held_out:
        a, b = map(int, problem.id.split(","))
        assert problem.reference["answer"] == str(math.gcd(a, b))
        assert problem.id.replace(",", " and ") in problem.prompt
    first = held_out[0]
    texts = [f"It is {first.reference['answer']}", "0", "none", f"007 {first.reference['answer']}"]
    assert task.score([first] * 4, texts).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert task.answers([first] * 4, texts)[1:3] == ["0", None]
    drawn = task.draw(5, np.random.default_rng(0))
    assert [p.id for p in drawn] == [p.id for p in task.draw(5, np.random.default_rng(0))]
    assert {p.id for p in drawn} <= {p.id for p in train}


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        (r"\boxed{3, 1,2}", Outcome.CORRECT),
        (r"\boxed{1, 1, 2, 3}", Outcome.WRONG),
        (r"\boxed{1, 2}", Outcome.WRONG),
        ("1, 2, 3", Outcome.WRONG),
    ],
)
def test_the_verifier_ignores_the_order(completion: str, outcome: Outcome) -> None:
    verifier = VERIFIERS.build("unordered")
    reference = {"answer": "1, 2, 3"}
    assert verifier.judge(reference, completion).outcome is outcome
    assert verifier.judge(reference, verifier.solution(reference)).outcome is Outcome.CORRECT
    assert not verifier.reads({"answer": " , "})


def test_the_reward_counts_repeated_words() -> None:
    task = Countdown(reward={"accuracy": 1, "repetition": -0.5})
    # "a b a b a b" has the 3-grams aba, bab, aba, bab: half of them occurred before.
    texts = ["a b c d", "a b a b a b", "a"]
    values = task.rewards(texts, np.array([1.0, 1.0, 0.0]), np.ones(3))
    assert values.tolist() == [1.0, 0.75, 0.0]
    assert task.reward_range == (-0.5, 1.0)


def test_the_rule_stops_a_run_that_rises_no_more() -> None:
    rule = STOPPINGS.build("plateau", window=10, gain=0.1)

    def rising(rise: float) -> Callable[[str, int, int], float | None]:
        def mean(metric: str, first: int, last: int) -> float | None:
            assert metric == "reward/mean"
            return None if first < 1 else rise * (first + last) / 2

        return mean

    assert [step for step in range(41) if rule.is_due(step)] == [20, 30, 40]
    # Means of steps 1 to 10 and 11 to 20 differ by 10 times the rise of a step.
    assert rule.judge(rising(0.011), 20) is None
    assert "from 0.044 to 0.124 over 10 steps" in (rule.judge(rising(0.008), 20) or "")


def test_the_importer_reads_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "grpo-s1.npz", step=[1, 2], reward=[0.5, math.nan], mine=[1.0, 2.0])
    np.savez(tmp_path / "grpo-s0.npz", step=[7], reward=[0.25])
    names = NameMap("jsonl", extra={"reward": "reward/mean"})
    first, second = READERS.build("npz").runs(tmp_path, ImportOptions(names=names))
    assert [first.source, second.source] == ["grpo-s0.npz", "grpo-s1.npz"]
    assert list(first.steps) == [(7, {"reward/mean": 0.25})]
    assert list(second.steps) == [(1, {"reward/mean": 0.5, "mine": 1.0}), (2, {"mine": 2.0})]
    assert second.left_out == {"values that are NaN or infinite": 1}


# In commands


def test_a_sweep_takes_plugins_of_six_kinds(advsweep: Command, tmp_path: Path) -> None:
    overrides = [*QUICK, "objective=raft", "rollout=max_variance", "task=gcd"]
    overrides += ["executor=debug", "tracking=json_lines"]
    sweep = ["sweep", "--name=ours", *overrides, "estimator=grpo,capped_grpo", "steps=6"]
    said(advsweep(*sweep, "seed=0,1"))

    runs = json.loads(said(advsweep("ls", "--format", "json")))
    assert {(run["estimator"], run["config"]["seed"], run["status"]) for run in runs} == {
        (estimator, seed, "done") for estimator in ("grpo", "capped_grpo") for seed in (0, 1)
    }
    for run in runs:
        assert run["config"]["objective"]["name"] == "raft"
        assert run["config"]["rollout"] == {
            "name": "max_variance",
            "factor": 2.0,
            "on": "verdict",
            "mask_truncated": False,
        }
        assert run["config"]["task"]["name"] == "gcd"

    report = said(advsweep("report", "ours"))
    assert re.search(r"^capped_grpo\b", report, re.M), report
    files = sorted((tmp_path / "advsweep-runs" / "lines").glob("*.jsonl"))
    assert len(files) == 4
    for path in files:
        *lines, end = (json.loads(line) for line in path.read_text("utf-8").splitlines())
        assert [line["step"] for line in lines if "reward/mean" in line] == [1, 2, 3, 4, 5, 6]
        assert (end["status"], end["steps"]) == ("done", 6)
        is_capped = any("estimator/capped" in line for line in lines)
        assert is_capped is path.name.startswith("capped_grpo")

    # What is done is not done again; what is added is.
    said(advsweep(*sweep, "seed=0,1,2"))
    assert len(json.loads(said(advsweep("ls", "--format", "json")))) == 6
    assert len(list((tmp_path / "advsweep-runs" / "lines").glob("*.jsonl"))) == 6

    # A table that hardly learns rises by no 0.9: the rule ends it where it first judges.
    rule = ["stopping=plateau", "stopping.window=10", "stopping.gain=0.9", "steps=40"]
    said(advsweep("run", *overrides, "estimator=capped_grpo", *rule, "backend.learning_rate=1e-9"))
    [pruned] = json.loads(said(advsweep("ls", "--status", "pruned", "--format", "json")))
    assert (pruned["estimator"], pruned["step"]) == ("capped_grpo", 20)


def test_a_killed_run_resumes_on_the_executor(advsweep: Command, tmp_path: Path) -> None:
    overrides = [*QUICK, "estimator=capped_grpo", "rollout=max_variance", "objective=raft"]
    overrides += ["task=gcd", "steps=60", "backend.checkpoint_every=5"]
    command = ["run", *overrides, "backend.step_seconds=0.05"]
    program = "from advsweep.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command, "executor=debug"], cwd=tmp_path
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob("advsweep-runs/*/checkpoints/step-*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    said(advsweep(*command, "executor=nice", "executor.niceness=1"))
    with open_store(str(tmp_path / "advsweep.db")) as store:
        [run] = store.runs.select()
        assert (run.status, run.step) == (Status.DONE, 60)
    log = next(tmp_path.glob("advsweep-runs/*/log.txt")).read_text("utf-8")
    assert re.search(r"resuming after step [1-9]", log), log


def test_the_backend_trains_like_tiny_and_writes_a_profile(
    advsweep: Command, tmp_path: Path
) -> None:
    model = ["model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=1"]
    model += ["model.mlp_width=64", "model.pretraining_steps=20", "model.pretraining_batch=32"]
    quick = [*model, "evaluation.n=2", "evaluation.k=[1]", "evaluation.every=0", "steps=4"]
    quick += ["task.levels=[0]", "task.held_out_per_level=3", "prompts_per_step=4", "group_size=4"]
    options = ["backend.after=1", "backend.profile_steps=2", "executor=debug"]
    said(advsweep("run", "backend=profiled", *options, *quick))
    said(advsweep("run", "backend=tiny", "executor=debug", *quick))
    with open_store(str(tmp_path / "advsweep.db")) as store:
        profiled, plain = store.runs.select(newest_first=False)
        assert profiled.backend == "profiled"
        trace = json.loads((profiled.directory / "trace.json").read_text("utf-8"))
        assert any(event["name"].startswith("ProfilerStep") for event in trace["traceEvents"])
        assert not (plain.directory / "trace.json").exists()
        assert profiled.identity != plain.identity
        for name in ("reward/mean", "loss/policy", "optim/grad_norm"):
            curves = store.metrics.series([profiled.id, plain.id], name)
            own, tiny = (np.array(curves[run.id]) for run in (profiled, plain))
            assert own.size > 0
            assert np.array_equal(own, tiny)


def test_the_contract_suites_find_them(site: Path) -> None:
    """As the page says: the suites of advsweep's own components run on those of others."""
    assert {"capped_grpo"} <= set(build_estimator("capped_grpo").plain().values())
    suites = ["tests/estimators/test_contract.py", "tests/rollouts/test_contract.py"]
    suites += ["tests/backends/test_contract.py"]
    tried = "capped_grpo or max_variance or (profiled and (resumes or goes_on or reaches))"
    command = [sys.executable, "-m", "pytest", "-n", "0", *suites, "-k", tried]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 60
    assert BACKENDS.get("profiled").name == "profiled"
