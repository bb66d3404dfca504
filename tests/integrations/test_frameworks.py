"""docs/frameworks.md, against objects of the shape that the frameworks' own files have."""

from __future__ import annotations

import asyncio
import pickle
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.integrations.adapters import (
    NemoEstimator,
    SkyrlAdvantages,
    SlimeRewards,
    use_in_nemo,
    use_in_prime,
    use_in_skyrl,
    use_in_swift,
)

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def run_block(section: str) -> dict[str, Any]:
    text = PAGE.read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    (code,) = re.findall(r"^```python\n(.*?)^```$", body, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


Module = Callable[..., types.ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """`module("a.b", name=value)`: makes `a` and `a.b`, and takes them away afterwards."""

    def make(name: str, **content: Any) -> types.ModuleType:
        parts = name.split(".")
        for count in range(1, len(parts)):
            parent = ".".join(parts[:count])
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        made = types.ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


# SkyRL


@pytest.fixture
def skyrl(module: Module) -> Any:
    class AdvantageEstimatorRegistry:
        functions: dict[str, Any] = {}  # noqa: RUF012

        @classmethod
        def register(cls, name: str, func: Any) -> None:
            if name in cls.functions:
                raise ValueError(f"'{name}' already registered")
            cls.functions[name] = func

    return module(
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        AdvantageEstimatorRegistry=AdvantageEstimatorRegistry,
    ).AdvantageEstimatorRegistry


def test_skyrl_calls_it_by_keyword(skyrl: Any) -> None:
    run_block("SkyRL")
    # Prompt y stands between the rows of x; SkyRL repeats row 0 to fill the batch.
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
    rewards = torch.zeros(5, 3)
    rewards[0, 2] = rewards[4, 2] = 1
    advantages, returns = skyrl.functions["advsweep"](
        token_level_rewards=rewards,
        response_mask=mask,
        index=["x", "y", "x", "y", "pad0"],
        values=None,
        grpo_norm_by_std=True,
        gamma=1.0,
        lambd=1.0,
        config=object(),
    )
    expected = build_estimator("asym_grpo", delta=0.5)(
        GroupBatch(rewards=torch.tensor([[1.0, 0], [0, 0]]))
    )
    assert torch.equal(advantages, returns)
    for row, value in ((0, expected[0, 0]), (2, expected[0, 1]), (1, 0), (3, 0), (4, 0)):
        assert advantages[row].tolist() == (value * mask[row]).tolist()


def test_skyrl_sends_it_to_another_process(skyrl: Any) -> None:
    function = use_in_skyrl("ha_dw", name="mine", rate=0.5)
    assert skyrl.functions["mine"] is function
    given = (torch.tensor([[1.0], [0]]), torch.ones(2, 1), ["a", "a"])
    function(*given)
    copy = pickle.loads(pickle.dumps(function))
    assert isinstance(copy, SkyrlAdvantages)
    assert copy.estimator.state_dict() == function.estimator.state_dict()
    assert torch.equal(copy(*given)[0], function(*given)[0])


# ms-swift


@pytest.fixture
def swift(module: Module) -> Any:
    """The module of the functions, and a trainer that has imported one of them by name."""

    def compute_advantages(*_: Any, **__: Any) -> Any:
        raise AssertionError

    def compute_advantages_dynamic(*_: Any, **__: Any) -> Any:
        raise AssertionError

    functions = {
        "compute_advantages": compute_advantages,
        "compute_advantages_dynamic": compute_advantages_dynamic,
    }
    module("swift.rl_core.advantage", **functions)
    return module("swift.rlhf_trainers.grpo_trainer", **functions)


def test_swift_gets_advantages_and_rewards(swift: Any) -> None:
    run_block("ms-swift")
    # Two functions with weights 1 and 1/2; of the last row nobody knows the reward.
    each = torch.tensor([[1.0, 0], [0, 0], [0, 2], [torch.nan, torch.nan]])
    advantages, rewards = swift.compute_advantages(
        rewards_per_func=each,
        reward_weights=torch.tensor([1.0, 0.5]),
        num_generations=2,
        advantage_estimator="grpo",
        scale_rewards="group",
        kl_in_reward=False,
        beta=0.04,
        kl_values=None,
    )
    assert rewards.tolist() == [1, 0, 1, 0]
    batch = GroupBatch(rewards=rewards.view(2, 2), mask=torch.tensor([[True, True], [True, False]]))
    expected = build_estimator("asym_grpo", delta=0.5)(batch)
    assert torch.equal(advantages.view(2, 2), expected)


def test_swift_counts_a_request_of_several_turns_once(swift: Any) -> None:
    use_in_swift("dr_grpo")
    advantages, _ = swift.compute_advantages_dynamic(
        rewards_per_func=torch.tensor([[1.0], [1.0], [1.0], [0.0]]),
        reward_weights=torch.ones(1),
        prompt_ids=["p"] * 4,
        request_ids=["r", "r", "r", "s"],
        advantage_estimator="grpo",
        scale_rewards="group",
        kl_in_reward=False,
        beta=0.0,
        kl_values=None,
    )
    assert advantages.tolist() == [0.5, 0.5, 0.5, -0.5]


# slime


@dataclass
class Sample:
    """The fields of slime's Sample that are read, with its defaults."""

    group_index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None

    def get_reward_value(self, args: Any) -> Any:
        if not args.reward_key:
            return self.reward
        assert isinstance(self.reward, dict)
        return self.reward[args.reward_key]


def test_slime_gets_raw_rewards_and_advantages() -> None:
    post_process = run_block("slime")["post_process"]
    args = types.SimpleNamespace(reward_key="score")
    samples = [
        Sample(0, 10, "a", 2, {"score": 1.0}, None, [-0.5, -0.25]),
        Sample(1, 11, "b", 1, {"score": 0.0}, None, [-1.0]),
        # A tool's token, which the policy did not sample.
        Sample(0, 12, "a", 3, {"score": 0.0}, [1, 0, 1], [-0.5, 0.0, -1.5]),
        Sample(1, 13, "b", 2, {"score": 1.0}, [1, 1], [-0.25, -0.75]),
    ]
    raw, values = post_process(args, samples)
    assert raw == [1, 0, 0, 1]
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0], [0, 1]]),
        lengths=torch.tensor([[2.0, 2], [1, 2]]),
        token_entropy=torch.tensor([[0.375, 1], [1, 0.5]]),
    )
    expected = build_estimator("fade", h_star=0.5)(batch)
    assert values == pytest.approx([*expected[:, 0].tolist(), *expected[:, 1].tolist()])


def test_slime_counts_a_rollout_of_several_samples_once() -> None:
    args = types.SimpleNamespace(reward_key=None)
    samples = [Sample(0, 1, "a", 1, 1.0), Sample(0, 1, "a", 1, 1.0), Sample(0, 2, "a", 1, 0.0)]
    # Samples without an id are rollouts of their own; one has no reward.
    samples += [Sample(1, None, "b", 1, 1.0), Sample(1, None, "b", 1, 0.0), Sample(1, reward=None)]
    raw, values = SlimeRewards("dr_grpo")(args, samples)
    assert raw == [1, 1, 0, 1, 0, None]
    assert values == [0.5, 0.5, -0.5, 0.5, -0.5, 0]
    with pytest.raises(BatchError, match="token_entropy"):  # no log-probabilities
        SlimeRewards("fade")(args, samples)


# prime-rl


@dataclass
class Node:
    mask: list[bool]
    token_ids: list[int] = field(default_factory=list)
    advantages: list[float] | None = None


@dataclass
class Trace:
    reward: float
    nodes: list[Node]
    has_error: bool = False
    agent: Any = field(default_factory=lambda: types.SimpleNamespace(trainable=True))


@dataclass
class Episode:
    traces: list[Trace]


@pytest.fixture
def prime(module: Module) -> Any:
    class Algorithm:
        action_loss_type = "rl"

        def __init__(self, config: Any, policy_pool: Any) -> None:
            self.policy_pool = policy_pool

        async def score_group(self, episodes: list[Episode]) -> None:
            raise AssertionError

        async def finalize_group(self, episodes: list[Episode]) -> None:
            await self.score_group(episodes)

    def iter_trainable_traces(episodes: list[Episode]) -> Any:
        for episode in episodes:
            for trace in episode.traces:
                if not trace.has_error and trace.agent.trainable:
                    yield episode, trace

    def assign_advantages(trace: Trace, value: float) -> None:
        for node in trace.nodes:
            node.advantages = [value] * sum(node.mask)

    module("prime_rl.orchestrator.algo.base", iter_trainable_traces=iter_trainable_traces)
    return module(
        "prime_rl.orchestrator.algo",
        Algorithm=Algorithm,
        assign_advantages=assign_advantages,
        ALGORITHM_CLASSES={"grpo": Algorithm},
    )


def scored(prime: Any, episodes: list[Episode]) -> list[float | None]:
    config = types.SimpleNamespace(type="grpo", length_penalty=None)
    algorithm = prime.ALGORITHM_CLASSES["grpo"](config, None)
    asyncio.run(algorithm.finalize_group(episodes))
    first = (trace.nodes[-1].advantages for episode in episodes for trace in episode.traces)
    return [values[0] if values else None for values in first]


def group_of(*rewards: float) -> list[Episode]:
    return [
        Episode([Trace(reward, [Node([False, False]), Node([True] * (2 + place))])])
        for place, reward in enumerate(rewards)
    ]


def test_prime_scores_a_group(prime: Any) -> None:
    run_block("prime-rl")
    episodes = group_of(1, 0, 0, 1)
    episodes[3].traces[0].has_error = True
    values = scored(prime, episodes)
    expected = build_estimator("asym_grpo", delta=0.5)(
        GroupBatch(rewards=torch.tensor([[1.0, 0, 0]]))
    )
    assert values == pytest.approx([*expected[0].tolist(), None])
    assert len(episodes[2].traces[0].nodes[1].advantages or []) == 4
    assert scored(prime, []) == []


def test_prime_refuses_what_one_group_does_not_show(prime: Any) -> None:
    for name, fields in (
        ("fade", {"mode": "alpha_only"}),
        ("ha_dw", {}),
        ("a_grae", {}),
        ("power_alpha", {}),
        ("avspo", {}),
    ):
        with pytest.raises(ConfigError, match="hands over one group at a time"):
            use_in_prime(name, **fields)
    with pytest.raises(ConfigError, match="needs prompt_ids"):
        use_in_prime("dcpo")
    made = use_in_prime("grpo")
    with pytest.raises(ConfigError, match="length_penalty: estimator 'grpo' computes"):
        made(types.SimpleNamespace(length_penalty="linear"), None)


# NeMo-RL


@pytest.fixture
def nemo(module: Module) -> Any:
    """The trainer whose factory is closed, and one that has imported the factory."""

    def _create_advantage_estimator(master_config: Any) -> Any:
        raise ValueError("Invalid adv_estimator name")

    factory = {"_create_advantage_estimator": _create_advantage_estimator}
    module("nemo_rl.algorithms.grpo", **factory)
    return module("nemo_rl.algorithms.grpo_sync", **factory)


def nemo_step() -> dict[str, Any]:
    """Two prompts with two rollouts each, in turn; the last column is a prompt token."""
    mask = torch.tensor([[0.0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0]])
    return {
        "prompt_ids": torch.tensor([[7, 8], [9, 0], [7, 8], [9, 0]]),
        "rewards": torch.tensor([1.0, 0, 0, 1]),
        "mask": mask,
        "repeated_batch": {},
        "logprobs_policy": -0.5 * torch.ones(4, 4),
        "logprobs_reference": None,
    }


def test_nemo_takes_it_in_every_trainer(nemo: Any) -> None:
    run_block("NeMo-RL")
    estimator = nemo._create_advantage_estimator(object())
    assert sys.modules["nemo_rl.algorithms.grpo"]._create_advantage_estimator(None) is estimator
    step = nemo_step()
    values: Tensor = estimator.compute_advantage(**step)
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0], [0, 1]]),
        lengths=torch.tensor([[2.0, 3], [1, 2]]),
        token_entropy=torch.full((2, 2), 0.5),
    )
    expected = build_estimator("fade", h_star=0.5)(batch).T.flatten()
    assert torch.allclose(values, expected[:, None] * step["mask"])
    assert estimator.last_metrics["collapse/acr"] == 0
    assert estimator.last_metrics["reward/mean"] == 0.5


def test_nemo_leaves_masked_rows_out() -> None:
    step = nemo_step()
    step["mask"][2] = 0
    values = NemoEstimator("dr_grpo").compute_advantage(**step)
    assert values.sum(1).tolist() == [0, -0.5, 0, 1]
    ids = step["prompt_ids"][:, 0]  # one number per prompt will do
    assert torch.equal(
        values, NemoEstimator("dr_grpo").compute_advantage(ids, step["rewards"], step["mask"])
    )


def test_a_version_without_the_function_is_refused(module: Module) -> None:
    module("nemo_rl.algorithms.grpo")
    with pytest.raises(ConfigError, match="expected a function _create_advantage_estimator"):
        use_in_nemo("grpo")
