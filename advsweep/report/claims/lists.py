"""Lists of claims: sourced statements about runs, read from YAML.

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
      - id: early-acr
        says: Runs that collapse early end lower
        trend: {of: pass@1, over: collapse/acr@first100, direction: falls}

      - id: alpha
        says: A middle alpha is best
        shape: {of: pass@1, over: estimator.alpha, has: maximum inside}

A claim is one of these (docs/claims.md says how each is judged):

    statement   an assertion (`claims.expressions`) or several, which must all hold
    metric      of a row is higher, lower, not higher, not lower than another row or a number, by a
                `margin`, or `by` a share (30%); or `within` the margin of it
    trend       of a column over a column or a config key: the slope of a line through the means of
                rows (`points: runs`: through all runs), of parallel lines `within` values of keys,
                with R² of at least `r2`
    rank        of a column over another: Spearman's rank correlation
    shape       of a column over another: a maximum or a minimum inside
    spread      of a metric over seeds: larger or smaller in a row than in another
    failures    more or fewer failed runs in a row than in another, or than a number

Every claim may have `sweep`, `where`, `at`, `rows`, `setting` (for readers), `seeds` (the least
number of seeds for a verdict, 3 by default) and `confounded: step not matched` (its rows differ in
the length of their steps as well, so that it has no verdict); `common` has defaults for all claims.
`outcomes` of the list declares its primary outcomes, such as [pass@1], in place of those of its
sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.config.groups import conf_directory
from advsweep.errors import ConfigError
from advsweep.report.claims.kinds import Kind
from advsweep.report.claims.parse_kinds import COMPARED, KINDS, check_keys, parse_kind
from advsweep.report.data.columns import Column
from advsweep.report.data.cutoffs import Cutoff, parse_cutoff
from advsweep.report.data.filters import Filter, parse_where, split_list
from advsweep.report.data.outcomes import KEY, parse_outcomes
from advsweep.report.tables.comparison import SEEDS_FOR_A_MARK
from advsweep.yaml_files import read_yaml

_TEXTS = ("id", "says", "source", "setting", "sweep", "where", "at", "rows")
_KEYS = (*_TEXTS, "seeds", "confounded", *KINDS, *COMPARED)
_COMMON = ("source", "setting", "sweep", "where", "at", "rows", "seeds", "confounded")
_CONFOUNDED = "step not matched"


@dataclass(frozen=True)
class Claim:
    """One claim of a list.

    Attributes:
        says: the claim in words.
        source, setting: who claims it and in which setting; for readers.
        kind: what it claims.
        seeds: the least number of seeds (points of a trend, runs that may fail) for a verdict.
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

    @property
    def text(self) -> str:
        """What it claims, as text."""
        return self.kind.text


@dataclass(frozen=True)
class ClaimList:
    """A list of claims, with its title.

    Attributes:
        outcomes: the primary outcomes that it declares; empty for those of the sweeps.
    """

    title: str
    claims: tuple[Claim, ...]
    outcomes: tuple[Column, ...] = ()


def claim_lists() -> dict[str, Path]:
    """Return the lists of experiments by name: the demo's, and in a checkout those of studies."""
    studies = conf_directory().parent.glob("experiments/*/claims.yaml")
    demo = Path(__file__).with_name("demo.yaml")
    return {demo.stem: demo, **{path.parent.name: path for path in sorted(studies)}}


def read_claim_list(path: Path) -> ClaimList:
    """Reads a list of claims.

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
    """Parses a list of claims from plain types.

    Args:
        name: the title of a list without one.

    Raises:
        ConfigError: the document is no list of claims; the message names the claim and its key.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("claims"), list):
        raise ConfigError(f"{name}: expected a mapping with a list under 'claims'")
    check_keys(document, ("title", "common", KEY, "claims"), name)
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
        outcomes=tuple(parse_outcomes(document.get(KEY), f"{name}: {KEY}")),
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
    return Claim(
        id=texts["id"],
        says=texts["says"],
        source=texts["source"],
        setting=texts["setting"],
        kind=parse_kind(entry, name),
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
