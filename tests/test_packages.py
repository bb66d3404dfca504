"""What advsweep requires, and the commands that install it wherever advsweep came from."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import sys
from pathlib import Path

from packaging.requirements import Requirement

from advsweep.packages import extra_command, install_command, missing, requirements


def test_an_extra_that_names_another_has_its_requirements(monkeypatch):
    texts = ["numpy; extra == 'ray'", "advsweep[ray]; extra == 'data'", "torch>=1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: texts)
    assert [r.name for r in requirements("data")] == ["numpy"]
    assert [r.name for r in requirements()] == ["torch"]


def test_packages_that_fit_have_their_versions():
    versions, unmet = missing([Requirement("numpy>=1"), Requirement("scipy<0.1")])
    assert [v.split()[0] for v in versions] == ["numpy", "scipy"]
    assert [r.name for r in unmet] == ["scipy"]


def test_environment_without_pip_is_given_uv(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert install_command([Requirement("ray")]).startswith("uv pip install --python ")


def test_environment_of_pipx_is_changed_by_pipx(monkeypatch, tmp_path):
    (tmp_path / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command([Requirement("ray>=2")]) == "pipx inject advsweep 'ray>=2'"


def test_command_for_an_extra_names_no_advsweep():
    program, *words = shlex.split(extra_command("math"))
    assert program == sys.executable
    assert words[:3] == ["-m", "pip", "install"]
    (needed,) = (Requirement(word) for word in words[3:])
    assert needed.name == "math-verify"
    assert needed.extras


def test_plugin_without_an_extra_gets_its_package():
    assert extra_command("not-an-extra", "its_package").endswith(" -m pip install its_package")


def test_every_extra_that_a_message_names_exists():
    sources = (Path(__file__).parents[1] / "advsweep").rglob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    named = set(re.findall(r"""extra_command\(["'](\w+)["']\)""", text))
    assert {"data", "math", "trl"} <= named
    for extra in named:
        assert requirements(extra), extra
