"""Estimators that are plain functions in a file of the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from advsweep.errors import AdvsweepError, ConfigError, PluginError
from advsweep.estimators import ESTIMATORS, Estimator, GroupBatch
from advsweep.estimators.named_checks import check_named
from advsweep.estimators.wrappers import AGRAE

Make = Callable[..., Estimator]

CENTRED = """
def advantages(rewards, scale=1.0):
    return scale * (rewards - rewards.mean(dim=1, keepdim=True))
"""


@pytest.fixture
def make(write_code: Callable[..., str]) -> Make:
    def made(text: str, **options: object) -> Estimator:
        return ESTIMATORS.build(ESTIMATORS.resolve(write_code(text)), **options)

    return made


def batch(*rows: list[float], **inputs: object) -> GroupBatch:
    return GroupBatch(rewards=torch.tensor(rows, dtype=torch.float32), **inputs)


def test_a_function_is_an_estimator(make: Make) -> None:
    """Rewards 1 0 0 0 have the mean 1/4, so that A = 2 (3/4, -1/4, -1/4, -1/4)."""
    estimator = make(CENTRED, scale=2)
    check_named(estimator)
    assert estimator(batch([1, 0, 0, 0])).tolist() == [[1.5, -0.5, -0.5, -0.5]]
    assert estimator.needs == estimator.uses == frozenset()
    assert estimator.exchangeable
    assert not estimator.per_token
    assert copy.deepcopy(estimator) == estimator


def test_options_keep_the_type_of_their_defaults(make: Make) -> None:
    text = "def advantages(rewards, k=2, kind='mean', flag=False, eps=0.0): return 0.0 * rewards"
    built = make(text, k=3, kind="std", flag=True, eps=1)
    assert (built.k, built.kind, built.flag, built.eps) == (3, "std", True, 1.0)
    assert make(text, k=0.5).k == 0.5
    for wrong in ({"eps": "x"}, {"flag": 2}, {"kind": 1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            make(text, **wrong)
    with pytest.raises(ConfigError, match="no parameter 'scales'"):
        make(text, scales=1)


def test_an_annotation_is_the_type_of_an_option(make: Make) -> None:
    text = """
from __future__ import annotations
from typing import Literal
def advantages(rewards, *, how: Literal["a", "b"] = "a", k: int = 1): return 0.0 * rewards
"""
    assert make(text, how="b").how == "b"
    for wrong in ({"how": "c"}, {"k": 0.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            make(text, **wrong)


def test_fields_of_the_batch_are_given_by_name(make: Make) -> None:
    estimator = make("def advantages(rewards, lengths, step=None): return rewards / lengths + step")
    assert estimator.needs == {"lengths"}
    assert estimator.uses == {"step"}
    lengths = torch.tensor([[2.0, 4.0]])
    assert estimator(batch([1, 1], lengths=lengths, step=1)).tolist() == [[1.5, 1.25]]
    with pytest.raises(AdvsweepError, match="needs lengths, which the batch lacks"):
        estimator(batch([1, 1], step=1))


def test_other_signals_than_the_rewards(make: Make) -> None:
    assert make("def advantages(token_entropy): return token_entropy").verifier_free
    assert not make("def advantages(solve_rates, lengths): return lengths").verifier_free


def test_missing_rollouts_are_left_out(make: Make) -> None:
    """1 0 and 0 of three rollouts have the mean 1/2 and 0; a rollout alone gets 0."""
    nan = float("nan")
    mask = torch.tensor([[True, False, True], [False, True, False], [True, True, True]])
    rows = ([1, nan, 0], [nan, 1, nan], [1, 0, 0.5])
    expected = [[0.5, 0, -0.5], [0, 0, 0], [0.5, -0.5, 0]]
    assert make(CENTRED)(batch(*rows, mask=mask)).tolist() == expected


def test_groups_below_the_least_size_get_zeros(make: Make) -> None:
    """The sample deviation of one rollout is not defined."""
    text = "def advantages(rewards): return rewards - rewards.std(dim=1, keepdim=True)"
    estimator = make(text)
    assert estimator.minimum_group == 2
    mask = torch.tensor([[True, False], [True, True]])
    assert estimator(batch([1, 1], [1, 1], mask=mask)).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(AdvsweepError, match="at least 2 rollouts"):
        estimator(batch([1.0]))


def test_missing_rollouts_with_a_statistic_of_the_batch_have_the_mean_of_their_group(
    make: Make,
) -> None:
    """The batch 1 1, 0 0 has the mean 1/2 where the missing one has the 1 of its group."""
    estimator = make("def advantages(rewards): return rewards - rewards.mean()")
    mask = torch.tensor([[True, False], [True, True]])
    values = estimator(batch([1, 0], [0, 0], mask=mask))
    assert values.tolist() == [[0.5, 0], [-0.5, -0.5]]


def test_a_function_may_take_the_mask(make: Make) -> None:
    text = """
def advantages(rewards, mask):
    if mask is None:
        return rewards
    return rewards + mask.sum(dim=1, keepdim=True)
"""
    mask = torch.tensor([[True, True, False]])
    nan = float("nan")
    assert make(text)(batch([1, 0, nan], mask=mask)).tolist() == [[3, 2, 0]]


def test_an_advantage_per_token(make: Make) -> None:
    text = """
def advantages(rewards, token_entropies):
    return rewards[..., None] * token_entropies
"""
    estimator = make(text)
    check_named(estimator)
    assert estimator.per_token
    assert estimator.needs == {"token_entropies", "lengths"}
    entropies = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    lengths = torch.tensor([[2.0, 1.0]])
    values = estimator(batch([1, 1], token_entropies=entropies, lengths=lengths))
    assert values.tolist() == [[[1, 2], [3, 0]]]


def test_the_order_of_rollouts_may_matter(make: Make) -> None:
    assert not make("def advantages(rewards): return rewards.cumsum(dim=1)").exchangeable


def test_float64_stays_float64(make: Make) -> None:
    values = make(CENTRED)(GroupBatch(rewards=torch.zeros(1, 2, dtype=torch.float64)))
    assert values.dtype is torch.float64


def test_a_wrapper_takes_it_as_its_base(make: Make) -> None:
    base = make(CENTRED)
    wrapped = ESTIMATORS.build(AGRAE.name, base=base.plain())
    check_named(wrapped)
    assert wrapped.base == base
    again = ESTIMATORS.build(wrapped.plain())
    assert again.identity() == wrapped.identity()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rewards / rewards.std(1, keepdim=True)", r":2: .* finite advantages, got (nan|inf)"),
        ("rewards.mean(1)", r":2: .* the shape \[9, 8\], one per rollout, got \[9\]"),
        ("rewards.long()", r":2: .* floats, got int64; return values.float"),
        ("rewards.tolist()", r":2: .* expected a tensor .* got list"),
        ("rewards.nothing()", r":3: .* raised AttributeError"),
        ("rewards * torch.rand(())", r":2: .* the same advantages for the same inputs, got"),
        ("rewards.sub_(1)", r":2: .* it changed rewards; work on a copy"),
        ("rewards / rewards.sum()", r":2: .* finite advantages, got nan"),
    ],
)
def test_an_unusable_function_is_refused_before_training(
    make: Make, line: str, message: str
) -> None:
    estimator = make(f"import torch\ndef advantages(rewards):\n    return {line}\n")
    with pytest.raises(ConfigError, match=rf"^idea\.py{message}"):
        check_named(estimator, 8)


def test_a_class_is_tried_too(make: Make) -> None:
    text = """
from dataclasses import dataclass
from advsweep.estimators import Estimator

@dataclass(kw_only=True)
class Inverse(Estimator):
    power: float = 1.0

    def _advantages(self, groups, info):
        return 1 / groups.rewards ** self.power
"""
    with pytest.raises(ConfigError, match=r"^idea\.py:9: Inverse: expected finite .* got inf"):
        check_named(make(text))
    check_named(make(text.replace("1 /", "0 *")))


def test_a_function_that_fails_in_training_says_where(make: Make) -> None:
    text = """
def advantages(rewards):
    if rewards.max() > 1:
        raise KeyError("too good")
    return rewards
"""
    estimator = make(text)
    check_named(estimator)
    with pytest.raises(PluginError, match=r"^idea\.py:4: estimator 'idea' raised KeyError"):
        estimator(batch([2.0]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def advantages(reward): pass", r":1: .*'reward' is no input.*'rewards'"),
        (
            "def advantages(rewards, eps): pass",
            r":1: .*'eps' is no input; .* inputs: rewards, mask",
        ),
        ("def advantages(rewards, **more): pass", r":1: .*got \*\*more"),
        ("def advantages(scale=1.0): pass", r":1: .*such as `rewards` as parameter, got scale"),
        ("def advantages(rewards, scale={}): pass", r":1: .*'scale'.*got dict"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(make: Make, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^idea\.py{message}"):
        make(text)
