"""The exceptions from the rules on long functions, in `pyproject.toml`, only become fewer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("advsweep", "benchmarks", "contrib", "examples", "experiments", "tools")
RULES = {"C901", "PLR0912", "PLR0913", "PLR0915"}


@pytest.fixture(scope="module")
def findings() -> dict[str, set[str]]:
    """The rules that each file breaks, without the exceptions of `pyproject.toml`."""
    command = [sys.executable, "-m", "ruff", "check", ".", "--no-cache", "--exit-zero"]
    command += ["--output-format=json", f"--select={','.join(sorted(RULES))}"]
    command += ["--config", "lint.per-file-ignores = {}"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    broken: dict[str, set[str]] = {}
    for finding in json.loads(checked.stdout):
        path = Path(finding["filename"]).relative_to(ROOT).as_posix()
        broken.setdefault(path, set()).add(finding["code"])
    return broken


def exceptions() -> dict[str, set[str]]:
    """The rules that `pyproject.toml` excepts each file from; patterns for folders are no part."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        ignored = tomllib.load(file)["tool"]["ruff"]["lint"]["per-file-ignores"]
    return {path: set(rules) for path, rules in ignored.items() if "*" not in path}


def test_every_exception_is_needed(findings):
    advice = []
    for path, rules in exceptions().items():
        unneeded = (rules & RULES) - findings.get(path, set())
        if unneeded and unneeded == rules:
            advice.append(f'delete the line of "{path}"')
        elif unneeded:
            advice.append(f'delete {", ".join(sorted(unneeded))} from the line of "{path}"')
    assert advice == [], "\n".join(["In per-file-ignores of pyproject.toml:", *advice])


def test_no_comment_excuses_a_long_function():
    """`noqa` would hide a function from the list."""
    comment = re.compile(r"noqa:.*\b(C901|PLR09)")
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in files if comment.search(path.read_text("utf-8"))] == []
