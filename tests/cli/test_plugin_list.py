"""What other packages add, and what of it cannot be used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import advsweep
from advsweep.cli.catalogue import plugin_registries
from advsweep.components import Component
from advsweep.sweep.registry import GROUPS

CLOSED = {"control", "evaluation", "resources"}

GOOD = """
from dataclasses import dataclass
from typing import ClassVar
from advsweep.sweep.early_stopping import Stopping

@dataclass(kw_only=True)
class Good(Stopping):
    name: ClassVar[str] = "good"
    def is_due(self, step): return False
    def judge(self, own, others, step): return None
"""


def test_every_kind_has_a_group_of_its_name():
    assert {key for key, registry in GROUPS.items() if registry.group is None} == CLOSED
    for key, registry in GROUPS.items():
        assert registry.group in (None, f"advsweep.{key}s")


def test_the_base_of_a_kind_is_that_of_our_components():
    for registry in plugin_registries().values():
        base = registry.base_class()
        assert issubclass(base, Component)
        assert (base is Component) == (registry.kind == "model")
        ours = [registry.get(name) for name in registry.names()[:3] if registry.kind != "importer"]
        assert all(issubclass(cls, base) for cls in ours)


def test_no_registry_is_forgotten():
    """Every registry of advsweep is open through `plugin_registries`, or closed."""
    source = Path(advsweep.__file__).parent
    groups = {
        group
        for path in source.rglob("*.py")
        for group in re.findall(r'group="(advsweep\.\w+)"', path.read_text("utf-8"))
    }
    assert groups == set(plugin_registries())


@pytest.fixture
def without_fake(monkeypatch):
    """Leaves out the package of the tests with the backend `fake`."""
    monkeypatch.delenv("PYTHONPATH")


@pytest.mark.slow
@pytest.mark.usefixtures("without_fake")
def test_all_states_are_listed(advsweep_with):
    points = {
        "advsweep.stoppings": {"good": "good:Good", "acr": "good:Good"},
        "advsweep.stopings": {"good": "good:Good"},
        "advsweep.verifiers": {"bad": "bad:Bad"},
    }
    command = advsweep_with(points, good=GOOD, bad="raise RuntimeError('one\\n\\x1b[2Jtwo')")
    done = command("list", "plugins", "--format", "json")
    assert done.returncode == 0, done.stderr
    # The environment of the tests may have the packages of contrib/.
    contrib = ("advsweep-weights", "advsweep-mlflow")
    every = json.loads(done.stdout)
    listed = [row for row in every if row["package"] not in contrib]
    reasons = [
        ("", "good", "advsweep has no group 'advsweep.stopings'; did you mean 'stoppings'?"),
        ("stopping", "acr", "advsweep has one of that name"),
        ("stopping", "good", ""),
        ("verifier", "bad", "bad:Bad raised RuntimeError: one\n\x1b[2Jtwo"),
    ]
    for row, (kind, name, reason) in zip(listed, reasons, strict=True):
        assert (row["kind"], row["name"]) == (kind, name)
        assert (row["state"] == "usable") == (not reason)
        assert reason in row["reason"]
    assert {(row["package"], row["version"]) for row in listed} == {("package-of-others", "1.0")}
    assert listed[2]["group"] == "advsweep.stoppings"
    assert listed[2]["target"] == "good:Good"
    table = command("list", "plugins")
    assert "\x1b" not in table.stdout
    assert len(table.stdout.splitlines()) == 1 + len(every)
    assert r"one\n\x1b[2Jtwo" in table.stdout
    # The listing says it; a warning beside it would say it twice.
    assert table.stderr == done.stderr == ""


BREAKING = {
    "advsweep.backends": {"bad_backend": "bad:Bad"},
    "advsweep.executors": {"bad_executor": "bad:Bad"},
    "advsweep.rollouts": {"bad_rollout": "bad:Bad"},
    "advsweep.tasks": {"bad_task": "bad:Bad"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "tasks"], ""),
        # This message names the components that would help.
        (["run", "--dry-run", "estimator=aapo", "rollout=filter_drop"], "rollout=reference does"),
    ],
)
def test_a_broken_plugin_breaks_no_command(advsweep_with, arguments, message):
    command = advsweep_with(BREAKING, bad="raise RuntimeError('never imported in peace')")
    done = command(*arguments)
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    if message:
        # The last line is the error of the command, not of the plug-in.
        assert "never imported" not in done.stderr.splitlines()[-1]
    else:
        assert done.returncode == 0, done.stderr
