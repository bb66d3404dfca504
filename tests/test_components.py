"""Typed components: coercion, ranges, identity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import pytest

from advsweep.components import Component, option, parameters, without_sources
from advsweep.errors import ConfigError


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(kw_only=True)
class Inner(Component):
    name: ClassVar[str] = "inner"

    size: int = option(1, ge=1, help="how large")


@dataclass(kw_only=True)
class Outer(Component):
    name: ClassVar[str] = "outer"

    rate: float = option(0.5, gt=0, le=1, help="a share")
    count: int = option(3, ge=0, lt=10, help="how many")
    colour: Colour = option(Colour.RED, help="which one")
    limit: float | None = option(None, ge=0, help="at most")
    ks: tuple[int, ...] = option((1, 8), ge=1, help="several")
    label: str = option("x", help="its title", identity=False)
    flag: bool = option(False, help="whether")
    inner: Inner | None = option(None, help="another component")
    extra: dict[str, Any] = option({}, help="anything")


def test_defaults_are_plain() -> None:
    assert Outer(inner=Inner()).plain() == {
        "name": "outer",
        "rate": 0.5,
        "count": 3,
        "colour": "red",
        "limit": None,
        "ks": [1, 8],
        "label": "x",
        "flag": False,
        "inner": {"name": "inner", "size": 1},
        "extra": {},
    }


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("rate", 1, 1.0),
        ("colour", "GREEN", Colour.GREEN),
        ("colour", Colour.GREEN, Colour.GREEN),
        ("limit", 2, 2.0),
        ("limit", "inf", math.inf),
        ("limit", None, None),
        ("ks", [2, 4], (2, 4)),
    ],
)
def test_values_are_coerced(field: str, given: Any, kept: Any) -> None:
    value = getattr(Outer.build({field: given}), field)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rate", 0, r"rate: expected > 0 and <= 1, got 0"),
        ("rate", float("nan"), r"rate: expected a number, got nan"),
        ("rate", True, r"rate: expected a number, got True"),
        ("count", 10, r"count: expected >= 0 and < 10, got 10"),
        ("count", 1.0, r"count: expected an integer, got 1.0"),
        ("colour", "blue", r"colour: expected one of red, green, got 'blue'"),
        ("colour", "gren", r"did you mean 'green'\?"),
        ("limit", -1, r"limit: expected >= 0, got -1"),
        ("ks", [1, 0], r"ks: expected >= 1, got 0"),
        ("ks", [1, "2"], r"ks: expected a list, each an integer"),
        ("flag", 1, r"flag: expected true or false, got 1"),
        ("label", 1, r"label: expected a text, got 1"),
        ("extra", 1, r"extra: expected a mapping, got 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Outer.build({field: value})


def test_identity_leaves_out_what_cannot_matter() -> None:
    one, other = Outer(label="a"), Outer(label="b")
    assert one.identity() == other.identity()
    assert one.identity() != Outer(rate=0.25).identity()
    assert one.identity() != Outer(inner=Inner(size=2)).identity()
    assert one.identity()["revision"] == 1
    inner = without_sources(Outer(inner=Inner()).identity()["inner"])
    assert inner == {"name": "inner", "revision": 1, "size": 1}


def test_a_field_that_came_later_changes_the_identity_only_where_it_matters() -> None:
    @dataclass(kw_only=True)
    class Later(Inner):
        mode: str = option("old", absent="old", help="what was always done, or something new")

    assert Later().identity() == Inner().identity()
    assert Later(mode="new").identity() == {**Inner().identity(), "mode": "new"}
    assert Later().plain()["mode"] == "old"


def test_a_raised_revision_changes_the_identity() -> None:
    @dataclass(kw_only=True)
    class Fixed(Inner):
        revision: ClassVar[int] = 2

    assert Fixed().identity() != Inner().identity()


def test_parameters_for_people() -> None:
    rows = {row["name"]: row for row in parameters(Outer)}
    assert rows["rate"] == {
        "name": "rate",
        "type": "a number",
        "default": 0.5,
        "range": "> 0 and <= 1",
        "help": "a share",
    }
    assert rows["colour"]["type"] == "one of red, green"
    assert rows["colour"]["default"] == "red"
    assert rows["limit"]["type"] == "a number or null"
    assert rows["ks"]["type"] == "a list, each an integer"
    assert rows["extra"]["default"] == {}
