"""The papers' claims, and what a store, the recorded studies and the theory say about each.

`paper_claims.yaml` beside this module says what judges each claim: a check of a theorem, the claims
of a list that have its id (AV13, or AV13a and AV13b), or nothing, and why. At each scale the worst
of these claims counts, corrected for their number; the largest scale that decides gives the
verdict.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from advsweep.errors import ConfigError
from advsweep.report.claims.evaluate import evaluate_claims
from advsweep.report.claims.expressions import DECIDED, ClaimVerdict
from advsweep.report.claims.findings import RANK
from advsweep.report.claims.lists import ClaimList, claim_lists, read_claim_list
from advsweep.report.papers.recorded_verdicts import RecordedVerdict, has_data
from advsweep.report.tables.comparison import LEVEL
from advsweep.statistics.ranks import holm
from advsweep.store import Store
from advsweep.yaml_files import read_yaml

THEORY = "theory"
_MAP = Path(__file__).with_name("paper_claims.yaml")
_PART = re.compile(r"(?P<claim>[A-Z]{2}\d{2})(?P<letter>[a-z]?)")
_KEYS = ({"section", "says", "judge"}, {"section", "says", "why"})
_WITHHELD = (ClaimVerdict.AT_CHANCE, ClaimVerdict.STEP_NOT_MATCHED)


class Scale(Enum):
    """Where a claim was judged; the first that decides gives the verdict."""

    EXACT = "exact"
    TINY = "tiny transformer"
    TOY = "toy"
    BANDIT = "bandit"

    @classmethod
    def of(cls, setting: str) -> Scale:
        """Returns the scale of a claim's setting, whose first word names it."""
        named = {cls.EXACT.value: cls.EXACT, "toy": cls.TOY, "bandit": cls.BANDIT}
        return named.get(setting.partition(" ")[0].rstrip(","), cls.TINY)


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper that can be checked.

    Attributes:
        id: its id, AV01 to FA32.
        paper: the paper's name and arXiv number.
        section: where the paper makes it.
        says: the claim in our words.
        judge: `theory`, or the name of a list of claims; empty if nothing judges it.
        parts: letters of the list's claims that state it, `-` for the one without a letter;
            empty for all of them.
        why: why nothing judges it; empty otherwise.
    """

    id: str
    paper: str
    section: str
    says: str
    judge: str
    parts: str = ""
    why: str = ""

    def has_part(self, id: str) -> bool:
        """Whether a claim of a list is one of those that judge this claim."""
        match = _PART.fullmatch(id)
        if match is None or match["claim"] != self.id:
            return False
        return not self.parts or (match["letter"] or "-") in self.parts.split()


@dataclass(frozen=True)
class PartVerdict:
    """The verdict on a claim of a list, or on a theorem.

    Attributes:
        id: its id in the list, such as AV13a.
        n: seeds, points of a trend, or numbers compared.
        setting: the setting, in words.
        reason: a sentence with the numbers.
        p_value: of its test; NaN if there is none.
        recorded: the day of the study if the verdict is a recorded one; empty otherwise.
    """

    id: str
    verdict: ClaimVerdict
    n: int
    setting: str
    reason: str
    p_value: float = math.nan
    recorded: str = ""


@dataclass(frozen=True)
class ScaleVerdict:
    """The verdict on a claim at one scale.

    A claim holds if each of its parts does; it is contradicted if one is, after the correction of
    Holm for the number of parts. A claim of which a part has no data does not hold as a whole: it
    is then CANNOT_TELL.

    Attributes:
        parts: the verdicts on the parts with data, at least one.
        missing: ids of the parts without data.
    """

    scale: Scale
    parts: tuple[PartVerdict, ...]
    missing: tuple[str, ...]

    @functools.cached_property
    def corrected(self) -> Mapping[str, float]:
        """The p of each part that has a test, among those of all parts."""
        tested = [part for part in self.parts if not math.isnan(part.p_value)]
        adjusted = holm([part.p_value for part in tested])
        return {part.id: p for part, p in zip(tested, adjusted, strict=True)}

    def verdict_on(self, part: PartVerdict) -> ClaimVerdict:
        """Returns the verdict on a part among all parts."""
        is_lost = self.corrected.get(part.id, 0.0) > LEVEL
        if part.verdict is ClaimVerdict.CONTRADICTED and is_lost:
            return ClaimVerdict.NOT_SETTLED
        return part.verdict

    @property
    def deciding(self) -> PartVerdict:
        """The part with the worst verdict."""
        return min(self.parts, key=lambda part: RANK[self.verdict_on(part)])

    @property
    def verdict(self) -> ClaimVerdict:
        worst = self.verdict_on(self.deciding)
        if self.missing and worst is ClaimVerdict.HOLDS:
            return ClaimVerdict.CANNOT_TELL
        return worst

    @property
    def reason(self) -> str:
        """The deciding part's reason, after the parts that lack data."""
        part = self.deciding
        missing = f"{', '.join(self.missing)} without data; " if self.missing else ""
        if self.verdict_on(part) is part.verdict:
            return missing + part.reason
        return f"{missing}{part.reason}; p = {self.corrected[part.id]:.3g} among its parts (Holm)"


@dataclass(frozen=True)
class PaperVerdict:
    """What is known about a claim of a paper.

    Attributes:
        scales: its verdicts by scale, in the order of `Scale`; empty if it is not judged.
        why: why it is not judged; empty otherwise.
    """

    claim: PaperClaim
    scales: tuple[ScaleVerdict, ...]
    why: str = ""

    @property
    def deciding(self) -> ScaleVerdict | None:
        """The first scale that decides, or else the first that judges, or else the first of all."""
        decided = [scale for scale in self.scales if scale.verdict in DECIDED]
        judged = [scale for scale in self.scales if scale.verdict not in _WITHHELD]
        return next(iter([*decided, *judged, *self.scales]), None)

    @property
    def verdict(self) -> ClaimVerdict:
        """That of the deciding scale; NOT_JUDGED if there is none."""
        return self.deciding.verdict if self.deciding else ClaimVerdict.NOT_JUDGED

    @property
    def reason(self) -> str:
        return self.deciding.reason if self.deciding else self.why

    @property
    def recorded(self) -> str:
        """The latest day of the recorded verdicts that it rests on; empty without any."""
        return max((p.recorded for p in self.deciding.parts), default="") if self.deciding else ""


def read_paper_claims(path: Path = _MAP) -> list[PaperClaim]:
    """Reads the map of the papers' claims.

    Raises:
        ConfigError: an entry lacks a key, or has not exactly one of `judge` and `why`.
    """
    claims = []
    for paper in read_yaml(path).values():
        for id, entry in paper["claims"].items():
            texts = {key: str(value) for key, value in entry.items()}
            if set(texts) - {"parts"} not in _KEYS or {"parts", "why"} <= set(texts):
                raise ConfigError(
                    f"{path}: {id}: expected section, says, and one of judge and why, "
                    f"got {', '.join(texts)}"
                )
            claims.append(PaperClaim(id=id, paper=paper["title"], **{"judge": "", **texts}))
    return claims


def judge_papers(
    claims: Sequence[PaperClaim],
    theory: Iterable[PartVerdict],
    store: Store | None,
    recorded: Sequence[RecordedVerdict],
    lists: Mapping[str, Path] | None = None,
) -> list[PaperVerdict]:
    """Judges the papers' claims.

    A claim of a list is judged by the store's runs; where the store has none, by the recorded
    verdict.

    Args:
        theory: the verdicts of the checks of theorems.
        store: None: recorded verdicts alone.
        lists: the files of lists by name; by default those of the package.

    Raises:
        ConfigError: a list cannot be read.
    """
    lists = claim_lists() if lists is None else lists
    found: dict[str, dict[str, PartVerdict]] = {THEORY: {part.id: part for part in theory}}
    settings: dict[str, dict[str, str]] = {THEORY: dict.fromkeys(found[THEORY], Scale.EXACT.value)}
    for name in {claim.judge for claim in claims} - {"", THEORY}:
        listed = read_claim_list(lists[name]) if name in lists else ClaimList(name, ())
        settings[name] = {claim.id: claim.setting for claim in listed.claims}
        found[name] = _parts(listed, name, store, recorded)
    return [_judge(claim, settings, found) for claim in claims]


def _parts(
    listed: ClaimList, name: str, store: Store | None, recorded: Sequence[RecordedVerdict]
) -> dict[str, PartVerdict]:
    """Returns the verdicts on the claims of a list that have data, by id."""
    parts = {
        row.claim: PartVerdict(
            row.claim, row.verdict, row.n, row.setting, row.reason, row.p, row.study
        )
        for row in recorded
        if row.list == name
    }
    if store is None or not listed.claims:
        return parts
    known = {sweep.name for sweep in store.sweeps.select()}
    if not any(claim.sweep in known for claim in listed.claims):
        return parts
    for result in evaluate_claims(store, listed).results:
        if has_data(result):
            claim = result.claim
            parts[claim.id] = PartVerdict(
                claim.id, result.verdict, result.n, claim.setting, result.reason, result.p_value
            )
    return parts


def _judge(
    claim: PaperClaim,
    settings: Mapping[str, Mapping[str, str]],
    found: Mapping[str, Mapping[str, PartVerdict]],
) -> PaperVerdict:
    """Judges a claim, given the settings of the lists' claims and the verdicts on them."""
    if not claim.judge:
        return PaperVerdict(claim, (), claim.why)
    known = found[claim.judge]
    by_scale: dict[Scale, list[str]] = {scale: [] for scale in Scale}
    for id, setting in settings[claim.judge].items():
        if claim.has_part(id):
            by_scale[Scale.of(setting)].append(id)
    scales = tuple(
        ScaleVerdict(
            scale,
            tuple(known[id] for id in ids if id in known),
            tuple(id for id in ids if id not in known),
        )
        for scale, ids in by_scale.items()
        if any(id in known for id in ids)
    )
    why = ""
    if not any(by_scale.values()):
        why = f"the list {claim.judge} does not have it"
    elif not scales:
        why = f"the store has no runs for it ({claim.judge}), and no study has recorded it"
    return PaperVerdict(claim, scales, why)


def paper_claim_of(id: str) -> str | None:
    """Returns the paper's claim that a claim of a list is about, as AV13 of AV13b."""
    match = _PART.fullmatch(id)
    return match["claim"] if match else None
