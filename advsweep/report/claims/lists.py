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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
)
from advsweep.report.claims.assertions import DECIDED, ClaimVerdict, Finding, correct, find_row
from advsweep.report.claims.kinds import (
    Kind,
    Statements,
    Trend,
    check_keys,
    parse_compared,
    withhold,
)
from advsweep.report.claims.reports import ClaimReports, columns_of
from advsweep.report.data.columns import (
    OUTCOMES,
    REACHED,
    Column,
    Cutoff,
    parse_cutoff,
    parse_outcomes,
)
from advsweep.report.data.runs import Filter, name_group, parse_where, split_list
from advsweep.report.tables.comparison import SEEDS_FOR_A_MARK
from advsweep.statistics import benjamini_hochberg
from advsweep.store import Store
from advsweep.yaml_files import read_yaml

KINDS: Mapping[str, Callable[[Any, str], Kind]] = {
    "statement": Statements.parse,
    "metric": parse_compared,
    "trend": Trend.parse,
}
"""The keys that say what a claim claims; `metric` needs the claim's other keys, too."""

_TEXTS = ("id", "says", "source", "setting", "sweep", "where", "at", "rows")
_COMPARED = ("of", "than", "direction", "margin", "by")
_KEYS = (*_TEXTS, "seeds", "confounded", *KINDS, *_COMPARED)
_COMMON = ("source", "setting", "sweep", "where", "at", "rows", "seeds", "confounded")
_CONFOUNDED = "step not matched"
_NAMED = 6  # rows in a sentence


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
class ClaimResult(Finding):
    """What the data say about one claim of a list; `reason` begins with the verdict.

    Attributes:
        p_adjusted: p after Benjamini and Hochberg. A claim about the difference of two rows in a
            primary outcome has that of the report of its runs with one of them as the baseline;
            others are corrected among themselves.
        more: the number of further seeds (points of a trend) that would decide with a power of
            80 % if the difference is as found; None where it is unknown or 0.
    """

    claim: Claim = field(kw_only=True)
    more: int | None = None


@dataclass(frozen=True)
class ClaimResults:
    """The results of a list of claims, in its order.

    Attributes:
        provenance: sentences about the source of the numbers.
    """

    title: str
    results: tuple[ClaimResult, ...]
    provenance: tuple[str, ...]

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
        raise ConfigError(f"claims: {path.name} cannot be read: {error.strerror}") from error
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
    ids = [claim.id for claim in claims]
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        raise ConfigError(f"{name}: expected each id once, got '{twice}' twice")
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
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise ConfigError(f"{name}: expected one of {', '.join(KINDS)}, got {got}")
    kind = KINDS[kinds[0]](entry if kinds[0] == "metric" else entry[kinds[0]], name)
    return Claim(
        id=texts["id"],
        says=texts["says"],
        source=texts["source"],
        setting=texts["setting"],
        kind=kind,
        seeds=seeds,
        confounded=confounded is not None,
        sweep=texts["sweep"] or None,
        where=tuple(parse_where(texts["where"], f"{name}: where")) if texts["where"] else (),
        at=parse_cutoff(texts["at"], f"{name}: at") if texts["at"] else None,
        rows=tuple(split_list(texts["rows"])) if texts["rows"] else None,
    )


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
    reports = ClaimReports(store, claims.claims, claims.outcomes)
    results = [_judge(claim, reports) for claim in claims.claims]
    alone = [math.nan if result.family else result.p_value for result in results]
    size = sum(not math.isnan(p) for p in alone)
    settled = []
    # Claims on a report's primary differences have the report's own p: two commands must not say
    # different things of one comparison. The others are a family of this list.
    for result, p_value in zip(results, benjamini_hochberg(alone), strict=True):
        if not result.family and not math.isnan(p_value):
            family = f"{counted(size, 'test')} of this list"
            result = replace(result, p_adjusted=float(p_value), family=family)
        corrected = correct(result)
        settled.append(replace(corrected, reason=corrected.text))
    return ClaimResults(claims.title, tuple(settled), tuple(reports.provenance))


def _judge(claim: Claim, reports: ClaimReports) -> ClaimResult:
    """Return the finding on a claim by itself, before the other claims of its list count."""
    try:
        finding = claim.kind.judge(reports, claim)
        survivors = _describe_survivors(claim, reports)
    except NotFoundError as error:
        return ClaimResult(ClaimVerdict.NOT_JUDGED, str(error), claim=claim)
    except (ReportError, StoreError, FitError) as error:
        return ClaimResult(ClaimVerdict.CANNOT_TELL, str(error), claim=claim)
    if claim.confounded:
        finding = withhold(finding, ClaimVerdict.STEP_NOT_MATCHED)
    if finding.n < claim.seeds and finding.verdict in DECIDED:
        asks = f"; the claim asks for {claim.seeds} {finding.unit}, and there are {finding.n}"
        finding = replace(finding, verdict=ClaimVerdict.CANNOT_TELL, reason=finding.reason + asks)
    missing = 0
    if finding.verdict is ClaimVerdict.CANNOT_TELL:
        missing = max(finding.needed or 0, claim.seeds) - finding.n
    finding = replace(finding, reason=finding.reason + survivors)
    return ClaimResult(**vars(finding), claim=claim, more=missing if missing > 0 else None)


def _describe_survivors(claim: Claim, reports: ClaimReports) -> str:
    """Say how many runs reach the cutoffs of a claim, by row."""
    report = reports.of(claim)
    cutoffs = [name for name in columns_of(claim) if name.startswith(f"{REACHED}@")]
    cutoffs += [REACHED] if claim.at is not None and not claim.at.is_cost else []
    rows = [find_row(report, name, f"claim {claim.id}") for name in claim.kind.rows]
    text = ""
    for name in cutoffs:
        shown = []
        for row in rows or report.rows:
            if name in row.cells and not row.is_base:
                reached = sum(value > 0 for value in row.cells[name].values)
                shown.append(f"{reached} of {row.n} runs of {name_group(row.group)}")
        if shown:
            more = [counted(len(shown) - _NAMED, "more row")] if len(shown) > _NAMED else []
            where = name.partition("@")[2] or "it"
            text += f"; {', '.join([*shown[:_NAMED], *more])} reach {where}"
    return text
