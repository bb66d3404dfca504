"""Run the blocks of documentation pages, and write the output that the pages show.

    python tools/page_blocks.py docs/start.md          compare each page with what its blocks print
    python tools/page_blocks.py --write docs/start.md  put that output and the figures into the page

On a page, ```sh blocks run in one new folder, from top to bottom; `$REPOSITORY` is the folder of
this repository. A ```text block right after one is its output, with "..." in the place of the notes
below a table. A block with a `title="FILE"` is a file that the reader writes. Figures that the page
shows and a block makes are the page's own files. Comments that readers do not see change what runs:

    <!-- set up: COMMANDS -->        run at this place, for example to make the runs that a page has
    <!-- not run: REASON -->         leave the next block out: "it needs ...", "it installs ..."
    <!-- with COMMAND: WORDS -->     append words, such as `steps=2` or `--dry-run`, to each
                                     `advsweep COMMAND` of the next block
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
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_PART = re.compile(
    r"^<!-- (?P<directive>set up|not run|with [a-z, -]+): ?(?P<words>.*?)-->\n"
    r'|^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```\n'
    r"(?P<output>\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_FIGURE = re.compile(r"!\[[^\]]*\]\(([^)/]+\.(?:svg|png))\)")
_NUMBER = re.compile(r"[-+±*†<>]*\d[\d.,:e]*[*†]?|(?<!\S)–(?!\S)")
_DURATION = re.compile(r"# (?:s|min|h)\b")
# Notes below tables name the store, the commit and the machine: pages show "..." instead.
NOTES = re.compile(r"^(?:mean ± half|\S+\.db, sweep ).*\Z", re.MULTILINE | re.DOTALL)


class BlockError(Exception):
    """A block failed, or printed something else than the page shows."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or the commands of a `set up` comment (`hidden`).

    `end` is where the output belongs in the page's text, `reason` why the block is not run,
    `words` what is appended to which commands.
    """

    end: int
    language: str
    code: str
    hidden: bool = False
    title: str | None = None
    shown: str | None = None
    reason: str | None = None
    words: dict[str, str] = field(default_factory=dict)

    def script(self) -> str:
        """Return what bash runs: the code, with `advsweep` as a function if words are appended."""
        if not self.words:
            return self.code
        cases = [f'{name}) command advsweep "$@" {words};;' for name, words in self.words.items()]
        choice = "\n".join([*cases, '*) command advsweep "$@";;'])
        return f'advsweep() {{\ncase "$1" in\n{choice}\nesac\n}}\n{self.code}'


@dataclass(frozen=True)
class Ran:
    """A block that ran, and what it printed."""

    block: Block
    printed: str


def blocks(text: str) -> Iterator[Block]:
    """Return the blocks of a page in their order.

    Raises:
        BlockError: a comment for a block does not stand right before it, or appends
            words to a command that the block does not have.
    """
    comments: list[re.Match[str]] = []
    for part in _PART.finditer(text):
        if part["directive"] == "set up":
            yield Block(part.end(), "sh", part["words"], hidden=True)
        elif part["directive"]:
            comments.append(part)
        else:
            reason, words = None, {}
            for comment in comments:
                between = text[comment.end() : part.start()]
                if (
                    part["language"] not in ("sh", "python")
                    or re.sub(r"<!--.*?-->", "", between).strip()
                ):
                    raise BlockError(f"no ```sh or ```python block follows {comment[0]}")
                if comment["directive"] == "not run":
                    reason = comment["words"].strip()
                    continue
                for name in comment["directive"].removeprefix("with ").split(", "):
                    if not re.search(rf"\badvsweep {name}\b", part["body"]):
                        raise BlockError(f"{comment[0]}no `advsweep {name}` in\n{part['body']}")
                    words[name] = comment["words"].strip()
            comments = []
            yield Block(
                part.end() if part["output"] is None else part.start("output"),
                part["language"],
                part["body"],
                title=part["title"],
                shown=part["shown"],
                reason=reason,
                words=words,
            )
    if comments:
        raise BlockError(f"no ```sh or ```python block follows {comments[-1][0]}")


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
        # Hidden comments train with the backend `fake` of the tests.
        "PYTHONPATH": str(ROOT / "tests" / "installed"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "REPOSITORY": str(ROOT),
    }
    for block in blocks(page.read_text("utf-8")):
        if block.title:
            (folder / block.title).write_text(block.code, "utf-8")
        elif block.language == "sh" and block.reason is None:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", block.script()],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise BlockError(
                    f"{page.name}: exit code {done.returncode} of\n{block.script()}\n{done.stderr}"
                )
            if not block.hidden:
                yield Ran(block, NOTES.sub("...\n", done.stdout))


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
    for each in ran:
        shown = each.block.shown
        if shown is not None and skeleton(shown) != skeleton(each.printed):
            raise BlockError(
                f"{page.name} shows other output than\n{each.block.code}\nprints:\n{each.printed}"
            )
    # The figures of a page whose blocks are all left out, such as a study's, are theirs.
    for name in _FIGURE.findall(page.read_text("utf-8")) if ran else ():
        if not (folder / name).is_file():
            raise BlockError(f"{page.name}: no block makes the figure {name}")
    return len(ran)


def write_page(page: Path, folder: Path) -> None:
    """Put the output of each block, where the page shows one, and the figures into the page."""
    text = page.read_text("utf-8")
    for each in reversed(list(run_page(page, folder))):
        end, shown = each.block.end, each.block.shown
        if shown is not None:
            rest = text[end + len(f"\n```text\n{shown}```\n") :]
            text = f"{text[:end]}\n```text\n{each.printed.rstrip()}\n```\n{rest}"
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
