"""Benchmark the HTML page of 500 runs: size, time to write it, and time until it is usable.

    python benchmarks/bench_html.py

The runs are 100 configurations of five estimators with 5 seeds each, with 20 metrics over 200
steps, configs as large as the tiny backend's and an evaluation of 140 problems. The page is
opened in headless Chromium; it can be used when its scripts are done, so that tables sort and
runs open, and its figures have been painted.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import bench_report
import numpy as np
from figures import head, show
from playwright.sync_api import Browser, sync_playwright

from advsweep.report.html import render_page
from advsweep.report.tables.build import build_report
from advsweep.store import Owner, Status, Store, open_store

RUNS = 500
SEEDS = 5
STEPS = 200
METRICS = 17  # beside those that the figures begin with
FIRST = ("reward/mean", "collapse/acr", "entropy/token")
REPEATS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_store(f"{folder}/advsweep.db") as store:
            fill(store)
            began = time.perf_counter()
            text = render_page(build_report(store), store)
            seconds = time.perf_counter() - began
        path = Path(folder) / "report.html"
        path.write_text(text, encoding="utf-8")
        head("measured")
        show(f"page of {RUNS} runs, MB", f"{path.stat().st_size / 1e6:.2f}", "5")
        show("  writing it, s", f"{seconds:.2f}")
        browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
        if browser is None:
            show("  opening it: no browser is installed", "–")
            return
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=browser)
            usable, sorting = zip(*(visit(opened, path) for _ in range(REPEATS)), strict=True)
            opened.close()
        show("  until it can be used, ms", f"{statistics.median(usable):,.0f}", "1,000")
        show("  sorting its runs, ms", f"{statistics.median(sorting):,.0f}")


def visit(browser: Browser, path: Path) -> tuple[float, float]:
    """Returns the milliseconds from the start of loading until ready, and of sorting runs."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    # A requested frame is painted when the next one begins.
    ready = page.evaluate(
        "new Promise(done => requestAnimationFrame("
        "() => requestAnimationFrame(() => done(performance.now()))))"
    )
    sorting = page.evaluate(
        """() => {
          const began = performance.now();
          document.querySelectorAll("#runs thead button")[2].click();
          document.body.getBoundingClientRect();
          return performance.now() - began;
        }"""
    )
    page.close()
    return ready, sorting


def fill(store: Store) -> None:
    rng = np.random.default_rng(0)
    names = [*FIRST, *(f"more/metric{i}" for i in range(METRICS))]
    planned = [bench_report.plan_run(i, SEEDS) for i in range(RUNS)]
    for i, run_id in enumerate(store.runs.add(planned)):
        store.leases.claim(run_id, Owner.current())
        store.runs.set_environment(run_id, bench_report.ENVIRONMENT)
        values = rng.random((len(names), STEPS)).tolist()
        store.metrics.record(
            run_id,
            [
                (name, step, value)
                for name, own in zip(names, values, strict=True)
                for step, value in enumerate(own, 1)
            ],
        )
        store.evaluations.add(bench_report.evaluate(i, run_id, rng))
        store.leases.finish(run_id, Status.DONE)


if __name__ == "__main__":
    main()
