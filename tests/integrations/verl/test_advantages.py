"""The function `advsweep` in verl's own call, with its configuration and its batches."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("verl", minversion="0.9.1", reason="verl is absent: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

from omegaconf import OmegaConf  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.trainer.ppo.ray_trainer import compute_advantage  # noqa: E402

from advsweep.errors import BatchError, ConfigError  # noqa: E402
from advsweep.estimators import GroupBatch, build_estimator, estimator_names  # noqa: E402
from advsweep.estimators.baselines import GRPO  # noqa: E402
from advsweep.integrations.verl.advantages import build_from  # noqa: E402
from tests.integrations.verl.conftest import Compose  # noqa: E402


def batch_of(rewards: Tensor, index: list[str], lengths: list[int]) -> DataProto:
    """A batch of verl: the reward on the last token, zeros past the end."""
    places = torch.arange(max(lengths))
    ends = torch.tensor(lengths)[:, None]
    tensors = {
        "token_level_rewards": rewards[:, None] * (places == ends - 1),
        "response_mask": (places < ends).long(),
    }
    return DataProto.from_dict(tensors, non_tensors={"uid": np.array(index, dtype=object)})


def section(spec: Any) -> Any:
    return OmegaConf.create({"gamma": 1.0, "advsweep": spec})


def computed(data: DataProto, spec: Any, name: str = "advsweep", **config: Any) -> Tensor:
    """The advantages of verl's own call, one per row and token."""
    settings = OmegaConf.merge(section(spec), config)
    batch = compute_advantage(data.select(), name, config=settings).batch
    advantages: Tensor = batch["advantages"]
    return advantages


@pytest.fixture(scope="module")
def ragged() -> DataProto:
    """Five groups of 4, 2, 6, 4 and 3 rollouts in random order, some collapsed; rewards 0, 1."""
    generator = torch.Generator().manual_seed(3)
    index = [f"p{group}" for group, size in enumerate([4, 2, 6, 4, 3]) for _ in range(size)]
    rewards = (torch.rand(19, generator=generator) < 0.5).float()
    rewards[6:12] = 1
    order = torch.randperm(19, generator=generator).tolist()
    lengths = torch.randint(1, 6, (19,), generator=generator).tolist()
    return batch_of(rewards[order], [index[place] for place in order], lengths)


def rewards_of(data: DataProto) -> Tensor:
    rewards: Tensor = data.batch["token_level_rewards"].sum(dim=1)
    return rewards


def test_options_come_from_the_command_line(compose: Compose) -> None:
    config = compose(
        "algorithm.adv_estimator=advsweep",
        "+algorithm.advsweep.name=asym_grpo",
        "+algorithm.advsweep.delta=0.5",
    ).algorithm
    data = batch_of(torch.tensor([1.0, 0, 0, 0]), ["a"] * 4, [3, 2, 1, 2])
    compute_advantage(data, config.adv_estimator, config=config)
    # dᵢ is 3/4 and -1/4; failures count 1/δ = 2 times.
    expected = torch.tensor([0.75, -0.5, -0.5, -0.5])[:, None] * data.batch["response_mask"]
    assert torch.equal(data.batch["advantages"], expected)
    assert torch.equal(data.batch["returns"], expected)


def test_a_dataclass_of_verl_is_a_configuration_too() -> None:
    from dataclasses import dataclass

    from verl.trainer.config import AlgoConfig

    @dataclass
    class Config(AlgoConfig):
        advsweep: dict[str, Any] = field(default_factory=lambda: {"name": "rloo"})

    data = batch_of(torch.tensor([1.0, 0]), ["a", "a"], [1, 1])
    compute_advantage(data, "advsweep", config=Config())
    assert data.batch["advantages"].tolist() == [[1], [-1]]


@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_is_itself_inside_verl_or_refused_by_name(name: str) -> None:
    direct = build_estimator(name)
    assert build_from(section(direct.plain())).plain() == direct.plain()
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.rand(6, 8, generator=generator) < 0.5).float()
    lengths = torch.randint(1, 5, (6, 8), generator=generator)
    index = [f"{name}-{group}" for group in range(6) for _ in range(8)]
    data = batch_of(rewards.flatten(), index, lengths.flatten().tolist())
    spec = direct.plain()
    if direct.needs <= {"lengths"}:
        batch = GroupBatch(rewards=rewards, lengths=lengths.float())
        result = direct.compute(batch)
        keep = result.keep[..., None] if result.per_token else result.keep
        expected = torch.where(keep, result.values, 0.0).view(48, -1)
        advantages = computed(data, spec)
        mask = data.batch["response_mask"]
        assert torch.allclose(advantages, expected * mask, rtol=0, atol=1e-6)
    else:
        with pytest.raises(BatchError, match=f"estimator '{name}' needs ") as error:
            computed(data, spec)
        provided = "advsweep_sync" in str(error.value)
        theirs = {"self_certainty", "ref_rewards", "answered", "reward_parts", "greedy_rewards"}
        theirs |= {"token_grad_norms", "turn_states", "turn_values", "turn_rewards"}
        assert provided == direct.needs.isdisjoint(theirs)


def test_turns_of_an_agent_reach_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch_of(torch.tensor([1.0, 0]), ["a", "a"], [6, 6])
    # A tool wrote the third and fourth token of the first rollout.
    data.batch["response_mask"][0] = torch.tensor([1, 1, 0, 0, 1, 1])
    batches = []
    compute = GRPO.compute

    def recorded(estimator: GRPO, batch: GroupBatch) -> Any:
        batches.append(batch)
        return compute(estimator, batch)

    monkeypatch.setattr(GRPO, "compute", recorded)
    advantages = computed(data, {"name": "grpo"})
    (batch,) = batches
    assert batch.turn_of_token.tolist() == [[[0, 0, 1, 1, -1, -1], [0] * 6]]
    assert batch.lengths.tolist() == [[4, 6]]
    assert advantages.tolist() == [[1, 1, 0, 0, 1, 1], [-1] * 6]


def test_groups_of_any_order_and_size(ragged: DataProto) -> None:
    advantages = computed(ragged, {"name": "t2t"})
    index, mask = ragged.non_tensor_batch["uid"], ragged.batch["response_mask"]
    for prompt in set(index):
        rows = torch.from_numpy(index == prompt)
        batch = GroupBatch(
            rewards=rewards_of(ragged)[rows][None], lengths=mask[rows].sum(1).float()[None]
        )
        expected = build_estimator("t2t")(batch)[0, :, None] * mask[rows]
        assert torch.allclose(advantages[rows], expected, rtol=0, atol=1e-6)


# verl's function, ours, and verl's settings.
SAME = [
    ("grpo", {"name": "grpo", "preset": "verl"}, {}),
    ("grpo_vectorized", {"name": "grpo", "preset": "verl"}, {}),
    ("rloo", {"name": "rloo"}, {}),
    ("rloo_vectorized", {"name": "rloo"}, {}),
    ("grpo_passk", {"name": "passk_loo"}, {"norm_adv_by_std_in_grpo": False}),
    ("gpg", {"name": "gpg", "alpha": "nonzero"}, {}),
    ("opo", {"name": "opo"}, {}),
    ("reinforce_plus_plus", {"name": "reinforce_pp"}, {}),
    ("reinforce_plus_plus", {"name": "reinforce_pp", "gamma": 0.9}, {"gamma": 0.9}),
    ("reinforce_plus_plus_baseline", {"name": "reinforce_pp_baseline"}, {}),
]


@pytest.mark.parametrize(("theirs", "ours", "settings"), SAME, ids=str)
def test_ours_agree_with_verls(
    ragged: DataProto, theirs: str, ours: dict[str, Any], settings: dict[str, Any]
) -> None:
    expected = computed(ragged, None, theirs, **settings)
    assert expected.any()
    assert torch.allclose(computed(ragged, ours), expected, rtol=0, atol=1e-6)


def test_dr_grpo_is_verls_grpo_without_the_deviation(ragged: DataProto) -> None:
    theirs = compute_advantage(ragged.select(), "grpo", norm_adv_by_std_in_grpo=False)
    ours = computed(ragged, {"name": "dr_grpo"})
    assert torch.allclose(ours, theirs.batch["advantages"], rtol=0, atol=1e-6)


def test_the_only_rollout_of_a_group_gets_0_and_in_verl_its_reward() -> None:
    data = batch_of(torch.tensor([1.0, 1, 0]), ["a", "b", "b"], [1, 1, 1])
    ours, theirs = computed(data, {"name": "grpo", "preset": "verl"}), computed(data, None, "grpo")
    assert (ours[0].item(), theirs[0].item()) == (0.0, pytest.approx(1, abs=1e-5))
    assert torch.allclose(ours[1:], theirs[1:], rtol=0, atol=1e-6)


def test_padding_enters_no_statistic() -> None:
    data = batch_of(torch.tensor([1.0, 0, 0, 0]), ["a", "a", *["pad" + "0f" * 16] * 2], [1] * 4)
    data.batch["response_mask"][2:] = 0
    # The mean reward is 1/2 without the padding, 1/4 with it.
    spec = {"name": "fade", "mode": "alpha_only", "beta": 0.0, "scope": "batch"}
    info = build_estimator(spec).compute(GroupBatch(rewards=torch.tensor([[1.0, 0]]))).values
    assert computed(data, spec).flatten().tolist() == [*info.flatten().tolist(), 0, 0]


@pytest.mark.parametrize("spec", ["grpo", "rloo", "reinforce_pp", "avspo"])
def test_a_rejected_rollout_enters_no_statistic(spec: str) -> None:
    """verl's rejection sampling masks all of its tokens; its reward stays in the batch."""
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 1])
    index = [*"aaabbbb"]
    data = batch_of(rewards, index, [2, 1, 3, 1, 2, 2, 1])
    data.batch["token_level_rewards"][2, 0] = 7.0
    data.batch["response_mask"][2] = 0
    rest = torch.tensor([0, 1, 3, 4, 5, 6])
    expected = computed(data.select_idxs(rest), {"name": spec})
    advantages = computed(data, {"name": spec})
    assert torch.allclose(advantages[rest], expected, rtol=0, atol=1e-6)
    assert not advantages[2].any()


def test_a_batch_of_one_rollout_per_prompt_is_refused_where_nothing_is_compared() -> None:
    data = batch_of(torch.tensor([1.0, 0, 1, 0]), [*"abcd"], [1] * 4)
    message = r"'grpo' compares .* got one for each of 4 prompts.*actor_rollout_ref\.rollout\.n"
    with pytest.raises(BatchError, match=message):
        computed(data, {"name": "grpo"})
    assert computed(data, {"name": "reinforce_pp"}).any()
    equal = batch_of(torch.tensor([1.0, 1, 1, 1]), [*"abcd"], [1] * 4)
    assert not computed(equal, {"name": "grpo"}).any()


def test_a_configuration_has_one_memory() -> None:
    data = batch_of(torch.tensor([1.0, 0, 1, 1]), ["a", "a", "b", "b"], [1] * 4)
    spec = {"name": "ha_dw", "rate": 0.5, "moves": "before"}
    direct = build_estimator(spec)
    for rewards in ([1.0, 0, 1, 1], [0.0, 1, 0, 0], [1.0, 0, 1, 0]):
        data = batch_of(torch.tensor(rewards), ["a", "a", "b", "b"], [1] * 4)
        expected = direct(GroupBatch(rewards=torch.tensor(rewards).view(2, 2)))
        assert torch.equal(computed(data, spec).view(2, 2), expected)


REFUSED = [
    (None, ConfigError, r"algorithm\.advsweep: expected an estimator, got None; add \+algorithm"),
    ({"name": "gropo"}, ConfigError, r"algorithm\.advsweep: no estimator is called 'gropo'; did"),
    ({"name": "rloo", "k": 2}, ConfigError, r"algorithm\.advsweep\.k: rloo has no parameter 'k'"),
    ({"delta": 2}, ConfigError, r"algorithm\.advsweep: expected a name or a mapping with a name"),
    ({"name": "fade"}, BatchError, r"needs token_entropy; set trainer\.v1\.trainer_mode=advsweep"),
    ({"name": "intuitor"}, BatchError, r"needs self_certainty; verl does not provide it"),
]


@pytest.mark.parametrize(("spec", "error", "message"), REFUSED)
def test_errors_say_what_to_do(spec: Any, error: type[Exception], message: str) -> None:
    data = batch_of(torch.tensor([1.0, 0]), ["a", "a"], [1, 1])
    with pytest.raises(error, match=message):
        computed(data, spec)
