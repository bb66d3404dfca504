"""Run the blocks of documentation pages, and write the output that the pages show.

    python tools/page_blocks.py docs/start.md          compare each page with what its blocks print
    python tools/page_blocks.py --write docs/start.md  put that output and the figures into the page

On a page, ```sh blocks run in one new folder, from top to bottom. A ```text block right after one
is its output, with "..." in the place of the notes below a table. A block with a
`title="FILE"` is a file that the reader writes. A comment
`<!-- not run: REASON -->` before a block leaves it out. Figures that the page shows and a block
makes are the page's own files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n\n?)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```\n'
    r"(?P<output>\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_FIGURE = re.compile(r"!\[[^\]]*\]\(([^)/]+\.(?:svg|png))\)")
_NUMBER = re.compile(r"[-+±*†<>]*\d[\d.,:e]*[*†]?|(?<!\S)–(?!\S)")
_DURATION = re.compile(r"# (?:s|min|h)\b")
# Notes below tables name the store, the commit and the machine: pages show "..." instead.
_NOTES = re.compile(r"^(?:mean ± half|\S+\.db, sweep ).*\Z", re.MULTILINE | re.DOTALL)


class BlockError(Exception):
    """A block failed, or printed something else than the page shows."""


@dataclass(frozen=True)
class Ran:
    """A block that ran: its place in the page's text, what it printed, what the page shows."""

    end: int
    code: str
    printed: str
    shown: str | None


def run_page(page: Path, folder: Path) -> Iterator[Ran]:
    """Run the blocks of a page in a folder, one after the other.

    Raises:
        BlockError: a block exits with a code other than 0.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ADVSWEEP")}
    environment |= {
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    text = page.read_text("utf-8")
    for block in _BLOCK.finditer(text):
        if block["skip"]:
            continue
        if block["title"]:
            (folder / block["title"]).write_text(block["body"], "utf-8")
        elif block["language"] == "sh":
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", block["body"]],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise BlockError(
                    f"{page.name}: exit code {done.returncode} of\n{block['body']}\n{done.stderr}"
                )
            end = block.end() if block["output"] is None else block.start("output")
            printed = _NOTES.sub("...\n", done.stdout)
            yield Ran(end, block["body"], printed, block["shown"])


def skeleton(text: str) -> list[str]:
    """Return the lines of an output without numbers, marks and spaces.

    Digits differ between processors, times between machines.
    """
    lines = (re.sub(r"\b[0-9a-f]{8,}\b", "#", line) for line in text.splitlines())
    numbered = (" ".join(_NUMBER.sub("#", line).split()) for line in lines)
    plain = (_DURATION.sub("# s", line) for line in numbered)
    return [re.sub(r"[-─━=]{3,}", "-", line) for line in plain if line]


def check_page(page: Path, folder: Path) -> int:
    """Compare what the blocks of a page print with what it shows; returns how many blocks ran.

    Raises:
        BlockError: a block fails, or its output differs in more than its numbers, or a figure
            of the page is not made.
    """
    ran = list(run_page(page, folder))
    for block in ran:
        if block.shown is not None and skeleton(block.shown) != skeleton(block.printed):
            raise BlockError(
                f"{page.name} shows other output than\n{block.code}\nprints:\n{block.printed}"
            )
    for name in _FIGURE.findall(page.read_text("utf-8")):
        if not (folder / name).is_file():
            raise BlockError(f"{page.name}: no block makes the figure {name}")
    return len(ran)


def write_page(page: Path, folder: Path) -> None:
    """Put the output of each block, where the page shows one, and the figures into the page."""
    text = page.read_text("utf-8")
    for block in reversed(list(run_page(page, folder))):
        if block.shown is not None:
            rest = text[block.end + len(f"\n```text\n{block.shown}```\n") :]
            text = f"{text[: block.end]}\n```text\n{block.printed.rstrip()}\n```\n{rest}"
    page.write_text(text, "utf-8")
    for name in _FIGURE.findall(text):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, page.with_name(name))


def main() -> int:
    """Check or write the named pages; returns the exit code."""
    parser = argparse.ArgumentParser(description="Run the blocks of documentation pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write output and figures")
    options = parser.parse_args()
    for page in options.pages:
        with tempfile.TemporaryDirectory() as folder:
            if options.write:
                write_page(page, Path(folder))
            else:
                check_page(page, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
