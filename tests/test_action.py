"""The GitHub Action: its steps run here as a runner of GitHub would run them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import INSTALLED

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = ACTION["runs"]["steps"]
FAKE = "backend=fake\nsteps=12\nevaluation.n=16\nevaluation.k=[1,8]\nexecutor=debug\n"
HOSTILE = "::error::x $(touch pwned) `touch pwned` \"; touch pwned; ' <b>b</b> | ```"


@dataclass
class Done:
    """What the steps of the action left.

    Attributes:
        code: the exit code of the step that failed; 0 if none did.
        log: everything that they printed.
    """

    code: int
    log: str
    outputs: dict[str, str]
    summary: str


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The runner's folder, with advsweep installed into it by the action's own step."""
    folder = tmp_path_factory.mktemp("runner")
    # The packages that advsweep needs are there already: pip builds and installs advsweep alone.
    done = _run_steps(
        {"torch": ""}, folder, folder, only="install", PIP_NO_DEPS="1", PIP_NO_BUILD_ISOLATION="0"
    )
    assert done.code == 0, done.log
    assert (folder / "advsweep" / "bin" / "advsweep").is_file()
    assert done.outputs == {
        "store": str(folder / "advsweep.db"),
        "runs": str(folder / "advsweep-runs"),
    }
    return folder


@pytest.fixture
def action(temporary, tmp_path):
    """`action(INPUT=VALUE, ...)`: runs what follows the installation in an empty workspace."""

    def started(**inputs: str) -> Done:
        return _run_steps(inputs, temporary, tmp_path, only="run")

    return started


def _run_steps(
    inputs: dict[str, str], temporary: Path, workspace: Path, *, only: str, **environment: str
) -> Done:
    values = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
    assert inputs.keys() <= values.keys()
    [step] = [step for step in STEPS if step.get("id") == only]
    assert step["shell"] == "bash"
    values |= inputs
    files = {name: workspace / f".{name}" for name in ("output", "summary", "script")}
    files["output"].write_text("")
    files["summary"].write_text("")
    files["script"].write_text(step["run"])
    # A virtual environment of its own finds the packages that these tests run with.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", files["script"]],
        cwd=workspace / _expand(step["working-directory"], values),
        env={
            "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
            "HOME": str(temporary),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([*packages, str(INSTALLED)]),
            "RUNNER_TEMP": str(temporary),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_WORKSPACE": str(workspace),
            "GITHUB_OUTPUT": str(files["output"]),
            "GITHUB_STEP_SUMMARY": str(files["summary"]),
            **{name: _expand(text, values) for name, text in step["env"].items()},
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    outputs = dict(_outputs(files["output"].read_text("utf-8")))
    return Done(done.returncode, done.stdout, outputs, files["summary"].read_text("utf-8"))


def _expand(text: str, inputs: dict[str, str]) -> str:
    """Put the inputs in place of `${{ inputs.NAME }}`; any other expression fails."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda m: inputs[m[1].strip().split("inputs.")[1]], text)


def _outputs(text: str) -> Iterator[tuple[str, str]]:
    lines = iter(text.splitlines())
    for line in lines:
        key, _, mark = line.partition("<<")
        yield key, "\n".join(itertools.takewhile(lambda line: line != mark, lines))  # noqa: B023


def test_no_input_is_part_of_a_script():
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert scripts
    assert not any("${{" in script for script in scripts)
    for step in STEPS:
        for text in step.get("env", {}).values():
            assert re.fullmatch(r"\$\{\{ inputs\.[a-z-]+ \}\}", text)


def test_every_input_is_described_and_used():
    used = set(re.findall(r"inputs\.([a-z-]+)", str(STEPS)))
    assert used == set(ACTION["inputs"])
    for name, given in [*ACTION["inputs"].items(), *ACTION["outputs"].items()]:
        assert given["description"].endswith("."), name
    assert all(isinstance(given["default"], str) for given in ACTION["inputs"].values())


def test_documented_workflow_fits_the_action():
    text = (ROOT / "docs" / "ci.md").read_text("utf-8")
    workflows = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S)]
    steps = [
        step
        for workflow in workflows
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "advsweep" in step.get("uses", "")
    ]
    assert steps
    for step in steps:
        assert step["with"].keys() <= ACTION["inputs"].keys()
    for name in [*ACTION["inputs"], *ACTION["outputs"]]:
        assert f"| `{name}` |" in text


@pytest.mark.slow
def test_sweep_is_trained_judged_and_resumed(action, tmp_path):
    (tmp_path / "sweep.yaml").write_text(
        "sweep: {name: ours, seeds: 3, blocks: [{estimator: [grpo, fade]}]}"
    )
    sweep = {"sweep": f"sweep.yaml\n{FAKE}", "jobs": "2"}
    done = action(**sweep, **{"assert": "pass@1[grpo] >= pass@1[base] - 1\n"})
    assert done.code == 0, done.log
    assert "| grpo | 3 |" in done.summary
    assert "\n    holds: pass@1[grpo] >= pass@1[base] - 1" in done.summary
    assert done.outputs["sweep"] == "ours"
    assert "<html" in Path(done.outputs["report"]).read_text("utf-8")
    assert Path(done.outputs["table"]).read_text("utf-8") == done.summary
    assert "run 1 (grpo seed=0) done" in done.log
    # Where the steps that keep and upload them look.
    assert (tmp_path / "advsweep.db").is_file()
    assert (tmp_path / "advsweep-runs").is_dir()
    wanted = set(re.findall(r"steps\.run\.outputs\.(\w+)", str(ACTION)))
    assert done.outputs.keys() == wanted

    failing = action(**sweep, **{"assert": "pass@1[grpo] >= pass@1[base] + 1"}, columns="pass@8")
    assert failing.code == 1
    assert "run 1 (grpo" not in failing.log, "nothing is trained twice"
    assert "| estimator | n | p@8 |" in failing.summary
    assert "\n    contradicted: pass@1[grpo] >= pass@1[base] + 1" in failing.summary


@pytest.mark.slow
def test_hostile_texts_are_no_code(action, tmp_path):
    named = action(sweep=f"estimator=grpo\n{FAKE}", name=HOSTILE)
    assert named.code == 0, named.log
    assert named.outputs["sweep"] == HOSTILE
    stored = action(where=f"sweep='{HOSTILE}'", **{"assert": HOSTILE})
    assert stored.code == 2
    taken = action(baseline="none")  # a store that says such things, and no input that does
    assert taken.code == 0, taken.log
    assert "<b>" not in taken.summary
    refused = action(sweep=f"--run-code\n{HOSTILE}\n--store=other.db")
    assert refused.code == 2
    assert "ended with exit code 2" in refused.summary
    for done in (named, stored, taken, refused):
        first, *_, last = done.log.splitlines()
        token = first.removeprefix("::stop-commands::")
        assert len(token) == 32
        assert last == f"::{token}::"
        assert "\n```" not in done.summary
    assert not list(tmp_path.rglob("pwned"))
    assert not (tmp_path / "other.db").exists()


@pytest.mark.slow
def test_missing_store_is_named_in_the_summary(action):
    done = action(store="none.db")
    assert done.code == 2
    assert "\n    advsweep: there is no store at none.db" in done.summary
    assert done.outputs["report"] == ""
