"""Trained weights are float32, whatever `model.dtype` says of those that are not trained."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.trl.config import TRAINING_REMEDIES


@pytest.fixture
def run_in(parity_run, random_model):
    """Builds a run of a random model at the rate of papers."""

    def build(dtype, rank=0, **changes):
        model = {"path": str(random_model("llama")), "dtype": dtype, "lora_rank": rank}
        return parity_run(model=model, optimizer={"lr": 1e-6}, steps=2, **changes)

    return build


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_training_of_all_weights_is_that_in_float32(run_in, train, tmp_path, dtype):
    expected = train(run_in("float32"), tmp_path / "float32")
    run = run_in(dtype)
    trained = train(run, tmp_path / dtype)
    assert trained.lasting == expected.lasting
    assert expected.points[1]["optim/weights_changed"] > 0.9
    assert "optim/weights_changed" not in expected.points[2]
    weights = load(Checkpoints(tmp_path / dtype, run.identity).load(2).files["model.safetensors"])
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    with run.backend.sampler(run, tmp_path / dtype, 2).opened() as model:
        assert torch.equal(model.state_dict()["lm_head.weight"], weights["lm_head.weight"])


def test_runs_that_trained_16_bits_have_an_earlier_revision(run_in):
    whole = run_in("bfloat16")
    assert whole.revisions == {"model": 2}
    assert run_in("float32").revisions == {}
    adapted = run_in("bfloat16", rank=2)
    assert adapted.revisions == {}
    # Evaluations of a model apart from trainings stay what they were.
    evaluated = whole.backend.model_key(whole.model, whole.generation)
    assert evaluated != whole.backend.model_key(run_in("float32").model, whole.generation)
    assert whole.model.identity()["revision"] == 1


def test_a_frozen_base_has_16_bits_and_its_adapter_32(run_in, train, tmp_path):
    run = run_in("bfloat16", rank=2)
    trained = train(run, tmp_path)
    assert trained.points[2]["optim/change_norm"] > 0
    files = Checkpoints(tmp_path, run.identity).load(2).files
    adapter = load(files["adapter_model.safetensors"])
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    with run.backend.sampler(run, tmp_path, 0).opened() as model:
        assert model.dtype == torch.bfloat16


def test_a_plan_says_what_16_bits_are_for(run_in):
    [caution] = run_in("bfloat16").backend.cautions(run_in("bfloat16"))
    assert caution.startswith("model.dtype: bfloat16 is for weights that are not trained")
    for run in (run_in("float32"), run_in("float16", rank=2)):
        assert run.backend.cautions(run) == []
    assert "model.lora_rank=16 (with model.dtype=bfloat16 for the frozen" in TRAINING_REMEDIES
