"""The entry point: what it registers, when, and what it costs those who do not use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# verl's modules that are extended, with the names that ours import from them.
CORE = """
registry, losses = {}, {}
def register_adv_est(name):
    return lambda fn: registry.setdefault(name, fn)
def register_policy_loss(name):
    return lambda fn: losses.setdefault(name, fn)
"""
CONFIG = """
class PolicyLossConfig: pass
"""


@pytest.fixture
def python(tmp_path: Path) -> object:
    """`python(program)`: what the program writes, beside a package `verl` of a few lines."""
    folder = tmp_path / "verl" / "trainer" / "ppo" / "v1"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent, folder.parent.parent.parent):
        (package / "__init__.py").write_text("")
    (folder.parent / "core_algos.py").write_text(CORE)
    (folder / "__init__.py").write_text("ready = True\n")
    workers = tmp_path / "verl" / "workers"
    workers.mkdir()
    (workers / "__init__.py").write_text("")
    (workers / "config.py").write_text(CONFIG)

    def run(program: str) -> str:
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        done = subprocess.run(
            [sys.executable, "-c", path + program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def test_it_loads_neither_torch_nor_verl(python) -> None:  # type: ignore[no-untyped-def]
    program = (
        "import advsweep.integrations.verl\n"
        "print({'torch', 'verl', 'omegaconf', 'ray'} & set(sys.modules))\n"
    )
    assert python(program) == "set()\n"


@pytest.mark.slow
def test_the_functions_are_registered_when_verl_imports_their_module(python) -> None:  # type: ignore[no-untyped-def]
    program = (
        "import advsweep.integrations.verl\n"
        "from verl.trainer.ppo import core_algos\n"
        "print([*core_algos.registry, *core_algos.losses])\n"
        "from verl.workers.config import PolicyLossConfig\n"
        "print(PolicyLossConfig.advsweep)\n"
    )
    assert python(program) == "['advsweep', 'advsweep']\nNone\n"


@pytest.mark.slow
def test_a_verl_that_does_not_fit_works_and_the_reason_is_shown(python) -> None:  # type: ignore[no-untyped-def]
    # This V1 has no trainers, as another release might not.
    program = (
        "import advsweep.integrations.verl\n"
        "import verl.trainer.ppo.v1\n"
        "print(verl.trainer.ppo.v1.ready)\n"
    )
    written = python(program)
    assert written.startswith("True\n")
    assert "advsweep is not available in verl: advsweep.integrations.verl.trainer raised" in written
    assert "expected verl 0.9.1" in written
    assert "Traceback" not in written
