"""The pages of the site before they are rendered: copied, linked anew, or generated.

`stage` puts them into a folder that the site generator reads. A link of a source page may name
any file of the repository: another page, a figure, a study, a YAML file. Links to pages stay
links to pages; other files are copied below `files/`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TEXT = {".yaml", ".yml", ".py", ".toml", ".txt", ".cfg", ".md", ""}
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^)\s]+)(\))")
# Where numbers come from is for authors (page_numbers.py).
_SOURCE = re.compile(r"<!-- = .*? -->|<!-- /?block(?:: .*?)? -->\n?", re.DOTALL)
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
# Where pages of the repository's root go.
_ROOT_PAGES = {
    "AGENTS.md": "project/agents.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
}


class BrokenLinkError(Exception):
    """A page links to a file that the repository does not have."""


def stage(target: Path, generated: dict[str, str]) -> None:
    """Fill a folder with every page of the site.

    Args:
        generated: pages made from the code, by path; they link to pages of the site.

    Raises:
        BrokenLinkError: a link names no file; the message has every such link.
    """
    places = _places()
    links = _Links(places, target, frozenset(generated))
    for path, text in generated.items():
        up = "../" * path.count("/")
        _write(target / path, re.sub(r"\bdocs/([\w/]+\.md)", rf"[\1]({up}\1)", text))
    for source, place in places.items():
        relink = partial(links.rewrite, source=source, place=place)
        if source.suffix == ".md":
            text = without_sources(source.read_text("utf-8"))
            _write(target / place, _study_heading(source) + relink(text))
        elif source.suffix == ".ipynb":
            _write(target / place, notebook_page(source, target / place, relink))
        else:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / place)
    if links.broken:
        raise BrokenLinkError("links to files that do not exist:\n" + "\n".join(links.broken))


def without_sources(text: str) -> str:
    """Return a page without the comments that name the queries of its numbers."""
    parts = _FENCE.split(text)
    return "".join(part if i % 2 else _SOURCE.sub("", part) for i, part in enumerate(parts))


def _study_heading(source: Path) -> str:
    """Return a title for a page of a study that has none, and the way back to the study."""
    study = source.with_name("README.md")
    if source.parent.parent != ROOT / "experiments" or source == study or not study.exists():
        return ""
    if source.read_text("utf-8").startswith("# "):
        return ""
    title = study.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    name = source.stem.replace("_", " ")
    return f"# {title.partition(':')[0]}: {name}\n\n[The study](index.md)\n\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _places() -> dict[Path, str]:
    """Return where each file of the repository goes that belongs to the site."""
    places = {ROOT / source: place for source, place in _ROOT_PAGES.items()}
    places.pop(ROOT / "README.md", None)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            place = path.relative_to(ROOT / "docs").as_posix()
            # The overview of the studies is the index of their folder.
            places[path] = "studies/index.md" if place == "studies.md" else place
    for path in sorted((ROOT / "experiments").glob("*/*")):
        if path.suffix in (".md", ".svg", ".png", ".csv"):
            name = "index.md" if path.name == "README.md" else path.name
            places[path] = f"studies/{path.parent.name}/{name}"
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        places[path] = f"notebooks/{path.stem}.md"
    return places


@dataclass
class _Links:
    """The links of pages, from files of the repository to pages of the site.

    Attributes:
        places: the page of each file.
        target: the folder of the site, which files without a page are copied to.
        generated: pages made from the code.
        broken: links that name no file, with their page.
    """

    places: dict[Path, str]
    target: Path
    generated: frozenset[str]
    broken: list[str] = field(default_factory=list)

    def rewrite(self, text: str, source: Path, place: str) -> str:
        """Return a text of a file with the links that its page has at a place of the site."""

        def link(match: re.Match[str]) -> str:
            before, address, after = match.groups()
            path, mark, anchor = address.partition("#")
            if "://" in address or address.startswith(("mailto:", "#")):
                return match[0]
            page = self._page_of(Path(os.path.normpath(source.parent / path)), source)
            if page is None:
                self.broken.append(f"{source.relative_to(ROOT)}: {address}")
                return match[0]
            relative = os.path.relpath(page, Path(place).parent)
            return f"{before}{relative}{mark}{anchor}{after}"

        parts = _FENCE.split(text)
        return "".join(part if i % 2 else _LINK.sub(link, part) for i, part in enumerate(parts))

    def _page_of(self, file: Path, source: Path) -> str | None:
        """Return where a file of the repository is on the site; copies one that has no page."""
        docs = ROOT / "docs"
        if source.is_relative_to(docs) and file.is_relative_to(docs):
            page = file.relative_to(docs).as_posix()
            if page in self.generated:
                return page
        if file == ROOT / "README.md":
            return "index.md"
        if file == ROOT / "experiments":
            return "studies/index.md"
        if file.is_dir() and file / "README.md" in self.places:
            file = file / "README.md"
        if file in self.places:
            return self.places[file]
        if not file.is_file() or not file.is_relative_to(ROOT):
            return None
        name = file.relative_to(ROOT).as_posix()
        # As text, browsers show it.
        place = f"files/{name}.txt" if file.suffix in _TEXT - {".txt"} else f"files/{name}"
        (self.target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, self.target / place)
        return place


def notebook_page(source: Path, page: Path, relink: Callable[[str], str]) -> str:
    """Return an executed notebook as Markdown; its figures are written beside the page.

    Args:
        relink: rewrites the links of a text cell.
    """
    notebook = json.loads(source.read_text("utf-8"))
    parts: list[str] = []
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(relink(text))
            continue
        if cell["cell_type"] != "code" or not text:
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                figure = page.with_name(f"{page.stem}_{number}.png")
                figure.parent.mkdir(parents=True, exist_ok=True)
                figure.write_bytes(base64.b64decode("".join(data["image/png"])))
                parts.append(f"![Output of the cell above]({figure.name})")
                continue
            shown = "".join(output.get("text") or data.get("text/plain") or "").rstrip()
            if shown:
                parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"
