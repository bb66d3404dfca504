"""What the YAML files of a config group say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def first_comment(group: str, name: str, folders: Sequence[Path]) -> str:
    """The first comment of a member's file in the first folder that has it; none: empty."""
    paths = (folder / group / f"{name}.yaml" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    text = path.read_text(encoding="utf-8") if path else ""
    comments = (line.removeprefix("#").strip() for line in text.splitlines() if line[:1] == "#")
    return next((c for c in comments if not c.startswith("@package")), "")
