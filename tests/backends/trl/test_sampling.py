"""Entropies and log-probabilities taken down while sampling, against a plain forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.padded_rows import TokenizedAnswers
from advsweep.backends.trl.sampling import prompt_of
from advsweep.estimators.batch import CollapseBy
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.countdown import Countdown


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_signals_are_those_of_a_forward_pass(exported_base, small_run, temperature):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from advsweep.backends.trl.ends import Ends
    from advsweep.backends.trl.sampling import (
        StatisticsRecorder,
        completion_statistics,
        recording,
    )

    folder = exported_base()
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    task = small_run("tiny").task
    prompts = [problem.prompt for problem in task.problems(Split.TRAIN)[:40]]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    torch.manual_seed(0)
    recorder = StatisticsRecorder(temperature)
    with recording(model, recorder, Ends(tokenizer, [tokenizer.eos_token_id])):
        generated = model.generate(
            **inputs,
            generation_config=GenerationConfig(
                max_new_tokens=5,
                do_sample=True,
                temperature=temperature,
                top_k=5,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            ),
        )
    assert "generate" not in vars(model)
    width = inputs["input_ids"].shape[1]
    completions = []
    for row in generated[:, width:].tolist():
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        completions.append(row[:end])
    signals = recorder.statistics(completions)
    assert not signals.tokens
    real = zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
    given = [ids[mask].tolist() for ids, mask in real]
    answers = TokenizedAnswers(given, completions, tokenizer.pad_token_id)
    scored = completion_statistics(model, answers, temperature=temperature, rows=4)
    for name in ("lengths", "surprisal", "entropy", "certainty"):
        found, expected = getattr(scored, name), getattr(signals, name)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    tokens = recorder.statistics(completions, of_tokens=["token_entropies"]).tokens[
        "token_entropies"
    ]
    # Some end early and some never, and the last token counts in both cases.
    unfinished = [c for c in completions if c[-1] != tokenizer.eos_token_id]
    assert 0 < len(unfinished) < len(completions)
    assert min(map(len, completions)) < 5

    for i, completion in enumerate(completions):
        prompt = inputs["input_ids"][i][inputs["attention_mask"][i].bool()]
        ids = torch.cat((prompt, torch.tensor(completion)))
        with torch.no_grad():
            logits = model(ids[None]).logits[0, len(prompt) - 1 : -1]
        log_p = torch.log_softmax(logits / temperature, dim=-1)
        sampled = log_p.gather(1, torch.tensor(completion)[:, None])
        entropies = -(log_p.exp() * log_p).sum(dim=1)
        padded = torch.nn.functional.pad(entropies, (0, 5 - len(entropies)))
        torch.testing.assert_close(tokens[i], padded, rtol=1e-4, atol=1e-4)
        entropy = entropies.sum()
        certainty = (-log_p.mean(dim=1) - math.log(log_p.shape[1])).sum()
        assert signals.lengths[i] == len(completion)
        found = torch.stack((signals.surprisal, signals.entropy, signals.certainty))[:, i]
        expected = torch.stack((-sampled.sum(), entropy, certainty))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_rollouts_are_cut_and_evaluations_are_not(small_run, tmp_path):
    """With top-k 1 every rollout of a prompt is the same; answers to an evaluation are not."""
    from advsweep.backends.trl.sampling import ModelSampler

    run = small_run("trl", generation={"name": "transformers", "top_k": 1, "max_tokens": 3})
    sampler = run.backend.sampler(run, tmp_path, 0)
    assert isinstance(sampler, ModelSampler)
    problems = [*run.task.problems(Split.HELD_OUT)][:1] * 20
    greedy, _ = replace(sampler, truncated=True).complete(problems, 1.0, 0)
    free, signals = sampler.complete(problems, 1.0, 0)
    assert len(set(greedy)) == 1
    assert len(set(free)) > 1
    assert signals.lengths.max() == 3
    assert all(len(text) <= 3 for text in [*greedy, *free])


def test_progress_is_reported_before_each_batch_and_at_the_end(small_run, tmp_path):
    from advsweep.backends.trl.sampling import ModelSampler

    run = small_run("trl")
    sampler = run.backend.sampler(run, tmp_path, 0)
    assert isinstance(sampler, ModelSampler)
    told = []
    problems = [*run.task.problems(Split.HELD_OUT)][:5]
    noted = replace(sampler, batch=2, on_progress=lambda *counts: told.append(counts))
    texts, _ = noted.complete(problems, 1.0, 0)
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]
    assert len(texts) == 5


def test_the_kl_is_that_of_the_next_tokens_summed_over_an_answer(exported_base):
    """Prompts and answers of different lengths, in batches, against passes without padding."""
    from transformers import AutoModelForCausalLM

    from advsweep.backends.trl.sampling import completion_kl

    folder = exported_base()
    model, base = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape)
    prompts, completions = [[1, 2, 3, 4], [5, 6], [7, 8, 9]], [[1, 2], [3, 4, 5], [6]]
    answers = TokenizedAnswers(prompts, completions, pad_id=0)
    found = completion_kl(model, base, answers, temperature=0.7, rows=16)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            log_p, log_q = (
                (m(ids).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
                for m in (model, base)
            )
        expected = (log_p.exp() * (log_p - log_q)).sum().item()
        assert found[row].item() == pytest.approx(expected, rel=1e-4)
        assert expected > 0.01


@dataclass(kw_only=True)
class Shaped(Countdown):
    """Half a point for an answer of even length, a tenth of one off for each token."""

    name: ClassVar[str] = "shaped"
    seen: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    @property
    def is_shaped(self):
        return True

    @property
    def is_binary(self):
        return False

    def score(self, problems, completions):
        return np.array([float(len(text) % 2 == 0) for text in completions])

    def rewards(self, completions, verdicts, lengths):
        self.seen.append((verdicts, lengths))
        return 0.5 * verdicts - 0.1 * lengths


@pytest.mark.slow
@pytest.mark.parametrize("rollout", ["plain", "reference"])
def test_shaped_rewards_are_trained_on_and_verdicts_counted(small_run, train, tmp_path, rollout):
    task = Shaped(levels=(0, 1), held_out_per_level=3)
    task.seen.clear()
    changes = {"rollout": {"name": rollout}}
    changes |= {"estimator": {"name": "aapo"}} if rollout == "reference" else {}
    run = small_run("trl", steps=2, **changes)
    run = replace(run, task=task, rollout=replace(run.rollout, on=CollapseBy.VERDICT))
    points = train(run, tmp_path).points
    drawn = task.seen[:: 2 if rollout == "reference" else 1]
    assert len(drawn) == 2
    for (verdicts, lengths), values in zip(drawn, points.values(), strict=True):
        # A completion has a token at least, and eleven with its end mark at the most.
        assert lengths.min() >= 1
        assert lengths.max() <= 11
        rewards = (0.5 * verdicts - 0.1 * lengths).reshape(8, 6)
        assert values["reward/mean"] == pytest.approx(rewards.mean(), abs=1e-6)
        unsolved = (verdicts.reshape(8, 6) == 0).all(axis=1).sum()
        assert values["prompts/fully_unsolved"] == unsolved
        # Nearly every group has different lengths, and so rewards; what collapses is verdicts.
        collapsed = (verdicts.reshape(8, 6) == verdicts.reshape(8, 6)[:, :1]).all(axis=1)
        assert values["collapse/acr"] == collapsed.mean()
    assert any(values["mass/success"] > 0 for values in points.values())


class Tokenizer:
    chat_template = "{{ messages }}"


def test_a_system_message_comes_first():
    problem = Problem(id="1", prompt="What is 1 + 1?", level=0, system="Be brief.")
    chat, plain = (HfModel(path="org/model", prompt=how) for how in ("chat", "plain"))
    assert prompt_of(problem, chat, Tokenizer()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    assert prompt_of(problem, plain, Tokenizer()) == "Be brief.\n\nWhat is 1 + 1?"
    bare = replace(problem, system="")
    assert prompt_of(bare, chat, Tokenizer()) == [{"role": "user", "content": "What is 1 + 1?"}]
    assert prompt_of(bare, plain, Tokenizer()) == "What is 1 + 1?"


def test_rollouts_without_an_answer_have_a_reward_of_their_own(small_run, train, tmp_path):
    """RENT's released code differs from its verl conventions by them alone."""
    sizes = {}
    for preset in ("verl", "released"):
        run = small_run("trl", steps=1, estimator={"name": "rent", "preset": preset})
        [values] = train(run, tmp_path / preset).points.values()
        assert all(map(math.isfinite, values.values()))
        assert values["optim/grad_norm"] > 0
        sizes[preset] = values["advantage/abs_mean"]
    assert sizes["released"] != pytest.approx(sizes["verl"], rel=1e-3)
