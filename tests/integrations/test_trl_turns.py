"""Episodes of several turns: TRL's tools and environments in the importable trainer."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.errors import AdvsweepWarning, ConfigError, TrainingError
from advsweep.estimators import Advantages, GroupBatch, build_estimator
from advsweep.estimators.turns import number_turns

trl = pytest.importorskip("trl", minversion="1.12")
from advsweep.backends.trl.episodes import name_state  # noqa: E402
from advsweep.integrations.trl import EstimatorGRPOTrainer  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Lamp:
    """Two switches, `a` and `b`: pressing one turns it over. There is no `c`, and `d` breaks.

    A tenth is given each time that both are on. It notes its states as it goes.
    """

    def reset(self, **_: Any) -> str:
        self.switches = {"a": False, "b": False}
        self.given = 0.0
        self.visited: list[Any] = [dict(self.switches)]
        return " e"

    def step(self, word: str) -> str:
        """Press a switch.

        Args:
            word: its letter.
        """
        if word == "d":
            raise KeyError("no such switch")
        if word in self.switches:
            self.switches[word] = not self.switches[word]
        if all(self.switches.values()):
            self.given += 0.1
        self.visited.append(dict(self.switches))
        return "f g" if word == "c" else "f"

    def get_reward(self) -> float:
        return float(any(self.switches.values())) + self.given


class Telling(Lamp):
    """A lamp that says where it stands, and what it has given."""

    @property
    def turn_state(self) -> Any:
        return self.switches

    @property
    def reward_so_far(self) -> float:
        return self.given


class Recorded:
    """An estimator that keeps the batches that it was given."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.estimator = build_estimator(name, **fields)
        self.batches: list[GroupBatch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.estimator, name)

    def compute(self, batch: GroupBatch) -> Advantages:
        self.batches.append(batch)
        return self.estimator.compute(batch)


class Keeper(EstimatorGRPOTrainer):
    """Keeps the rows of the last generation, and the lamps as they stood after it."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.outputs = super()._generate_and_score_completions(inputs)
        return self.outputs


@pytest.fixture
def make_agent(agent_folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """`make_agent(cls, environment, arguments, **settings)`: a trainer of two prompts."""
    from datasets import Dataset

    def make(cls: type, environment: Any, arguments: dict[str, Any], **settings: Any) -> Any:
        given = {
            "output_dir": str(tmp_path / "output"),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "num_generations": 6,
            "per_device_train_batch_size": 12,
            "max_steps": 1,
            "max_completion_length": 40,
            "max_tool_calling_iterations": 3,
            "shuffle_dataset": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "learning_rate": 0.01,
            **settings,
        }
        prompts = [[{"role": "user", "content": word}] for word in ("a b", "c")]
        return cls(
            reward_funcs=[],
            args=trl.GRPOConfig(**given),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            model=str(agent_folder),
            environment_factory=environment,
            **arguments,
        )

    return make


@pytest.mark.parametrize("truncated", [False, True])
def test_turns_are_read_off_the_mask_of_tools(
    make_agent: Callable[..., Any], truncated: bool
) -> None:
    recorded = Recorded("gigpo")
    trainer = make_agent(
        Keeper, Telling, {"estimator": recorded}, mask_truncated_completions=truncated
    )
    trainer.train()
    (batch,) = recorded.batches
    assert batch.turn_of_token is not None
    turns = batch.turn_of_token.flatten(0, 1)
    completions = trainer.outputs["completion_ids"]
    counts = set()
    for row, environment in enumerate(trainer.environments):
        end = int((turns[row] >= 0).nonzero().max()) + 1
        words = trainer.processing_class.convert_ids_to_tokens(completions[row, :end].tolist())
        pairs = zip(turns[row].tolist(), words, strict=False)
        runs = [[*run] for _, run in itertools.groupby(pairs, key=lambda pair: pair[0])]
        # The model's and the lamp's words take turns, from the model's on.
        assert [run[0][0] for run in runs[::2]] == list(range((len(runs) + 1) // 2))
        for run in runs[1::2]:
            assert run[0] == (-1, "tool")
            assert run[-1] == (-1, "assistant")
        lengths = [len(run) for run in runs[::2]]
        assert batch.lengths is not None
        assert batch.lengths.flatten()[row] == sum(lengths)
        # The lamp may be pressed once more after the last turn, or several times in one.
        counts.add(len(lengths))
        assert batch.turn_states is not None
        states = batch.turn_states.flatten(0, 1)[row].tolist()
        numbers = [_number(visited) for visited in environment.visited]
        assert set(states[: len(lengths)]) <= set(numbers)
        assert states[0] == numbers[0]
        assert batch.turn_rewards is not None
        given = batch.turn_rewards.flatten(0, 1)[row]
        assert given.sum().item() == pytest.approx(environment.given)
        assert not given[len(lengths) :].any()
    assert len(counts) > 1
    advantages = trainer.outputs["advantages"]
    assert not advantages[turns < 0].any()
    # Tokens of one turn share their advantage, and turns have others.
    first = turns == 0
    assert (advantages.where(first, torch.nan).nanmean(dim=1)[:, None] - advantages)[
        first
    ].abs().max() < 1e-6
    assert (advantages[turns == 1].unique().numel()) > 1
    assert not {"turn_of_token", "turn_states", "turn_rewards"} & trainer.outputs.keys()


def _number(switches: dict[str, bool]) -> int:
    return name_state(Telling(), switches)


def test_a_state_has_the_same_number_wherever_it_is_read() -> None:
    on, same, other = ({"a": True, "b": False}, {"b": False, "a": True}, {"a": True, "b": True})
    # Of blake2b, not of Python's hash, which is another in every process.
    assert _number(on) == _number(same) == -1749578379018529418
    assert _number(other) != _number(on)


def test_turns_are_the_runs_of_generated_tokens() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    expected = [[0, 0, -1, -1, 1, -1, 2], [-1, 0, 0, 0, -1, -1, -1], [-1] * 7]
    assert number_turns(mask.bool()).tolist() == expected


class Blurred(Keeper):
    """Changes log-probabilities and entropies of the tokens of tools by `blur` nats."""

    blur = 0.0

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        generated = super()._generate(*arguments, **named)
        _, completions, masks, *_ = generated
        self.masks = {tuple(ids): mask for ids, mask in zip(completions, masks, strict=True)}
        return generated

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Tensor, mask: Tensor, keep: int, *arguments: Any, **named: Any
    ) -> Any:
        log_probs, entropies, auxiliary = super()._get_per_token_logps_and_entropies(
            model, ids, mask, keep, *arguments, **named
        )
        of_tools = torch.zeros_like(log_probs)
        lengths = mask[:, -keep:].sum(dim=1).tolist()
        for row, length in enumerate(lengths):
            tokens = ids[row, -keep:][:length].tolist()
            of_tools[row, :length] = 1 - torch.tensor(self.masks[tuple(tokens)]).float()
        self.blurred = int(of_tools.sum())
        blur = self.blur * of_tools
        return log_probs + blur, None if entropies is None else entropies + blur, auxiliary


@pytest.mark.parametrize("objective", [None, {"name": "clipped", "kl_coef": 0.1}])
def test_tokens_of_tools_enter_nothing(make_agent: Callable[..., Any], objective: Any) -> None:
    def train(blur: float) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        trainer = make_agent(
            type("Blurred", (Blurred,), {"blur": blur}),
            Telling,
            {"estimator": "entropy_shaped", "objective": objective},
            max_steps=2,
            num_iterations=2,
            beta=0.1,
            logging_steps=1,
        )
        trainer.train()
        assert trainer.blurred > 0
        log = [
            {k: v for k, v in row.items() if "time" not in k} for row in trainer.state.log_history
        ]
        return dict(trainer.model.state_dict()), log[:-1]

    weights, log = train(0.0)
    others, other_log = train(3.0)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert log == other_log
    assert log[0]["grad_norm"] > 0


def test_what_an_environment_lacks_is_refused_by_name(make_agent: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"needs turn_states; .* property `turn_state` of every"):
        make_agent(EstimatorGRPOTrainer, Lamp, {"estimator": "gigpo"})
    with pytest.raises(ConfigError, match=r"'turn_grpo' needs turn_rewards; .* `reward_so_far`"):
        make_agent(EstimatorGRPOTrainer, Lamp, {"estimator": "turn_grpo"})
    with pytest.raises(ConfigError, match=r"'vine' needs turn_values; `turn_values` is not known"):
        make_agent(EstimatorGRPOTrainer, Telling, {"estimator": "vine"})

    class Exposed(Lamp):
        def turn_state(self) -> str:
            """A state that TRL takes for a tool."""
            return ""

    with pytest.raises(ConfigError, match=r"Exposed\.turn_state: expected a property"):
        make_agent(EstimatorGRPOTrainer, Exposed, {"estimator": "grpo"})

    class Odd(Lamp):
        turn_state = object()

    trainer = make_agent(EstimatorGRPOTrainer, Odd, {"estimator": "grpo"})
    with pytest.raises(TrainingError, match=r"Odd\.turn_state: expected text, .* got object"):
        trainer.train()


class Fragile(Telling):
    """A lamp of which every other one has a fault."""

    made = 0
    fault = ""

    def __init__(self) -> None:
        type(self).made += 1
        self.is_faulty = type(self).made % 2 == 0

    def reset(self, **row: Any) -> str:
        if self.is_faulty and self.fault == "reset":
            raise OSError("no lamp")
        return super().reset(**row)

    def step(self, word: str) -> str:
        """Press a switch.

        Args:
            word: its letter.
        """
        if self.is_faulty and self.fault == "hangs":
            threading.Event().wait()
        return super().step(word)

    def get_reward(self) -> float:
        return 1 / 0 if self.is_faulty and self.fault == "get_reward" else super().get_reward()

    @property
    def reward_so_far(self) -> float:
        if self.is_faulty and self.fault == "reward_so_far":
            raise OSError("no meter")
        return self.given


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset", r"Fragile\.reset raised OSError: no lamp"),
        ("get_reward", r"Fragile\.get_reward raised ZeroDivisionError"),
        ("reward_so_far", r"Fragile\.reward_so_far raised OSError: no meter"),
        ("hangs", r"Fragile\.step raised TimeoutError: it took more than 0\.05 s"),
    ],
)
def test_an_environment_that_fails_costs_its_rollout_alone(
    make_agent: Callable[..., Any], fault: str, reason: str
) -> None:
    recorded = Recorded("gigpo")
    limit = 0.05 if fault == "hangs" else None
    fragile = type("Fragile", (Fragile,), {"fault": fault, "seconds_per_call": limit, "made": 0})
    arguments = {"estimator": recorded}
    trainer = make_agent(EstimatorGRPOTrainer, fragile, arguments, max_steps=2)
    with pytest.warns(AdvsweepWarning, match=f"{reason}.*; its rollout cannot be scored"):
        trainer.train()
    assert len(recorded.batches) == 2
    masks = torch.stack([batch.mask for batch in recorded.batches if batch.mask is not None])
    if fault == "hangs":
        # Only a lamp whose switch is pressed hangs; another one takes its place.
        assert not masks.all()
        assert fragile.made > 12
    else:
        assert masks.flatten(1).tolist() == [[True, False] * 6] * 2


class Slotted:
    """A lamp without a `__dict__`, whose meter fails in the first episode of every other one."""

    __slots__ = ("episodes", "has_fault")

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.has_fault = type(self).made % 2 == 0
        self.episodes = 0

    def reset(self, **_: Any) -> str:
        self.episodes += 1
        return " e"

    def step(self, word: str) -> str:
        """Press a switch.

        Args:
            word: its letter.
        """
        return "f"

    @property
    def reward_so_far(self) -> float:
        if self.has_fault and self.episodes == 1:
            raise OSError("no meter")
        return 0.0

    def get_reward(self) -> float:
        return 1.0


def test_a_failure_is_of_one_episode_also_where_calls_cannot_be_guarded(
    make_agent: Callable[..., Any],
) -> None:
    recorded = Recorded("grpo")
    trainer = make_agent(EstimatorGRPOTrainer, Slotted, {"estimator": recorded}, max_steps=2)
    with pytest.warns(AdvsweepWarning, match=r"Slotted\.reward_so_far raised OSError"):
        trainer.train()
    first, second = recorded.batches
    assert first.mask is not None
    assert first.mask.flatten().tolist() == [True, False] * 6
    assert second.mask is None or second.mask.all()


def test_a_training_whose_environments_all_fail_ends_with_the_reason(
    make_agent: Callable[..., Any],
) -> None:
    class Broken(Telling):
        def reset(self, **_: Any) -> str:
            raise OSError("no lamp")

    trainer = make_agent(EstimatorGRPOTrainer, Broken, {"estimator": "grpo"})
    expected = r"every environment of a generation has failed: Broken\.reset raised OSError"
    with pytest.warns(AdvsweepWarning), pytest.raises(TrainingError, match=expected):
        trainer.train()


def test_the_environment_of_the_page_tells_its_turns() -> None:
    page = Path(__file__).parents[2] / "docs" / "inside_trl.md"
    (code,) = re.findall(r"^```python\n(class Walk:.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    walk = names["Walk"]()
    walk.reset(prompt="a row")
    told = [(walk.step(by), walk.turn_state, walk.reward_so_far) for by in (1, 2, 2)]
    assert told == [("you are at 1", 1, 0.0), ("you are at 3", 3, 0.1), ("you are at 5", 5, 0.1)]
    assert walk.get_reward() == 1.1
