"""Build the documentation site: `make docs`.

Stages the pages (`site_pages`), makes the reference from the code (`site_reference`,
`site_estimators`) and renders them with Zensical, which checks every link and anchor between
pages. Needs the extra `docs`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from site_estimators import estimator_pages
from site_pages import ROOT, stage
from site_reference import reference_pages

SOURCE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"


def main() -> int:
    """Build the site into build/site; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the documentation site into build/site.")
    parser.add_argument("--no-figures", action="store_true", help="draw no masses (15 s less)")
    options = parser.parse_args()
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    figures = None if options.no_figures else SOURCE / "reference" / "estimators"
    pages = {**reference_pages(), **estimator_pages(figures)}
    stage(SOURCE, {f"reference/{path}": text for path, text in pages.items()})
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f"]
    done = subprocess.run(
        [*command, str(ROOT / "mkdocs.yml")],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    if done.returncode:
        return done.returncode
    missing = missing_files(SITE)
    if missing:
        sys.stderr.write("files that pages name and the site lacks:\n" + "\n".join(missing) + "\n")
        return 1
    sys.stdout.write(f"open {(SITE / 'index.html').relative_to(ROOT)}\n")
    return 0


def missing_files(site: Path) -> list[str]:
    """Return what pages of a built site load or link to and the site does not have.

    Addresses of other hosts count if a page loads them, since the site works without a network.
    """
    missing = []
    for page in site.rglob("*.html"):
        if page.name == "report.html":
            continue
        text = page.read_text("utf-8")
        for kind, address in re.findall(r"<(\w+)\b[^>]*?\s(?:href|src)=[\"']?([^\"'\s>]+)", text):
            path = address.partition("#")[0].partition("?")[0]
            if "://" in address or address.startswith("//"):
                if kind in ("script", "img", "link") and 'rel="canonical"' not in address:
                    missing.append(f"{page.relative_to(site)}: {address}")
            elif path and not address.startswith(("mailto:", "data:", "javascript:")):
                found = site / path.lstrip("/") if path.startswith("/") else page.parent / path
                if not found.exists():
                    missing.append(f"{page.relative_to(site)}: {address}")
    return sorted(set(missing))


if __name__ == "__main__":
    sys.exit(main())
