"""Rollouts of earlier weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from advsweep.backends.tiny.trainer import WeightHistory
from tests.backends.tiny.conftest import Witness

# Failures, of which every step of a small run has some, move the weights.
ALWAYS_MOVES = {"estimator": {"name": "nsr"}}


def test_the_weights_of_some_steps_ago_sample():
    history, weights = WeightHistory(2), {"a": torch.zeros(1), "b/c": torch.zeros(1)}
    found = []
    for step in range(1, 6):
        found.append(history.sampling(weights)["b/c"].item())
        weights["b/c"].fill_(step)
        again = WeightHistory(2)
        again.restore(history.state())
        assert again.state().keys() == history.state().keys()
        history = again
    assert found == [0, 0, 0, 1, 2]


def test_a_run_without_a_lag_is_that_of_earlier_versions(small_run):
    run = small_run("tiny")
    assert small_run("tiny", backend={"stale_steps": 0}).identity == run.identity
    assert small_run("tiny", backend={"stale_steps": 1}).identity != run.identity


def test_ratios_are_to_the_weights_that_sampled(small_run, train, tmp_path):
    gaps = {}
    for lag in (0, 1):
        witness = Witness(kl_coef=1e-9)
        backend = {"stale_steps": lag, "minibatches": 1}
        run = small_run("tiny", **ALWAYS_MOVES, backend=backend, steps=3)
        run = replace(run, objective=witness)
        train(run, tmp_path / str(lag))
        gaps[lag] = [
            (own.log_probs - own.old_log_probs)[own.completion_mask].abs().mean().item()
            for own in witness.seen
        ]
    assert max(gaps[0]) < 1e-4
    assert gaps[1][0] < 1e-4
    assert min(gaps[1][1:]) > 1e-3
