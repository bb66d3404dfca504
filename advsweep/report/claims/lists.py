"""Lists of claims: sourced statements about runs, read from YAML and evaluated on a store.

    title: What the demo is to show
    common: {sweep: demo, seeds: 3}
    claims:
      - id: trade
        says: GRPO raises pass@1 and lowers pass@64
        source: A-GRAE (arXiv:2602.05548), sec. 4.2
        statement: ['pass@1[grpo] > pass@1[base]', 'pass@64[grpo] < pass@64[base]']
      - id: fade-acr
        says: FADE collapses less than GRPO
        metric: collapse/acr@first100
        of: fade
        than: grpo
        direction: lower

docs/claims.md has all keys. `common` has defaults for all claims; `outcomes` of the list declares
its primary outcomes in place of those of its sweeps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advsweep.config.groups import conf_directory
from advsweep.errors import (
    ConfigError,
    FitError,
    NotFoundError,
    ReportError,
    StoreError,
    counted,
    reason_of,
)
from advsweep.report.claims.assertions import DECIDED, ClaimVerdict, Finding, correct
from advsweep.report.claims.kinds import (
    Kind,
    Statements,
    Trend,
    check_keys,
    parse_compared,
    withhold,
)
from advsweep.report.claims.reports import ClaimReports
from advsweep.report.data.columns import (
    OUTCOMES,
    Column,
    label_column,
    parse_column,
    parse_outcomes,
)
from advsweep.report.data.cutoffs import Cutoff, parse_cutoff
from advsweep.report.data.filters import Filter, parse_where, split_list
from advsweep.report.tables.comparison import MOST_SEEDS
from advsweep.report.tables.marks import SEEDS_FOR_A_MARK
from advsweep.report.tables.types import Note, NoteKind
from advsweep.statistics import benjamini_hochberg
from advsweep.store import Store
from advsweep.writing import Document, Entry, Line, Table, show_p, write
from advsweep.yaml_files import read_yaml

# The keys that say what a claim claims; `metric` needs the claim's other keys, too.
KINDS: Mapping[str, Callable[[Any, str], Kind]] = {
    "statement": Statements.parse,
    "metric": parse_compared,
    "trend": Trend.parse,
}

_TEXTS = ("id", "says", "source", "setting", "sweep", "where", "at", "rows")
_COMPARED = ("of", "than", "direction", "margin", "by")
_KEYS = (*_TEXTS, "seeds", "confounded", *KINDS, *_COMPARED)
_COMMON = ("source", "setting", "sweep", "where", "at", "rows", "seeds", "confounded")
_CONFOUNDED = "step not matched"
_COUNTED = {ClaimVerdict.HOLDS: "hold", ClaimVerdict.CANNOT_TELL: "cannot be told"}


@dataclass(frozen=True)
class Claim:
    """One claim of a list.

    Attributes:
        says: the claim in words.
        source, setting: who claims it and in which setting; for readers.
        kind: what it claims.
        seeds: the least number of seeds (points of a trend) for a verdict.
        confounded: whether its rows differ in the length of their steps as well.
        sweep, where, at, rows: arguments of the report of its runs.
    """

    id: str
    says: str
    source: str
    setting: str
    kind: Kind
    seeds: int
    confounded: bool
    sweep: str | None
    where: tuple[Filter, ...]
    at: Cutoff | None
    rows: tuple[str, ...] | None


@dataclass(frozen=True)
class ClaimList:
    """A list of claims, with its title.

    Attributes:
        outcomes: the primary outcomes that it declares; empty for those of the sweeps.
    """

    title: str
    claims: tuple[Claim, ...]
    outcomes: tuple[Column, ...] = ()


@dataclass(frozen=True)
class ClaimResults:
    """The findings on a list of claims, in its order.

    Attributes:
        results: `reason` begins with the verdict; p is adjusted after Benjamini and Hochberg. A
            claim about the difference of two rows in a primary outcome has the p of the report of
            its runs with one of them as the baseline; others are corrected among themselves.
        provenance: sentences about the source of the numbers.
    """

    title: str
    results: tuple[Finding, ...]
    provenance: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[Claim, Finding]]:
        """The claims with the findings on them."""
        return [(f.claim, f) for f in self.results if f.claim is not None]

    def count(self, verdict: ClaimVerdict) -> int:
        return sum(result.verdict is verdict for result in self.results)


def claim_lists() -> dict[str, Path]:
    """Return the lists of experiments by name: the demo's, and in a checkout those of studies."""
    studies = conf_directory().parent.glob("experiments/*/claims.yaml")
    demo = Path(__file__).with_name("demo.yaml")
    return {demo.stem: demo, **{path.parent.name: path for path in sorted(studies)}}


def read_claim_list(path: Path) -> ClaimList:
    """Read a list of claims.

    Raises:
        ConfigError: the file cannot be read, or is no list of claims; the message names the claim
            and its key.
    """
    try:
        document = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"claims: {path.name} cannot be read: {reason_of(error)}") from error
    return parse_claim_list(document, path.stem)


def parse_claim_list(document: Any, name: str = "claims") -> ClaimList:
    """Parse a list of claims from plain types.

    Args:
        name: the title of a list without one.

    Raises:
        ConfigError: the document is no list of claims; the message names the claim and its key.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("claims"), list):
        raise ConfigError(f"{name}: expected a mapping with a list under 'claims'")
    check_keys(document, ("title", "common", OUTCOMES, "claims"), name)
    common = document.get("common") or {}
    if not isinstance(common, Mapping):
        raise ConfigError(f"{name}: common: expected a mapping, got {common!r}")
    check_keys(common, _COMMON, f"{name}: common")
    claims = []
    for number, entry in enumerate(document["claims"], start=1):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{name}: claim {number}: expected a mapping, got {entry!r}")
        claims.append(_claim({**common, **entry}, f"claim {entry.get('id', number)}"))
    if not claims:
        raise ConfigError(f"{name}: expected at least one claim")
    for claim_id, count in Counter(claim.id for claim in claims).items():
        if count > 1:
            raise ConfigError(f"{name}: expected each id once, got '{claim_id}' twice")
    return ClaimList(
        title=str(document.get("title", name)),
        claims=tuple(claims),
        outcomes=tuple(parse_outcomes(document.get(OUTCOMES), f"{name}: {OUTCOMES}")),
    )


def _claim(entry: Mapping[str, Any], name: str) -> Claim:
    check_keys(entry, _KEYS, name)
    texts = {key: _text(entry, key, name) for key in _TEXTS}
    if not texts["id"] or not texts["says"]:
        raise ConfigError(f"{name}: expected an id, and what the claim says under 'says'")
    seeds = entry.get("seeds", SEEDS_FOR_A_MARK)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 2:
        raise ConfigError(f"{name}: seeds: expected an integer >= 2, got {seeds!r}")
    confounded = entry.get("confounded")
    if confounded not in (None, _CONFOUNDED):
        raise ConfigError(f"{name}: confounded: expected '{_CONFOUNDED}', got {confounded!r}")
    kind = _parse_kind(entry, name)
    where: tuple[Filter, ...] = ()
    if texts["where"]:
        where = tuple(parse_where(texts["where"], f"{name}: where"))
    return Claim(
        id=texts["id"],
        says=texts["says"],
        source=texts["source"],
        setting=texts["setting"],
        kind=kind,
        seeds=seeds,
        confounded=confounded is not None,
        sweep=texts["sweep"] or None,
        where=where,
        at=parse_cutoff(texts["at"], f"{name}: at") if texts["at"] else None,
        rows=tuple(split_list(texts["rows"])) if texts["rows"] else None,
    )


def _parse_kind(entry: Mapping[str, Any], name: str) -> Kind:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise ConfigError(f"{name}: expected one of {', '.join(KINDS)}, got {got}")
    [kind] = kinds
    return KINDS[kind](entry if kind == "metric" else entry[kind], name)


def _text(entry: Mapping[str, Any], key: str, name: str) -> str:
    value = entry.get(key, "")
    if isinstance(value, (Mapping, list)) or value is None:
        raise ConfigError(f"{name}: {key}: expected a text, got {value!r}")
    return str(value)


def evaluate_claims(store: Store, claims: ClaimList) -> ClaimResults:
    """Evaluate every claim of a list on the finished runs of a store.

    A claim cannot be told if its runs are not finished; it is not judged if it names a sweep, a
    row, a column or a metric that does not exist.

    Raises:
        ConfigError: a claim is ambiguous; the message names it.
    """
    return judge_claim_list(claims, ClaimReports(store, claims.outcomes))


def judge_claim_list(claims: ClaimList, reports: ClaimReports) -> ClaimResults:
    """Judge every claim of a list on reports of their runs.

    Raises:
        ConfigError: a claim is ambiguous; the message names it.
    """
    findings = [_judge(claim, reports) for claim in claims.claims]
    # Claims on a report's primary differences have the report's own p: two commands must not say
    # different things of one comparison. The others are a family of this list.
    p_values = [math.nan if finding.family else finding.p_value for finding in findings]
    tests = sum(not math.isnan(p_value) for p_value in p_values)
    family = f"{counted(tests, 'test')} of this list"
    results = []
    for finding, p_adjusted in zip(findings, benjamini_hochberg(p_values), strict=True):
        if not finding.family and not math.isnan(p_adjusted):
            finding = replace(finding, p_adjusted=float(p_adjusted), family=family)
        corrected = correct(finding)
        results.append(replace(corrected, reason=corrected.text))
    return ClaimResults(claims.title, tuple(results), tuple(reports.provenance))


def _judge(claim: Claim, reports: ClaimReports) -> Finding:
    """Return the finding on a claim before the other claims of its list count."""
    try:
        finding = claim.kind.judge(reports, claim)
        notes = reports.of(claim).notes
    except NotFoundError as error:
        return Finding(ClaimVerdict.NOT_JUDGED, str(error), claim=claim)
    except (ReportError, StoreError, FitError) as error:
        return Finding(ClaimVerdict.CANNOT_TELL, str(error), claim=claim)
    if claim.confounded:
        finding = withhold(finding, ClaimVerdict.STEP_NOT_MATCHED)
    if finding.n < claim.seeds and finding.verdict in DECIDED:
        asks = f"; the claim asks for {claim.seeds} {finding.unit}, and there are {finding.n}"
        finding = replace(finding, verdict=ClaimVerdict.CANNOT_TELL, reason=finding.reason + asks)
    more = None
    if finding.verdict is ClaimVerdict.CANNOT_TELL:
        missing = max(finding.needed or 0, claim.seeds) - finding.n
        more = missing if missing > 0 else None
    # Where runs are compared at a value, those that do not come to it are not in the numbers.
    texts = [text for text in _describe_cutoffs(claim, notes) if text not in finding.reason]
    return replace(finding, reason="; ".join([finding.reason, *texts]), claim=claim, more=more)


def _describe_cutoffs(claim: Claim, notes: Sequence[Note]) -> list[str]:
    """Return the sentences of a report on the values at which a claim compares runs."""
    columns = map(parse_column, claim.kind.columns)
    cutoffs = [c.at.text for c in columns if c is not None and c.at is not None]
    is_at_value = claim.at is not None and not claim.at.is_cost
    return [
        note.text
        for note in notes
        if (note.kind is NoteKind.COLUMN_CUTOFF and note.about in cutoffs)
        or (note.kind is NoteKind.REPORT_CUTOFF and is_at_value)
    ]


def render_claims(results: ClaimResults, format: str = "table") -> str:
    """Render results as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    if format not in ("csv", "json"):
        return write(lay_out_claims(results), format)
    records = [_record(claim, finding) for claim, finding in results.pairs]
    if format == "csv":
        return write(records, format)
    document = {"title": results.title, "claims": records, "provenance": results.provenance}
    return write(document, format)


def lay_out_claims(results: ClaimResults) -> Document:
    """Lay out the results as a table, with a sentence for each below it."""
    headings = ("difference", "95 % interval", "n", "p", "p adj", "more needed")
    lines = [
        Line((claim.id, finding.verdict.value, _label_columns(claim)), _entries(finding))
        for claim, finding in results.pairs
    ]
    table = Table(
        names=("claim", "verdict", "column"),
        columns=headings,
        sections=(tuple(lines),),
        title=results.title,
    )
    notes = [f"{counted(len(lines), 'claim')}: {_count_verdicts(results)}"]
    settings: dict[str, list[str]] = {}
    for claim, finding in results.pairs:
        source = f" ({claim.source})" if claim.source else ""
        notes.append(f"{claim.id}: {claim.says}{source}. {finding.reason}")
        if claim.setting:
            settings.setdefault(claim.setting, []).append(claim.id)
    for setting, ids in settings.items():
        of = f" of {', '.join(ids)}" if len(settings) > 1 else ""
        notes.append(f"setting{of}: {setting}")
    return Document(tables=(table,), notes=tuple(notes), provenance=results.provenance)


def _label_columns(claim: Claim) -> str:
    """Name what a claim is about, as reports do: it need not be one of their outcomes."""
    return ", ".join(map(label_column, claim.kind.columns))


def _count_verdicts(results: ClaimResults) -> str:
    counts = Counter(finding.verdict for finding in results.results)
    texts = []
    for verdict in ClaimVerdict:
        if counts[verdict] or verdict in DECIDED:
            texts.append(f"{counts[verdict]} {_COUNTED.get(verdict, verdict.value)}")
    return ", ".join(texts)


def _entries(result: Finding) -> tuple[Entry, ...]:
    more = "" if result.more is None else f"{result.more}"
    if result.more is not None and result.more + result.n > MOST_SEEDS:
        more = f"> {MOST_SEEDS}"
    if math.isnan(result.difference):
        return (Entry(), Entry(), Entry(), Entry(), Entry(), Entry(more))
    interval = Entry()
    if not math.isnan(result.low):
        interval = Entry(f"[{result.low:+.3g}, {result.high:+.3g}]")
    return (
        Entry(f"{result.difference:+.3g}", value=result.difference),
        interval,
        Entry(str(result.n), value=float(result.n)),
        Entry(show_p(result.p_value), value=result.p_value),
        Entry(show_p(result.p_adjusted), value=result.p_adjusted),
        Entry(more),
    )


def _record(claim: Claim, result: Finding) -> dict[str, Any]:
    numbers = {
        "difference": result.difference,
        "low": result.low,
        "high": result.high,
        "p": result.p_value,
        "p_adjusted": result.p_adjusted,
    }
    return {
        "claim": claim.id,
        "verdict": result.verdict.value,
        "says": claim.says,
        "judged": claim.kind.text,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "family": result.family or None,
        "n": result.n,
        "more_needed": result.more,
        "reason": result.reason,
        "source": claim.source,
        "setting": claim.setting,
    }
