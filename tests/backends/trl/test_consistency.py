"""log π of sampled tokens in updates is the sampler's: models of all kinds, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from advsweep.backends.trl import trainer as trainer_module
from advsweep.backends.trl.consistency import Bound, LogProbGap, Truncation
from advsweep.backends.trl.positions import needs_positions
from advsweep.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "needs"),
    [
        ("qwen2", False),
        ("llama", False),
        ("gpt2", True),
        ("gpt_neo", True),
        ("gpt_bigcode", True),
        # It numbers tokens by the mask itself, so positions change nothing.
        ("opt", True),
        ("bloom", False),
        ("rwkv", False),
    ],
)
def test_models_that_embed_positions_get_them(random_model, kind, needs):
    model = AutoModelForCausalLM.from_pretrained(random_model(kind))
    assert needs_positions(model) is needs


def test_frequencies_by_length_need_positions(random_model):
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = AutoModelForCausalLM.from_pretrained(random_model("llama"), rope_parameters=scaling)
    assert needs_positions(model)


@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("qwen2", 0),
        ("llama", 0),
        ("gpt2", 0),
        ("gpt2", 2),
        ("gpt_neo", 0),
        ("gpt_bigcode", 0),
        ("opt", 0),
        ("bloom", 0),
    ],
)
def test_updates_have_the_log_probs_of_sampling(
    parity_run, train, random_model, tmp_path, gaps, kind, rank
):
    generation = {"name": "transformers", "temperature": 0.7, "top_p": 0.8, "top_k": 5}
    model = {"path": str(random_model(kind)), "lora_rank": rank}
    # The rows of an update are separate ones here; another test shares prompts.
    backend = {"share_prompts": False, "gradient_checkpointing": rank > 0}
    run = parity_run(model=model, steps=1, generation=generation, backend=backend)
    assert len(train(run, tmp_path).points) == 1
    [gap] = gaps
    assert gap.largest < 1e-4
    assert gap.tokens > 4


def test_positions_from_the_first_column_are_refused(
    parity_run, train, random_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer_module, "needs_positions", lambda model: False)
    run = parity_run(model={"path": str(random_model("gpt2"))}, steps=1)
    message = (
        r"model: .* at most 0\.01 .*, got [1-9]\S* with GPT2LMHeadModel \(\d+ tokens\): .*eager"
    )
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path)


def test_a_model_that_reads_padding_is_refused_unless_the_bound_is_raised(
    parity_run, train, random_model, tmp_path
):
    model = {"path": str(random_model("rwkv"))}
    with pytest.raises(ConfigError, match=r"with RwkvForCausalLM .*backend\.log_prob_bound"):
        train(parity_run(model=model, steps=1), tmp_path / "refused")
    run = parity_run(model=model, steps=1, backend={"log_prob_bound": 100.0})
    assert len(train(run, tmp_path / "trained").points) == 1
    assert run.identity == parity_run(model=model, steps=1).identity


def test_a_resumed_run_is_checked_again_and_nothing_is_drawn(
    parity_run, train, KilledError, tmp_path, monkeypatch, gaps
):
    run = parity_run(steps=4)
    with pytest.raises(KilledError):
        train(run, tmp_path / "broken", die_after=3)
    assert len(gaps) == 1
    resumed = train(run, tmp_path / "broken")
    assert len(gaps) == 2
    assert all(0 < gap.largest < 1e-4 for gap in gaps)
    monkeypatch.setattr(
        trainer_module.EstimatorTrainer, "_check_log_probs", lambda self, rows, sampled: None
    )
    unchecked = train(run, tmp_path / "unchecked")
    assert len(gaps) == 2
    assert resumed.lasting == {step: unchecked.lasting[step] for step in (3, 4)}


@pytest.mark.parametrize(
    ("is_rounded", "largest", "mean", "message"),
    [
        (False, 0.009, 0.009, None),
        (False, 0.011, 0.001, r"at most 0\.01 .*, got 0\.011 with Linear"),
        # Single tokens differ by as much where 16 bits are computed with.
        (True, 1.5, 0.05, None),
        (True, 1.5, 0.2, r"at most 0\.1 .*, got 0\.2 in the mean and 1\.5 at the most with"),
    ],
)
def test_gaps_are_bounded_by_the_precision(is_rounded, largest, mean, message):
    bound = Bound(0.1 if is_rounded else 0.01, is_rounded)
    gap = LogProbGap(largest, mean, 7)
    if message is None:
        bound.check(gap, torch.nn.Linear(1, 1), "remedy")
        return
    with pytest.raises(ConfigError, match=message):
        bound.check(gap, torch.nn.Linear(1, 1), "remedy")


def test_tokens_without_a_number_are_left_out():
    first = torch.tensor([[-1.0, math.nan, -2.0], [-3.0, -1.0, -9.0]])
    second = torch.tensor([[-1.5, -1.0, -2.0], [-3.0, -1.25, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    assert LogProbGap.between(first, second, mask) == LogProbGap(0.5, 0.1875, 4)
    assert LogProbGap.between(first, second, torch.zeros_like(mask)) == LogProbGap(0.0, 0.0, 0)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 3), (0.6, 5), (1e-6, 0)])
def test_the_mass_is_that_of_the_tokens_that_samplers_leave(top_p, top_k):
    torch.manual_seed(0)
    log_p = torch.randn(20, 11).mul(2).log_softmax(dim=-1)
    left = log_p
    if top_k:
        left = TopKLogitsWarper(top_k)(None, left)
    if top_p < 1:
        left = TopPLogitsWarper(top_p)(None, left)
    expected = left.logsumexp(dim=-1)
    torch.testing.assert_close(Truncation(top_p, top_k).log_mass(log_p), expected)


def test_a_step_s_kl_takes_the_numbers_of_the_sampler(parity_run, train, tmp_path, monkeypatch):
    """They spare a pass, and give the KL that the pass gives."""
    from advsweep.backends.trl import steps
    from advsweep.backends.trl.steps import DRAWN_LOG_PROBS

    passes = []
    forward_pass = steps.forward_pass

    def counted(trainer, rows, **named):
        passes.append(DRAWN_LOG_PROBS in rows)
        return forward_pass(trainer, rows, **named)

    monkeypatch.setattr(steps, "forward_pass", counted)
    run = parity_run()
    spared = train(run, tmp_path / "spared").points
    assert passes == [True] * run.steps
    monkeypatch.setattr("advsweep.backends.trl.trainer.DRAWN_LOG_PROBS", "unread")
    expected = train(run, tmp_path / "expected").points
    assert passes[run.steps :] == [False] * 2 * run.steps
    for step in range(1, run.steps + 1):
        kl = expected[step]["policy/kl_step"]
        assert kl > 0
        assert spared[step]["policy/kl_step"] == pytest.approx(kl, rel=1e-3)
