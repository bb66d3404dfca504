"""The list of a store's sweeps, each with a link to its live page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from advsweep.errors import counted
from advsweep.report.html.page import make_environment, read_assets
from advsweep.store import Store, SweepRecord

_SHOWN = 80  # characters of a note


def render_sweeps(store: Store) -> str:
    """Return a page that lists the sweeps of a store, newest first; a browser renews it."""
    total = sum(store.runs.count_by_status().values())
    page: str = (
        make_environment()
        .get_template("sweeps.html")
        .render(
            title=store.name,
            sweeps=[_describe(sweep) for sweep in reversed(store.sweeps.select())],
            runs=counted(total, "run") if total else "",
            style=read_assets("page.css"),
        )
    )
    return page


def _describe(sweep: SweepRecord) -> dict[str, Any]:
    head = "; ".join(sweep.head)
    return {
        "name": sweep.name,
        "query": urlencode({"sweep": sweep.name}),
        "made": f"{sweep.created:%Y-%m-%d %H:%M}",
        "runs": sum(sweep.runs.values()),
        "states": ", ".join(f"{count} {status.value}" for status, count in sweep.runs.items()),
        "head": head if len(head) <= _SHOWN else f"{head[:_SHOWN]}...",
    }
