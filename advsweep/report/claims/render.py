"""Results of claims as text, in every format of reports."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from advsweep.errors import counted
from advsweep.report.claims.assertions import DECIDED, ClaimVerdict
from advsweep.report.claims.lists import ClaimResult, ClaimResults
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.writing import Document, Entry, Heading, Line, Table, show_p, write

_COUNTED = {ClaimVerdict.HOLDS: "hold", ClaimVerdict.CANNOT_TELL: "cannot be told"}


def render_claims(results: ClaimResults, format: str = "table") -> str:
    """Render results as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    if format not in ("csv", "json"):
        return write(lay_out_claims(results), format)
    records = [_record(result) for result in results.results]
    if format == "csv":
        return write(records, format)
    document = {"title": results.title, "claims": records, "provenance": results.provenance}
    return write(document, format)


def lay_out_claims(results: ClaimResults) -> Document:
    """Lay out the results as a table, with a sentence for each below it."""
    headings = ("difference", "95 % interval", "n", "p", "p adj", "more needed")
    lines = [Line((a.claim.id, a.verdict.value), _entries(a)) for a in results.results]
    table = Table(
        names=("claim", "verdict"),
        columns=tuple(Heading((heading,), "claim") for heading in headings),
        sections=(tuple(lines),),
        title=results.title,
    )
    counts = Counter(result.verdict for result in results.results)
    shown = [verdict for verdict in ClaimVerdict if counts[verdict] or verdict in DECIDED]
    tally = ", ".join(f"{counts[v]} {_COUNTED.get(v, v.value)}" for v in shown)
    notes = [f"{counted(len(lines), 'claim')}: {tally}"]
    settings: dict[str, list[str]] = {}
    for result in results.results:
        claim = result.claim
        source = f" ({claim.source})" if claim.source else ""
        notes.append(f"{claim.id}: {claim.says}{source}. {result.reason}")
        if claim.setting:
            settings.setdefault(claim.setting, []).append(claim.id)
    for setting, ids in settings.items():
        of = f" of {', '.join(ids)}" if len(settings) > 1 else ""
        notes.append(f"setting{of}: {setting}")
    return Document(tables=(table,), notes=tuple(notes), provenance=results.provenance)


def _entries(result: ClaimResult) -> tuple[Entry, ...]:
    more = "" if result.more is None else f"{result.more}"
    if result.more is not None and result.more + result.n > MOST_SEEDS:
        more = f"> {MOST_SEEDS}"
    if math.isnan(result.difference):
        return (*(Entry() for _ in range(5)), Entry(more))
    known = not math.isnan(result.low)
    return (
        Entry(f"{result.difference:+.3g}", value=result.difference),
        Entry(f"[{result.low:+.3g}, {result.high:+.3g}]") if known else Entry(),
        Entry(str(result.n), value=float(result.n)),
        Entry(show_p(result.p_value), value=result.p_value),
        Entry(show_p(result.p_adjusted), value=result.p_adjusted),
        Entry(more),
    )


def _record(result: ClaimResult) -> dict[str, Any]:
    numbers = {
        "difference": result.difference,
        "low": result.low,
        "high": result.high,
        "p": result.p_value,
        "p_adjusted": result.p_adjusted,
    }
    return {
        "claim": result.claim.id,
        "verdict": result.verdict.value,
        "says": result.claim.says,
        "judged": result.claim.kind.text,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "family": result.family or None,
        "n": result.n,
        "more_needed": result.more,
        "reason": result.reason,
        "source": result.claim.source,
        "setting": result.claim.setting,
    }
