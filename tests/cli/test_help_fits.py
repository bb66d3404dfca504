"""The help of every command fits a screen."""

from __future__ import annotations

import pytest
import typer

from advsweep.cli.app import app

ROOT = typer.main.get_command(app)
LINES, COLUMNS = 40, 80


@pytest.mark.parametrize("command", ROOT.list_commands(None))
def test_it_fits_a_screen(in_process, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    code, out, _ = in_process(command, "--help")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)
