"""Secrets in command lines are masked, and nothing else is."""

from __future__ import annotations

import pytest

from advsweep.printable import (
    is_secret_setting,
    redacted,
    redacted_arguments,
    redacted_command,
    redacted_message,
)

pytestmark = pytest.mark.security


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("postgresql://ann:CANARY@host/runs", "postgresql://ann:***@host/runs"),
        ("postgresql+pg8000://ann:CANARY@host/runs", "postgresql+pg8000://ann:***@host/runs"),
        ("--store=postgresql://ann:CA/NA RY@host/runs", "--store=postgresql://ann:***@host/runs"),
        ("postgresql://ann:CA@NARY@host/runs", "postgresql://ann:***@host/runs"),
        ("postgresql://:CANARY@host/runs", "postgresql://:***@host/runs"),
        (
            "postgresql://ann@host/runs?password=CA#NA;RY&sslmode=require",
            "postgresql://ann@host/runs?password=***&sslmode=require",
        ),
        # URLs that are mistyped.
        ("postgresql:/ann:CANARY@host/runs", "postgresql:/ann:***@host/runs"),
        ("postgresql//ann:CANARY@host/runs", "postgresql//ann:***@host/runs"),
        ("ann:CANARY@host/runs", "ann:***@host/runs"),
        ("--store=ann:CANARY@host", "--store=ann:***@host"),
        ("host=db password=CANARY", "host=db password=***"),
        ("postgresql://host/runs?sslpassword=CANARY", "postgresql://host/runs?sslpassword=***"),
        ("postgresql://host/runs?p%61ssword=CANARY", "postgresql://host/runs?p%61ssword=***"),
        ("https://CANARY@example.org/models", "https://***@example.org/models"),
        ("tracking.uri=https://host/run?token=CANARY", "tracking.uri=https://host/run?token=***"),
        ("HF_TOKEN=CANARY", "HF_TOKEN=***"),
        ("WANDB_API_KEY=CANARY", "WANDB_API_KEY=***"),
        ("+tracking.api_key=CANARY,CANARY", "+tracking.api_key=***"),
        ("tracking={name:wandb,api_key:CANARY}", "tracking={name:wandb,api_key:***"),
        ("tracking={name: wandb, 'api_key': 'CANARY'}", "tracking={name: wandb, 'api_key': ***"),
        ("executor.setup=[export HF_TOKEN=CANARY]", "executor.setup=[export HF_TOKEN=***"),
        ("--db-Password=CANARY", "--db-Password=***"),
    ],
)
def test_a_secret_is_masked(argument, expected):
    assert redacted(argument) == expected
    command = redacted_arguments(["advsweep", "run", argument])
    assert not {"CA", "NA", "RY"} & set(command.replace(",", " ").split())
    assert "CANARY" not in command
    assert redacted_command(command) == command


@pytest.mark.parametrize(
    "argument",
    [
        "advsweep.db",
        "sqlite:////data/a@b:c/runs.db",
        "postgresql://ann@host:5432/runs?sslmode=require",
        "ray://10.0.0.1:10001",
        "estimator=grpo,fade",
        "optimizer.lr=1e-4",
        "task.max_tokens=512",
        "model.pad_token=<pad>",
        "tracking={name:wandb,project:keys}",
        "--where",
        "estimator=fade pass@1>0.3",
    ],
)
def test_what_is_no_secret_stays(argument):
    assert redacted(argument) == argument


def test_the_value_of_an_option_is_the_next_argument():
    arguments = ["advsweep", "--api-key", "CANARY", "--store", "a.db"]
    assert redacted_arguments(arguments) == "advsweep --api-key '***' --store a.db"


@pytest.mark.parametrize(
    ("message", "arguments", "expected"),
    [
        ("no store at ann:CANARY@host", ["ann:CANARY@host"], "no store at ann:***@host"),
        # A part of the argument, quoted as Python, as a shell and as a URL writes it.
        ("got 'CANARY'; try again", ["--api-key=CANARY"], "got '***'; try again"),
        ("password CAN ARY", ["postgresql://a:CAN%20ARY@h/d"], "password ***"),
        ("got CANARY", ["tracking={name: x, api_key: 'CANARY'}"], "got ***"),
        # A short secret is masked where the whole argument is quoted alone.
        ("ab: a store at u:ab@host", ["u:ab@host"], "ab: a store at u:***@host"),
        ("nothing to hide", ["report", "demo"], "nothing to hide"),
    ],
)
def test_messages_do_not_quote_the_secrets_of_arguments(message, arguments, expected):
    assert redacted_message(message, arguments) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PGPASSWORD", "api_key", "API-KEY", "openai_api_key", "hf_token", "token"),
        *("client_secret", "AWS_SECRET_ACCESS_KEY", "wandb_api_key", "credentials", "private_key"),
    ],
)
def test_settings_that_hold_secrets(name):
    assert is_secret_setting(name)


@pytest.mark.parametrize(
    "name",
    ["prompt_key", "reward_fn_key", "max_tokens", "eos_token", "pad_token", "tokens", "key", "lr"],
)
def test_settings_of_similar_names_hold_none(name):
    assert not is_secret_setting(name)
