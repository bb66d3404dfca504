"""Runs of the command backend whose command is `trainer.py`."""

import os
from pathlib import Path

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.command import template as consent
from advsweep.backends.command.backend import Command

TRAINER = Path(__file__).with_name("trainer.py")

TEMPLATE = {
    "command": [
        *("{python}", "-I", "-S", str(TRAINER)),
        *("--estimator", "{estimator.name}", "--seed", "{seed}", "--steps", "{steps}"),
        *("--output", "{directory}", "--mode", "{parameters.mode}"),
        *("--delay", "{parameters.delay}"),
    ],
    "parameters": {"mode": "", "delay": 0.02},
    "metrics": {"names": "trl"},
    "checkpoints": {
        "glob": "checkpoint-*",
        "step": r"^checkpoint-(\d+)$",
        "complete": "state.json",
        "resume": ["--resume", "{checkpoint}"],
    },
    "stop": {"grace": 3},
}


def lives(pid):
    """Whether a process exists and is no zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[0] not in "ZX"


def processes_with(*texts):
    """The living processes whose command line holds all texts."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if all(text.encode() in line for text in texts) and lives(int(entry.name)):
                found.append(int(entry.name))
    return found


@pytest.fixture
def command_node(tmp_path, monkeypatch):
    """`command_node(changes, mode=...)`: a backend's node as the planner makes it."""
    # Consent is an environment variable; it must not outlive the test.
    monkeypatch.setenv(consent.COMMANDS, "{}")

    def make(changes=None, **parameters):
        content = {k: v for k, v in {**TEMPLATE, **(changes or {})}.items() if v is not None}
        file = tmp_path / "mine.yaml"
        consent.allow_template(content, str(file), str(tmp_path))
        return {
            "name": Command.name,
            "template": str(file),
            "folder": str(tmp_path),
            "content": content,
            "parameters": parameters,
        }

    return make


@pytest.fixture
def command_run(command_node):
    """`command_run(changes, config, mode=...)`: a run of six steps."""

    def make(changes=None, config=None, **parameters):
        node = command_node(changes, **parameters)
        base = {"backend": node, "estimator": {"name": "grpo"}, "seed": 1, "steps": 6}
        return build_run({**base, **(config or {})})

    return make
