"""The example of docs/command.md works as it is printed, and the page names every key."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from advsweep.backends.command import template as consent
from advsweep.backends.command.arguments import RUNTIME
from advsweep.backends.command.template import Template, builtin_templates
from advsweep.store import open_store
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def block(language: str) -> str:
    (found,) = re.findall(
        rf"^```{language} title=.*?\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S
    )
    return str(found)


def test_the_example_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(consent.COMMANDS, "{}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(block("yaml"))
    (tmp_path / "train.py").write_text(block("python"))
    fixed = ["backend=command", "backend.template=mine.yaml", "executor=debug", "steps=10"]
    with open_store(str(tmp_path / "store.db")) as store:
        outcome = execute(make_plan([*fixed, "seed=0"]), store, jobs=1, policy=Policy(retries=0))
        assert outcome.done == 1, outcome.failed
        [run_id] = outcome.run_ids
        assert store.metrics.series([run_id], "reward/mean")[run_id][1].tolist()[-1] == 1.0
        assert [c.step for c in store.checkpoints.select(run_id)] == [5, 10]


def test_every_key_and_placeholder_is_described() -> None:
    text = PAGE.read_text("utf-8")
    keys = {field.name for field in dataclasses.fields(Template)}
    described = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert keys <= set(described)
    assert set(builtin_templates()) <= set(described)
    assert all(f"{{{name}}}" in text for name in RUNTIME)
