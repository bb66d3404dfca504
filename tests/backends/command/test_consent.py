"""A store never chooses what is started."""

import json

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.command import template as consent
from advsweep.errors import ConfigError

pytestmark = pytest.mark.security


def test_a_command_that_only_a_store_names_is_not_started(
    command_run, train, monkeypatch, tmp_path
):
    run = command_run()
    run.backend.check_consent()
    monkeypatch.setenv(consent.COMMANDS, "{}")
    stored = build_run(json.loads(json.dumps(run.plain())))
    for act in (stored.backend.check_consent, lambda: train(stored, tmp_path)):
        with pytest.raises(ConfigError, match=r"store does not choose.*--trust-store"):
            act()
    assert not (tmp_path / "output").exists()


def test_another_command_than_the_named_one_is_not_started(command_run):
    """Consent is to a content: a store cannot put another one behind the name of a file."""
    config = command_run().plain()
    content = {**config["backend"]["content"], "command": ["rm", "{seed}", "{steps}"]}
    content["fixed"] = {"estimator": "grpo"}
    config["backend"] = {**config["backend"], "content": content, "parameters": {}}
    content.pop("parameters")
    with pytest.raises(ConfigError, match="store"):
        build_run(config).backend.check_consent()


def test_the_working_folder_is_that_of_the_command_line(command_run, tmp_path):
    """`python train.py` in a folder that a store names would be another program."""
    config = command_run().plain()
    config["backend"] = {**config["backend"], "folder": "/elsewhere", "template": "/elsewhere/t"}
    backend = build_run(config).backend
    assert backend.places()["folder"] == str(tmp_path)
    assert not backend.places()["template"].startswith("/elsewhere")


def test_a_trusted_store_names_commands(command_run, monkeypatch):
    config = command_run().plain()
    monkeypatch.setenv(consent.COMMANDS, "{}")
    consent.allow_stored_templates()
    backend = build_run(config).backend
    backend.check_consent()
    assert backend.places()["folder"] == config["backend"]["folder"]


def test_a_template_in_a_store_is_never_read_as_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("command: x {estimator.name} {seed} {steps}\n")
    node = {"name": "command", "template": str(file)}
    with pytest.raises(ConfigError, match=r"backend\.template=FILE"):
        build_run({"backend": node, "estimator": "grpo", "seed": 0, "steps": 1})
