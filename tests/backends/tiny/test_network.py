"""The packed forward pass equals the plain one, gradients too."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from advsweep.backends.tiny.network import Continuations
from advsweep.backends.tiny.tokens import decode, encode, pack
from advsweep.backends.tiny.weights import flatten, unflatten
from advsweep.tasks.countdown import Countdown

TEMPERATURE = 0.8


def plain_log_probs(plain_logits, weights, model, prompt, completion):
    """log π of each token of one completion, and the entropies."""
    logits = plain_logits(weights, model, torch.cat((prompt, completion)))
    log_p = (logits[len(prompt) - 1 : -1] / TEMPERATURE).log_softmax(-1)
    return log_p.gather(1, completion[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def test_log_probs_equal_the_plain_forward_pass(
    any_model, make_weights, prompts, completions, plain_logits
):
    weights = make_weights(any_model)
    owner, tokens, lengths = completions(40)
    continuations = Continuations.lay_out(prompts, owner, tokens, lengths)
    packed, entropies = continuations.log_probs(
        flatten(weights, any_model), any_model, TEMPERATURE, entropies=True
    )
    assert entropies is not None
    assert len(continuations.layout.tokens) - continuations.first < lengths.sum()
    for row, length in enumerate(lengths):
        prompt = torch.from_numpy(prompts.tokens[owner[row], : prompts.lengths[owner[row]]])
        completion = torch.from_numpy(tokens[row, :length])
        expected = plain_log_probs(plain_logits, weights, any_model, prompt, completion)
        torch.testing.assert_close(packed[row, :length], expected[0], atol=2e-5, rtol=0)
        torch.testing.assert_close(entropies[row, :length], expected[1], atol=2e-5, rtol=0)


def test_gradients_equal_those_of_the_plain_forward_pass(
    any_model, make_weights, prompts, completions, plain_logits
):
    """In double precision, so that nothing but the mathematics can differ."""
    weights = {k: w.double().requires_grad_() for k, w in make_weights(any_model).items()}
    flat = flatten(weights, any_model).requires_grad_()
    owner, tokens, lengths = completions(20)
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=tokens.shape))
    weight[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0

    continuations = Continuations.lay_out(prompts, owner, tokens, lengths)
    packed, _ = continuations.log_probs(flat, any_model, TEMPERATURE)
    (gradient,) = torch.autograd.grad((packed * weight).sum(), flat)
    found = unflatten(gradient, any_model)

    plain = torch.zeros((), dtype=torch.double)
    for row, length in enumerate(lengths):
        prompt = torch.from_numpy(prompts.tokens[owner[row], : prompts.lengths[owner[row]]])
        completion = torch.from_numpy(tokens[row, :length])
        log_probs, _ = plain_log_probs(plain_logits, weights, any_model, prompt, completion)
        plain = plain + (log_probs * weight[row, :length]).sum()
    expected = torch.autograd.grad(plain, list(weights.values()))
    for name, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(
            found[name], other, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: n + m
        )


TASK = Countdown()
TEXTS = st.lists(st.text(TASK.alphabet, min_size=1, max_size=12), min_size=1, max_size=6)


def test_characters_are_numbered_in_the_alphabets_order():
    encoded = encode(["34=07:", "9*"], TASK)
    # 0-9 are themselves, then + - * = :, the end mark 15 and padding 16.
    assert encoded.tokens.tolist() == [[3, 4, 13, 0, 7, 14], [9, 12, 16, 16, 16, 16]]
    assert encoded.lengths.tolist() == [6, 2]
    assert encoded.mask.tolist() == [[True] * 6, [True] * 2 + [False] * 4]


@given(TEXTS, st.booleans())
def test_texts_come_back(texts, end):
    assert decode(encode(texts, TASK, end=end).tokens, TASK) == texts


@st.composite
def rows(draw):
    """Owners, tokens and lengths of rows that often begin alike."""
    count, slots = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    owner = draw(st_numpy.arrays(np.int64, count, elements=st.integers(0, 2)))
    tokens = draw(st_numpy.arrays(np.int64, (count, slots), elements=st.integers(0, 2)))
    lengths = draw(st_numpy.arrays(np.int64, count, elements=st.integers(1, slots)))
    return owner, tokens, lengths


@given(rows())
def test_slots_share_a_node_where_all_before_them_is_the_same(drawn):
    owner, tokens, lengths = drawn
    packing = pack(owner, tokens, lengths)
    beginnings = {}
    for row, length in enumerate(lengths):
        for slot in range(length):
            beginning = (owner[row], *tokens[row, : slot + 1])
            assert (
                beginnings.setdefault(beginning, packing.node[row, slot])
                == (packing.node[row, slot])
            )
    assert sorted(beginnings.values()) == list(range(len(packing.slots)))
    assert (packing.node[np.arange(tokens.shape[1]) >= lengths[:, None]] == 0).all()


@given(rows())
def test_distinct_rows_hold_every_node_where_slots_says(drawn):
    packing = pack(*drawn)
    held = packing.node[packing.rows].ravel()[packing.slots]
    assert held.tolist() == list(range(len(packing.slots)))
    used = np.arange(packing.node.shape[1]) < drawn[2][packing.rows][:, None]
    assert used.ravel()[packing.slots].all()
