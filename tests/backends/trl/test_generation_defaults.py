"""A checkpoint's generation config decides on end marks alone, in trainings and evaluations."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.generation_defaults import (
    describe_dropped,
    dropped_settings,
    load_generation_config,
    without_defaults,
)
from advsweep.errors import AdvsweepWarning
from advsweep.tasks.base import Split

DEFAULTS = [
    {"min_p": 0.5, "repetition_penalty": 3.0, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "stop_strings": ["1"], "typical_p": 0.1},
    {"temperature": 0.1, "top_p": 0.1, "top_k": 2, "epsilon_cutoff": 0.5, "guidance_scale": 3.0},
]


@pytest.fixture
def with_defaults(random_model, tmp_path):
    """Makes a folder of a random model whose generation config has more settings."""

    def make(settings):
        folder = tmp_path / "model"
        shutil.copytree(random_model("qwen2"), folder)
        path = folder / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
        return folder

    return make


@pytest.mark.parametrize(("settings", "rank"), [*zip(DEFAULTS, (0, 2, 0), strict=True)])
def test_a_training_does_not_depend_on_it(
    parity_run, train, random_model, with_defaults, tmp_path, settings, rank
):
    def trained(folder, name):
        run = parity_run(model={"path": str(folder), "lora_rank": rank}, steps=1)
        return train(run, tmp_path / name)

    expected = trained(random_model("qwen2"), "plain")
    reported = trained(with_defaults(settings), "with")
    assert reported.lasting == expected.lasting
    for step, answers in expected.evaluations.items():
        assert reported.evaluations[step].texts == answers.texts
    assert not any("generation config" in line for line in expected.lines)
    [line] = [line for line in reported.lines if "generation config" in line]
    assert all(f"{name}={value}" in line for name, value in settings.items())


def test_an_evaluation_of_a_model_does_not_depend_on_it(small_run, random_model, with_defaults):
    def answers(folder):
        run = small_run("trl", model={"path": str(folder)})
        sampler = run.backend.model_sampler(run.model, run.generation, run.task, run.evaluation)
        problems = run.task.problems(Split.HELD_OUT)
        return sampler.sample(problems, 3, temperature=1.0, seed=0).texts

    expected = answers(random_model("qwen2"))
    with pytest.warns(AdvsweepWarning, match=r"sets min_p=0\.5, no_repeat.*which is left out"):
        assert answers(with_defaults(DEFAULTS[0])) == expected


def test_exports_keep_it(small_run, with_defaults, train, tmp_path):
    run = small_run("trl", model={"path": str(with_defaults(DEFAULTS[0]))}, steps=1)
    train(run, tmp_path / "run")
    run.backend.export(run, tmp_path / "run", 1, tmp_path / "exported")
    written = json.loads((tmp_path / "exported/generation_config.json").read_text())
    assert written["repetition_penalty"] == 3.0


def test_what_changes_nothing_is_not_named():
    marks = {"eos_token_id": [1, 2], "pad_token_id": 0, "max_new_tokens": 7, "do_sample": True}
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "num_beams": 1, "use_cache": False}
    assert dropped_settings(GenerationConfig(**marks, **neutral)) == {}
    dropped = GenerationConfig(**marks, top_k=20, bad_words_ids=[[3]])
    model = HfModel(path="owner/name")
    assert describe_dropped(model, GenerationConfig(**marks)) == []
    [line] = describe_dropped(model, dropped)
    assert "of owner/name sets bad_words_ids=[[3]], top_k=20, which is left out" in line


def test_end_marks_may_be_in_the_configuration(random_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(random_model("qwen2"), folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": [3, 4]}))
    assert load_generation_config(HfModel(path=str(folder))).eos_token_id == [3, 4]


def test_the_model_keeps_it_after_an_error(random_model):
    model = AutoModelForCausalLM.from_pretrained(random_model("qwen2"))
    before = model.generation_config

    def fail():
        with without_defaults(model):
            assert model.generation_config is not before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.generation_config is before


THOUGHT = "</think>"


@pytest.fixture
def thinking(random_model, tmp_path):
    """A folder of a random model that has a tag as a special token, and answers it often."""
    folder = tmp_path / "thinking"
    model = AutoModelForCausalLM.from_pretrained(random_model("llama"))
    tokenizer = AutoTokenizer.from_pretrained(random_model("llama"))
    tokenizer.add_special_tokens({"additional_special_tokens": [THOUGHT]})
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("stop", [(), (THOUGHT,)], ids=["no_stop", "stop"])
def test_tags_that_are_special_tokens_reach_the_reward(
    parity_run, train, thinking, tmp_path, monkeypatch, stop
):
    generation = {"name": "transformers", "max_tokens": 8, "stop": list(stop)}
    run = parity_run(model={"path": str(thinking)}, steps=1, generation=generation)
    seen = []
    score = type(run.task).score

    def record(task, problems, texts):
        seen.extend(texts)
        return score(task, problems, texts)

    monkeypatch.setattr(type(run.task), "score", record)
    reported = train(run, tmp_path / "run")
    answers = [text for texts in reported.evaluations[0].texts for text in texts]
    tokenizer = AutoTokenizer.from_pretrained(thinking)
    for texts in (seen, answers):
        assert any(THOUGHT in text for text in texts)
        # Neither end marks nor padding.
        others = {tokenizer.eos_token, tokenizer.pad_token}
        assert not any(mark in text for text in texts for mark in others)
        if stop:
            assert all(text.endswith(THOUGHT) for text in texts if THOUGHT in text)
