"""The table of the papers' claims as text, in every format of claims."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from advsweep.errors import counted
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.claims.render import count_verdicts
from advsweep.report.papers.paper_claims import THEORY, PaperVerdict, PartVerdict, Scale
from advsweep.writing import Document, Entry, Heading, Line, Table, write

# A setting says its task and model first, and then details.
_LONGEST = 40


def render_paper_claims(verdicts: Sequence[PaperVerdict], format: str = "table") -> str:
    """Renders the verdicts as text that ends with a line break.

    Raises:
        ConfigError: there is no such format.
    """
    if format == "csv":
        return write([_plain(one) for one in verdicts], format)
    if format == "json":
        return write(
            {
                "claims": [
                    {
                        **_plain(verdict),
                        "scales": [
                            {
                                "scale": scale.scale,
                                "verdict": scale.verdict,
                                "parts": [_plain_part(part) for part in scale.parts],
                                "without_data": scale.missing,
                            }
                            for scale in verdict.scales
                        ],
                    }
                    for verdict in verdicts
                ]
            },
            format,
        )
    return write(_lay_out(verdicts), format)


def _lay_out(verdicts: Sequence[PaperVerdict]) -> Document:
    sections = tuple(
        tuple(map(_line, own)) for _, own in groupby(verdicts, key=lambda v: v.claim.paper)
    )
    table = Table(
        names=("claim", "verdict", "says", "scale", "by"),
        columns=(Heading(("n",), "claim"),),
        sections=sections,
        title="The papers' claims",
    )
    return Document(
        tables=(table,), notes=(*_tallies(verdicts), *_papers(verdicts), *_why(verdicts))
    )


def _line(verdict: PaperVerdict) -> Line:
    claim = verdict.claim
    names = (claim.id, _verdict(verdict), claim.says, _scale(verdict), _judge(verdict))
    return Line(names, (_number(verdict),))


def _verdict(verdict: PaperVerdict) -> str:
    """The verdict, with the scale of an empirical one: `contradicted: bandit`."""
    scale = verdict.deciding
    if scale is None or scale.scale is Scale.EXACT:
        return verdict.verdict.value
    return f"{verdict.verdict.value}: {scale.scale.value}"


def _number(verdict: PaperVerdict) -> Entry:
    if verdict.deciding is None or verdict.claim.judge == THEORY:
        return Entry()
    n = verdict.deciding.deciding.n
    return Entry(str(n), value=float(n))


def _scale(verdict: PaperVerdict) -> str:
    """The deciding scale, and the other one's verdict if it differs."""
    if verdict.deciding is None:
        return ""
    text = _short(verdict.deciding.deciding.setting)
    others = [
        f"{other.scale.value}: {other.verdict.value}"
        for other in verdict.scales
        if other.verdict is not verdict.verdict
    ]
    return f"{text} ({', '.join(others)})" if others else text


def _short(setting: str) -> str:
    """The first phrases of a setting, as many as fit."""
    phrases = setting.replace("; ", ", ").split(", ")
    taken = phrases[0]
    for phrase in phrases[1:]:
        if len(taken) + len(phrase) + 2 > _LONGEST:
            break
        taken += f", {phrase}"
    return taken


def _judge(verdict: PaperVerdict) -> str:
    if verdict.recorded:
        return f"{verdict.claim.judge}, {verdict.recorded}"
    return verdict.claim.judge


def _tallies(verdicts: Sequence[PaperVerdict]) -> list[str]:
    """Counts the verdicts on exact checks, and apart from them those on empirical claims."""
    exact = [v.verdict for v in verdicts if v.claim.judge == THEORY]
    empirical = [v for v in verdicts if v.claim.judge != THEORY]
    lines = [f"{counted(len(exact), 'exact check')}: {count_verdicts(exact)}"] if exact else []
    if not empirical:
        return lines
    tally = count_verdicts([v.verdict for v in empirical])
    lines.append(f"{counted(len(empirical), 'empirical claim')}: {tally}")
    for scale in Scale:
        own = [v.verdict for v in empirical if v.deciding and v.deciding.scale is scale]
        lines += [f"of these {len(own)} by the {scale.value}: {count_verdicts(own)}"] if own else []
    return lines


def _papers(verdicts: Sequence[PaperVerdict]) -> list[str]:
    """Says which letters stand for which paper, and where verdicts with a date come from."""
    names = {verdict.claim.id[:2]: verdict.claim.paper for verdict in verdicts}
    lines = ["; ".join(f"{letters}: {paper}" for letters, paper in names.items())]
    if any(verdict.recorded for verdict in verdicts):
        lines.append(
            "a judge with a date: the verdict that a study recorded on that day, since the store "
            "has no runs of its list"
        )
    return lines


def _why(verdicts: Sequence[PaperVerdict]) -> list[str]:
    """Says why claims are not judged, once for each reason."""
    ids: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.verdict is ClaimVerdict.NOT_JUDGED:
            ids.setdefault(verdict.reason, []).append(verdict.claim.id)
    return [f"{', '.join(own)} not judged: {reason}" for reason, own in ids.items()]


def _plain(verdict: PaperVerdict) -> dict[str, Any]:
    claim, scale = verdict.claim, verdict.deciding
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "section": claim.section,
        "says": claim.says,
        "verdict": verdict.verdict.value,
        "scale": scale.scale.value if scale else "",
        "setting": scale.deciding.setting if scale else "",
        "n": scale.deciding.n if scale else None,
        "judge": claim.judge,
        "recorded": verdict.recorded,
        "reason": verdict.reason,
    }


def _plain_part(part: PartVerdict) -> dict[str, Any]:
    return {
        "claim": part.id,
        "verdict": part.verdict.value,
        "n": part.n,
        "setting": part.setting,
        "recorded": part.recorded,
        "reason": part.reason,
    }
