"""`advsweep tasks`: every preset can be composed, and a task shows its problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.errors import ConfigError
from advsweep.tasks import TASKS


@pytest.fixture
def call() -> Callable[..., str]:
    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["tasks", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return call


@pytest.fixture
def sums(tmp_path: Path) -> str:
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"{i} + {i}?", "answer": f"#### {2 * i}"} for i in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.slow
def test_every_task_is_listed_and_can_be_built(call: Callable[..., str]) -> None:
    rows: list[dict[str, Any]] = json.loads(call("--format", "json"))
    names = {row["name"] for row in rows}
    assert names >= {"aime24", "aime25", "amc23", "countdown", "gsm8k", "math", "mbpp", "minerva"}
    assert names >= {"dataset", "mmlu_pro", "olympiadbench"}
    assert all(row["description"] for row in rows)
    verifiers = {row["name"]: row["verifier"] for row in rows}
    assert verifiers["countdown"] == ""
    assert verifiers["gsm8k"] == "boxed_math"
    assert verifiers["mmlu_pro"] == "choice"


def test_every_preset_fits_its_fields(conf: Path) -> None:
    import yaml

    for path in sorted((conf / "task").glob("*.yaml")):
        assert TASKS.build(yaml.safe_load(path.read_text())).name


@pytest.fixture
def conf() -> Path:
    from advsweep.config.groups import conf_directory

    return conf_directory()


def test_a_task_shows_its_problems(call: Callable[..., str], sums: str) -> None:
    text = call("show", "gsm8k", "-o", f"data={sums}", "-o", "held_out=2", "--examples", "1")
    assert text.startswith("train: 4 problems\nheld-out: 2 problems\n")
    assert "\n0 + 0?\nPlease reason step by step" in text or "\n1 + 1?\n" in text
    assert text.count("--- gold: ") == 2
    record = json.loads(
        call("show", "file", "-o", f"data={sums}", "-o", "held_out=1", "--format", "json")
    )
    assert record["settings"]["name"] == "dataset"
    assert record["splits"]["train"]["levels"] == {"0": 5}
    assert set(record["splits"]["train"]["examples"][0]["gold"]) == {"answer"}


def test_a_task_shows_its_floors(call: Callable[..., str]) -> None:
    text = call("show", "countdown", "-o", "levels=[0]", "--examples", "0")
    assert "\nfloor guess, uniform expressions over the given digits: pass@1 0." in text
    record = json.loads(call("show", "bandit", "-o", "correct=16", "--format", "json"))
    # 16 of 64 behaviours are correct: 1 - .75^8 = .8999.
    floor = record["floors"]["guess"]
    assert floor["pass@1"] == pytest.approx(0.25)
    assert floor["pass@8"] == pytest.approx(0.8999, abs=1e-4)


def test_reports_unreadable_data_once() -> None:
    done = CliRunner().invoke(app, ["tasks", "show", "gsm8k", "-o", "data=/none"])
    assert isinstance(done.exception, ConfigError)
    assert "there is no '/none'" in str(done.exception)
    assert done.output == ""


def test_a_task_of_ones_own_is_five_lines(
    call: Callable[..., str], sums: str, tmp_path: Path
) -> None:
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "mine.yaml").write_text(
        f"name: file\ndata: {sums}\nheld_out: 2\nverifier: numeric\nprompt: 'Q: {{question}}'\n"
    )
    text = call("show", "mine", "--config-dir", str(tmp_path / "conf"))
    assert "Q: " in text
