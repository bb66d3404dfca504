"""The packed forward pass equals the plain one, gradients too."""

import numpy as np
import torch

from advsweep.backends.tiny.network import Continuations, fuse

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
        fuse(weights, any_model), TEMPERATURE, entropies=True
    )
    assert entropies is not None
    assert len(continuations.rows.tokens) < lengths.sum()
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
    owner, tokens, lengths = completions(20)
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=tokens.shape))
    weight[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0

    continuations = Continuations.lay_out(prompts, owner, tokens, lengths)
    packed, _ = continuations.log_probs(fuse(weights, any_model), TEMPERATURE)
    found = torch.autograd.grad((packed * weight).sum(), list(weights.values()))

    plain = torch.zeros((), dtype=torch.double)
    for row, length in enumerate(lengths):
        prompt = torch.from_numpy(prompts.tokens[owner[row], : prompts.lengths[owner[row]]])
        completion = torch.from_numpy(tokens[row, :length])
        log_probs, _ = plain_log_probs(plain_logits, weights, any_model, prompt, completion)
        plain = plain + (log_probs * weight[row, :length]).sum()
    expected = torch.autograd.grad(plain, list(weights.values()))
    for name, one, other in zip(weights, found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: n + m)
