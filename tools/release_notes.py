"""Print what the changelog says of the newest release, or check the release's version.

python tools/release_notes.py                  the notes of the newest release
python tools/release_notes.py --check v0.1.0   fail unless everything has this version
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d\d-\d\d)$", re.MULTILINE)


def main() -> int:
    """Print notes or check a tag; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", metavar="TAG", help="the tag of the release")
    tag = parser.parse_args().check
    if tag is None:
        sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text("utf-8")))
        return 0
    wrong = {where: version for where, version in versions().items() if f"v{version}" != tag}
    for where, version in wrong.items():
        sys.stderr.write(f"{where}: expected version {tag.removeprefix('v')}, got {version}\n")
    return 1 if wrong else 0


def notes(changelog: str) -> str:
    """Return the section of the newest release, without its heading."""
    section = changelog[newest(changelog).end() :]
    return section.partition("\n## ")[0].strip() + "\n"


def newest(changelog: str) -> re.Match[str]:
    """Return the heading of the newest release.

    Raises:
        ValueError: the changelog has no release.
    """
    heading = _HEADING.search(changelog)
    if heading is None:
        raise ValueError("CHANGELOG.md: expected a heading such as '## 0.1.0 - 2026-11-29'")
    return heading


def versions() -> dict[str, str]:
    """Return the version that each file says the release has."""
    package = (ROOT / "advsweep" / "__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    assert found is not None
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    return {
        "advsweep/__init__.py": found[1],
        "CHANGELOG.md": newest((ROOT / "CHANGELOG.md").read_text("utf-8"))["version"],
        "CITATION.cff": citation["version"],
    }


if __name__ == "__main__":
    sys.exit(main())
