"""Pages in a headless browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

PATIENCE = 120_000  # milliseconds


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
