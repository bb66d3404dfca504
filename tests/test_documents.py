"""The documents for contributors name files and packages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / name for name in ("AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
]
# NAME and FAMILY stand for a name that the reader chooses.
PLACEHOLDERS = re.compile(r"NAME|FAMILY|\*")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_exists(document):
    paths = re.findall(r"`((?:advsweep|tests|conf|docs)/[^` ]*)`", document.read_text("utf-8"))
    assert paths
    missing = [p for p in paths if not PLACEHOLDERS.search(p) and not (ROOT / p).exists()]
    assert missing == []


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for document in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)", document.read_text("utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (document.name, target)


def test_every_class_exists():
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "advsweep").rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    types = {"Float"}  # of jaxtyping
    for document in DOCUMENTS:
        named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)\b", document.read_text("utf-8")))
        assert named <= classes | types, document.name
