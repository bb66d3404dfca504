"""The instructions for coding agents: where they are, and that what they say works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import page_blocks
import pytest
import yaml

from advsweep.cli.commands.doctor import SKILL
from advsweep.cli.json_documents import find_document


def test_doctor_prints_where_the_skill_is(succeeds):
    place, _ = succeeds("doctor", "--skill")
    text = Path(place.strip()).read_text("utf-8")
    _, front, body = text.split("---\n", 2)
    about = yaml.safe_load(front)
    assert about.keys() == {"name", "description"}
    assert about["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", about["name"])
    assert len(about["description"]) <= 1024
    assert len(body.splitlines()) < 100


def test_the_place_of_the_skill_is_no_document(refused):
    refused(["--skill", "--format json"], "doctor", "--skill", "--format", "json")


@pytest.mark.slow
def test_the_commands_of_the_skill_compare_two_estimators(succeeds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [file, commands] = [
        block
        for block in page_blocks.blocks(SKILL.read_text("utf-8"))
        if block.language in ("yaml", "sh") and not block.hidden
    ]
    # The bandit trains in a tenth of a second.
    spec = yaml.safe_load(file.code)
    spec["steps"] = 2
    spec["sweep"]["common"] = {
        "backend": "bandit",
        "task": "bandit",
        "model": "table",
        "optimizer": "sgd",
        "executor": "debug",
    }
    spec["sweep"]["seeds"] = 2
    assert file.title is not None
    Path(file.title).write_text(yaml.safe_dump(spec))
    printed = {}
    for line in commands.code.splitlines():
        _, *words = shlex.split(line)
        printed[words[0], "--dry-run" in words] = succeeds(*words)[0]
    assert list(printed) == [
        ("doctor", False),
        ("sweep", True),
        ("sweep", False),
        ("status", False),
        ("report", False),
    ]
    report = json.loads(printed["report", False])
    groups = [row["group"] for row in report["rows"]]
    assert {"rloo", "psr", "base", "guess"} <= {group["estimator"] for group in groups}
    assert len(json.loads(printed["status", False])["tuning"]["arms"]) == 2


def test_every_key_that_the_skill_names_is_in_a_schema():
    named = set(re.findall(r"`([a-z][a-z_.]*)`", SKILL.read_text("utf-8")))
    schemas = [find_document(n).schema() for n in ("doctor", "sweep-plan", "status", "report")]
    known = set(re.findall(r'"(\w+)"', json.dumps(schemas)))
    # Commands, rows and estimators.
    others = {"advsweep", "doctor", "status", "report", "base", "guess"}
    assert {part for name in named - others for part in name.split(".")} <= known
