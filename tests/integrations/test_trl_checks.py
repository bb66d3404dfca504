"""Settings with which TRL's trainer goes on and does something else are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

trl = pytest.importorskip("trl", minversion="1.12")

from advsweep.errors import BatchError, ConfigError  # noqa: E402
from advsweep.integrations.trl import EstimatorGRPOTrainer  # noqa: E402
from advsweep.integrations.trl_checks import check_saves, largest_dropout  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

Trainers = Callable[..., Any]


def half(completions: list[str], **_: Any) -> list[float]:
    return [float(place % 2) for place in range(len(completions))]


@pytest.fixture
def make(make_trainer: Trainers) -> Trainers:
    def make(estimator: str, *, rows: int = 2, reward: Any = half, **settings: Any) -> Any:
        given = {"num_generations": 2, "max_steps": 4, "per_device_train_batch_size": 2, **settings}
        columns = {"row": [*range(rows)]}
        return make_trainer(
            EstimatorGRPOTrainer, [reward], columns, {"estimator": estimator}, **given
        )

    return make


def test_saves_inside_a_generation_are_refused(make: Trainers) -> None:
    with pytest.raises(ConfigError, match=r"save_steps: expected a multiple of 2, .* got 3; TRL"):
        make("grpo", steps_per_generation=2, save_strategy="steps", save_steps=3)
    make("grpo", steps_per_generation=2, save_strategy="steps", save_steps=2)
    make("grpo", steps_per_generation=2, save_strategy="no", save_steps=3)


@pytest.mark.parametrize(
    ("generation", "iterations", "accumulation", "every", "multiple"),
    [
        (1, 1, 1, 7, None),
        (4, 1, 4, 1, None),
        (4, 2, 4, 3, 2),
        (8, 1, 4, 5, 2),
        (2, 1, 8, 1, None),  # several generations for an update
        (3, 1, 2, 4, 3),  # a generation that ends inside an update
        (4, 1, 1, 0.25, 4),  # 3 of 10 updates
        (3, 1, 1, 0.25, None),
    ],
)
def test_updates_of_a_generation(
    generation: int, iterations: int, accumulation: int, every: float, multiple: int | None
) -> None:
    arguments = SimpleNamespace(
        save_strategy="steps",
        save_steps=every,
        max_steps=10,
        steps_per_generation=generation,
        num_iterations=iterations,
        gradient_accumulation_steps=accumulation,
    )
    if multiple is None:
        check_saves(arguments)
        return
    with pytest.raises(ConfigError, match=rf"a multiple of {multiple}, "):
        check_saves(arguments)


def test_a_dataset_without_a_whole_generation_is_refused(make: Trainers) -> None:
    message = r"train_dataset: expected at least 2 prompts, .* got 1; .* train no step"
    with pytest.raises(ConfigError, match=message):
        make("grpo", rows=1, steps_per_generation=2)
    trainer = make("grpo", rows=2, steps_per_generation=2)
    trainer.train()
    assert trainer.state.global_step == 4


def test_dropout_is_refused_where_numbers_of_the_policy_are_read(make: Trainers) -> None:
    dropout = {"attention_dropout": 0.25}
    message = r"estimator 'fade' reads token_entropy.* dropout of 0\.25 .* expected True, got False"
    with pytest.raises(ConfigError, match=f"disable_dropout: {message}"):
        make("fade", model_init_kwargs=dropout)
    assert largest_dropout(make("grpo", model_init_kwargs=dropout).model) == 0.25
    trainer = make("fade", model_init_kwargs=dropout, disable_dropout=True)
    assert largest_dropout(trainer.model) == 0


def test_infinite_rewards_are_refused_in_the_words_of_trl(make: Trainers) -> None:
    def unbounded(completions: list[str], **_: Any) -> list[float | None]:
        return [math.inf, None]

    trainer = make("grpo", reward=unbounded)
    message = r"function unbounded: expected finite numbers, got 1 of 2 infinite ones; return None"
    with pytest.raises(BatchError, match=message):
        trainer.train()
