"""Entropies and log-probabilities taken down while sampling, against a plain forward pass."""

import math
from dataclasses import replace

import pytest
import torch

from advsweep.tasks.base import Split


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_signals_are_those_of_a_forward_pass(exported_base, small_run, temperature):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from advsweep.backends.trl.sampling import StatisticsRecorder, recording

    folder = exported_base()
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    task = small_run("tiny").task
    prompts = [problem.prompt for problem in task.problems(Split.TRAIN)[:40]]
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    torch.manual_seed(0)
    recorder = StatisticsRecorder(temperature)
    with recording(model, recorder):
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
    assert signals.entropies is None
    tokens = recorder.statistics(completions, each_token=True)
    assert tokens.entropies is not None
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
        torch.testing.assert_close(tokens.entropies[i], padded, rtol=1e-4, atol=1e-4)
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
    how = {"temperature": 0.7}
    found = completion_kl(model, base, prompts, completions, pad_id=0, rows=16, **how)
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
