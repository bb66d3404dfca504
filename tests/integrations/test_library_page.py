"""Every block of docs/library.md does what the page says of it."""

from __future__ import annotations

import importlib
import math
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from advsweep.estimators import GroupBatch, build_estimator
from advsweep.estimators.fade import FADE

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def blocks(section: str) -> list[str]:
    """The code blocks under a heading, python and toml, as they are printed."""
    text = PAGE.read_text(encoding="utf-8")
    (body,) = re.findall(
        rf"^# {section}\n(.*?)(?=^#+ |\Z)", text.replace("\n## ", "\n# "), re.M | re.S
    )
    return re.findall(r"^```(?:python|toml)\n(.*?)^```$", body, re.M | re.S)


def executed(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_page_is_linked_and_has_no_block_that_is_not_tried() -> None:
    assert "(docs/library.md)" in PAGE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    sections = ["Using an estimator elsewhere", "In your own loop", "One advantage per token"]
    sections += ["Inside TRL", "Inside verl", "Your own package"]
    assert re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M) == sections
    assert [len(blocks(section)) for section in sections] == [1, 2, 0, 1, 1, 2]


def test_in_short() -> None:
    (code,) = blocks("Using an estimator elsewhere")
    # Failures count double: dᵢ/δ with δ = 1/2.
    expected = torch.tensor([[0.75, -0.5, -0.5, -0.5], [0.25, 0.25, -1.5, 0.25]])
    assert torch.equal(executed(code)["advantages"], expected)


def test_a_loop_of_ones_own_learns_and_goes_on() -> None:
    loop, resume = blocks("In your own loop")
    done = executed(loop)
    history, checkpoint = done["history"], done["checkpoint"]
    assert all(math.isfinite(step["loss"]) for step in history)
    first, last = (sum(s["reward"] for s in part) / 10 for part in (history[:10], history[-10:]))
    assert last > first + 0.2
    # FADE follows: alpha falls as prompts are solved, and delta as entropy does.
    assert history[-1]["alpha"] < history[0]["alpha"]
    assert history[-1]["delta"] < history[0]["delta"] == 1
    resumed = executed(resume, build_estimator=build_estimator, checkpoint=checkpoint)["estimator"]
    assert isinstance(resumed, FADE)
    assert resumed.state_dict() == done["estimator"].state_dict() == checkpoint["estimator"]


# Inside TRL


@pytest.mark.slow
def test_the_trainer_of_trl_trains(policy_folder: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", minversion="1.16")
    from datasets import Dataset

    (code,) = blocks("Inside TRL")
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        num_generations=2,
        per_device_train_batch_size=4,
        max_completion_length=3,
        max_steps=1,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = executed(
        code,
        model=str(policy_folder),
        reward=lambda completions, **_: [float("a" in text) for text in completions],
        dataset=Dataset.from_dict({"prompt": ["a b", "b c"]}),
        config=config,
    )["trainer"]
    assert isinstance(trainer.estimator, FADE)
    assert {"collapse/acr", "estimator/alpha"} <= set(trainer.state.log_history[0])


# Inside verl


@pytest.fixture
def core_algos(monkeypatch: pytest.MonkeyPatch) -> Any:
    """verl's module of estimators; without verl an empty one with its decorator alone."""
    try:
        module = importlib.import_module("verl.trainer.ppo.core_algos")
    except ImportError:
        registry: dict[str, Any] = {}
        module = types.ModuleType("verl.trainer.ppo.core_algos")
        module.ADV_ESTIMATOR_REGISTRY = registry
        module.register_adv_est = lambda name: lambda fn: registry.setdefault(name, fn)
        for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    module.ADV_ESTIMATOR_REGISTRY.pop("advsweep", None)  # verl refuses a second one
    return module


def test_verl_finds_groups_in_any_order_and_size(core_algos: Any) -> None:
    (code,) = blocks("Inside verl")
    executed(code)
    function = core_algos.ADV_ESTIMATOR_REGISTRY["advsweep"]
    generator = torch.Generator().manual_seed(0)
    sizes = [4, 1, 6, 4, 3]
    index = np.repeat(np.array([f"prompt-{i}" for i in range(5)], dtype=object), sizes)
    rewards = (torch.rand(18, generator=generator) < 0.5).float()
    lengths = torch.randint(1, 6, (18, 1), generator=generator)
    order = torch.randperm(18, generator=generator)
    index, rewards, lengths = index[order.numpy()], rewards[order], lengths[order]
    mask = (torch.arange(5) < lengths).float()
    # verl puts the reward on the last token.
    token_rewards = rewards[:, None] * (torch.arange(5) == lengths - 1)

    for spec in ({"name": "grpo", "preset": "verl"}, {"name": "t2t"}, {"name": "dr_grpo"}):
        config = OmegaConf.create({"adv_estimator": "advsweep", "advsweep": spec})
        given = {"token_level_rewards": token_rewards, "response_mask": mask}
        advantages, returns = function(**given, config=config, index=index)
        assert torch.equal(advantages, returns)
        for prompt in set(index):
            rows = torch.from_numpy(index == prompt)
            alone = GroupBatch(rewards=rewards[rows][None], lengths=lengths[rows].float().T)
            expected = build_estimator(spec)(alone)[0, :, None] * mask[rows]
            assert torch.allclose(advantages[rows], expected, atol=1e-6)


def test_verl_keeps_one_estimator_per_configuration(core_algos: Any) -> None:
    (code,) = blocks("Inside verl")
    estimator_of = executed(code)["estimator_of"]
    function = core_algos.ADV_ESTIMATOR_REGISTRY["advsweep"]
    config = OmegaConf.create({"advsweep": {"name": "ha_dw", "rate": 0.5}})
    rewards, index = torch.tensor([[1.0], [0], [1], [1]]), np.array(["a", "a", "b", "b"])
    for given in (rewards, 1 - rewards, rewards):
        function(given, torch.ones(4, 1), config=config, index=index)
    one = estimator_of('{"name": "ha_dw", "rate": 0.5}')
    other = estimator_of('{"name": "ha_dw", "rate": 0.25}')
    # C starts at the first mean, 3/4, and goes halfway to 1/4 and to 3/4.
    assert one.state_dict()["c"] == 0.625
    assert other.state_dict()["c"] is None


def test_the_preset_verl_agrees_with_verl_to_rounding() -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    rewards = torch.rand(200, 6, generator=torch.Generator().manual_seed(0))
    rewards[:80] = (rewards[:80] < 0.4).float()
    rewards[80], rewards[81], rewards[82] = 0.9, 0.1, 1 / 3
    index = np.repeat(np.arange(200), 6)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        rewards.reshape(-1, 1).clone(), torch.ones(1200, 1), index
    )
    ours = build_estimator("grpo", preset="verl")(GroupBatch(rewards=rewards))
    assert torch.allclose(ours, theirs.view(200, 6), rtol=0, atol=1e-6)


# Your own package


@pytest.mark.slow
def test_a_package_made_by_the_page_is_an_estimator_like_any_other(
    install: Callable[..., Path],
) -> None:
    module, project = blocks("Your own package")
    described = tomllib.loads(project)["project"]
    folder = install(described["name"], described["entry-points"], halved=module)
    program = (
        "import torch\n"
        "from advsweep.estimators import GroupBatch, build_estimator\n"
        "halved = build_estimator('halved')\n"
        "assert halved.plain() == {'name': 'halved', 'scale': 0.5}\n"
        "values = halved(GroupBatch(rewards=torch.tensor([[1.0, 0.0]])))\n"
        "assert values.tolist() == [[0.25, -0.25]], values\n"
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True
    )
