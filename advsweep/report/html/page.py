"""The report as one HTML page, with its style, script and data in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from advsweep.printable import printable
from advsweep.report.claims.lists import ClaimResults, lay_out_claims
from advsweep.report.claims.sentences import find_differences
from advsweep.report.data.runs import Filter
from advsweep.report.figures.data import FigureData
from advsweep.report.html.page_data import (
    collect_differences,
    collect_figures,
    collect_runs,
    label_row,
    lay_out_runs,
    read_last_values,
)
from advsweep.report.tables.notes import describe_family, difference_notes
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.types import Report
from advsweep.store import Store
from advsweep.writing import Mark

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("chart.js", "panels.js", "figures.js", "page.js")
_MARKS = {
    Mark.BEST: {"tag": "strong", "words": "bold"},
    Mark.SECOND: {"tag": "u", "words": "underlined"},
}


def render_page(
    report: Report,
    store: Store,
    *,
    where: Sequence[Filter] = (),
    claim_results: ClaimResults | None = None,
) -> str:
    """Return a report as an HTML page with figures and every run; equal data give equal bytes.

    Args:
        store: the store that the report was made from.
        where: the filters that the report's runs fulfil. Without any, the page lists all runs
            of the sweep, whatever their state.
        claim_results: the results of a list of claims, which get a section of their own.
    """
    title = report.provenance["sweep"] or report.provenance["store"]
    findings = find_differences(report)
    embedded: dict[str, Any] = {"differences": collect_differences(report)}
    selected = store.runs.select(sweep=report.provenance["sweep"], newest_first=False)
    data = FigureData(store, selected, title, where)
    listed = data.runs if where else selected
    last = read_last_values(store, listed)
    embedded |= collect_figures(data, report.columns) | collect_runs(store, listed, last)
    plain = _printable_texts(embedded)
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    page: str = (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            findings=findings,
            family=describe_family(report) if findings else "",
            names=[label_row(row) for row in report.rows],
            uncompared=difference_notes(report) if not findings else [],
            baseline=report.baseline,
            report=lay_out(report),
            runs=lay_out_runs(listed, last),
            claims=None if claim_results is None else lay_out_claims(claim_results),
            # Without `<`, which could end the script element.
            data=Markup(text.replace("<", "\\u003c")),
            style=_read_assets("page.css"),
            script=_read_assets(*_SCRIPTS),
        )
    )
    return page


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        # Names and notes may hold control characters, which browsers obey.
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["marks"] = _MARKS
    environment.tests["known"] = lambda value: value is not None and not math.isnan(value)
    # The hash by which a Content-Security-Policy allows an inline script or style.
    environment.filters["sha256"] = lambda text: base64.b64encode(
        hashlib.sha256(text.encode()).digest()
    ).decode("ascii")
    environment.filters["breakable"] = _breakable
    return environment


def _read_assets(*names: str) -> Markup:
    return Markup("\n".join((_ASSETS / name).read_text(encoding="utf-8") for name in names))


def _breakable(text: str) -> Markup:
    """Let a browser break a key or a metric after its dots and slashes."""
    return Markup("<wbr>").join(re.split(r"(?<=[./])", printable(text)))


def _printable_texts(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable_texts(key): _printable_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable_texts(item) for item in value]
    return value
