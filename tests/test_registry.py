"""Registries: names, aliases, and components of other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.components import Component
from advsweep.errors import AdvsweepWarning, ConfigError, PluginError, UnknownNameError
from advsweep.registry import Registry


def registry(**options: Any) -> Registry[Component]:
    return Registry(
        "policy",
        {"plain": "advsweep.rollouts.policies"},
        aliases={"simple": "plain"},
        unavailable={"magic": "nobody wrote it down"},
        **options,
    )


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
        ("plug", "plugged_policy:Plugged", "Plugged.name to be 'plug', got 'plugged'"),
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


def test_a_file_of_ours_with_a_fault_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halved_file.py").write_text("@dataclass\nclass Halved: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found: Registry[Component] = Registry("estimator", {"halved": "halved_file"})
    with pytest.raises(PluginError) as caught:
        found.get("halved")
    assert str(caught.value) == (
        "estimator: 'halved' cannot be loaded: halved_file raised NameError: name 'dataclass' is "
        "not defined; fix it"
    )
