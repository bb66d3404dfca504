"""What a user installs: the wheel beside verl, and verl's command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl", minversion="0.9.1", reason="verl is absent: make test-verl")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]

# What `python -m verl.trainer.main_ppo` does until its processes start.
PROGRAM = """
import sys

import advsweep
import verl
assert not any(name.startswith("advsweep.estimators") for name in sys.modules)

from verl.trainer.main_ppo import main
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1 import get_trainer_cls

sys.argv[1:] = ["--cfg", "job", *sys.argv[1:]]
main()
print(advsweep.__file__)
print(get_adv_estimator_fn("advsweep").__module__)
print(get_trainer_cls("advsweep_sync").__name__)
"""


def test_the_wheel_makes_the_names_known_to_verl(tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)

    options = [
        "algorithm.adv_estimator=advsweep",
        "+algorithm.advsweep.name=asym_grpo",
        "+algorithm.advsweep.delta=0.5",
        "trainer.v1.trainer_mode=advsweep_sync",
    ]
    # The folder comes before the environment's own packages, as PYTHONPATH would put it.
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *config, file, function, trainer = done.stdout.splitlines()
    assert "  adv_estimator: advsweep" in config
    place = config.index("  advsweep:")
    assert config[place + 1 : place + 3] == ["    name: asym_grpo", "    delta: 0.5"]
    assert "    trainer_mode: advsweep_sync" in config
    assert Path(file) == site / "advsweep" / "__init__.py"
    assert function == "advsweep.integrations.verl.advantages"
    assert trainer == "AdvsweepTrainerSync"
