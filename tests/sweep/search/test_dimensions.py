"""What of the command line is searched over."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.config.overrides import parse_overrides
from advsweep.errors import ConfigError
from advsweep.sweep.search.optuna import (
    Dimension,
    format_override,
    node_dimensions,
    split_overrides,
)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("estimator.delta=interval(0.1,2)", Dimension((0.1, 2.0), is_range=True)),
        (
            "optimizer.lr=tag(log,interval(1e-5,1e-3))",
            Dimension((1e-5, 1e-3), is_range=True, log=True),
        ),
        ("estimator.k=int(interval(1,8))", Dimension((1, 8), is_range=True)),
        ("estimator=choice(grpo,fade)", Dimension(("grpo", "fade"))),
        ("backend.keep=choice(10,true)", Dimension((10, True))),
        ("group_size=range(4,17,4)", Dimension((4, 8, 12, 16))),
    ],
)
def test_what_is_searched_over(text: str, dimension: Dimension) -> None:
    dimensions, rest = split_overrides([text, "steps=20"])
    assert (list(dimensions.values()), rest) == ([dimension], ["steps=20"])
    assert next(iter(dimensions)) == text.partition("=")[0]


@pytest.mark.parametrize(
    "text", ["estimator=grpo,fade", "seed=range(3)", "seed=choice(1,2)", "~evaluation.k", "a=("]
)
def test_what_is_not(text: str) -> None:
    assert split_overrides([text]) == ({}, [text])


def test_whole_numbers_stay_whole() -> None:
    dimensions, _ = split_overrides(["a=int(interval(1,8))", "b=interval(1,8)"])
    assert [dimension.is_integer for dimension in dimensions.values()] == [True, False]


@pytest.mark.parametrize(
    "text", ["a=interval(2,1)", "a=tag(log,interval(0,1))", "a=choice([1,2],[3])"]
)
def test_mistakes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        split_overrides([text])


def test_what_a_sweep_file_searches_over() -> None:
    node = {
        "seeds": 3,
        "common": {"a": "interval(0,1)", "b": "choice(1,2)", "c": [4, 8], "d": "range(3)"},
        "blocks": [{"a": "tag(log,interval(1,9))", "b": 1, "e": "text", "seed": "choice(1,2)"}],
    }
    assert node_dimensions(node) == {
        "a": Dimension((1.0, 9.0), is_range=True, log=True),
        "d": Dimension((0, 1, 2)),
    }
    assert node_dimensions(None) == node_dimensions({"blocks": 3}) == {}
    with pytest.raises(ConfigError, match="LOW < HIGH"):
        node_dimensions({"common": {"a": "interval(2,1)"}})


@pytest.mark.parametrize("value", [1, 2.5e-7, True, None, "fade", "it's, a b", "1", "null"])
def test_values_come_back_as_they_are(value: Any) -> None:
    [parsed] = parse_overrides([format_override("a.b", value)])
    assert (parsed.key, parsed.values, type(parsed.values[0])) == ("a.b", (value,), type(value))
