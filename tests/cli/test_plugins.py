"""Estimators of another package in every command, as pip installs them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

FAKE = ["backend=fake", "steps=12", "evaluation.n=16", "evaluation.k=[1,8]", "evaluation.every=6"]
HALVED = """
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.estimators import Estimator


@dataclass(kw_only=True)
class Halved(Estimator):
    '''A share of what Dr. GRPO gives: Aᵢ = s (rᵢ - p).'''

    name: ClassVar[str] = "halved"
    family: ClassVar[str] = "baselines"
    formula: ClassVar[str] = "Aᵢ = s (rᵢ - p)"
    paper: ClassVar[str] = "a paper of ours"
    equation: ClassVar[str] = "Eq. 1"

    scale: float = option(0.5, gt=0, help="s")

    def _advantages(self, groups, info):
        return self.scale * groups.centred
"""


Advsweep = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def plugged(advsweep_with: Callable[..., Advsweep]) -> Advsweep:
    """`advsweep ARGUMENTS` with three estimators of another package, of which one can be used."""
    points = {
        "halved": "halved_estimator:Halved",
        "lost": "lost_estimator:Lost",
        "grpo": "lost_estimator:GRPO",
    }
    return advsweep_with(
        {"advsweep.estimators": points},
        package="advsweep-halved",
        halved_estimator=HALVED,
        lost_estimator="import a_module_that_is_nowhere",
    )


def test_it_is_listed_and_what_is_broken_is_warned_of(plugged: Advsweep) -> None:
    done = plugged("list", "estimators", "--format", "json")
    assert done.returncode == 0, done.stderr
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    assert listed["halved"]["formula"] == "Aᵢ = s (rᵢ - p)"
    assert listed["grpo"]["source"].startswith("GRPO (Shao")
    assert "lost" not in listed
    not_used, broken = done.stderr.splitlines()
    assert not_used.startswith("advsweep: the estimator 'grpo' of package 'advsweep-halved' is not")
    assert broken == (
        "advsweep: estimator: 'lost' of package 'advsweep-halved' cannot be loaded: "
        "lost_estimator:Lost raised ModuleNotFoundError: No module named "
        "'a_module_that_is_nowhere'; fix or uninstall it"
    )


@pytest.mark.slow
def test_it_is_planned_without_a_yaml_of_its_own(plugged: Advsweep) -> None:
    done = plugged("run", "--dry-run", "--format", "json", "estimator=halved", "estimator.scale=2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["estimator"] == {"name": "halved", "scale": 2.0}

    done = plugged("sweep", "--dry-run", "estimator=grpo,halved", "seed=0,1", *FAKE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("halved") == 2


@pytest.mark.slow
def test_it_is_trained_and_reported(plugged: Advsweep) -> None:
    done = plugged("sweep", "--name=two", "estimator=grpo,halved", *FAKE)
    assert done.returncode == 0, done.stderr
    report = plugged("report", "two", "--format", "json")
    assert report.returncode == 0, report.stderr
    assert "halved" in report.stdout
