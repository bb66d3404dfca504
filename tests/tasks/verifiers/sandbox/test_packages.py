"""Programs find the packages that are installed here, wherever the environment lies."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import advsweep
from advsweep.errors import AdvsweepWarning
from advsweep.tasks.verifiers import VERIFIERS
from advsweep.tasks.verifiers import code as code_module
from advsweep.tasks.verifiers.base import RUN_CODE, RUN_CODE_AS_ROOT
from advsweep.tasks.verifiers.code import Code, namespaces_missing
from advsweep.tasks.verifiers.isolation import scratch_folder

pytestmark = pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing())

PROJECT = Path(advsweep.__file__).parent.parent

# Judges answers that use packages; then one that looks at its folder, and one that changes what it
# may, behind which the next script finds the package.
JUDGE = """
import sys, warnings
warnings.simplefilter("error")
from advsweep.tasks.verifiers import VERIFIERS
verifier = VERIFIERS.build({"name": "code", "isolation": sys.argv[1], "seconds": 10.0})
verifier.check()
tests = {"tests": ["assert f() == 41"], "setup": ""}
scripts = {"tests": [{"input": "", "output": "41 []"}] * 2, "setup": ""}
print(verifier.judge(tests, "import tinypkg\\ndef f(): return tinypkg.VALUE").outcome.value)
array = "import numpy\\ndef f(): return int(numpy.arange(42)[-1])"
print(verifier.judge(tests, array).outcome.value)
look = "import os, tinypkg\\nprint(tinypkg.VALUE, [n for n in os.listdir() if n != 'main.py'])"
print(verifier.judge(scripts, look).outcome.value)
change = '''
import os, tinypkg
folder = os.path.dirname(os.path.dirname(tinypkg.__file__))
while folder != "/":
    for change in (
        lambda: open(f"{folder}/probe", "w").close(),
        lambda: os.rename(folder, f"{folder}.old"),
    ):
        try:
            change()
            print("changed", folder)
        except OSError:
            pass
    folder = os.path.dirname(folder)
open("own", "w").close()
print(tinypkg.VALUE, [])
'''
print(verifier.judge(scripts, change).outcome.value)
"""


@pytest.fixture(params=["/tmp", "/var/tmp", "/dev/shm", "/opt"])
def environment(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A virtual environment with a package of its own, besides those of this environment."""
    parent = Path(request.param)
    if not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} cannot be written to")
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        venv.create(folder, symlinks=True, with_pip=False)
        (packages,) = Path(folder, "lib").glob("python*/site-packages")
        (packages / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{PROJECT}\n")
        (packages / "tinypkg").mkdir()
        (packages / "tinypkg" / "__init__.py").write_text("VALUE = 41\n")
        distribution = packages / "tinypkg-1.0.dist-info"
        distribution.mkdir()
        metadata = "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n"
        (distribution / "METADATA").write_text(metadata)
        (distribution / "top_level.txt").write_text("tinypkg\n")
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.security
@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_an_environment_may_lie_anywhere(environment: Path, isolation: str) -> None:
    done = subprocess.run(
        [environment / "bin" / "python", "-c", JUDGE, isolation],
        env={**os.environ, RUN_CODE: "1", RUN_CODE_AS_ROOT: "1", "PYTHONPATH": ""},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["correct"] * 4


def test_the_scratch_folder_hides_no_package() -> None:
    assert scratch_folder(["/usr/lib/python3.11", "/opt/tmp"]) == "/tmp"
    assert scratch_folder(["/tmpfs/lib"]) == "/tmp"
    assert scratch_folder(["/tmp/env/lib"]) == "/scratch"
    assert scratch_folder(["/tmp/env/lib", "/scratch/lib"]) == "/scratch2"
    assert scratch_folder(["/tmp"]) == "/scratch"


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_packages_that_programs_do_not_find_are_named(
    isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = ["numpy", "nowhere_installed", "yaml", "sympy", "elsewhere"]
    monkeypatch.setattr(code_module, "installed_packages", lambda: installed)
    code_module._unseen_packages.cache_clear()
    verifier = VERIFIERS.build({"name": "code", "isolation": isolation})
    assert isinstance(verifier, Code)
    words = r"do not find 2 of the packages .* \(nowhere_installed, elsewhere\), .* wrong; install"
    with pytest.warns(AdvsweepWarning, match=words):
        verifier.check()
    code_module._unseen_packages.cache_clear()


def test_a_folder_of_packages_that_the_environment_names_is_searched(tmp_path: Path) -> None:
    """As those of a cluster's modules, and of the user."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "tinypkg.py").write_text("VALUE = 41\n")
    code = """
from advsweep.tasks.verifiers import VERIFIERS
verifier = VERIFIERS.build({"name": "code", "seconds": 10.0})
answer = "import tinypkg\\ndef f(): return tinypkg.VALUE"
verdict = verifier.judge({"tests": ["assert f() == 41"], "setup": ""}, answer)
assert verdict.outcome.value == "correct", verdict
"""
    path = os.pathsep.join([str(packages), str(PROJECT)])
    environment = {**os.environ, RUN_CODE: "1", RUN_CODE_AS_ROOT: "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
