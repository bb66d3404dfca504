"""`advsweep init`: what it writes works as it stands, and it overwrites nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from advsweep.cli import catalogue
from advsweep.cli.catalogue import NAMES, SCHEMA
from advsweep.yaml_files import read_yaml
from tests.cli.conftest import FAKE

SOURCE = Path(catalogue.__file__).parent / "init_files"


def test_writes_its_files_and_says_what_is_next(advsweep, tmp_path):
    done = advsweep("init", "mine")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {*NAMES, SCHEMA}
    assert done.stdout.splitlines()[-1] == "Next: cd mine && advsweep sweep sweep.yaml"
    for name in NAMES:
        assert (tmp_path / "mine" / name).read_text() == (SOURCE / name).read_text()


def test_sweep_file_names_a_schema_that_it_fits(advsweep, tmp_path):
    assert advsweep("init").returncode == 0
    text = (tmp_path / "sweep.yaml").read_text()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA}"
    schema = (tmp_path / SCHEMA).read_text()
    assert schema == advsweep("schema").stdout
    validator = Draft202012Validator(json.loads(schema))
    assert validator.is_valid(yaml.safe_load(text))
    # Without its comment signs, the line that offers rates to sweep over fits, too.
    rates = text.replace("# optimizer.lr", "optimizer.lr")
    (tmp_path / "rates.yaml").write_text(rates)
    plan = json.loads(advsweep("sweep", "rates.yaml", "--dry-run", "--format", "json").stdout)
    assert len(plan["runs"]) == 18
    assert validator.is_valid(read_yaml(tmp_path / "rates.yaml"))
    assert not validator.is_valid(yaml.safe_load(text.replace("steps:", "step:")))


@pytest.mark.slow
def test_makefile_trains_and_judges(advsweep, tmp_path):
    if shutil.which("make") is None:
        pytest.skip("no make")
    assert advsweep("init").returncode == 0
    sweep, fake = "sweep sweep.yaml", " ".join(f"'{word}'" for word in FAKE)
    makefile = (tmp_path / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(makefile.replace(sweep, f"{sweep} {fake}"))
    # The Makefile reads the sweep's name from the sweep file.
    renamed = (tmp_path / "sweep.yaml").read_text().replace("name: first  ", "name: other  ")
    (tmp_path / "sweep.yaml").write_text(renamed)
    made = subprocess.run(
        ["make", "ci", "report", f"ADVSWEEP={sys.executable} -m advsweep"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "9 done of 9 runs" in made.stderr
    assert "holds: pass@1[grpo] >= pass@1[base]" in made.stderr
    assert made.returncode == 0
    assert "</html>" in (tmp_path / "report.html").read_text()
    (tmp_path / "Makefile").write_text(
        (tmp_path / "Makefile").read_text().replace("pass@1[base]'", "pass@1[base] + 1'")
    )
    wrong = subprocess.run(made.args, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "contradicted" in wrong.stderr
    assert wrong.returncode == 2  # make's exit code where a command exits with 1


@pytest.mark.parametrize("name", [*NAMES, SCHEMA])
def test_overwrites_nothing(advsweep, tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = advsweep("init")
    assert done.returncode == 2
    assert name in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_follows_no_link_out_of_the_folder(advsweep, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").symlink_to(tmp_path / "elsewhere")
    assert advsweep("init", "mine").returncode == 2
    assert not (tmp_path / "elsewhere").exists()
    assert len(list((tmp_path / "mine").iterdir())) == 1
