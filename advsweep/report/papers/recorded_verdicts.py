"""Verdicts of the committed studies, for readers whose store lacks the sweeps.

`advsweep claims LIST --record FILE` writes them; `recorded_verdicts.csv` beside this module is the
file that the package has. It is never edited by hand: where a store lacks the runs, a verdict stays
as it was recorded, unless the list has changed what is said of it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from advsweep.errors import ConfigError, ReportError
from advsweep.printable import printable_line
from advsweep.report.claims.evaluate import ClaimResult, ClaimResults
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.report.claims.kinds import Statements
from advsweep.report.claims.lists import Claim
from advsweep.store import Status, Store

RECORDED = Path(__file__).with_name("recorded_verdicts.csv")


@dataclass(frozen=True)
class RecordedVerdict:
    """A claim's verdict as a study gave it.

    Attributes:
        list: the name of the list that has the claim.
        claim: its id in the list.
        n: seeds, or points of a trend.
        difference, low, high, p_value: as in `ClaimResult`; empty where there is none.
        setting: of the claim, in words.
        reason: the sentence with the numbers.
        study: the day on which the study's last run finished, as 2026-01-31.
    """

    list: str
    claim: str
    verdict: ClaimVerdict
    n: int
    difference: str
    low: str
    high: str
    p_value: str
    p_adjusted: str
    setting: str
    reason: str
    study: str

    @property
    def p(self) -> float:
        """p of its test; NaN if there is none."""
        return _parsed(self.p_value)


_COLUMNS = [field.name for field in fields(RecordedVerdict)]


def read_recorded(path: Path = RECORDED) -> list[RecordedVerdict]:
    """Reads recorded verdicts; none if there is no such file.

    Raises:
        ConfigError: the file is not one that `--record` wrote.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != _COLUMNS:
            raise ConfigError(f"{path}: expected the columns {', '.join(_COLUMNS)}")
        return [_row(row, f"{path}, line {reader.line_num}") for row in reader]


def _row(row: dict[str, str], where: str) -> RecordedVerdict:
    try:
        verdict, n = ClaimVerdict(row["verdict"]), int(row["n"])
        for name in ("difference", "low", "high", "p_value", "p_adjusted"):
            _parsed(row[name])
    except ValueError as error:
        raise ConfigError(f"{where}: expected a verdict and numbers: {error}") from None
    return RecordedVerdict(**{**row, "verdict": verdict, "n": n})  # type: ignore[arg-type]


def has_data(result: ClaimResult) -> bool:
    """Whether a store has what the claim names: its sweep, rows and metrics."""
    return result.verdict is not ClaimVerdict.NOT_JUDGED


def record_verdicts(store: Store, name: str, results: ClaimResults, path: Path) -> int:
    """Writes the verdicts of a list into a file, in the place of earlier ones on the same claims.

    Claims that are not judged keep their earlier verdicts, so that the studies of a list may be in
    several stores; what the list says of them now counts. Verdicts on claims that the list no
    longer has are dropped.

    Args:
        name: the list's name.

    Returns:
        How many verdicts were written.

    Raises:
        ReportError: the store has no data for any claim; the file stays as it was.
        ConfigError: the file exists and is not one of recorded verdicts.
    """
    judged = [result for result in results.results if has_data(result)]
    if not any(result.n for result in judged):
        raise ReportError(
            f"claims {name}: expected runs that judge a claim at least, got none; run the sweeps "
            "of the list first"
        )
    absent = {result.claim.id: result.claim for result in results.results if not has_data(result)}
    known = read_recorded(path)
    kept = [row for row in known if row.list != name]
    kept += [
        restated
        for row in known
        if row.list == name and row.claim in absent
        if (restated := _restated(row, absent[row.claim])) is not None
    ]
    rows = sorted((*kept, *_rows(store, name, judged)), key=lambda row: (row.list, row.claim))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**asdict(row), "verdict": row.verdict.value})
    return len(judged)


def _restated(row: RecordedVerdict, claim: Claim) -> RecordedVerdict | None:
    """Returns an earlier verdict by what a list says of the claim now; None if it claims otherwise.

    The numbers stay.
    """
    kind = claim.kind
    texts = [a.text for a in kind.assertions] if isinstance(kind, Statements) else [kind.text]
    if not any(text in row.reason for text in texts):
        return None
    setting = printable_line(claim.setting)
    verdict, reason = row.verdict, row.reason.removeprefix(f"{row.verdict.value}: ")
    if claim.confounded:
        verdict = ClaimVerdict.STEP_NOT_MATCHED
    elif verdict is ClaimVerdict.CONTRADICTED and _parsed(row.low) == _parsed(row.high) == 0:
        verdict = ClaimVerdict.EQUAL
    elif row.n < claim.seeds and verdict in (ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED):
        verdict = ClaimVerdict.CANNOT_TELL
        reason += f"; the claim asks for {claim.seeds} seeds, and there are {row.n}"
    reason = f"{verdict.value}: {reason}"
    return replace(row, verdict=verdict, reason=reason, setting=setting)


def with_recorded(
    results: ClaimResults, name: str, recorded: Sequence[RecordedVerdict]
) -> ClaimResults:
    """Puts the recorded verdicts of a list in the place of those that a store cannot give."""
    known = {row.claim: row for row in recorded if row.list == name}
    return replace(
        results,
        results=tuple(
            result
            if has_data(result) or result.claim.id not in known
            else _as_result(result.claim, known[result.claim.id])
            for result in results.results
        ),
    )


def _as_result(claim: Claim, row: RecordedVerdict) -> ClaimResult:
    return ClaimResult(
        claim,
        row.verdict,
        f"recorded {row.study}: {row.reason}",
        difference=_parsed(row.difference),
        low=_parsed(row.low),
        high=_parsed(row.high),
        n=row.n,
        p_value=row.p,
        p_adjusted=_parsed(row.p_adjusted),
    )


def _rows(store: Store, name: str, results: Sequence[ClaimResult]) -> Iterable[RecordedVerdict]:
    days = {sweep: last_day(store, sweep) for sweep in {r.claim.sweep for r in results}}
    for result in results:
        yield RecordedVerdict(
            list=name,
            claim=result.claim.id,
            verdict=result.verdict,
            n=result.n,
            difference=_number(result.difference),
            low=_number(result.low),
            high=_number(result.high),
            p_value=_number(result.p_value),
            p_adjusted=_number(result.p_adjusted),
            setting=printable_line(result.claim.setting),
            reason=printable_line(result.reason),
            study=days[result.claim.sweep],
        )


def last_day(store: Store, sweep: str | None) -> str:
    """Returns the day on which the last run of a sweep finished; empty if none has."""
    newest = store.runs.last_finished(Status.DONE, sweep, limit=1)
    finished = store.runs.find(str(newest[0])).finished if newest else None
    return finished.date().isoformat() if finished else ""


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _parsed(text: str) -> float:
    return float(text) if text else math.nan
