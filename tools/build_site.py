"""Build the documentation site: `make docs`.

Stages the pages (`site_pages`), makes the reference from the code (`site_reference`,
`site_estimators`, `site_objectives`), adds the pages of components to the navigation and renders
all with Zensical. Then writes `llms.txt`, puts tables behind prose in the search (`site_search`)
and checks every link, anchor and loaded file of the rendered pages. Needs the extra `docs`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from site_estimators import estimator_pages
from site_llms import write_llms
from site_objectives import objective_pages
from site_pages import ROOT, stage
from site_reference import reference_pages
from site_search import improve_index

SOURCE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIG = ROOT / "build" / "mkdocs.yml"
# Overviews of components, after which the navigation has the page of each.
OVERVIEWS = ("reference/estimators/index.md", "reference/objectives/index.md")


def main() -> int:
    """Build the site into build/site; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the documentation site into build/site.")
    parser.add_argument("--no-figures", action="store_true", help="draw no masses (15 s less)")
    options = parser.parse_args()
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    estimators, objectives = (
        None if options.no_figures else SOURCE / Path(overview).parent for overview in OVERVIEWS
    )
    pages = reference_pages() | estimator_pages(estimators) | objective_pages(objectives)
    stage(SOURCE, {f"reference/{path}": text for path, text in pages.items()})
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    config.update(docs_dir=SOURCE.name, site_dir=SITE.name)
    config["nav"] = with_components(config["nav"], [f"reference/{path}" for path in pages])
    CONFIG.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f"]
    done = subprocess.run(
        [*command, str(CONFIG)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    if done.returncode:
        return done.returncode
    write_llms(config, SOURCE, SITE)
    improve_index(SITE)
    missing = missing_files(SITE)
    if missing:
        lines = "\n".join(missing)
        sys.stderr.write(f"what pages link to or load and the site lacks:\n{lines}\n")
        return 1
    sys.stdout.write(f"open {(SITE / 'index.html').relative_to(ROOT)}\n")
    return 0


def with_components(nav: list[Any], pages: Collection[str]) -> list[Any]:
    """Return a navigation whose overviews of components are followed by the page of each."""
    filled: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            [(title, below)] = entry.items()
            entry = {title: with_components(below, pages)} if isinstance(below, list) else entry
        filled.append(entry)
        if entry in OVERVIEWS:
            own = (path for path in pages if Path(path).parent == Path(entry).parent)
            filled += [{Path(path).stem: path} for path in sorted(own) if path != entry]
    return filled


def missing_files(site: Path) -> list[str]:
    """Return what pages of a built site load or link to and the site does not have.

    Anchors count. Addresses of other hosts count if a page loads them, since the site works
    without a network.
    """
    missing = []
    site = site.resolve()
    identifier = re.compile(r"<[^>]*?\sid=[\"']?([^\"'\s>]+)")
    texts = {page: page.read_text("utf-8") for page in site.rglob("*.html")}
    anchors = {page: set(identifier.findall(text)) for page, text in texts.items()}
    for page, text in texts.items():
        for kind, address in re.findall(r"<(\w+)\b[^>]*?\s(?:href|src)=[\"']?([^\"'\s>]+)", text):
            path, _, anchor = address.partition("#")
            path = path.partition("?")[0]
            if "://" in address or address.startswith("//"):
                if kind in ("script", "img", "link"):
                    missing.append(f"{page.relative_to(site)}: {address}")
            elif not address.startswith(("mailto:", "data:", "javascript:")):
                found = site / path.lstrip("/") if path.startswith("/") else page.parent / path
                found = (found if path else page).resolve()
                if not found.exists() or unquote(anchor) not in anchors.get(found, {anchor}) | {""}:
                    missing.append(f"{page.relative_to(site)}: {address}")
    return sorted(set(missing))


if __name__ == "__main__":
    sys.exit(main())
