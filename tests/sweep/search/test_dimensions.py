"""What of the command line is searched over."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.config.overrides import parse_overrides
from advsweep.errors import ConfigError
from advsweep.sweep.search.dimensions import Choice, Interval, override, split


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("estimator.delta=interval(0.1,2)", Interval(0.1, 2.0)),
        ("optimizer.lr=tag(log,interval(1e-5,1e-3))", Interval(1e-5, 1e-3, log=True)),
        ("estimator.k=int(interval(1,8))", Interval(1, 8)),
        ("estimator=choice(grpo,fade)", Choice(("grpo", "fade"))),
        ("backend.keep=choice(10,true)", Choice((10, True))),
        ("group_size=range(4,17,4)", Choice((4, 8, 12, 16))),
    ],
)
def test_what_is_searched_over(text: str, dimension: Interval | Choice) -> None:
    dimensions, rest = split([text, "steps=20"])
    assert (list(dimensions.values()), rest) == ([dimension], ["steps=20"])
    assert next(iter(dimensions)) == text.partition("=")[0]


@pytest.mark.parametrize(
    "text", ["estimator=grpo,fade", "seed=range(3)", "seed=choice(1,2)", "~evaluation.k", "a=("]
)
def test_what_is_not(text: str) -> None:
    assert split([text]) == ({}, [text])


def test_whole_numbers_stay_whole() -> None:
    dimensions, _ = split(["a=int(interval(1,8))", "b=interval(1,8)"])
    assert [type(d.low) for d in dimensions.values() if isinstance(d, Interval)] == [int, float]


@pytest.mark.parametrize(
    "text", ["a=interval(2,1)", "a=tag(log,interval(0,1))", "a=choice([1,2],[3])"]
)
def test_mistakes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        split([text])


@pytest.mark.parametrize("value", [1, 2.5e-7, True, "fade", "it's, a b", "1", "null"])
def test_values_come_back_as_they_are(value: Any) -> None:
    [parsed] = parse_overrides([override("a.b", value)])
    assert (parsed.key, parsed.values, type(parsed.values[0])) == ("a.b", (value,), type(value))
