"""Checkpoints and vLLM: log-probabilities that are compared, generation configs, special tokens."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from advsweep.backends.trl.config import HfModel, VllmGeneration
from advsweep.backends.trl.vllm_engine import VllmSampler
from advsweep.errors import ConfigError
from advsweep.tasks.base import Split

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LEAKING = {"repetition_penalty": 3.0, "top_k": 2, "min_p": 0.5, "temperature": 0.1}
THOUGHT = "</think>"


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.7, "top_k": 4, "temperature": 0.8}])
def test_log_probs_are_compared_within_what_is_sampled_from(vllm_run, train, tmp_path, gaps, cuts):
    train(vllm_run(steps=1, generation=cuts), tmp_path)
    [gap] = gaps
    assert 0 < gap.largest < 1e-4


def test_an_engine_with_old_weights_is_refused(
    vllm_run, train, KilledError, tmp_path, monkeypatch, gaps
):
    from trl.generation.vllm_generation import VLLMGeneration

    run = vllm_run(optimizer={"lr": 0.1})
    with pytest.raises(KilledError):
        train(run, tmp_path, die_after=3)
    assert gaps[0].largest < 1e-4
    # The engine of the process that resumes has the base model's.
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self: None)
    with pytest.raises(
        ConfigError, match=r"got \S+ with Qwen2ForCausalLM .*=transformers; backend"
    ):
        train(run, tmp_path)


def test_a_generation_config_decides_on_end_marks_alone(vllm_run, train, wide_base, tmp_path):
    expected = train(vllm_run(steps=1), tmp_path / "plain")
    path = wide_base / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **LEAKING}))
    reported = train(vllm_run(steps=1), tmp_path / "leaking")
    assert reported.lasting == expected.lasting
    for step, answers in expected.evaluations.items():
        assert reported.evaluations[step].texts == answers.texts
    assert any("sets min_p=0.5, repetition_penalty=3.0" in line for line in reported.lines)


@pytest.mark.parametrize("stop", [(), (THOUGHT,)], ids=["no_stop", "stop"])
def test_answers_keep_special_tokens_and_may_end_with_them(small_run, wide_base, tmp_path, stop):
    tokenizer = AutoTokenizer.from_pretrained(wide_base)
    model = AutoModelForCausalLM.from_pretrained(wide_base)
    tokenizer.add_special_tokens({"additional_special_tokens": [THOUGHT]})
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    # As likely as the likeliest token of the first answers.
    model.model.embed_tokens.weight.data[-1] = model.model.embed_tokens.weight.data[5]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    generation = VllmGeneration(stop=stop)
    sampler = VllmSampler(HfModel(path=str(tmp_path / "model")), None, generation, tokens=8)
    problems = small_run("tiny").task.problems(Split.HELD_OUT)
    drawn = sampler.sample(problems, 16, temperature=2.0, seed=0)
    sampler.close()
    texts = [text for of_problem in drawn.texts for text in of_problem]
    assert any(THOUGHT in text for text in texts)
    assert not any(tokenizer.eos_token in text for text in texts)
    if stop:
        assert all(text.endswith(THOUGHT) for text in texts if THOUGHT in text)
