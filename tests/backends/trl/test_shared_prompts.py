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
    sizes = shape | heads | settings
    if kind not in ("llama", "qwen2", "mistral"):
        # These families have other names for sizes, and ignore or refuse these.
        sizes = {"hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2, **settings}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY, **sizes)
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
    from advsweep.backends.trl.prompt_sharing import obstacle_to_sharing
    from advsweep.backends.trl.shared_prompts import PromptGroups, shared_pass

    model = small_model(kind, attention)
    ids, mask, _ = rows
    groups = PromptGroups.of(rows)
    assert obstacle_to_sharing(model) is None
    generated = mask[:, -TOKENS:].bool()
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    log_policy = torch.log_softmax(logits[:, -TOKENS - 1 : -1] / 0.7, dim=-1)
    expected = log_policy.gather(2, ids[:, -TOKENS:, None])[:, :, 0]
    spread = -(log_policy.exp() * log_policy).sum(dim=-1)

    log_probs, entropies = shared_pass(model, rows, groups, temperature=0.7, entropies=True)
    torch.testing.assert_close(log_probs[generated], expected[generated])
    torch.testing.assert_close(entropies[generated], spread[generated])
    assert shared_pass(model, rows, groups, temperature=0.7, entropies=False)[1] is None

    weights = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad((a + b)[generated].sum(), weights)
        for a, b in ((log_probs, entropies), (expected, spread))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_row_is_computed_once_for_each_prompt(rows):
    from advsweep.backends.trl.shared_prompts import PromptGroups, pack

    groups = PromptGroups.of(rows)
    packed = pack(rows, groups, torch.float32)
    # Three completions at most, each behind a copy of the prompt's last token.
    assert packed.ids.shape == (len(LENGTHS), PROMPT - 1 + 3 * (TOKENS + 1))
    assert packed.ids.shape == (groups.prompts, groups.packed_width)


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


WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
# What keeps each family from sharing prompts. ALiBi and a running state show in the numbers alone.
CANNOT_SHARE = [
    ("qwen2", WINDOW, "sliding_attention"),
    ("mistral", {"sliding_window": 4}, "sliding_attention"),
    ("gpt_neo", {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}, "local"),
    ("mamba", {"state_size": 4}, "linear_attention"),
    ("bloom", {}, "attention that takes no mask of each pair of tokens"),
    ("mpt", {"n_heads": 4, "n_layers": 2}, "log-probabilities of packed rows that differ by"),
]


@pytest.mark.parametrize(
    ("kind", "settings", "obstacle"), CANNOT_SHARE, ids=[case[0] for case in CANNOT_SHARE]
)
def test_a_model_whose_numbers_would_differ_shares_no_prompts(rows, kind, settings, obstacle):
    from advsweep.backends.trl.prompt_sharing import PromptSharing

    # Not every family has sdpa.
    model = small_model(kind, None, **settings)
    with pytest.raises(ConfigError, match=rf"^backend\.share_prompts: .* got {obstacle}"):
        PromptSharing(True, model)
    lines = []
    sharing = PromptSharing("auto", model, lines.append)
    assert sharing.of_pass(rows) is None
    assert not sharing.of_generation(rows.ids[:, :PROMPT])
    assert len(lines) == 1
    assert lines[0].startswith(f"backend.share_prompts=auto: off: this model has {obstacle}")


def of_shape(prompts, group, prompt_tokens, answer_tokens):
    """Rows of so many prompts without padding."""
    of_prompt = torch.arange(prompts).repeat_interleave(group) % VOCABULARY
    ids = of_prompt[:, None].repeat(1, prompt_tokens + answer_tokens)
    return PaddedRows(ids, torch.ones_like(ids), answer_tokens)


@pytest.mark.parametrize(
    ("shape", "shares"),
    [
        ((2, 8, 35, 6), True),
        ((2, 8, 200, 6), True),
        # One rollout of a prompt has nobody to share with.
        ((4, 1, 35, 6), False),
        # The mask of 8 answers of 64 tokens is four times as large as those of separate rows.
        ((2, 8, 8, 64), False),
    ],
)
def test_auto_shares_where_a_pass_becomes_cheaper(shape, shares):
    from advsweep.backends.trl.prompt_sharing import PromptSharing

    lines = []
    sharing = PromptSharing("auto", small_model(), lines.append)
    for _ in range(2):
        assert (sharing.of_pass(of_shape(*shape)) is not None) == shares
    state = "on" if shares else "off"
    assert len(lines) == 1
    assert lines[0].startswith(f"backend.share_prompts=auto: {state}: ")


def test_a_decision_that_changes_is_logged_once():
    from advsweep.backends.trl.prompt_sharing import PromptSharing

    lines = []
    sharing = PromptSharing("auto", small_model(), lines.append)
    # A pass that only measures, of one rollout of each prompt.
    with torch.no_grad():
        sharing.of_pass(of_shape(4, 1, 20, 6))
    for answer_tokens in (6, 64, 6, 64):
        sharing.of_pass(of_shape(2, 8, 20, answer_tokens))
    on, off = lines
    assert "auto: on: 16 rows of 2 prompts, with 20 + 6 tokens, cost 0." in on
    assert "auto: off from here on, wherever a pass has such a shape: 16 rows" in off


def test_the_estimate_counts_every_multiplication():
    """A llama by hand: 3 layers, width 32, 4 heads of 8 with 2 of keys, 64 between, 50 words."""
    from advsweep.backends.trl.prompt_sharing import Costs
    from advsweep.backends.trl.shared_prompts import PromptGroups

    costs = Costs.of_model(small_model())
    # Queries and output 32 x 32 each, keys and values 32 x 16 each, three matrices 32 x 64, and
    # two norms of 32; one more norm at the end.
    assert costs.token == 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32
    assert costs.pair == 2 * 3 * 32
    assert costs.logits == 50 * 32
    groups = PromptGroups.of(of_shape(1, 2, 5, 3))
    separate = 2 * (8 * costs.token + 64 * costs.pair + 4 * costs.logits)
    # 4 tokens of the prompt, and twice its last token with three of an answer.
    packed = 12 * costs.token + 144 * costs.pair + 8 * costs.logits
    assert costs.packed_share(groups) == pytest.approx(packed / separate)


def test_masks_that_need_more_memory_than_separate_rows_are_not_made():
    from advsweep.backends.trl.prompt_sharing import Costs
    from advsweep.backends.trl.shared_prompts import PromptGroups

    costs = Costs(token=1, pair=0, logits=0, activations=400, number=4)
    # 199 + 8 x 401 tokens: a mask of 46 MB for each prompt, which 2 prompts make too large.
    assert costs.fits(PromptGroups.of(of_shape(1, 8, 200, 400)))
    assert not costs.fits(PromptGroups.of(of_shape(2, 8, 200, 400)))


def test_a_training_is_that_of_separate_rows(parity_run, train, tmp_path):
    """Updates of two passes each, which split groups, evaluations, and a penalty to the base."""
    objective = {"name": "clipped", "kl_coef": 0.1, "entropy_coef": 0.01}
    points = []
    for share in (False, True, "auto"):
        run = parity_run(backend={"share_prompts": share}, objective=objective)
        points.append(train(run, tmp_path / str(share)).points)
    expected, *found = points
    assert len(expected) == 5
    for step, metrics in expected.items():
        for ours in found:
            assert ours[step].keys() == metrics.keys()
            for name, value in metrics.items():
                if not name.startswith(("time/", "memory/")):
                    close = pytest.approx(value, rel=1e-2, abs=1e-4, nan_ok=True)
                    assert ours[step][name] == close, name
