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

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
# A page of each kind.
PAGES = (
    "index.html",
    "papers.html",
    "changelog.html",
    "concepts/masses.html",
    "notebooks/quickstart.html",
    "reference/commands.html",
    "reference/config/backend.html",
    "reference/estimators/fade.html",
    "reference/metrics.html",
    "studies/leaderboard/index.html",
    "studies/leaderboard/hard.html",
)


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
@pytest.mark.timeout(600)
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
        for path in PAGES:
            page.goto(address + path)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 400, path
            assert len(page.query_selector_all("h1")) == 1, path
        search(page, address, "power_alpha", finds="reference/estimators/power_alpha.html")
    context.close()
    assert said == []


def search(page: Any, address: str, words: str, finds: str) -> None:
    page.goto(f"{address}index.html", wait_until="networkidle")
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.locator(f"a:visible[href*='{finds}']").first.wait_for(state="visible")
