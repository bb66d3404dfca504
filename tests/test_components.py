"""Typed components: coercion, ranges, identity, registries; and the errors' hints."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest

from advsweep import errors
from advsweep.components import Component, Registry, describe_type, option, parameters
from advsweep.errors import (
    AdvsweepWarning,
    ConfigError,
    PluginError,
    UnknownNameError,
    nearest,
)


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
        ("rate", 1.5, r"rate: expected > 0 and <= 1, got 1.5"),
        ("rate", float("nan"), r"rate: expected a number, got nan"),
        ("rate", "much", r"rate: expected a number, got 'much'"),
        ("rate", True, r"rate: expected a number, got True"),
        ("count", 10, r"count: expected >= 0 and < 10, got 10"),
        ("count", 1.0, r"count: expected an integer, got 1.0"),
        ("count", True, r"count: expected an integer, got True"),
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


def test_messages_name_the_place() -> None:
    with pytest.raises(ConfigError, match=r"^task\.rate: expected"):
        Outer.build({"rate": 2}, where="task")
    with pytest.raises(UnknownNameError, match=r"^task\.rat: outer .*; did you mean 'rate'\?"):
        Outer.build({"rat": 2}, where="task")


def test_plain_round_trip() -> None:
    outer = Outer.build({"limit": math.inf, "ks": (2,), "extra": {"a": (1, 2)}, "inner": Inner()})
    plain = outer.plain()
    assert plain["limit"] == "inf"
    assert plain["extra"] == {"a": [1, 2]}
    again = Outer.build({**plain, "inner": outer.inner})
    assert again.plain() == plain


def test_identity_leaves_out_what_cannot_matter() -> None:
    one, other = Outer(label="a"), Outer(label="b")
    assert one.identity() == other.identity()
    assert one.identity() != Outer(rate=0.25).identity()
    assert one.identity() != Outer(inner=Inner(size=2)).identity()
    assert one.identity()["revision"] == 1
    assert Outer(inner=Inner()).identity()["inner"] == {"name": "inner", "revision": 1, "size": 1}


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


def test_types_are_named_once() -> None:
    assert describe_type(str | dict[str, Any] | Inner) == "a text or a mapping"


# Registries


def registry(**options: Any) -> Registry[Component]:
    return Registry(
        "policy",
        {"plain": "advsweep.rollouts.plain"},
        aliases={"simple": "plain"},
        unavailable={"magic": "nobody wrote it down"},
        **options,
    )


def test_names_are_listed_without_aliases() -> None:
    assert registry().names() == ["plain"]
    assert list(registry()) == ["plain"]
    assert "simple" in registry()
    assert "magic" not in registry()


def test_builds_by_name_alias_and_mapping() -> None:
    policies = registry()
    assert policies.build("simple").name == "plain"
    assert policies.build({"name": "plain"}) == policies.build("plain")
    assert policies.get("simple") is policies.get("plain")


def test_unknown_and_unavailable_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="rollout: no policy is called 'plan'; did you"):
        registry().build("plan", where="rollout")
    with pytest.raises(UnknownNameError, match="'magic' cannot be built: nobody wrote it down"):
        registry().get("magic")


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from advsweep.components import Component, option

@dataclass(kw_only=True)
class Plugged(Component):
    name: ClassVar[str] = "plugged"
    size: int = option(1, ge=1, help="how large")
"""
GROUP = "advsweep.policies"


@pytest.fixture
def plug(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """`plug(package, name="module:Class", ...)`: installs policies, for this test alone."""

    def plugged(package: str, **policies: str) -> None:
        folder = install(package, {GROUP: policies}, plugged_policy=PLUGIN, broken="import absent")
        monkeypatch.syspath_prepend(folder)

    yield plugged
    sys.modules.pop("plugged_policy", None)


def test_plugins_join_by_entry_point(plug: Callable[..., None]) -> None:
    plug("policies-of-others", plugged="plugged_policy:Plugged")
    policies = registry(group=GROUP)
    assert policies.names() == ["plain", "plugged"]
    assert "plugged" in policies
    assert policies.build("plugged", size=4).plain() == {"name": "plugged", "size": 4}
    with pytest.raises(ConfigError, match="size: expected >= 1, got 0"):
        policies.build("plugged", size=0)
    assert registry().names() == ["plain"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("broken", "broken:Policy", "broken:Policy raised ModuleNotFoundError: No module named"),
        ("plugged", "plugged_policy:Absent", "plugged_policy:Absent raised AttributeError"),
        ("option", "plugged_policy:option", "expected plugged_policy:option to be a component's"),
        ("plug", "plugged_policy:Plugged", "Plugged.name to be 'plug', got 'plugged'"),
        ("base", "plugged_policy:Component", "Component.name to be 'base', got None"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_names_its_package(
    plug: Callable[..., None], name: str, value: str, message: str
) -> None:
    plug("policies-of-others", **{name: value})
    policies = registry(group=GROUP)
    with pytest.raises(PluginError, match=f"^policy: '{name}' of package 'policies-of-others' "):
        policies.get(name)
    with pytest.raises(PluginError, match=message):
        policies.get(name)
    # It breaks nothing else.
    with pytest.warns(AdvsweepWarning, match=f"'{name}' of package .* cannot be loaded"):
        assert [cls.name for cls in policies.classes()] == ["plain"]


@pytest.mark.parametrize("name", ["plain", "simple"])
def test_a_plugin_does_not_take_the_place_of_ours(plug: Callable[..., None], name: str) -> None:
    plug("policies-of-others", **{name: "broken:Policy"})
    policies = registry(group=GROUP)
    with pytest.warns(AdvsweepWarning, match=f"'{name}' of package 'policies-of-others' is not"):
        assert policies.names() == ["plain"]
    assert policies.get(name).__module__ == "advsweep.rollouts.plain"


def test_two_plugins_of_one_name_are_refused(plug: Callable[..., None]) -> None:
    plug("first", plugged="plugged_policy:Plugged")
    plug("second", plugged="plugged_policy:Plugged")
    policies = registry(group=GROUP)
    assert policies.names() == ["plain", "plugged"]
    with pytest.raises(PluginError, match=r"by package '.*' and package '.*'; uninstall all but"):
        policies.get("plugged")


def test_a_plugin_may_define_what_is_unavailable(plug: Callable[..., None]) -> None:
    plug("policies-of-others", magic="plugged_policy:Magic", plugged="plugged_policy:Plugged")
    policies = registry(group=GROUP)
    assert "magic" in policies
    assert policies.unavailable() == {}
    with pytest.raises(PluginError, match="Magic raised AttributeError"):
        policies.get("magic")


# Errors


def test_every_error_is_in_one_tree() -> None:
    raised = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    for error in raised:
        assert issubclass(error, errors.AdvsweepError | errors.AdvsweepWarning)
        assert error.__name__ in (errors.__doc__ or "")


def test_nearest_names() -> None:
    known = ["grpo", "rloo"]
    assert nearest("grop", known) == "did you mean 'grpo'?"
    assert nearest("zzz", known) == "known: grpo, rloo"
    assert nearest("zzz", []) == "there are none"
    many = [f"name{i:02}" for i in range(20)]
    assert nearest("zzz", many).startswith("there are 20: name00, ")
