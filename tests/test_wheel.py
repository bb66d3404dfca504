"""The wheel alone: every command of the page Start works without the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import page_blocks
import pytest

from tests.conftest import INSTALLED

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOCATION = "import advsweep; print(advsweep.__file__)"


@pytest.fixture
def wheel_bin(tmp_path: Path) -> Path:
    """The programs of a new environment with the wheel, and the packages of this one."""
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    # Python does not read the .pth files of these folders, so the editable advsweep is not found.
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text("\n".join(shared))
    found = subprocess.check_output([python, "-P", "-c", LOCATION], cwd=tmp_path, text=True)
    assert Path(found.strip()).parents[1] == site
    return environment / "bin"


def test_start_needs_nothing_but_the_wheel(wheel_bin: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    path = os.pathsep.join([str(wheel_bin), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    environment["PYTHONPATH"] = str(INSTALLED)  # the backend of the tests

    def run(script: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    scripts = [
        re.sub(r"steps=\d+", "steps=2 backend=fake", block.code)
        for block in page_blocks.blocks(page)
        if block.language == "sh" and not block.reason
    ]
    assert any("backend=fake" in script for script in scripts)
    for script in scripts:
        run(script)
    assert re.search(r"(\d+) runs, \1 done", run("advsweep status first"))
    run("advsweep report first --format html > report.html")
    assert "</html>" in (folder / "report.html").read_text("utf-8")
    (site,) = wheel_bin.parent.glob("lib/python*/site-packages")
    conf = ROOT / "conf"
    missing = [
        file
        for file in conf.rglob("*.yaml")
        if not (site / "advsweep" / "conf" / file.relative_to(conf)).is_file()
    ]
    assert missing == []
    skill = Path(run("advsweep doctor --skill").strip())
    assert skill.is_relative_to(site)
    assert skill.is_file()
    assert '"urn:advsweep:report:1"' in run("advsweep schema report")
