"""How rollouts are sampled: what is refused before vLLM is asked, and what is read off a pass."""

import importlib.util

import pytest
import torch

from advsweep.backends.build import build_run
from advsweep.backends.trl.config import VllmGeneration
from advsweep.errors import ConfigError

FOUND = importlib.util.find_spec


def without(package):
    return lambda name: None if name == package else FOUND(name)


def test_vllm_that_is_not_installed_is_named(small_config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without("vllm"))
    config = small_config("trl", generation={"name": "vllm"})
    with pytest.raises(ConfigError, match=r"needs vllm, .*docs/vllm.md"):
        build_run(config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert build_run(config).generation == VllmGeneration()


def test_vllm_has_one_engine_in_the_process_that_trains():
    stored = {"mode": "colocate", "server_url": "http://localhost:8000", "tensor_parallel": 1}
    assert VllmGeneration.build(stored) == VllmGeneration()
    for changed in ({"mode": "server"}, {"tensor_parallel": 2}):
        with pytest.raises(ConfigError, match=f"vllm has no parameter '{min(changed)}'"):
            VllmGeneration.build({**stored, **changed})


@pytest.mark.slow
def test_scores_of_completions_are_those_taken_down_while_sampling(small_run, exported_base):
    from transformers import GenerationConfig

    from advsweep.backends.trl.ends import Ends
    from advsweep.backends.trl.loading import load_model, load_tokenizer
    from advsweep.backends.trl.sampling import (
        StatisticsRecorder,
        completion_statistics,
        encode,
        recording,
    )
    from advsweep.tasks.base import Split

    run = small_run("trl")
    model_config = run.model
    model, tokenizer = load_model(model_config), load_tokenizer(model_config)
    prompts = encode(run.task.problems(Split.HELD_OUT), model_config, tokenizer)
    inputs = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    recorder = StatisticsRecorder(0.7)
    torch.manual_seed(0)
    settings = GenerationConfig(
        max_new_tokens=6,
        do_sample=True,
        temperature=0.7,
        top_k=0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with recording(model, recorder, Ends(tokenizer, [tokenizer.eos_token_id])), torch.no_grad():
        sampled = model.generate(**inputs, generation_config=settings)
    completions = []
    for tokens in sampled[:, inputs["input_ids"].shape[1] :].tolist():
        end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else 6
        completions.append(tokens[:end])
    assert len({len(completion) for completion in completions}) > 1
    scored = completion_statistics(
        model, prompts, completions, temperature=0.7, pad_id=tokenizer.pad_token_id, rows=4
    )
    recorded = recorder.statistics(completions)
    for name in ("lengths", "surprisal", "entropy", "certainty"):
        torch.testing.assert_close(
            getattr(scored, name), getattr(recorded, name), rtol=1e-4, atol=1e-5
        )
