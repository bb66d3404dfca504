"""Pages, and a headless browser to open them in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120_000  # milliseconds


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium; where there is none the test is skipped, but never in CI.

    For no longer than a module: while it is open this thread has a running event loop, beside
    which other tests could not run their own.
    """
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no browser is installed (none of {', '.join(BROWSERS)} on the PATH)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """`visit(text)`: the page of that text, ready; it may say nothing and ask for nothing."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    said: list[str] = []
    asked: list[str] = []

    def visited(text: str) -> Page:
        path = tmp_path / "report.html"
        path.write_text(text, encoding="utf-8")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield visited
    context.close()
    assert said == []
    assert asked == [(tmp_path / "report.html").as_uri()]
