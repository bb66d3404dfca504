"""Answers of a model that vLLM alone has loaded."""

import pytest

from advsweep.backends.trl.config import HfModel, VllmGeneration
from advsweep.backends.trl.vllm_engine import VllmSampler
from advsweep.errors import ConfigError, SamplerError
from advsweep.tasks.base import Split
from tests.backends.trl.test_ends import check_stops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOKENS = 8


def open_sampler(base, **options):
    generation = VllmGeneration(**options)
    return VllmSampler(HfModel(path=str(base)), None, generation, tokens=TOKENS)


@pytest.fixture
def problems(small_run):
    return list(small_run("tiny").task.problems(Split.HELD_OUT))


@pytest.fixture
def sampler(wide_base):
    opened = open_sampler(wide_base)
    yield opened
    opened.close()


def greedy(base, problem):
    """What transformers answers when it takes the likeliest token each time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    inputs = tokenizer(problem.prompt, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(base)
    tokens = model.generate(
        **inputs, do_sample=False, max_new_tokens=TOKENS, pad_token_id=tokenizer.pad_token_id
    )
    width = inputs["input_ids"].shape[1]
    return tokenizer.decode(tokens[0, width:], skip_special_tokens=True)


def test_answers_have_a_seed_each_and_greedy_ones_are_transformers(sampler, problems, wide_base):
    drawn = sampler.sample(problems, 8, temperature=1.0, seed=3)
    assert [len(texts) for texts in drawn.texts] == [8] * len(problems)
    assert any(len(set(texts)) > 1 for texts in drawn.texts)
    assert drawn.token_entropy is None
    assert sampler.sample(problems, 8, temperature=1.0, seed=3).texts == drawn.texts
    assert sampler.sample(problems, 8, temperature=1.0, seed=4).texts != drawn.texts
    # Fewer problems, asked in another order, are answered as they were.
    assert sampler.sample(problems[2:0:-1], 8, temperature=1.0, seed=3).texts == [
        drawn.texts[2],
        drawn.texts[1],
    ]
    likeliest = sampler.sample(problems, 1, temperature=0.0, seed=0).texts
    assert likeliest == [[greedy(wide_base, problem)] for problem in problems]


def test_stop_texts_end_answers(problems, wide_base):
    opened = open_sampler(wide_base, stop=["+", "-"])
    drawn = opened.sample(problems, 8, temperature=1.0, seed=3)
    opened.close()
    texts = [text for own in drawn.texts for text in own]
    assert {text.count("+") + text.count("-") for text in texts} == {0, 1}
    assert all(text[-1] in "+-" for text in texts if "+" in text or "-" in text)


def test_stop_texts_end_rollouts(vllm_run, train, tmp_path, monkeypatch):
    run = vllm_run(steps=2, generation={"max_tokens": 6, "stop": ["+", "-"]})
    check_stops(run, train, tmp_path, monkeypatch)


def test_models_that_vllm_cannot_load_are_named(wide_base):
    with pytest.raises(SamplerError, match=r"model\.path: .*: vLLM failed: "):
        open_sampler(wide_base, context=10_000)
    config = wide_base / "config.json"
    config.write_text(config.read_text().replace("Qwen2ForCausalLM", "Qwen2Model"))
    with pytest.raises(ConfigError, match=r"model\.path: expected a causal language model"):
        open_sampler(wide_base)


def test_models_are_evaluated_by_vllm_where_that_is_chosen(small_run, problems, wide_base):
    run = small_run(
        "trl", model={"path": str(wide_base)}, generation={"name": "vllm", "max_tokens": TOKENS}
    )
    sampler = run.backend.model_sampler(run.model, run.generation, run.task, run.evaluation)
    assert isinstance(sampler, VllmSampler)
    answers = sampler.sample(problems[:2], 1, temperature=0.0, seed=0)
    sampler.close()
    assert answers.texts == [[greedy(wide_base, problem)] for problem in problems[:2]]


def test_an_evaluation_within_a_training_may_be_greedy(vllm_run, train, tmp_path):
    """The recorder asks at temperature 1; with a share of nearly 0 that is the likeliest token."""
    run = vllm_run(steps=1, evaluation={"n": 2, "k": [1, 2], "top_p": 1e-6})
    base = train(run, tmp_path).evaluations[0]
    assert all(len(set(texts)) == 1 for texts in base.texts)
