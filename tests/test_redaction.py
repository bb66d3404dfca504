"""Secrets in command lines are masked, and nothing else is."""

from __future__ import annotations

import pytest

from advsweep.printable import redacted, redacted_arguments, redacted_command

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
