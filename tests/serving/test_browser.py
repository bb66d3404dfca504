"""The live page in a browser: it is renewed, obeys clicks, and answers no other site."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from advsweep.failures import Failure
from advsweep.serving import pages as pages_module
from advsweep.store import Status

# Every test opens a page in Chromium.
pytestmark = pytest.mark.slow

PATIENCE = 120_000  # milliseconds
expect.set_options(timeout=PATIENCE)


@pytest.fixture
def visit(browser: Browser, site: Any, monkeypatch) -> Iterator[Callable[..., Page]]:
    """`visit(width)`: the page of the sweep; it may say nothing and ask nobody but the server."""
    monkeypatch.setattr(pages_module, "PAUSE", 0.1)
    monkeypatch.setattr(pages_module, "_PAUSE_FACTOR", 0)
    context = browser.new_context(color_scheme="light")
    said: list[str] = []
    asked: list[str] = []

    def visited(width: int = 1280) -> Page:
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site.address("page?sweep=demo"))
        page.wait_for_selector("#runs .acts", state="attached")
        return page

    yield visited
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(site.address())] == []


def points_of_runs(page: Page) -> list[int]:
    """How many points each run's line in the first figure has."""
    paths = page.locator("#panels figure").first.locator("path.run").all()
    return sorted(len(re.findall("[ML]", path.get_attribute("d") or "")) for path in paths)


def listed(page: Page) -> list[str | None]:
    """The ids of the runs in the order of the table."""
    buttons = page.locator("#runs tbody button.open").all()
    return [button.get_attribute("data-run") for button in buttons]


def test_curves_grow_and_what_was_chosen_stays(training, visit):
    training.finished("grpo", 0)
    training.finished("fade", 0, value=0.3)
    growing, failed = training.add("grpo", 1), training.add("rloo", 0)
    training.train(growing, range(1, 4))
    training.train(failed, range(1, 3))
    training.end(failed, Status.FAILED, failure=Failure.ERROR, error="loss is not finite")
    page = visit()
    assert page.locator("#standing").inner_text().startswith("4 runs, 1 running, 2 done, 1 failed")
    assert "loss is not finite" in page.locator("#failures").inner_text()
    assert page.title().startswith("2/4 demo")
    page.get_by_label("metric of figure 1").select_option("ACR")
    legend = page.get_by_role("group", name="Rows shown")
    legend.get_by_role("button", name="fade").click()
    legend.get_by_role("button", name="rloo").click()
    page.get_by_label("95 % bands").uncheck()
    page.get_by_label("each run").check()
    runs = page.locator("#runs")
    runs.get_by_role("columnheader", name="seed").get_by_role("button").click()
    order = listed(page)
    page.get_by_label("filter").fill("grpo")
    opening = runs.locator(f"button[data-run='{growing}']")
    opening.click()
    assert points_of_runs(page) == [3, 20]
    version = page.evaluate("document.documentElement.dataset.version")

    training.train(growing, range(4, 21))
    training.end(growing)
    expect(page.locator("#standing")).to_contain_text("3 done")
    expect(page.locator("#report")).to_contain_text("1 of 4 runs")
    assert page.locator("#runs tr.details").count() == 1
    assert page.locator("#runs tr.details").inner_text().count("done") >= 1
    expect(opening).to_be_focused()
    assert page.get_by_label("metric of figure 1").input_value() == "ACR"
    assert page.get_by_label("filter").input_value() == "grpo"
    assert page.locator("#matching").inner_text() == "2 of 4 runs"
    assert legend.get_by_role("button", name="fade").get_attribute("aria-pressed") == "false"
    assert listed(page) == order
    assert points_of_runs(page) == [20, 20]
    # The table has the run that ended meanwhile: two seeds of grpo.
    grpo = page.locator("#report tbody tr").first
    assert grpo.locator("td").first.inner_text() == "2"
    assert page.evaluate("document.documentElement.dataset.version") == version  # of the first page


def test_runs_are_stopped_and_restarted_by_a_click_that_is_confirmed(training, site, visit):
    training.finished("grpo", 0)
    running, failed, waiting = (training.add("grpo", seed) for seed in (1, 2, 3))
    training.train(running, [1])
    training.train(failed, [1])
    training.end(failed, Status.FAILED, failure=Failure.ERROR, error="too bad")
    page = visit()
    stops = training.store.leases.stops_requested
    stop = page.get_by_role("button", name=f"stop run {running}", exact=True)
    stop.click()
    question = page.get_by_role("dialog")
    assert f"Stop run {running}?" in question.inner_text()
    question.get_by_role("button", name="cancel").click()
    assert not question.is_visible()
    stop.click()
    page.keyboard.press("Escape")
    assert stops([running, waiting]) == set()
    stop.click()
    question.get_by_role("button", name=f"stop run {running}").click()
    expect(page.locator("#news")).to_contain_text("Requested a stop of 1 running")
    expect(page.locator("#runs")).to_contain_text("running, stopping")
    assert stops([running, waiting]) == {running}
    assert stop.count() == 0
    page.get_by_role("button", name=f"retry run {failed}", exact=True).click()
    question.get_by_role("button", name=f"retry run {failed}").click()
    expect(page.locator("#failures")).to_contain_text("in progress")
    assert site.restarts.started == [[failed]]
    training.end(running, Status.INTERRUPTED)
    page.get_by_role("button", name="retry 3 runs", exact=True).click()
    question.get_by_role("button", name="retry 3 runs").click()
    expect(page.locator("#news li")).to_have_count(3)
    assert sorted(site.restarts.started[1]) == [running, failed, waiting]


def test_on_a_phone_nothing_is_wider_than_it_and_buttons_are_in_reach(training, visit):
    training.finished("grpo", 0)
    run = training.add("a_long_name_" * 4 + "a", 1)
    training.train(run, [1, 2])
    page = visit(400)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    button = page.get_by_role("button", name=f"stop run {run}", exact=True)
    page.locator("#runs .scroll").evaluate("box => box.scrollLeft = 10_000")
    box = button.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    button.click()
    dialog = page.get_by_role("dialog").bounding_box()
    assert dialog is not None
    assert dialog["x"] >= 0
    assert dialog["width"] <= 400


def test_a_server_that_ends_and_a_store_that_vanishes_are_said(training, site, browser, tmp_path):
    training.train(training.add(), [1])
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(site.address("page?sweep=demo"))
    page.wait_for_selector("#runs .acts", state="attached")
    file = Path("advsweep.db")
    file.rename("away.db")
    connection = page.locator("#connection")
    expect(connection).to_contain_text("deleted or moved away")
    Path("away.db").rename(file)
    expect(connection).to_have_text("")
    page.route("**/*", lambda route: route.abort())
    expect(connection).to_contain_text("does not answer; shown is what was known at")
    assert "1 running" in page.locator("#standing").inner_text()
    page.close()


EVIL = """<!DOCTYPE html><title>evil</title><iframe src="ADDRESS"></iframe><script>
const order = JSON.stringify({ sweep: "demo", runs: [1] });
const JSON_HEADERS = { "Content-Type": "application/json" };
const tries = {
  read: () => fetch("ADDRESS").then((answer) => answer.text()),
  state: () => fetch("BASEstate?sweep=demo", { credentials: "include" }).then((a) => a.text()),
  json: () => fetch("BASEstop", { method: "POST", headers: JSON_HEADERS, body: order }),
  plain: () => fetch("BASEstop", { method: "POST", mode: "no-cors", body: order }),
  beacon: async () => navigator.sendBeacon("BASEstop", new Blob([order], { type: "text/plain" })),
};
window.got = {};
(async () => {
  for (const [name, attempt] of Object.entries(tries)) {
    window.got[name] = await attempt().catch(() => "refused");
  }
  window.opened = window.open("ADDRESS");
  await new Promise((resolve) => setTimeout(resolve, 1000));
  try { window.got.opened = window.opened.document.title; } catch { window.got.opened = "refused"; }
  document.title = "tried";
})();
</script>"""


@pytest.mark.security
def test_another_site_reads_and_orders_nothing_even_with_the_token(
    training, site, browser, tmp_path
):
    """The page of another port of this machine, which is of the same site."""
    training.train(training.add(), [1])
    evil = tmp_path / "evil"
    evil.mkdir()
    text = EVIL.replace("ADDRESS", site.address("page?sweep=demo")).replace("BASE", site.address())
    (evil / "index.html").write_text(text)
    handler = functools.partial(_Quiet, directory=str(evil))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever).start()
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"http://127.0.0.1:{other.server_address[1]}/index.html")
        expect(page).to_have_title("tried")
        got = page.evaluate("window.got")
        frame = page.frames[1]
        assert "demo" not in frame.content()
        page.context.close()
        other.shutdown()
    assert {name: got[name] for name in ("read", "state", "json")} == {
        "read": "refused",
        "state": "refused",
        "json": "refused",
    }
    assert "demo" not in json.dumps(got)
    # Requests without an answer that can be read are sent; the server has obeyed none.
    assert training.store.leases.stops_requested([1]) == set()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
