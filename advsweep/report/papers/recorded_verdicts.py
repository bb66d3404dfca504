"""Verdicts of the committed studies, for readers whose store lacks the sweeps.

`advsweep claims LIST --record FILE` writes them; `recorded_verdicts.csv` beside this module is the
file that the package has. It is never edited by hand.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from advsweep.errors import ConfigError, ReportError
from advsweep.printable import printable_line
from advsweep.report.claims.evaluate import ClaimResult, ClaimResults
from advsweep.report.claims.expressions import ClaimVerdict
from advsweep.store import Status, Store

RECORDED = Path(__file__).with_name("recorded_verdicts.csv")


@dataclass(frozen=True)
class RecordedVerdict:
    """A claim's verdict as a study gave it.

    Attributes:
        list: the name of the list that has the claim.
        claim: its id in the list.
        n: seeds, or points of a trend.
        difference, low, high: as in `ClaimResult`; empty where there is none.
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
    p_adjusted: str
    setting: str
    reason: str
    study: str


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
    except ValueError as error:
        raise ConfigError(f"{where}: expected a verdict and a number of seeds: {error}") from None
    return RecordedVerdict(**{**row, "verdict": verdict, "n": n})  # type: ignore[arg-type]


def has_data(result: ClaimResult) -> bool:
    """Whether a store has what the claim names: its sweep, rows and metrics."""
    return result.verdict is not ClaimVerdict.NOT_JUDGED


def record_verdicts(store: Store, name: str, results: ClaimResults, path: Path) -> int:
    """Writes the verdicts of a list into a file, in the place of earlier ones on the same claims.

    Claims that are not judged keep their earlier verdicts, so that the studies of a list may be in
    several stores. Verdicts on claims that the list no longer has are dropped.

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
    absent = {result.claim.id for result in results.results if not has_data(result)}
    kept = [row for row in read_recorded(path) if row.list != name or row.claim in absent]
    rows = sorted((*kept, *_rows(store, name, judged)), key=lambda row: (row.list, row.claim))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({**asdict(row), "verdict": row.verdict.value})
    return len(judged)


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
