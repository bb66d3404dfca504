"""Trainings whose rollouts vLLM samples, in the process that trains."""

import pytest
import torch

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.trl import vllm_engine
from advsweep.backends.trl.vllm_trainer import VllmTrainer
from advsweep.errors import TrainingError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

GAP = "sampler/log_prob_gap"


def weights_of(run, directory, step):
    from safetensors.torch import load

    return load(Checkpoints(directory, run.identity).load(step).files["model.safetensors"])


def untie(base):
    """Gives the model an output layer of its own, equal to what it was tied to."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(base)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_vllm_samples_from_the_weights_that_are_trained(vllm_run, train, wide_base, tmp_path, tied):
    if not tied:
        untie(wide_base)
    # Two updates a step, at a rate that moves log-probabilities by far more than 1e-4.
    run = vllm_run()
    points = train(run, tmp_path / "run").points
    assert len(points) == run.steps
    assert max(values[GAP] for values in points.values()) < 1e-4
    assert points[2]["optim/grad_norm"] > 0.01
    assert points[3]["optim/grad_norm"] > 0.01


def test_weights_that_vllm_has_packed_go_stale(vllm_run, train, tmp_path, monkeypatch):
    from vllm.model_executor.layers import utils

    packing, as_they_are = utils.dispatch_cpu_unquantized_gemm, vllm_engine.compute_with_weights

    def pack_embeddings(layer, remove_weight):
        (as_they_are if remove_weight else packing)(layer, remove_weight)

    monkeypatch.setattr(vllm_engine, "compute_with_weights", pack_embeddings)
    points = train(vllm_run(), tmp_path / "run").points
    assert points[1][GAP] < 1e-4
    # The tied output layer is still the base model's; nothing else says so.
    assert points[4][GAP] > 1e-3


def test_a_training_goes_on_exactly(vllm_run, train, KilledError, tmp_path):
    run = vllm_run()
    whole = train(run, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(run, tmp_path / "broken", die_after=3)
    rest = train(run, tmp_path / "broken")
    assert rest.resumptions == [2]
    assert rest.lasting == {step: whole.lasting[step] for step in (3, 4)}
    assert rest.evaluations[4].texts == whole.evaluations[4].texts
    for name, weight in weights_of(run, tmp_path / "broken", 4).items():
        assert torch.equal(weight, weights_of(run, tmp_path / "whole", 4)[name]), name


def test_vllm_that_dies_is_named_and_what_was_trained_is_kept(
    vllm_run, train, tmp_path, monkeypatch
):
    run = vllm_run()
    generate = VllmTrainer._generate_single_turn

    def die(self, *arguments, **named):
        if self.steps_done == 2:
            engine = self.vllm_generation.llm
            monkeypatch.setattr(engine.llm_engine.engine_core, "get_output", _raise)
        return generate(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(VllmTrainer, "_generate_single_turn", die)
        with pytest.raises(TrainingError, match=r"step 3: vLLM failed: out of order; .*retry"):
            train(run, tmp_path / "run")
    again = train(run, tmp_path / "run")
    assert again.resumptions == [2]
    assert sorted(again.points) == [3, 4]


def _raise():
    raise RuntimeError("out of order\nand more")


@pytest.mark.parametrize(("correction", "trained"), [("sequence_mask", False), ("none", True)])
def test_rollouts_of_another_probability_are_left_out(
    vllm_run, train, tmp_path, correction, trained
):
    # No rollout is as unlikely in the trained model as this cap asks.
    generation = {"correction": correction, "correction_cap": 1e-3}
    points = train(vllm_run(steps=2, generation=generation), tmp_path / "run").points
    assert (points[2].get("optim/grad_norm", 0.0) > 0) is trained
    assert points[2].get("sampler/masked") == (None if trained else 1)


@pytest.mark.parametrize(
    ("correction", "masked"),
    [
        ({"correction": "sequence_mask"}, False),
        ({"correction": "bypass_ppo_clip"}, False),
        # Every token whose probability is not the same to the last bit.
        ({"correction": "disabled", "correction_reject": {"token_k1": [1, 1]}}, True),
    ],
)
def test_a_correction_of_the_objective_replaces_that_of_generation(
    vllm_run, train, tmp_path, correction, masked
):
    objective = {"name": "clipped", **correction}
    run = vllm_run(steps=2, objective=objective, generation={"correction_cap": 1e-3})
    points = train(run, tmp_path / "run").points
    assert points[2]["optim/grad_norm"] > 0
    assert (points[2]["sampler/masked"] > 0) is masked
    # The rounding of two programs; the bypass follows the policy in training.
    if run.objective.recomputes_old:
        assert points[2]["sampler/kl"] < 1e-9
        assert points[2]["sampler/ratio_max"] == pytest.approx(1, abs=1e-4)
    else:
        assert points[2]["sampler/kl"] > 1e-9


def test_signals_are_of_the_trained_model_as_with_transformers(vllm_run, train, tmp_path):
    # intuitor reads the self-certainty, which is finite then.
    changes = {"steps": 1, "prompts_per_step": 96, "estimator": {"name": "intuitor"}}
    ours = train(vllm_run(**changes), tmp_path / "vllm")
    theirs = train(
        vllm_run(**changes, generation={"name": "transformers"}), tmp_path / "transformers"
    )
    # Over 576 rollouts, and 18 answers, of the same weights.
    assert ours.points[1]["entropy/token"] == pytest.approx(
        theirs.points[1]["entropy/token"], rel=0.1
    )
    entropies = [trained.evaluations[0].token_entropy.mean() for trained in (ours, theirs)]
    assert entropies[0] == pytest.approx(entropies[1], rel=0.3)
    measured = {f"sampler/{name}" for name in ("kl", "ratio_max", "masked", "truncated")}
    assert set(ours.points[1]) == {*theirs.points[1], GAP, *measured}
