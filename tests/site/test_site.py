"""The site as it is built and read: no warning, no broken link, no other host, no wide page."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import site_llms
import site_math
import site_search

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served() -> Iterator[str]:
    handler = functools.partial(Handler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="the extra docs is not installed"
)
def test_the_site_is_built_without_a_warning_and_reads_well(browser: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "build_site.py"), "--no-figures"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    assert (SITE / "reference/config/estimator.html").is_file()
    context = browser.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
    context.set_default_timeout(60_000)
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    with served() as address:
        own = (address, "data:", "blob:")
        page.on("request", lambda sent: sent.url.startswith(own) or said.append(sent.url))
        # Reports of studies are pages that advsweep makes, with tests of their own.
        paths = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
        paths = [path for path in paths if not path.startswith("files/")]
        assert len(paths) > 150
        for path in paths:
            page.goto(address + path, wait_until="domcontentloaded")
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 400, path
            assert page.locator("h1").count() == 1, path
        search(page, address, "power_alpha", finds="reference/estimators/power_alpha.html")
        search(page, address, "dppo", finds="reference/objectives/dppo.html")
        search(page, address, "h_star", finds="reference/estimators/fade.html")
        for words, page_of_words in (
            ("own estimator", "tutorials/own_estimator.html"),
            ("reward data", "tutorials/own_reward.html"),
            ("gallery", "gallery.html"),
        ):
            search(page, address, words, finds=page_of_words, first=True)
    context.close()
    assert said == []


def test_llms_txt_has_every_page_of_the_navigation_with_its_first_sentence(tmp_path: Path) -> None:
    source, site = tmp_path / "docs", tmp_path / "site"
    for folder in (source, site):
        (folder / "guide").mkdir(parents=True)
    equation = site_math.formulas("Aᵢ = dᵢ/δ if dᵢ < 0")
    pages = {
        "index.md": "# It\n\nIt *compares* [things](guide/a.md), e.g. two. And more.\n",
        "guide/a.md": f"[back](../index.md)\n\n# How `a` works\n\n{equation}\nIt works\nwell.\n",
        "guide/b.md": "# Table\n\n| a |\n| -- |\n| b |\n",
    }
    for path, text in pages.items():
        (source / path).write_text(text, "utf-8")
    nav = [{"Start": ["index.md"]}, {"How-to": [{"Deep": [{"A": "guide/a.md"}, "guide/b.md"]}]}]
    config = {"site_name": "it", "site_description": "Compare things", "nav": nav}
    site_llms.write_llms(config, source, site)
    assert (site / "llms.txt").read_text("utf-8") == (
        "# it\n\n> Compare things\n\n"
        "## Start\n\n- [It](index.md): It compares things, e.g. two\n\n"
        "## How-to\n\n- [How a works](guide/a.md): Aᵢ = dᵢ/δ if dᵢ < 0\n- [Table](guide/b.md)\n"
    )
    assert "\nAᵢ = dᵢ/δ if dᵢ < 0\n" in (site / "guide/a.md").read_text("utf-8")


def test_search_indexes_no_tables_of_studies_and_only_names_of_the_reference() -> None:
    def entry(location: str, text: str) -> dict[str, Any]:
        return {"location": location, "title": "T", "text": text, "path": ["Reference", "T"]}

    table = "key meaning <code>optimizer.lr</code> the learning rate"
    prose = "<p>A rate.</p>"
    keys = entry("reference/config/optimizer.html", f"{prose} {table}")
    assert (site_search.shorten(keys) or {})["text"] == f"{prose} <code>optimizer.lr</code>"
    study = entry("studies/fade/index.html#verdict", f"{prose} {table}")
    assert (site_search.shorten(study) or {})["text"] == prose
    assert site_search.shorten(entry("studies/fade/report.html", table)) is None
    tutorial = entry("tutorials/tuning.html", f"{prose} {table}")
    assert site_search.shorten(tutorial) == tutorial


def search(page: Any, address: str, words: str, finds: str, *, first: bool = False) -> None:
    page.goto(f"{address}index.html", wait_until="networkidle")
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.locator(f"a:visible[href*='{finds}']").first.wait_for(state="visible")
    if first:
        results = page.locator("a:visible[href*='?h=']")
        assert finds in (results.first.get_attribute("href") or ""), words
