"""Answers to claims, in every format that reports have."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from advsweep.printable import printable_json, spreadsheet_cell
from advsweep.report.claims.evaluate import Answer, Answers
from advsweep.report.claims.expressions import Verdict
from advsweep.report.data.formatting import show_p
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.report.tables.export import writer
from advsweep.report.tables.markup import to_latex, to_markdown
from advsweep.report.tables.types import Document, Entry, Heading, Line, Table

_COUNTED: Mapping[Verdict, str] = {
    Verdict.HOLDS: "hold",
    Verdict.CONTRADICTED: "contradicted",
    Verdict.CANNOT_TELL: "cannot be told",
}


def render_answers(answers: Answers, format: str = "table") -> str:
    """Answers as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    return writer(ANSWER_FORMATS, format)(answers)


def lay_out_answers(answers: Answers) -> Document:
    """The answers as a table, with a sentence for each below it."""
    headings = ("difference", "95 % interval", "n", "p", "p adj", "more needed")
    lines = [Line((a.claim.id, a.verdict.value), _entries(a)) for a in answers.answers]
    table = Table(
        names=("claim", "verdict"),
        columns=tuple(Heading((heading,), "claim") for heading in headings),
        sections=(tuple(lines),),
        title=answers.title,
    )
    return Document(
        tables=(table,),
        notes=(_summary(answers), *map(_note, answers.answers), *_settings(answers)),
        provenance=answers.provenance,
    )


def _entries(answer: Answer) -> tuple[Entry, ...]:
    if math.isnan(answer.low):
        return (*(Entry() for _ in range(5)), Entry(_more(answer)))
    return (
        Entry(f"{answer.difference:+.3g}", value=answer.difference),
        Entry(f"[{answer.low:+.3g}, {answer.high:+.3g}]"),
        Entry(str(answer.n), value=float(answer.n)),
        Entry(show_p(answer.p_value), value=answer.p_value),
        Entry(show_p(answer.p_adjusted), value=answer.p_adjusted),
        Entry(_more(answer)),
    )


def _more(answer: Answer) -> str:
    if answer.more is None:
        return ""
    return f"> {MOST_SEEDS:,}" if answer.more + answer.n >= MOST_SEEDS else f"{answer.more}"


def _summary(answers: Answers) -> str:
    counts = ", ".join(f"{answers.count(verdict)} {_COUNTED[verdict]}" for verdict in Verdict)
    return f"{len(answers.answers)} claims: {counts}"


def _note(answer: Answer) -> str:
    claim = answer.claim
    source = f" ({claim.source})" if claim.source else ""
    unsettled = "; among so many claims this is not settled" if not answer.survives else ""
    return f"{claim.id}: {claim.says}{source}. {answer.reason}{unsettled}"


def _settings(answers: Answers) -> list[str]:
    """Of what the claims are judged, where they say so."""
    ids: dict[str, list[str]] = {}
    for answer in answers.answers:
        if answer.claim.setting:
            ids.setdefault(answer.claim.setting, []).append(answer.claim.id)
    if len(ids) == 1:
        return [f"setting: {setting}" for setting in ids]
    return [f"setting of {', '.join(own)}: {setting}" for setting, own in ids.items()]


def _to_table(answers: Answers) -> str:
    from advsweep.report.tables.terminal import to_table  # rich is for people alone

    return to_table(lay_out_answers(answers))


def _plain(answer: Answer) -> dict[str, Any]:
    numbers = {
        "difference": answer.difference,
        "low": answer.low,
        "high": answer.high,
        "p": answer.p_value,
        "p_adjusted": answer.p_adjusted,
    }
    return {
        "claim": answer.claim.id,
        "verdict": answer.verdict.value,
        "says": answer.claim.says,
        "judged": answer.claim.text,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "n": answer.n,
        "more_needed": answer.more,
        "reason": answer.reason,
        "source": answer.claim.source,
        "setting": answer.claim.setting,
    }


def _to_csv(answers: Answers) -> str:
    rows = [_plain(answer) for answer in answers.answers]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: spreadsheet_cell(v) for key, v in row.items()} for row in rows)
    return buffer.getvalue()


def _to_json(answers: Answers) -> str:
    document = {
        "title": answers.title,
        "claims": [_plain(answer) for answer in answers.answers],
        "provenance": list(answers.provenance),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


ANSWER_FORMATS: Mapping[str, Callable[[Answers], str]] = {
    "table": _to_table,
    "markdown": lambda answers: to_markdown(lay_out_answers(answers)),
    "latex": lambda answers: to_latex(lay_out_answers(answers)),
    "csv": _to_csv,
    "json": _to_json,
}
