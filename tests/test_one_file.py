"""The training that stands in one file: it runs, and its advantages are those of the backend."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from advsweep.backends.build import build_run
from advsweep.backends.training_loop import (
    LanguageSource,
    Scores,
    TokenStatistics,
    compute_advantages,
)
from advsweep.estimators import GroupBatch, build_estimator, estimator_names
from advsweep.rollouts.base import Collected
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks.base import Problem

FILE = Path(__file__).parents[1] / "examples" / "grpo_in_one_file.py"
PROBLEMS, GROUP = [7, 40, 137, 198], 8
Batches = tuple[GroupBatch, GroupBatch, Collected]


@pytest.fixture(scope="module", name="example")
def _example():
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_at_most_300_lines_and_needs_torch_and_the_estimators_alone():
    lines = FILE.read_text("utf-8").splitlines()
    assert len(lines) <= 300
    imported = [line for line in lines if line.startswith(("import ", "from "))]
    others = [
        line for line in imported if line.split()[1].split(".")[0] not in sys.stdlib_module_names
    ]
    assert [line.split()[1] for line in others] == [
        "torch", "torch.nn.functional", "torch", "advsweep.estimators",
    ]  # fmt: skip


@pytest.mark.slow
def test_it_trains(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FILE), "--pretraining-steps", "60", "--steps", "20"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    base, trained = done.stdout.splitlines()
    assert base.startswith("base      pass@1 ")
    assert trained.startswith("step  20  pass@1 ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        *[(right, 1) for right in ("60+77", "99+38", "38+99")],
        *[(wrong, 0) for wrong in ("60+78", "137+0", "137", "60+77+0", "+137", "60+", "", "60=77")],
    ],
)  # fmt: skip
def test_its_verifier(example, answer, reward):
    assert example.verify(137, answer) == reward


@pytest.fixture(scope="module")
def batches(example):
    """The example's batch, and the backend's of the same answers, by torch's distributions."""
    torch.manual_seed(0)
    model, base = example.Transformer(), example.Transformer()
    batch, answers, _ = example.make_batch(model, base, PROBLEMS, GROUP, 3, 10)
    # An untrained model has no right answer.
    rewards = (torch.rand(batch.rewards.shape) < torch.tensor([[0.0], [0.3], [0.6], [1.0]])).float()
    batch = type(batch)(
        **{
            **vars(batch),
            "rewards": rewards,
            "ref_rewards": rewards.flip(1),
            "solve_rates": rewards.mean(1),
        }
    )

    prompts = example.encode_prompts(PROBLEMS).repeat_interleave(GROUP, dim=0)
    with torch.no_grad():
        logits = example.answer_log_probs(model, prompts, answers)[..., : example.PADDING]
    used = answers != example.PADDING
    policy = torch.distributions.Categorical(logits=logits)
    uniform = torch.distributions.Categorical(logits=torch.zeros_like(logits))
    surprisal = -policy.log_prob(answers.where(used, 0)) * used
    entropies = policy.entropy() * used
    certainties = torch.distributions.kl_divergence(uniform, policy) * used
    # Of the run, the batch has the number of steps alone.
    plan = make_plan([f"group_size={GROUP}", "steps=10"], single=True)
    source = LanguageSource(build_run(plan.runs[0].config), step=3)
    problems = [Problem(str(problem), "", 0) for problem in PROBLEMS]
    statistics = TokenStatistics(
        lengths=used.sum(dim=1).float(),
        surprisal=surprisal.sum(dim=1),
        entropy=entropies.sum(dim=1),
        certainty=certainties.sum(dim=1),
        tokens={"token_entropies": entropies},
    )
    answered, flat = (answers == example.END).any(dim=1), rewards.flatten()
    source._add(problems, Scores(flat, flat, ~answered, answered), statistics)
    everything = Collected(torch.arange(len(PROBLEMS)), ref_rewards=rewards.flip(1))
    return batch, source.batch(), everything


def test_its_batch_is_that_of_the_backend(batches):
    batch, drawn, _ = batches
    for field, value in vars(drawn).items():
        # No estimator reads which answers were cut off.
        if isinstance(value, torch.Tensor) and field != "truncated":
            given = getattr(batch, field)
            torch.testing.assert_close(given, value, rtol=1e-4, atol=1e-5, msg=field)


@pytest.mark.parametrize("name", estimator_names())
def test_its_advantages_are_those_of_the_backend(batches, name):
    batch, drawn, everything = batches
    needs = build_estimator(name).needs
    if missing := sorted(n for n in needs if getattr(batch, n) is None):
        pytest.skip(f"the example has no {', '.join(missing)}")
    expected = compute_advantages(build_estimator(name), drawn, everything)
    found = build_estimator(name).compute(batch)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.keep, expected.keep)
