"""What a command loads: the commands that only read must never load torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# `torch` itself may be there without having been executed (advsweep/cli/deferred_torch.py).
TORCH = "torch._C"
HEAVY = (TORCH, "hydra", "matplotlib", "transformers", "trl", "vllm", "scipy.stats")
TABLES = ("numpy", "scipy", "pandas", "rich", "alembic", "sqlalchemy.orm", *HEAVY)
"""What a command that only lists or prints records has no use for."""
OTHER_COMMANDS = (
    *(f"advsweep.cli.commands.{name}" for name in ("sweep", "report", "plot", "describe")),
    "advsweep.cli.estimators",
)
COMPONENTS = ("advsweep.components", "advsweep.sources", "advsweep.yaml_files", "hashlib")
"""What only commands that build something have a use for."""
LIGHT = {
    "--help": ("sqlalchemy", "pydantic", *OTHER_COMMANDS, *TABLES, *COMPONENTS),
    "ls": (*OTHER_COMMANDS, *TABLES),
    "status two": (*OTHER_COMMANDS, *TABLES),
    "show last": ("pandas", "rich", *OTHER_COMMANDS, *HEAVY),
    "logs last": (*OTHER_COMMANDS, *TABLES),
    "report two": HEAVY,
    "report two --format html": HEAVY,
    "plot two --figure acr --format csv": HEAVY,
    "stop two": ("pandas", *HEAVY),
    **{
        command: tuple(module for module in HEAVY if module != "hydra")
        for command in (
            "list",
            "list tasks",
            "list estimators",
            "list objectives",
            "list methods",
            "keys estimator=fade",
            "keys objective",
            "keys optimizer",
            "describe adamw",
            "describe countdown",
            "describe method=dapo",
        )
    },
    "doctor": ("pandas", "rich", "ray", "wandb", *HEAVY),
    # This needs torch; nothing of it is drawn, composed or stored.
    "describe grpo --format csv": ("matplotlib", "pandas", "rich"),
    # These load every component, and torch with the first that uses a submodule of it.
    "keys learning rate": ("matplotlib", "pandas"),
    "describe trl": ("matplotlib", "pandas"),
    **{f"{name} --help": ("sqlalchemy", *TABLES) for name in ("run", "sweep", "report")},
    # A command of each module shows its help without what it works with.
    **{
        f"{name} --help": ("pandas", "rich", "wandb", *HEAVY)
        for name in ("plot", "status", "export", "keys", "doctor", "describe")
    },
}


SLOW = (
    "report two --format html",
    "describe grpo --format csv",
    "doctor",
    "keys learning rate",
    "describe trl",
)


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in LIGHT],
)
def test_reading_commands_load_nothing_heavy(command, fake_folder):
    assert_absent(LIGHT[command], command.split(), fake_folder)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ("re", ("sqlalchemy", *OTHER_COMMANDS, *TABLES)),
        ("status ", (*OTHER_COMMANDS, *TABLES)),
        ("show ", (*OTHER_COMMANDS, *TABLES)),
    ],
)
def test_completion_loads_nothing_heavy(words, absent, fake_folder):
    """Of a command's name, a sweep and a run."""
    environment = {
        "_ADVSWEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": f"advsweep {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    assert assert_absent(absent, [], fake_folder, **environment)


def assert_absent(modules, words, folder, **environment):
    """Runs a command, checks that it did not import some modules, and returns its output."""
    program = (
        "import sys; from advsweep.cli import main\n"
        f"sys.argv = ['advsweep', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"loaded = [m for m in {tuple(modules)!r} if m in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


USES = {
    "an attribute": "assert torch.ones(2).sum() == 2",
    "a submodule": "import torch.nn.functional as F; assert F is torch.nn.functional",
    "a submodule that can be executed only once": "import torch.distributed as d; d.Store",
    "a search": "import importlib.util as u; assert u.find_spec('torch.distributed').origin",
    "a name": "from torch import Tensor; assert isinstance(torch.ones(1), Tensor)",
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_torch_is_itself_once_it_is_used(use):
    program = f"""
import sys
from advsweep.cli.deferred_torch import defer_torch
finders = list(sys.meta_path)
defer_torch()
defer_torch()
import torch
assert {TORCH!r} not in sys.modules
{USES[use]}
import torch.nn, torch.utils.data
assert torch is sys.modules["torch"]
assert torch.nn is sys.modules["torch.nn"]
assert torch.distributed.__spec__.loader.path.endswith("__init__.py")
assert torch.nn.__spec__.loader.path.endswith("__init__.py")
assert type(torch) is type(sys)
assert sys.meta_path == finders
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_torch_that_cannot_be_executed_fails_at_every_import(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("half = 1\nimport absent_library\n")
    program = """
from advsweep.cli.deferred_torch import defer_torch
defer_torch()
import torch
for _ in range(2):
    try:
        import torch
        torch.ones
    except ModuleNotFoundError as error:
        assert error.name == "absent_library"
    else:
        raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
