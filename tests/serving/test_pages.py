"""When a page is rendered again, and what it shows of runs that train."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from advsweep.errors import NotFoundError, StoreUnavailableError
from advsweep.report.html import render_live_page
from advsweep.serving import pages as pages_module
from advsweep.serving.pages import PAUSE, Pages
from advsweep.store import Status


def data_of(page: str) -> Any:
    [text] = re.findall('<script type="application/json" id="data">(.*)</script>', page)
    return json.loads(text)


def curve(page: str, run: int) -> list[float]:
    [metric] = [m for m in data_of(page)["curves"]["metrics"] if m["name"] == "mean reward"]
    return [value for value in metric["runs"][str(run)] if value is not None]


def test_curves_are_those_of_all_runs_and_the_table_that_of_finished_ones(training):
    done = training.finished("grpo", seed=0)
    running, failed = training.add("grpo", seed=1), training.add("fade", seed=0)
    waiting = training.add("fade", seed=1)
    training.train(running, range(1, 6))
    training.train(failed, range(1, 4))
    training.end(failed, Status.FAILED)
    page = render_live_page(training.store, "demo")
    assert len(curve(page, done)) == 20
    assert curve(page, running) == [0.51, 0.52, 0.53, 0.54, 0.55]
    assert len(curve(page, failed)) == 3
    rows = {row["label"]: row["runs"] for row in data_of(page)["rows"]}
    assert rows == {"grpo": [done, running], "fade": [failed]}
    listed = re.findall(r'data-run="(\d+)"', page)
    assert sorted(map(int, listed)) == [done, running, failed, waiting]
    assert "left out, as they are not done: 1 pending, 1 running, 1 failed" in page
    assert any("may jump where one ends" in note for note in data_of(page)["notes"])
    # What holds at the end of a plan does not hold on the way.
    assert "3 of 4 runs are not done" in page
    training.train(running, [6])
    assert curve(render_live_page(training.store, "demo"), running)[-1] == 0.56


def test_a_long_training_is_thinned_before_it_is_sent(training):
    run = training.add()
    training.train(run, range(1, 5001))
    page = render_live_page(training.store, "demo")
    points = curve(page, run)
    # 5,000 steps are 200 points of 25 steps; the mean of the last is that of step 4,988.
    assert len(points) == 200
    assert points[-1] == pytest.approx(0.5 + 49.88)
    assert any("up to 25 neighbouring" in note for note in data_of(page)["notes"])


def test_before_a_run_is_done_the_page_says_so(training):
    run = training.add()
    page = render_live_page(training.store, "demo")
    assert "no finished run to report yet (1 pending)" in page
    assert data_of(page)["curves"]["metrics"] == []
    training.train(run, [1, 2])
    page = render_live_page(training.store, "demo")
    assert "no finished run to report yet (1 running)" in page
    assert curve(page, run) == [0.51, 0.52]


def test_an_empty_sweep_and_an_empty_store_have_a_page(training):
    notes = data_of(render_live_page(training.store, None))["notes"]
    assert notes == ["no run has trained a step yet"]
    training.store.sweeps.add("nothing", {})
    assert "has no runs to report" in render_live_page(training.store, "nothing")
    with pytest.raises(NotFoundError, match="did you mean 'nothing'"):
        render_live_page(training.store, "nothng")


def test_a_page_is_rendered_when_the_store_has_changed_and_it_is_due(training, monkeypatch):
    rendered: list[str | None] = []
    now = spent = 0.0
    takes = 0.1

    def render(store: object, sweep: str | None) -> str:
        nonlocal spent
        rendered.append(sweep)
        spent += takes
        return f'<html data-version="">{len(rendered)}'

    monkeypatch.setattr(pages_module, "render_live_page", render)
    pages = Pages(training.store, clock=lambda: now, spent=lambda: spent)
    assert pages.version("demo", "a") is None  # nobody has asked for it
    first = pages.render("demo", "a").result()
    assert first.text.decode() == f'<html data-version="{first.version}">1'
    assert pages.version("demo", "a") == first.version
    now = PAUSE - 0.1
    assert pages.version("demo", "b") == pages.render("demo", "b").result().version == first.version
    now = PAUSE + 0.1
    takes = 3.0
    second = pages.render("demo", "b").result()
    assert pages.version("demo", "b") == second.version != first.version
    assert rendered == ["demo", "demo"]
    # A page that takes 3 s of CPU time is rendered again after 30 s.
    ended = now
    now = ended + 29.9
    assert pages.version("demo", "c") == second.version
    now = ended + 30.1
    assert pages.version("demo", "c") == second.version  # at once, while it renders the next
    assert pages.render("demo", "c").result().version != second.version
    assert rendered == ["demo"] * 3


def test_a_rendering_that_fails_is_tried_again_after_a_pause(training, monkeypatch):
    tries = 0

    def render(store: object, sweep: str | None) -> str:
        nonlocal tries
        tries += 1
        if tries > 1:
            raise StoreUnavailableError("the disk is away")
        return '<html data-version="">'

    now = 0.0
    monkeypatch.setattr(pages_module, "render_live_page", render)
    pages = Pages(training.store, clock=lambda: now)
    first = pages.render("demo", "a").result()
    now = PAUSE + 1
    with pytest.raises(StoreUnavailableError):
        pages.render("demo", "b").result()
    for _ in range(3):
        assert pages.version("demo", "b") == first.version
        assert pages.render("demo", "b").result().text == first.text
    assert tries == 2
    now += PAUSE + 1
    with pytest.raises(StoreUnavailableError):
        pages.render("demo", "b").result()
