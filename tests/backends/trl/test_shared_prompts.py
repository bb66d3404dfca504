"""Prompts computed once for a group, against each rollout by itself."""

from __future__ import annotations

import pytest
import torch

from advsweep.backends.trl.padded_rows import PaddedRows
from advsweep.errors import ConfigError

VOCABULARY = 50
PROMPT, TOKENS = 7, 5
PAD, END = 0, 2
# Four prompts of other lengths, with one to three completions, in no order.
LENGTHS = (7, 4, 5, 7)
OF_PROMPT = (0, 1, 1, 2, 0, 0, 3, 2, 1)


def small_model(kind="llama", attention="sdpa", **settings):
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY, **shape, **heads, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.fixture
def rows():
    """Tokens and mask of prompts, padded on the left, and completions, padded on the right."""
    torch.manual_seed(1)
    prompts = [torch.randint(3, VOCABULARY, (length,)) for length in LENGTHS]
    ids = torch.full((len(OF_PROMPT), PROMPT + TOKENS), PAD)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(OF_PROMPT):
        start, end = PROMPT - LENGTHS[prompt], PROMPT + 1 + row % TOKENS
        completion = torch.randint(3, VOCABULARY, (end - PROMPT,))
        ids[row, start:end] = torch.cat((prompts[prompt], completion))
        mask[row, start:end] = 1
    return PaddedRows(ids, mask, TOKENS)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_pass_has_the_numbers_and_the_gradient_of_separate_rows(rows, kind, attention):
    from advsweep.backends.trl.shared_prompts import check_attention, shared_pass

    model = small_model(kind, attention)
    ids, mask, _ = rows
    check_attention(model)
    generated = mask[:, -TOKENS:].bool()
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    log_policy = torch.log_softmax(logits[:, -TOKENS - 1 : -1] / 0.7, dim=-1)
    expected = log_policy.gather(2, ids[:, -TOKENS:, None])[:, :, 0]
    spread = -(log_policy.exp() * log_policy).sum(dim=-1)

    log_probs, entropies = shared_pass(model, rows, 0.7, entropies=True)
    torch.testing.assert_close(log_probs[generated], expected[generated])
    torch.testing.assert_close(entropies[generated], spread[generated])
    assert shared_pass(model, rows, 0.7, entropies=False)[1] is None

    weights = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad((a + b)[generated].sum(), weights)
        for a, b in ((log_probs, entropies), (expected, spread))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_row_is_computed_once_for_each_prompt(rows):
    from advsweep.backends.trl.shared_prompts import pack

    packed = pack(rows, torch.float32)
    # Three completions at most, each behind a copy of the prompt's last token.
    assert packed.ids.shape == (len(LENGTHS), PROMPT - 1 + 3 * (TOKENS + 1))


def test_generation_draws_what_separate_rows_draw(rows):
    from transformers import GenerationConfig

    from advsweep.backends.trl.shared_prompts import shared_generate

    model = small_model()
    ids, mask, _ = rows
    settings = GenerationConfig(
        max_new_tokens=6,
        do_sample=True,
        top_k=0,
        pad_token_id=PAD,
        eos_token_id=END,
        disable_compile=True,
    )
    inputs = {"input_ids": ids[:, :PROMPT], "attention_mask": mask[:, :PROMPT]}
    torch.manual_seed(2)
    expected = model.generate(**inputs, generation_config=settings)
    torch.manual_seed(2)
    found = shared_generate(model, model.generate, **inputs, generation_config=settings)
    assert torch.equal(found, expected)
    assert len({tuple(row) for row in found[:, PROMPT:].tolist()}) > 1


def test_attention_within_a_window_is_refused():
    from advsweep.backends.trl.shared_prompts import check_attention

    model = small_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(ConfigError, match=r"backend\.share_prompts: .* got sliding_attention"):
        check_attention(model)


def test_a_training_is_that_of_separate_rows(parity_run, train, tmp_path):
    """Updates of two passes each, which split groups, evaluations, and a penalty to the base."""
    objective = {"name": "clipped", "kl_coef": 0.1, "entropy_coef": 0.01}
    points = []
    for share in (False, True):
        run = parity_run(backend={"share_prompts": share}, objective=objective)
        points.append(train(run, tmp_path / str(share)).points)
    expected, found = points
    assert len(expected) == 5
    for step, metrics in expected.items():
        ours = found[step]
        assert ours.keys() == metrics.keys()
        for name, value in metrics.items():
            if not name.startswith(("time/", "memory/")):
                assert ours[name] == pytest.approx(value, rel=1e-2, abs=1e-4, nan_ok=True), name
