"""Exports, as transformers sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.network import fuse
from advsweep.backends.tiny.sampling import sample
from advsweep.backends.tiny.tokens import decode, encode
from advsweep.backends.tiny.weights import Weights, export_folder
from advsweep.errors import ConfigError
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.countdown import Countdown

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(
    tmp_path: Path, any_model: TinyModel, make_weights: Callable[..., Weights], task: Countdown
) -> Path:
    export_folder(tmp_path / "hf", make_weights(any_model), any_model, task, temperature=0.7)
    return tmp_path / "hf"


def load(folder: Path) -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return tokenizer, model.eval()


def test_the_folder_is_complete(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen2"


@pytest.mark.slow
def test_logits_are_equal_for_padded_batches(
    folder: Path,
    any_model: TinyModel,
    make_weights: Callable[..., Weights],
    task: Countdown,
    problems: list[Problem],
    plain_logits: Any,
) -> None:
    tokenizer, model = load(folder)
    weights = make_weights(any_model)
    texts = [problem.prompt + "3+4*" for problem in problems]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert (batch["attention_mask"][:, 0] == 0).any()
    with torch.no_grad():
        theirs = model(**batch, position_ids=(batch["attention_mask"].cumsum(1) - 1).clamp(min=0))
    encoded = encode(texts, task)
    for row, length in enumerate(encoded.lengths):
        tokens = torch.from_numpy(encoded.tokens[row, :length])
        ours = plain_logits(weights, any_model, tokens)
        torch.testing.assert_close(theirs.logits[row, -length:], ours, atol=1e-4, rtol=0)


def test_greedy_decoding_gives_the_same_answers(
    folder: Path,
    any_model: TinyModel,
    make_weights: Callable[..., Weights],
    task: Countdown,
) -> None:
    tokenizer, model = load(folder)
    prompts = [problem.prompt for problem in task.problems(Split.HELD_OUT)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    generated = model.generate(**batch, do_sample=False)[:, batch["input_ids"].shape[1] :]
    theirs = tokenizer.batch_decode(generated, skip_special_tokens=True)
    rollouts = sample(
        fuse(make_weights(any_model), any_model),
        task,
        encode(prompts, task),
        1,
        temperature=1e-5,
        generator=torch.Generator().manual_seed(0),
    )
    ours = decode(rollouts.tokens.numpy(), task)
    assert theirs == ours
    assert len(set(ours)) > 1 or any_model.layers == 1


def test_the_tokenizer_goes_there_and_back(folder: Path, task: Countdown) -> None:
    tokenizer, _ = load(folder)
    texts = [problem.prompt for problem in task.problems(Split.HELD_OUT)]
    encoded = encode(texts, task)
    batch = tokenizer(texts, padding=True, return_tensors="np")
    width = batch["input_ids"].shape[1]
    for row, length in enumerate(encoded.lengths):
        ids = batch["input_ids"][row].tolist()
        assert ids == [task.pad_id] * (width - length) + encoded.tokens[row, :length].tolist()
        assert batch["attention_mask"][row].sum() == length
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == texts
    assert tokenizer.padding_side == "left"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (task.eos_id, task.pad_id)
    assert len(tokenizer) == task.vocabulary_size


def test_generation_samples_as_the_run_did(folder: Path, task: Countdown) -> None:
    _, model = load(folder)
    settings = model.generation_config
    assert settings.do_sample
    assert (settings.temperature, settings.top_k, settings.top_p) == (0.7, 0, 1.0)
    assert settings.max_new_tokens == task.max_completion_length


def test_a_place_that_cannot_be_written(
    tmp_path: Path, model: TinyModel, make_weights: Callable[..., Weights], task: Countdown
) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"expected a folder that can be written"):
            export_folder(target, make_weights(model), model, task, temperature=1.0)


@pytest.mark.slow
def test_pass_at_1_sampled_there_agrees(
    tmp_path: Path, small_run: Callable[..., Any], ask: Any
) -> None:
    """A base that solves something; 32 samples for each of 42 problems, on both sides."""
    recipe = {"width": 32, "pretraining_steps": 400, "pretraining_batch": 64}
    run = small_run("tiny", model=recipe, task={"held_out_per_level": 6})
    run.backend.export(run, tmp_path, 0, tmp_path / "hf")
    problems, n = list(run.task.problems(Split.HELD_OUT)), 32
    repeated = [problem for problem in problems for _ in range(n)]
    answers = run.backend.sampler(run, tmp_path, 0).sample(problems, n, temperature=1.0, seed=0)
    ours = run.task.score(repeated, [text for texts in answers.texts for text in texts])

    tokenizer, model = load(tmp_path / "hf")
    batch = tokenizer([p.prompt for p in problems], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    generated = model.generate(**batch, num_return_sequences=n)
    texts = tokenizer.batch_decode(
        generated[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
    )
    theirs = run.task.score(repeated, texts)

    rates = [scores.reshape(len(problems), n).mean(axis=1) for scores in (ours, theirs)]
    assert rates[0].mean() > 0.05
    # Four standard errors of a difference of two means of binomial samples.
    p = (rates[0] + rates[1]) / 2
    error = np.sqrt(2 * (p * (1 - p) / n).sum()) / len(problems)
    assert abs(rates[0].mean() - rates[1].mean()) < 4 * error
