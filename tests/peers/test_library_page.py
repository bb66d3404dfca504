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
from torch import Tensor

from advsweep.estimators import Advantages, GroupBatch, build_estimator
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

Trainers = Callable[..., Any]


def letters(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """Is there one of the first four letters? Where there is a `k` nobody knows."""
    return [None if "k" in c else float(any(x in c for x in "abcd")) for c in completions]


def liking(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
    """A reward that is not dyadic, and does not know either."""
    return [None if "k" in c or "e" in c else 0.9 * ("l" in c) for c in completions]


@pytest.fixture(scope="module")
def trainer_class() -> type:
    """The page's EstimatorGRPOTrainer."""
    pytest.importorskip("trl", minversion="1.16")
    (code,) = blocks("Inside TRL")
    written: type = executed(code)["EstimatorGRPOTrainer"]
    return written


class Noted:
    """An estimator that keeps what it was given and what it gave."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.estimator = build_estimator(name, **fields)
        self.batches: list[GroupBatch] = []
        self.computed: list[Advantages] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.estimator, name)

    def compute(self, batch: GroupBatch) -> Advantages:
        self.batches.append(batch)
        self.computed.append(self.estimator.compute(batch))
        return self.computed[-1]


def weights_of(trainer: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_with_the_preset_trl_it_trains_as_trl_does(
    trainer_class: type, make_trainer: Trainers
) -> None:
    from trl import GRPOTrainer

    settings = {
        "num_generations": 6,
        "max_steps": 6,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "per_device_train_batch_size": 12,
        "reward_weights": [0.7, 0.4],
        "learning_rate": 0.01,
    }
    functions, columns = [letters, liking], {"row": list(range(8))}
    theirs = make_trainer(GRPOTrainer, functions, columns, **settings)
    start = weights_of(theirs)
    theirs.train()
    noted = Noted("grpo", preset="trl")
    ours = make_trainer(trainer_class, functions, columns, {"estimator": noted}, **settings)
    ours.train()
    assert len(noted.batches) == 3  # each serves two of the six steps
    assert not all(batch.mask.all() for batch in noted.batches)
    assert [*ours._logs["advantages"]] == [*theirs._logs["advantages"]]
    assert not equal(weights_of(theirs), start)
    assert equal(weights_of(ours), weights_of(theirs))


@pytest.mark.slow
def test_estimators_get_the_inputs_that_they_read(
    trainer_class: type, make_trainer: Trainers, policy_folder: Path
) -> None:
    from transformers import Qwen2ForCausalLM

    class Keeper(trainer_class):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.outputs = super()._generate_and_score_completions(inputs)
            return self.outputs

    references = [[0.0, 1, 1, 0, 1, 0], [1.0, 1, 0, 0, 0, 1]]
    noted = Noted("aapo")
    noted.needs = frozenset({"ref_rewards", "token_entropy", "token_entropy_exact", "lengths"})
    settings = {"num_generations": 6, "max_steps": 1, "temperature": 0.7, "learning_rate": 0.0}
    trainer = make_trainer(
        Keeper, [letters], {"ref_rewards": references}, {"estimator": noted}, **settings
    )
    trainer.train()
    (batch,) = noted.batches
    assert batch.ref_rewards.tolist() == references
    assert (batch.step, batch.total_steps) == (1, 1)

    outputs = trainer.outputs
    ids = torch.cat((outputs["prompt_ids"], outputs["completion_ids"]), dim=1)
    logits = Qwen2ForCausalLM.from_pretrained(policy_folder)(ids).logits
    first = outputs["prompt_ids"].size(1)
    log_policy = torch.log_softmax(logits[:, first - 1 : -1].double() / 0.7, dim=-1)
    mask = outputs["completion_mask"]
    sampled = log_policy.gather(2, outputs["completion_ids"][..., None])[..., 0]
    exact = -(log_policy.exp() * log_policy).sum(-1)
    lengths = mask.sum(1)
    assert batch.lengths.flatten().tolist() == lengths.tolist()
    for values, per_token in ((batch.token_entropy, -sampled), (batch.token_entropy_exact, exact)):
        expected = (per_token * mask).sum(1) / lengths
        assert torch.allclose(values.flatten().double(), expected, atol=1e-5)


@pytest.mark.slow
def test_memory_is_saved_and_put_back(trainer_class: type, make_trainer: Trainers) -> None:
    settings = {
        "num_generations": 6,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
    }

    def train(resume: str | None = None) -> tuple[Noted, Any]:
        noted = Noted("fade")
        trainer = make_trainer(
            trainer_class, [letters], {"row": [0, 1, 2]}, {"estimator": noted}, **settings
        )
        trainer.train(resume_from_checkpoint=resume)
        return noted, trainer

    whole, trainer = train()
    assert len(whole.batches) == 4
    assert trainer.state.log_history[-2]["estimator/alpha"] == pytest.approx(
        whole.computed[-1].info["alpha"]
    )
    rest, resumed = train(f"{trainer.args.output_dir}/checkpoint-2")
    assert len(rest.batches) == 2
    assert rest.state_dict() == whole.state_dict()
    assert equal(weights_of(resumed), weights_of(trainer))


@pytest.mark.slow
def test_dropped_rollouts_leave_the_loss(trainer_class: type, make_trainer: Trainers) -> None:
    class Keeper(trainer_class):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.outputs = super()._generate_and_score_completions(inputs)
            return self.outputs

    def by_row(row: list[int], **_: Any) -> list[float | None]:
        mixed = [1.0, 0.0, None]
        return [[1.0, 0.0, mixed[place % 3]][which] for place, which in enumerate(row)]

    noted = Noted("filter_drop")
    settings = {"num_generations": 6, "max_steps": 1, "mask_truncated_completions": False}
    trainer = make_trainer(Keeper, [by_row], {"row": [0, 1, 2]}, {"estimator": noted}, **settings)
    trainer.train()
    mask = trainer.outputs["completion_mask"].view(3, 6, -1)
    # The first two groups have collapsed; in the third those that cannot be scored stay,
    # as they do in TRL.
    assert not mask[:2].any()
    assert mask[2].any(dim=1).all()
    assert trainer.outputs["num_items_in_batch"] == mask.sum()
    assert trainer.outputs["advantages"].view(3, 6)[2].tolist() == [1, -1, 0, 1, -1, 0]


@pytest.mark.slow
def test_an_evaluation_moves_no_memory(trainer_class: type, make_trainer: Trainers) -> None:
    noted = Noted("fade")
    settings = {"num_generations": 6, "max_steps": 1, "per_device_eval_batch_size": 6}
    trainer = make_trainer(
        trainer_class, [letters], {"row": [0, 1]}, {"estimator": noted}, **settings
    )
    trainer.train()
    before = noted.state_dict()
    trainer.evaluate(trainer.train_dataset)
    assert noted.state_dict() == before
    assert len(noted.batches) == 1


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
