"""Reads LaTeX as far as its tables go, as no LaTeX is installed where tests run."""

from __future__ import annotations

import re

TABULAR = re.compile(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\n\\end\{tabular\}", re.DOTALL)
COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
RULES = {r"\toprule", r"\midrule", r"\bottomrule"}


def check_latex_tables(text: str) -> int:
    """Each line of a table has its columns and nothing that LaTeX takes for more; returns how many.

    Lines outside of tables are comments or commands of ours.
    """
    lines = 0
    for columns, body in TABULAR.findall(text):
        for line in body.splitlines():
            if line.strip() in RULES:
                continue
            check_line(line, len(columns))
            lines += 1
    outside = TABULAR.sub("", text).splitlines()
    assert {line for line in outside if line and not line.startswith("%")} <= {r"\par\bigskip"}
    return lines


def check_line(line: str, columns: int) -> None:
    assert line.startswith("  ")
    assert line.endswith(r" \\")
    # The command before it would take it for an option.
    assert not line.lstrip().startswith(("[", "*"))
    without_commands = COMMAND.sub("", line)
    assert without_commands.count("&") == columns - 1, line
    assert without_commands.count("$") % 2 == 0, line
    assert not set(without_commands) & set("#_^~%\\"), line
    depth = 0
    for character in without_commands:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0, line
    assert depth == 0, line
