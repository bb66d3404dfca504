"""Finding entry points of other packages, and the classes that fit a kind."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from advsweep.components import Component, option
from advsweep.errors import PluginError
from advsweep.estimators import Estimator, GroupBatch
from advsweep.estimators.batch import Groups
from advsweep.plugin_classes import class_problem
from advsweep.plugins import PluginPoint, discover
from advsweep.registry import Registry
from advsweep.tasks.verifiers.base import QuickVerifier, Verifier

Install = Callable[..., Path]


@pytest.fixture
def on_path(install: Install, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`on_path(package, entry_points, **modules)`: a package that Python finds in this test."""

    def installed(package: str, points: dict[str, dict[str, str]], **modules: str) -> Path:
        folder = install(package, points, **modules)
        monkeypatch.syspath_prepend(folder)
        return folder

    return installed


def points(group: str) -> list[PluginPoint]:
    return [point for point in discover().points if point.group == group]


# Finding


def test_entry_points_of_our_groups_are_found_with_their_package(on_path: Install) -> None:
    on_path(
        "others", {"advsweep.things": {"b": "m:B", "a": "m:A"}, "console_scripts": {"x": "m:X"}}
    )
    assert points("advsweep.things") == [
        PluginPoint("advsweep.things", "a", "m:A", "others", "1.0"),
        PluginPoint("advsweep.things", "b", "m:B", "others", "1.0"),
    ]
    assert all(point.group.startswith("advsweep.") for point in discover().points)


def test_of_two_installations_the_one_that_python_imports_counts(
    on_path: Install, tmp_path: Path
) -> None:
    older = on_path("others", {"advsweep.things": {"old": "m:Old"}})
    older.rename(tmp_path / "older")
    sys.path.insert(0, str(tmp_path / "older"))  # `on_path` restores the path
    on_path("others", {"advsweep.things": {"new": "m:New"}})
    assert [point.name for point in points("advsweep.things")] == ["new"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry_points.txt", b"[advsweep.things]\nno equals sign\n"),
        ("METADATA", None),
        ("METADATA", b"\xff\xfe"),
    ],
)
def test_a_damaged_package_is_told_and_hides_no_other(
    on_path: Install, tmp_path: Path, file: str, content: bytes | None
) -> None:
    folder = on_path("damaged", {"advsweep.things": {"lost": "m:Lost"}})
    path = folder / "damaged-1.0.dist-info" / file
    path.unlink() if content is None else path.write_bytes(content)
    on_path("sound", {"advsweep.things": {"found": "m:Found"}})
    assert [point.name for point in points("advsweep.things")] == ["found"]
    [(package, reason)] = discover().unreadable
    assert package in ("damaged", str(folder))
    assert "cannot be read" in reason


# Classes


@dataclass(kw_only=True)
class Base(Component):
    kind: ClassVar[str]


@dataclass(kw_only=True)
class Sound(Base):
    name: ClassVar[str] = "sound"
    kind: ClassVar[str] = "any"
    size: int = option(1, help="size")


class Undecorated(Base):
    name: ClassVar[str] = "sound"
    kind: ClassVar[str] = "any"
    size: int = 1
    colour: str = "red"
    _hidden: int = 0


@dataclass(kw_only=True)
class Half(Estimator):
    name: ClassVar[str] = "half"


@dataclass(kw_only=True)
class Silent(QuickVerifier):
    name: ClassVar[str] = "silent"

    def reads(self, reference: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("loaded", "name", "base", "problem"),
    [
        (Sound(), "sound", Base, "expected m:C to be a component's class"),
        (int, "sound", Base, "expected m:C to be a component's class"),
        (Sound, "other", Base, "expected m:C.name to be 'other', got 'sound'"),
        (
            Sound,
            "sound",
            Verifier,
            "expected m:C to be a subclass of advsweep.tasks.verifiers.base.Verifier",
        ),
        (Half, "half", Estimator, "expected m:C to define _advantages"),
        (Silent, "silent", Verifier, "expected m:C to define judge"),
        (
            Undecorated,
            "sound",
            Base,
            "expected @dataclass(kw_only=True) on m:C, without which its options colour, size "
            "cannot be set",
        ),
    ],
)
def test_a_class_that_does_not_fit_says_what_is_missing(
    loaded: object, name: str, base: type[Component], problem: str
) -> None:
    assert class_problem(loaded, "m:C", name, base) == problem


def test_class_attributes_without_a_value_are_missing() -> None:
    @dataclass(kw_only=True)
    class Part(Component):
        kind: ClassVar[str]
        unit: ClassVar[str]

    @dataclass(kw_only=True)
    class Whole(Part):
        name: ClassVar[str] = "whole"

    expected = "expected m:C to set the class attributes kind, unit"
    assert class_problem(Whole, "m:C", "whole", Part) == expected


def test_an_estimator_needs_a_name_and_advantages_alone() -> None:
    @dataclass(kw_only=True)
    class Plain(Half):
        def _advantages(self, groups: Groups, info: object) -> torch.Tensor:
            return groups.centred

    assert class_problem(Plain, "m:C", "half", Estimator) == ""


def test_an_estimator_that_fails_is_named_with_its_line() -> None:
    @dataclass(kw_only=True)
    class Masked(Half):
        def _advantages(self, groups: Groups, info: object) -> torch.Tensor:
            return groups.rewards * groups.mask  # type: ignore[operator]

    batch = GroupBatch(rewards=torch.eye(2))
    line = Masked._advantages.__code__.co_firstlineno + 1
    expected = rf"estimator 'half' of another package failed \({__name__}, line {line}\): TypeError"
    with pytest.raises(PluginError, match=expected + ".*; groups.mask is None where no rollout"):
        Masked().compute(batch)
    masked = dataclasses.replace(batch, mask=torch.ones(2, 2, dtype=torch.bool))
    assert torch.equal(Masked().compute(masked).values, batch.rewards)


# Registries


THINGS = """
from dataclasses import dataclass
from typing import ClassVar
from advsweep.components import Component

@dataclass(kw_only=True)
class Good(Component):
    name: ClassVar[str] = "good"
"""


def test_a_registry_says_why_plugins_cannot_be_used(on_path: Install) -> None:
    offered = {
        "good": "things_of_others:Good",
        "gone": "nowhere_at_all:Gone",
        "left": "leaves_at_once:Left",
        "odd name": "things_of_others:Good",
        "plain": "things_of_others:Good",
        "wrong": "things_of_others Good",
    }
    on_path(
        "others",
        {"advsweep.things": {**offered, "twice": "things_of_others:Good"}},
        things_of_others=THINGS,
        leaves_at_once="raise SystemExit(3)",
    )
    on_path("more", {"advsweep.things": {"twice": "things_of_others:Good"}})
    things: Registry[Component] = Registry(
        "thing", {"plain": "advsweep.rollouts.policies"}, group="advsweep.things"
    )
    try:
        with pytest.warns(UserWarning, match="is not used"):
            found = {(p.name, p.package): things.problem(p) for p in points("advsweep.things")}
    finally:
        sys.modules.pop("things_of_others", None)
    assert found.pop(("good", "others")) == ""
    for (name, _), reason in found.items():
        assert PROBLEMS[name] in reason, name
    assert {name for name, _ in found} == {*PROBLEMS}


PROBLEMS = {
    "gone": "nowhere_at_all:Gone raised ModuleNotFoundError: No module named 'nowhere_at_all'",
    "left": "leaves_at_once:Left raised SystemExit: 3",
    "odd name": "expected a name of at most 64 lower-case letters, digits and underscores",
    "plain": "advsweep has one of that name",
    "twice": "offered by package 'more' and package 'others'; uninstall all but one",
    "wrong": "expected module:Class as the entry point, got 'things_of_others Good'",
}


def test_listing_names_imports_nothing(on_path: Install) -> None:
    on_path("others", {"advsweep.things": {"good": "never_imported:Good"}}, never_imported=THINGS)
    things: Registry[Component] = Registry("thing", {}, group="advsweep.things")
    assert things.names() == ["good"]
    assert "never_imported" not in sys.modules


def test_a_name_that_cannot_be_used_is_no_name(on_path: Install) -> None:
    on_path("others", {"advsweep.things": {"../up": "m:Up", "\x1b]0;x": "m:Title"}})
    things: Registry[Component] = Registry("thing", {}, group="advsweep.things")
    with pytest.warns(UserWarning, match="is not used: expected a name of at most 64"):
        assert things.names() == []
