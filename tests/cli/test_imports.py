"""What a command loads: the commands that only read must never load torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "hydra", "matplotlib", "transformers", "trl", "vllm", "scipy.stats")
LIGHT = {
    "--help": ("pandas", "sqlalchemy", "rich", "textual", "numpy", *HEAVY),
    "ls": ("pandas", *HEAVY),
    "status two": ("pandas", "rich", "textual", *HEAVY),
    "show last": ("pandas", *HEAVY),
    "metrics last": ("pandas", *HEAVY),
    "report two": ("pandas", *HEAVY),
    "report two --format json": ("pandas", *HEAVY),
    "report two --format html": ("pandas", *HEAVY),
    "plot --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "plot --list": ("pandas", *HEAVY),
    "plot two --figure acr --format csv": ("pandas", *HEAVY),
    "logs last --follow": ("pandas", *HEAVY),
    "stop two": ("pandas", *HEAVY),
    "sync --help": ("pandas", "sqlalchemy", "rich", "numpy", "wandb", "tensorboard", *HEAVY),
    "export --help": ("pandas", "pyarrow", "sqlalchemy", "rich", "numpy", "wandb", *HEAVY),
    "methods": tuple(module for module in HEAVY if module != "hydra"),
    "tasks": tuple(module for module in HEAVY if module != "hydra"),
    "keys --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "schema --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "init --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "doctor --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "doctor": ("pandas", "rich", "ray", "wandb", *HEAVY),
    "import --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "plugins --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "plugins --no-load": ("pandas", "rich", *HEAVY),
    "plan --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "estimators --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "replay --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    "estimators plot --help": ("pandas", "sqlalchemy", "rich", "numpy", *HEAVY),
    # These need torch; nothing of it is drawn, composed or stored.
    "estimators": ("matplotlib", "hydra", "pandas", "sqlalchemy", "rich"),
    "estimators plot grpo --format csv": ("matplotlib", "pandas", "sqlalchemy", "rich"),
}


SLOW = (
    "report two --format json",
    "report two --format html",
    "estimators plot grpo --format csv",
    "doctor",
)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in LIGHT],
)
def test_reading_commands_load_nothing_heavy(command, fake_folder):
    program = (
        "import sys; from advsweep.cli import main\n"
        f"sys.argv = ['advsweep', *{command.split()!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"loaded = [m for m in {LIGHT[command]!r} if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=fake_folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
