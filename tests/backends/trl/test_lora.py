"""LoRA with every rollout policy, a penalty, shared prompts, resumption and export, in pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from advsweep.backends.checkpoints import Checkpoints
from advsweep.estimators.batch import CollapseBy
from advsweep.tasks.base import Split

# Policy and its options, and whether there is a penalty, a shared prompt and an interruption:
# each pair of two options' values is there at least once.
COMBINATIONS = [
    ({"name": "plain"}, True, True, True),
    ({"name": "filter_drop"}, False, True, False),
    ({"name": "filter_drop"}, True, False, True),
    ({"name": "dynamic_sampling"}, True, True, False),
    ({"name": "dynamic_sampling"}, False, False, True),
    ({"name": "reference", "update_every": 1}, True, False, False),
    ({"name": "reference", "update_every": 1}, False, True, True),
    ({"name": "greedy"}, False, False, True),
    ({"name": "greedy"}, True, True, False),
    ({"name": "gfpo", "drawn": 8}, True, False, True),
    ({"name": "pods", "drawn": 8}, False, True, False),
]


@pytest.fixture
def lora_run(parity_run, random_model):
    """Builds a run of a random model with an adapter."""

    def build(rollout, penalty, share):
        estimator = {"reference": "aapo", "greedy": "remax"}.get(rollout["name"], "grpo")
        run = parity_run(
            model={"path": str(random_model("qwen2")), "lora_rank": 2},
            rollout=rollout,
            estimator={"name": estimator},
            objective={"name": "clipped", "kl_coef": 0.1 if penalty else 0.0},
            backend={"share_prompts": share, "checkpoint_every": 1},
            optimizer={"lr": 0.1},
            steps=2,
        )
        if rollout["name"] == "reference":
            return replace(run, rollout=replace(run.rollout, on=CollapseBy.VERDICT))
        return run

    return build


@pytest.mark.parametrize(("rollout", "penalty", "share", "interrupted"), COMBINATIONS)
def test_an_adapter_trains_with_every_option(
    lora_run, train, tmp_path, rollout, penalty, share, interrupted
):
    run = lora_run(rollout, penalty, share)
    trained = train(run, tmp_path / "run")
    assert sorted(trained.points) == [1, 2]
    assert trained.points[2]["optim/change_norm"] > 0.1
    if interrupted:
        train(run, tmp_path / "stopped", stop_after=1)
        rest = train(run, tmp_path / "stopped")
        assert rest.resumptions == [1]
        assert rest.lasting == {2: trained.lasting[2]}
    run.backend.export(run, tmp_path / "run", 2, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    base = AutoModelForCausalLM.from_pretrained(run.model.path)
    assert exported.state_dict().keys() == base.state_dict().keys()
    sampler = run.backend.sampler(run, tmp_path / "run", 2)
    problems = run.task.problems(Split.HELD_OUT)
    answers = sampler.sample(problems, 2, temperature=0.5, seed=1).texts
    with sampler.opened() as model:
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, exported.state_dict()[name]), name
    assert len(answers) == len(problems)


def test_a_renewed_reference_answers_as_the_trained_model(lora_run, train, tmp_path, monkeypatch):
    """Its rollouts of step 2 are those of the weights of step 1, in a checkpoint too."""
    from advsweep.backends.trl.reference import ReferenceModel

    renewed = []
    renew = ReferenceModel.renew

    def compare(self, trained):
        renew(self, trained)
        ids = torch.arange(12)[None]
        with torch.no_grad():
            renewed.append(torch.equal(self.loaded()(ids).logits, trained(ids).logits))

    monkeypatch.setattr(ReferenceModel, "renew", compare)
    run = lora_run({"name": "reference", "update_every": 1}, False, False)
    train(run, tmp_path)
    assert renewed == [True, True]
    files = Checkpoints(tmp_path, run.identity).load(2).files
    adapter = len(files["adapter_model.safetensors"])
    assert len(files["reference.safetensors"]) < 1.1 * adapter
