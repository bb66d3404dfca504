"""What holds for every reader of logs, found through the registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from advsweep.cli.commands.import_ import import_
from advsweep.logs import READERS
from advsweep.logs.names import TABLES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", READERS.names())
def test_its_table_of_names_exists(name):
    reader = READERS.get(name)
    assert reader.name == name
    assert reader.table in TABLES, (
        f"{reader.__name__}: write advsweep/logs/names/{reader.table}.yaml, with at least\n"
        '    step: ["step"]\n    include: [trl]'
    )


@pytest.mark.parametrize("name", sorted(READERS.modules))
def test_it_is_documented(name):
    """In the page of imports, or of commands that train if it can do nothing else."""
    pages = "".join((DOCS / page).read_text("utf-8") for page in ("importing.md", "command.md"))
    assert f"`{name}`" in pages, (
        "add to the table of formats in docs/importing.md\n"
        f"    | `{name}` | what SOURCE is, and what it holds |"
    )
    (argument,) = get_type_hints(import_, include_extras=True)["form"].__metadata__
    assert name in (*re.findall(r"[\w-]+", argument.help), "pattern"), (
        f"name {name} in the help of `form` in advsweep/cli/commands/import_.py"
    )
