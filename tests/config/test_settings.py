"""The settings that every run has."""

from __future__ import annotations

import pytest

from advsweep.config.settings import EvaluationSettings, Generation, Optimizer
from advsweep.errors import ConfigError


def test_defaults_are_what_the_documentation_says() -> None:
    assert EvaluationSettings().plain() == {
        "name": "standard",
        "n": 128,
        "k": [1, 8, 64, 128],
        "every": 50,
        "temperature": 1.0,
        "seed": 0,
    }
    assert Optimizer().lr == 3e-4
    assert Generation().temperature == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 64}, r"evaluation.k: .* at most n=64, got 128"),
        ({"k": []}, r"evaluation.k: expected at least one k"),
        ({"k": [0]}, r"evaluation.k: expected >= 1, got 0"),
        ({"every": -1}, r"evaluation.every: expected >= 0, got -1"),
        ({"temprature": 1}, r"no parameter 'temprature'; did you mean 'temperature'"),
    ],
)
def test_evaluation_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EvaluationSettings.build(values, where="evaluation")


@pytest.mark.parametrize("values", [{"lr": 0}, {"beta1": 1}, {"max_grad_norm": -1}])
def test_optimizer_refuses(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^optimizer\."):
        Optimizer.build(values, where="optimizer")
