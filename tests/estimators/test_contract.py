"""What holds for every estimator, found through the registry.

What an estimator alone can say (that it has memory, that each group stands for itself) it declares
in its class. What its formula gives where most give 0 stands in tables here; a test that misses a
line prints it.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from advsweep.cli.estimators import build_from_options
from advsweep.components import choices_of, field_types
from advsweep.errors import BatchError, CheckpointError, ConfigError
from advsweep.estimators import ESTIMATORS, Estimator, GroupBatch, build_estimator, estimator_names
from advsweep.estimators.base import Provenance
from advsweep.estimators.batch import COUNTERS, PER_TOKEN
from advsweep.estimators.contract import changed_inputs, list_properties, not_finite, wrong_form

NAMES = estimator_names()
TENSORS = (
    "rewards",
    "mask",
    "lengths",
    "ref_rewards",
    "token_entropy",
    "token_entropy_exact",
    "self_certainty",
    "answered",
    "token_entropies",
    "token_grad_norms",
    "token_kl",
    "reward_parts",
    "turn_of_token",
    "turn_rewards",
    "turn_states",
    "turn_values",
)

# What keeps an estimator's homogeneous groups at a plain value, or lets it take three rollouts.
PLAIN_OPTIONS: Mapping[str, dict[str, Any]] = {
    "aapo": {"delta_low": 0.0, "delta_high": 0.0},
    "avspo": {"fixed_tau": 1.0},
    "entropy_shaped": {"alpha": 0.0},
    "t2t": {"alpha": 0.0},
    "passk_analytic": {"k": 2},
    "passk_mix": {"k": 2},
    "kl_in_reward": {"beta": 0.0},
    "optimal_token_baseline": {"eps": 0.0, "zero_tail": False},
}

# Beside other groups these get another value, as rollouts are compared with the whole batch.
OF_THE_BATCH = {"gdpo", "reinforce_pp", "reinforce_pp_baseline", "whitened"}

# What homogeneous groups get instead of 0 then, and groups of one where it is not the same.
HOMOGENEOUS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "asym_re": lambda rewards: torch.full_like(rewards, -0.01),
    "binary_contrastive": lambda rewards: rewards,
    "nsr": lambda rewards: rewards - 1,
    "psr": lambda rewards: rewards,
    "reinforce": lambda rewards: rewards,
    "vine": lambda rewards: rewards - 0.5,
    "w_reinforce": lambda rewards: torch.where(rewards == 1, 0.1, rewards - 1),
}
GROUPS_OF_ONE: Mapping[str, Callable[[Tensor], Tensor]] = {
    **HOMOGENEOUS,
    "passk_loo": lambda rewards: rewards,
}


HERE = "tests/estimators/test_contract.py"


def missing_line(table: str, name: str, rewards: Tensor, values: Tensor) -> str:
    """Say which line a table lacks, if the formula gives values of groups of equal rewards."""
    at_zero, at_one = (values[rewards == level][0].item() for level in (0.0, 1.0))
    return (
        f"groups of equal rewards get {at_zero:g} for rewards of 0 and {at_one:g} for 1. If this "
        f"is the formula, add to {table} in {HERE}\n"
        f'    "{name}": lambda rewards: {at_one - at_zero:g} * rewards {at_zero:+g},\n'
        "or, if an option makes it 0, the option to PLAIN_OPTIONS"
    )


def every_input(rewards: Tensor, mask: Tensor | None = None, step: int = 1) -> GroupBatch:
    """A batch that has all optional inputs, different for each step."""
    generator = torch.Generator().manual_seed(step)

    def some(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=rewards.dtype)

    prompts, group = rewards.shape
    lengths = 1 + (9 * some(prompts, group)).round()
    batch = GroupBatch(
        rewards=rewards,
        mask=mask,
        lengths=lengths,
        ref_rewards=(some(prompts, group) < 0.5).to(rewards.dtype),
        token_entropy=0.3 + some(prompts, group),
        token_entropy_exact=0.3 + some(prompts, group),
        self_certainty=2 + some(prompts, group),
        solve_rates=some(prompts),
        answered=some(prompts, group) < 0.8,
        prompt_ids=tuple(f"problem-{i}" for i in range(prompts)),
        step=step,
        total_steps=10,
    )
    within = torch.arange(10) < lengths[..., None]
    return dataclasses.replace(
        batch,
        token_entropies=(0.3 + some(prompts, group, 10)).where(within, 0.0),
        token_grad_norms=some(prompts, group, 10).where(within, 0.0),
        token_kl=(some(prompts, group, 10) - 0.4).where(within, 0.0),
        reward_parts=torch.stack((rewards, torch.zeros_like(rewards)), dim=-1),
        greedy_rewards=rewards[:, 0],
        # A turn each; test_turn_properties.py has more.
        turn_of_token=torch.zeros(prompts, group, 10, dtype=torch.int64).where(within, -1),
        turn_rewards=torch.zeros_like(rewards)[..., None],
        turn_states=torch.zeros(prompts, group, 1, dtype=torch.int64),
        turn_values=torch.full_like(rewards, 0.5)[..., None],
    )


def per_rollout(estimator: Estimator, batch: GroupBatch) -> Tensor:
    """Advantages, or their means over tokens."""
    return estimator.compute(batch).rollout_means(batch.lengths)


def binary(prompts: int, group: int, step: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rewards of prompts whose solve rates spread over [0, 1]; the first rows collapse."""
    generator = torch.Generator().manual_seed(1000 + step)
    rates = torch.linspace(0, 1, prompts)[:, None]
    rewards = (torch.rand(prompts, group, generator=generator) < rates).to(dtype)
    rewards[0], rewards[1] = 0.0, 1.0
    return rewards


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def estimator(name: str) -> Estimator:
    return build_estimator(name)


@pytest.fixture
def plain_estimator(name: str) -> Estimator:
    return build_estimator(name, **PLAIN_OPTIONS.get(name, {}))


# The class and its configuration


def test_says_where_it_departs_from_its_source(name: str) -> None:
    assert vars(ESTIMATORS.get(name))["departures"], (
        "say in the row of catalogue.toml what differs from the source, or write\n"
        'departures = "none"'
    )


def test_says_what_its_defaults_are_held_to(name: str) -> None:
    cls = ESTIMATORS.get(name)
    held = cls.provenance
    assert held
    assert len(set(held)) == len(held)
    assert all(isinstance(where, Provenance) for where in held)
    if Provenance.OURS in held:
        assert cls.departures.rstrip(".") != "none"
    for way in cls.released_options:
        built = build_from_options(ESTIMATORS, name, way.split())
        assert built.plain() != build_estimator(name).plain()


def test_plain_config_builds_the_same_estimator(estimator: Estimator) -> None:
    plain = estimator.plain()
    assert json.loads(json.dumps(plain)) == plain
    again = build_estimator(plain)
    assert again == estimator
    assert again.plain() == plain
    assert again.identity() == estimator.identity()


# Shapes and types


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_shape_dtype_and_device(estimator: Estimator, dtype: torch.dtype) -> None:
    rewards = binary(6, 8, dtype=dtype)
    advantages = estimator.compute(every_input(rewards))
    assert advantages.per_token is estimator.per_token, (
        f"write into its class\n    per_token: ClassVar[bool] = {advantages.per_token}"
    )
    assert advantages.values.shape == (*rewards.shape, *([10] if estimator.per_token else []))
    assert advantages.values.dtype is dtype
    assert advantages.values.device == rewards.device
    assert wrong_form(advantages.values, rewards) == ""
    assert not_finite(advantages.values, rewards) == ""
    assert advantages.keep.shape == rewards.shape
    assert advantages.keep.dtype is torch.bool
    assert all(type(value) is float for value in advantages.info.values())


def test_makes_its_tensors_on_the_device_of_the_rewards(estimator: Estimator) -> None:
    batch = every_input(binary(6, 8), mask=binary(6, 8, step=2).bool())
    expected = copy.deepcopy(estimator)(batch)
    # A tensor made without a word on its device would be of another one than the rewards.
    with torch.device("meta"):
        values = estimator(batch)
    assert torch.equal(values, expected)


def test_float32_agrees_with_float64(estimator: Estimator) -> None:
    rewards = binary(16, 8)
    single = copy.deepcopy(estimator)(every_input(rewards.float()))
    double = estimator(dataclasses.replace(every_input(rewards.float()), rewards=rewards))
    # Standardisation divides the rounding errors of rewards by the group's standard deviation:
    # 2⁻²⁴ by about 0.03, where an estimator spreads rewards as little as t2t does.
    assert torch.allclose(single.double(), double, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float16])
def test_other_reward_types_are_refused(estimator: Estimator, dtype: torch.dtype) -> None:
    batch = every_input(binary(4, 8))
    batch = dataclasses.replace(batch, rewards=batch.rewards.to(dtype))
    with pytest.raises(BatchError, match="expected float32 or float64"):
        estimator.compute(batch)


def test_rewards_that_are_no_matrix_are_refused(estimator: Estimator) -> None:
    batch = every_input(binary(4, 8))
    shapes = (torch.zeros(n) for n in (8, (2, 2, 8), (0, 8), (4, 0)))
    for rewards in (*shapes, [[0.0, 1.0]]):
        with pytest.raises(BatchError, match=r"expected a tensor \[prompts, rollouts\]"):
            estimator.compute(dataclasses.replace(batch, rewards=rewards))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rewards_that_are_not_finite_are_refused(estimator: Estimator, bad: float) -> None:
    before = estimator.state_dict()
    for whole_row in (False, True):
        rewards = binary(4, 8)
        rewards[2, slice(None) if whole_row else 3] = bad
        with pytest.raises(BatchError, match="finite"):
            estimator.compute(every_input(rewards))
    assert estimator.state_dict() == before


def test_missing_input_is_named(estimator: Estimator) -> None:
    for needed in estimator.needs:
        batch = dataclasses.replace(every_input(binary(4, 8)), **{needed: None})
        with pytest.raises(BatchError, match=f"needs {needed}"):
            estimator.compute(batch)


def test_inputs_of_another_shape_are_refused(estimator: Estimator) -> None:
    batch = every_input(binary(4, 8), mask=torch.ones(4, 8, dtype=torch.bool))
    for field in {"mask", *estimator.needs, *estimator.uses} - {*COUNTERS, "part_weights"}:
        wrong = dataclasses.replace(batch, **{field: getattr(batch, field)[:3]})
        with pytest.raises(BatchError, match=f"{field}: expected the shape"):
            estimator.compute(wrong)
    with pytest.raises(BatchError, match="mask: expected booleans"):
        estimator.compute(dataclasses.replace(batch, mask=torch.ones(4, 8)))


def test_group_size_of_one(plain_estimator: Estimator, name: str) -> None:
    rewards = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    batch = every_input(rewards)
    if plain_estimator.minimum_group > 1:
        with pytest.raises(BatchError, match=f"'{name}' needs at least"):
            plain_estimator.compute(batch)
        return
    if name in OF_THE_BATCH:
        return
    values = per_rollout(plain_estimator, batch)
    expected = GROUPS_OF_ONE.get(name, torch.zeros_like)(rewards)
    tables = "HOMOGENEOUS, or GROUPS_OF_ONE where larger groups get another value,"
    assert torch.equal(values, expected), missing_line(tables, name, rewards, values)


def test_tokens_past_the_end_get_nothing(estimator: Estimator) -> None:
    if not estimator.per_token:
        pytest.skip("gives one advantage per rollout")
    assert "lengths" in estimator.needs
    if "turn_of_token" in estimator.uses:
        pytest.skip("turns say which tokens count")
    (field,) = estimator.needs & PER_TOKEN
    batch = dataclasses.replace(every_input(binary(6, 8)), turn_of_token=None)
    assert batch.lengths is not None
    # Nothing there is read either, and the token axis may be longer.
    past = torch.arange(13) >= batch.lengths[..., None]
    noisy = torch.nn.functional.pad(getattr(batch, field), (0, 3)).where(~past, 7.0)
    values = copy.deepcopy(estimator)(dataclasses.replace(batch, **{field: noisy}))
    assert (values[past] == 0).all()
    assert torch.equal(values[..., :10], estimator(batch))
    short = dataclasses.replace(batch, **{field: getattr(batch, field)[..., :9]})
    with pytest.raises(BatchError, match=rf"{field}: .* at least 10 tokens, .* got 9"):
        estimator.compute(short)


# Values


@pytest.mark.parametrize("mask", [None, binary(6, 8, step=2).bool(), torch.zeros(6, 8).bool()])
def test_inputs_are_left_as_they_are(estimator: Estimator, mask: Tensor | None) -> None:
    batch = every_input(binary(6, 8), mask=mask)
    copies = {n: getattr(batch, n).clone() for n in TENSORS if getattr(batch, n) is not None}
    advantages = estimator.compute(batch)
    # What is handed out is the caller's own.
    advantages.values.fill_(7.0)
    advantages.keep.fill_(True)
    assert changed_inputs(copies, batch) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group", [3, 8, 9])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 0.9, 1.0])
def test_homogeneous_groups_get_exactly_their_value(
    plain_estimator: Estimator, name: str, reward: float, group: int, dtype: torch.dtype
) -> None:
    if plain_estimator.binary_only and reward not in (0.0, 1.0):
        pytest.skip("defined for rewards of 0 and 1 only")
    if plain_estimator.verifier_free:
        pytest.skip("reads another signal than the rewards")
    rewards = torch.full((5, group), reward, dtype=dtype)
    value = HOMOGENEOUS.get(name, torch.zeros_like)
    values = per_rollout(plain_estimator, every_input(rewards))
    if name not in HOMOGENEOUS and values.any():
        levels = torch.tensor([[0.0], [1.0]], dtype=dtype).expand(2, group)
        of_levels = per_rollout(plain_estimator, every_input(levels))
        pytest.fail(missing_line("HOMOGENEOUS", name, levels, of_levels))
    # The mean of equal numbers over the tokens of a rollout is rounded; that of zeros is not.
    is_exact = name not in HOMOGENEOUS or not plain_estimator.per_token
    rounding = 0 if is_exact else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(values, value(rewards), rtol=rounding, atol=0)
    if name in OF_THE_BATCH:
        return
    # Likewise beside a mixed group, and with a masked rollout.
    rewards[0, 0] = 1 - round(reward)
    mask = torch.ones_like(rewards, dtype=torch.bool)
    mask[:, -1] = False
    for some in (None, mask):
        values = per_rollout(plain_estimator, every_input(rewards, mask=some))
        expected = value(rewards) if some is None else value(rewards) * some
        assert torch.allclose(values[1:], expected[1:], rtol=rounding, atol=0), (
            f"beside a mixed group, groups of equal rewards get {values[1:].unique().tolist()}; if "
            f'rollouts are compared with the whole batch, add "{name}" to OF_THE_BATCH in {HERE}'
        )


def test_properties_agree_with_what_the_class_declares(estimator: Estimator) -> None:
    sentences = {each.name: each for each in list_properties(estimator)}
    assert sentences["order"].is_usual is estimator.exchangeable
    if estimator.per_group:
        assert sentences["groups"].is_usual
    if estimator.minimum_group > 1:
        needed = f"at least {estimator.minimum_group} rollouts"
        assert needed in sentences["degenerate groups"].sentence


def test_order_of_rollouts_and_prompts_does_not_matter(estimator: Estimator) -> None:
    batch = every_input(binary(8, 8))
    generator = torch.Generator().manual_seed(3)
    rollouts = torch.randperm(8, generator=generator)
    prompts = torch.randperm(8, generator=generator)

    def shuffled(tensor: Tensor) -> Tensor:
        return tensor[prompts][:, rollouts] if tensor.ndim > 1 else tensor[prompts]

    fields = {
        field.name: shuffled(value)
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), Tensor)
    }
    values = copy.deepcopy(estimator)(dataclasses.replace(batch, **fields))
    assert torch.allclose(values, shuffled(estimator(batch)), rtol=1e-12, atol=1e-12)


# Groups by themselves


# Options with code of their own, and wrappers over bases of every kind.
VARIANTS: list[dict[str, Any]] = [
    *({"name": name} for name in NAMES),
    {"name": "grpo", "preset": "trl"},
    {"name": "grpo", "std": "sample", "tolerance": 0.1},
    {"name": "gpg", "f_norm": "sigma"},
    *({"name": "grpo", "scope": scope} for scope in ("batch", "running")),
    {"name": "gpg", "alpha": "nonzero"},
    {"name": "gdpo", "order": "sum_then_normalise"},
    *({"name": "reinforce_pp", "preset": p, "beta": 0.1} for p in ("verl", "openrlhf")),
    {"name": "passk_loo", "scale": "std"},
    {"name": "asym_grpo", "scale": "std"},
    {"name": "t2t", "max_len": 20.0},
    {"name": "passk_loo", "k": 2},
    {"name": "asym_re", "baseline": "min"},
    {"name": "quantile", "tau": 0.3},
    {"name": "mc_grpo", "median": "midpoint"},
    {"name": "softmax", "beta": 3.3},
    {"name": "log_mean_exp", "beta": 30.0},
    {"name": "log_mean_exp", "variant": "loo_same_count"},
    {"name": "log_mean_exp", "variant": "signed_softmax"},
    {"name": "psr", "drop_zero_rows": True},
    {"name": "nsr", "drop_zero_rows": True},
    {"name": "avspo", "preset": "released"},
    *(
        {"name": name, "base": base}
        for name in ("hard_focused", "positive_dominant", "grpo_n", "filter_drop")
        for base in ("softmax", "passk_mix", "intuitor", "fade", "a_grae", "power_norm")
    ),
]

# torch rounds a power otherwise at the end of a tensor, on some machines and for some exponents.
POWERS = {"asym_power_alpha", "easy_power", "power_alpha", "power_norm"}


def side_by_side(batches: Sequence[GroupBatch]) -> GroupBatch:
    joined = {
        name: torch.cat([getattr(batch, name) for batch in batches])
        for name, value in vars(batches[0]).items()
        if isinstance(value, Tensor)
    }
    prompts = tuple(prompt for batch in batches for prompt in batch.prompt_ids or ())
    return dataclasses.replace(batches[0], prompt_ids=prompts, **joined)


def batches_of_several_runs(
    group: int, dtype: torch.dtype, *, masked: bool, graded: bool
) -> list[GroupBatch]:
    """Of numbers of groups that put each run's at another place of a vector register."""
    found = []
    for run, prompts in enumerate((3, 64, 1, 17, 2)):
        generator = torch.Generator().manual_seed(run)
        noise = torch.rand(prompts, group, generator=generator)
        rewards = noise if graded else noise < torch.linspace(0, 1, prompts)[:, None]
        mask = torch.rand(prompts, group, generator=generator) < 0.8
        batch = every_input(rewards.to(dtype), mask=mask if masked else None, step=run + 1)
        found.append(dataclasses.replace(batch, step=1))
    return found


def is_alike(spec: dict[str, Any], batches: Sequence[GroupBatch]) -> bool:
    """Whether one call gives, to the bit, what calls for each batch give, and nothing else."""
    estimator = build_estimator(spec)
    together = estimator.compute(side_by_side(batches))
    alone = [build_estimator(spec).compute(batch) for batch in batches]
    return (
        torch.equal(together.values, torch.cat([one.values for one in alone]))
        and torch.equal(together.keep, torch.cat([one.keep for one in alone]))
        and not together.info
        and not estimator.state_dict()
    )


@pytest.mark.parametrize("spec", VARIANTS, ids=lambda spec: "-".join(map(str, spec.values())))
def test_declares_whether_each_group_is_by_itself(spec: dict[str, Any]) -> None:
    """`per_group`, both ways: what may be computed at once is, and is not forgotten."""
    estimator = build_estimator(spec)
    if spec["name"] in POWERS or spec.get("base") in POWERS:
        assert not estimator.per_group, f"{spec['name']} is in POWERS of {HERE}: no per_group"
        return
    fits = estimator.group_multiple
    sizes = [g for g in (1, 2, 3, 4, 5, 8, 9, 16) if g >= estimator.minimum_group and g % fits == 0]
    kinds = itertools.product(
        sizes,
        (torch.float32, torch.float64),
        (False, True),
        (False,) if estimator.binary_only else (False, True),
    )
    alike = all(
        is_alike(spec, batches_of_several_runs(size, dtype, masked=masked, graded=graded))
        for size, dtype, masked, graded in kinds
    )
    rule = "each group of the batch stands for itself" if alike else "groups depend on each other"
    assert estimator.per_group is alike, (
        f"{rule} in {spec}: write into its class\n    per_group: ClassVar[bool] = {alike}\n"
        "or a property of this name, if an option decides"
    )


# Degenerate groups

# Numbers of the spec for groups of equal rewards that grow as the option does: (1/β) log(G/(G-1)).
UNBOUNDED = {("log_mean_exp", "variant", "loo_same_count")}


def choices(hint: Any) -> list[Any]:
    """The values of a field that are no number: members of a choice, and both booleans."""
    values = list(choices_of(hint))
    for part in (hint, *typing.get_args(hint)):
        values += choices_of(part)
        values += [True, False] if part is bool else []
    return list(dict.fromkeys(values))


def specs_of(name: str) -> list[dict[str, Any]]:
    """An estimator with its defaults, with each value of each option, and with each two of them."""
    hints = field_types(ESTIMATORS.get(name))
    settings = [(field, value) for field, hint in hints.items() for value in choices(hint)]
    specs: list[dict[str, Any]] = [{"name": name}]
    specs += [{"name": name, field: value} for field, value in settings]
    for (field, value), (other, another) in itertools.combinations(settings, 2):
        if field != other:
            specs.append({"name": name, field: value, other: another})
    return [spec for spec in specs if is_buildable(spec)]


def is_buildable(spec: Mapping[str, Any]) -> bool:
    try:
        build_estimator(dict(spec))
    except ConfigError:
        return False
    return True


METHODS = sorted((Path(__file__).parents[2] / "conf" / "method").glob("*.yaml"))


def spec_of_method(path: Path) -> dict[str, Any]:
    """The estimator of a preset in `conf/method`."""
    method = yaml.safe_load(path.read_text("utf-8"))
    chosen = [
        entry["override /estimator"]
        for entry in method["defaults"]
        if "override /estimator" in entry
    ]
    return {"name": chosen[0], **method.get("estimator", {})}


def degenerate_batches(dtype: torch.dtype) -> Iterator[GroupBatch]:
    """Groups of one rollout, groups that the mask leaves one of, and groups of equal rewards."""
    levels = torch.tensor([0.0, 1.0, 0.1, 1 / 3, 0.9, 1.0], dtype=dtype)[:, None]
    for size in (1, 2, 4, 8):
        equal = levels.expand(6, size).clone()
        yield every_input(equal)
        mixed = binary(6, size, dtype=dtype)
        mixed[:, 0] = levels[:, 0].round()
        for left in (0, size - 1):
            mask = torch.zeros(6, size, dtype=torch.bool)
            mask[:, left] = True
            yield every_input(mixed, mask=mask)


def with_sure_tokens(batch: GroupBatch) -> GroupBatch:
    """Squared norms as single precision computes those of sure tokens: 0, give or take."""
    assert batch.token_grad_norms is not None
    noise = (batch.token_grad_norms - batch.token_grad_norms.mean()) * 1e-7
    return dataclasses.replace(batch, token_grad_norms=noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantages_of_degenerate_groups_are_no_larger_than_rewards(
    name: str, dtype: torch.dtype
) -> None:
    """No σ of 0 is divided by, whatever the options: |A| is at most 10 times the largest |r|."""
    specs = specs_of(name)
    specs += [spec for spec in map(spec_of_method, METHODS) if spec["name"] == name]
    for spec in specs:
        if any((name, field, value) in UNBOUNDED for field, value in spec.items()):
            continue
        for batch in degenerate_batches(dtype):
            for given in (batch, with_sure_tokens(batch)):
                assert_bounded(spec, given)


def assert_bounded(spec: dict[str, Any], batch: GroupBatch) -> None:
    estimator = build_estimator(spec)
    size = batch.rewards.shape[1]
    if size < estimator.minimum_group or size % estimator.group_multiple:
        return
    if estimator.binary_only:
        batch = dataclasses.replace(batch, rewards=batch.rewards.round())
    largest = estimator(batch).abs().max().item()
    assert largest <= 10, (
        f"{spec}: {largest:g} from {batch.rewards.tolist()}, mask {batch.mask}. `standardise` and "
        "`at_least` guard a σ of 0. If the formula itself grows with an option, add\n"
        f'    ("{spec["name"]}", "OPTION", "VALUE")\nto UNBOUNDED in {HERE}'
    )


# Masks


def test_masked_rollouts_leave_no_trace(plain_estimator: Estimator) -> None:
    rewards = binary(8, 6)
    batch = every_input(rewards)
    expected = copy.deepcopy(plain_estimator).compute(batch)

    def padded(tensor: Tensor, fill: float) -> Tensor:
        empty = 0 if tensor.dtype is torch.int64 else fill
        missing = torch.full((8, 2, *tensor.shape[2:]), empty, dtype=tensor.dtype)
        return torch.cat((missing, tensor), dim=1)

    wide = dataclasses.replace(
        batch,
        **{n: padded(getattr(batch, n), float("nan")) for n in TENSORS if n != "mask"},
        mask=padded(torch.ones(8, 6, dtype=torch.bool), False),
    )
    advantages = plain_estimator.compute(wide)
    assert (advantages.values[:, :2] == 0).all()
    assert torch.allclose(advantages.values[:, 2:], expected.values, rtol=1e-12, atol=1e-12)
    assert not advantages.keep[:, :2].any()
    assert torch.equal(advantages.keep[:, 2:], expected.keep)
    assert advantages.info == pytest.approx(expected.info)


def test_groups_with_few_scorable_rollouts(plain_estimator: Estimator) -> None:
    rewards = binary(6, 8)
    mask = torch.ones_like(rewards, dtype=torch.bool)
    mask[2], mask[3, 1:] = False, False
    batch = every_input(rewards.masked_fill(~mask, float("nan")), mask=mask)
    values = per_rollout(plain_estimator, batch)
    assert values.isfinite().all()
    assert torch.equal(values[2], torch.zeros(8, dtype=torch.float64))
    assert torch.equal(values[3, 1:], torch.zeros(7, dtype=torch.float64))


def test_batch_without_scorable_rollouts_is_passed_over(estimator: Estimator) -> None:
    before = estimator.state_dict()
    rewards = torch.full((4, 8), float("nan"))
    batch = every_input(rewards, mask=torch.zeros(4, 8, dtype=torch.bool))
    advantages = estimator.compute(batch)
    assert (advantages.values == 0).all()
    assert advantages.values.shape[:2] == (4, 8)
    assert not advantages.keep.any()
    assert estimator.state_dict() == before


# Memory


def test_state_survives_json_and_resumes_exactly(estimator: Estimator, name: str) -> None:
    batches = [every_input(binary(6, 8, step=step), step=step) for step in range(1, 11)]
    fresh = estimator.state_dict()
    for batch in batches[:5]:
        estimator.compute(batch)
    saved = json.dumps(estimator.state_dict())
    resumed = build_estimator(name)
    resumed.load_state_dict(json.loads(saved))
    for batch in batches[5:]:
        one, other = estimator.compute(batch), resumed.compute(batch)
        assert torch.equal(one.values, other.values)
        assert one.info == other.info
    assert estimator.state_dict() == resumed.state_dict()
    remembers = estimator.state_dict() != fresh
    assert estimator.stateful is remembers, (
        f"state_dict() {'changes' if remembers else 'stays as it was'} in ten steps: derive "
        f"{type(estimator).__name__} from {'Stateful' if remembers else ''}Estimator"
    )
    estimator.reset()
    assert estimator.state_dict() == fresh


def test_state_of_another_estimator_is_refused(estimator: Estimator, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"state of estimator '{name}'"):
        estimator.load_state_dict({**estimator.state_dict(), "momentum": 0.0})
