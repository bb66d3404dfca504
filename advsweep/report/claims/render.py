"""Results of claims as text, in every format of reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from advsweep.errors import counted
from advsweep.report.claims.evaluate import ClaimResult, ClaimResults
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.report.tables.layout import show_p
from advsweep.writing import Document, Entry, Heading, Line, Table, write

_COUNTED = {ClaimVerdict.HOLDS: "hold", ClaimVerdict.CANNOT_TELL: "cannot be told"}
_ALWAYS = (ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED)


def render_claims(results: ClaimResults, format: str = "table") -> str:
    """Renders results as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    if format == "csv":
        return write([_plain(one) for one in results.results], format)
    if format == "json":
        return write(
            {
                "title": results.title,
                "claims": [_plain(result) for result in results.results],
                "provenance": results.provenance,
            },
            format,
        )
    return write(lay_out_claims(results), format)


def lay_out_claims(results: ClaimResults) -> Document:
    """Lays out the results as a table, with a sentence for each below it."""
    headings = ("difference", "95 % interval", "n", "p", "p adj", "more needed")
    lines = [Line((a.claim.id, a.verdict.value), _entries(a)) for a in results.results]
    table = Table(
        names=("claim", "verdict"),
        columns=tuple(Heading((heading,), "claim") for heading in headings),
        sections=(tuple(lines),),
        title=results.title,
    )
    return Document(
        tables=(table,),
        notes=(_summary(results), *map(_note, results.results), *_settings(results)),
        provenance=results.provenance,
    )


def _entries(result: ClaimResult) -> tuple[Entry, ...]:
    if math.isnan(result.difference):
        return (*(Entry() for _ in range(5)), Entry(_more(result)))
    known = not math.isnan(result.low)
    return (
        Entry(f"{result.difference:+.3g}", value=result.difference),
        Entry(f"[{result.low:+.3g}, {result.high:+.3g}]") if known else Entry(),
        Entry(str(result.n), value=float(result.n)),
        Entry(show_p(result.p_value), value=result.p_value),
        Entry(show_p(result.p_adjusted), value=result.p_adjusted),
        Entry(_more(result)),
    )


def _more(result: ClaimResult) -> str:
    if result.more is None:
        return ""
    return f"> {MOST_SEEDS}" if result.more + result.n > MOST_SEEDS else f"{result.more}"


def _summary(results: ClaimResults) -> str:
    counts = count_verdicts([result.verdict for result in results.results])
    text = f"{counted(len(results.results), 'claim')}: {counts}"
    if made := [result.claim.id for result in results.results if result.by_construction]:
        text += f"; by construction: {', '.join(made)}"
    return text


def count_verdicts(verdicts: Sequence[ClaimVerdict]) -> str:
    """Counts verdicts in words, as `3 hold, 1 contradicted, 2 cannot be told`."""
    counts = Counter(verdicts)
    shown = [verdict for verdict in ClaimVerdict if counts[verdict] or verdict in _ALWAYS]
    return ", ".join(f"{counts[v]} {_COUNTED.get(v, v.value)}" for v in shown)


def _note(result: ClaimResult) -> str:
    claim = result.claim
    source = f" ({claim.source})" if claim.source else ""
    return f"{claim.id}: {claim.says}{source}. {result.reason}"


def _settings(results: ClaimResults) -> list[str]:
    """Lists the settings of the claims that have one."""
    ids: dict[str, list[str]] = {}
    for result in results.results:
        if result.claim.setting:
            ids.setdefault(result.claim.setting, []).append(result.claim.id)
    if len(ids) == 1:
        return [f"setting: {setting}" for setting in ids]
    return [f"setting of {', '.join(own)}: {setting}" for setting, own in ids.items()]


def _plain(result: ClaimResult) -> dict[str, Any]:
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
        "judged": result.claim.text,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "family": result.family or None,
        "n": result.n,
        "more_needed": result.more,
        "by_construction": result.by_construction,
        "reason": result.reason,
        "source": result.claim.source,
        "setting": result.claim.setting,
    }
