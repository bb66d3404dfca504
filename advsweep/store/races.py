"""Races as a store has them: how the arms of a sweep stand, by the results of its runs.

A sweep's spec says what decides and which runs each arm may have. All else is derived from the runs
each time, so that a race that was interrupted goes on from its results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from advsweep.config.space import Race
from advsweep.errors import ConfigError, counted
from advsweep.store.records import Status

if TYPE_CHECKING:
    from advsweep.statistics.racing import Standing
    from advsweep.statistics.sequences import Look
    from advsweep.store.store import Store

# The key of a sweep's spec.
RACE_KEY = "race"


@dataclass(frozen=True, kw_only=True)
class RaceRecord:
    """How a race stands.

    Attributes:
        names: of the arms, the baseline first.
        runs: the identities of the runs of each arm, by seed.
        standings: of each arm.
    """

    race: Race
    names: Sequence[str]
    runs: Sequence[Sequence[str]]
    standings: Sequence[Standing]

    @property
    def wanted(self) -> list[str]:
        """The runs so far, and those to train next."""
        pairs = zip(self.standings, self.runs, strict=True)
        return [
            run for standing, runs in pairs for run in runs[: max(standing.seeds, standing.wanted)]
        ]

    @property
    def title(self) -> str:
        """What is compared, and how far the race is."""
        runs = sum(standing.seeds for standing in self.standings)
        racing = sum(standing.is_racing for standing in self.standings)
        return (
            f"race by {self.race.metric} (margin {self.race.margin:g}, alpha {self.race.alpha:g} "
            f"at any look): {runs} of at most {counted(sum(map(len, self.runs)), 'run')}, "
            f"{racing or 'none'} of {len(self.names)} arms still racing"
        )

    @property
    def limits(self) -> list[str]:
        """What verdicts of "equal" leave open: runs that fail too seldom to have been seen."""
        from advsweep.statistics.racing import failure_bound

        lines = []
        for name, standing in zip(self.names, self.standings, strict=True):
            if not standing.is_equal:
                continue
            bound = round(100 * failure_bound(standing.failed, standing.seeds))
            lines.append(
                f"{name}, equal: {standing.failed} of {counted(standing.seeds, 'seed')} failed; "
                f"failures of up to {bound} % of runs are not excluded"
            )
        return lines

    @property
    def text(self) -> str:
        """The title, the verdicts and what they leave open, in a line."""
        against = [
            f"{name} {standing.to_baseline.verdict} {self.names[0]} ({standing.place})"
            for name, standing in zip(self.names, self.standings, strict=True)
            if standing.to_baseline is not None
        ]
        return "; ".join([f"{self.title}: {', '.join(against)}", *self.limits])

    def rows(self, looks: int | None = None) -> list[dict[str, str]]:
        """Return how each arm stands in words, and how its interval has tightened.

        Args:
            looks: only the last ones.
        """
        looks_of_arms = [_looks_by_seeds(standing) for standing in self.standings]
        finite = sorted(
            {
                seeds
                for by_seeds in looks_of_arms
                for seeds, look in by_seeds.items()
                if math.isfinite(look.high)
            }
        )
        shown = finite if looks is None else finite[-looks:]
        baseline = self.names[0]
        rows = []
        for name, standing, by_seeds in zip(self.names, self.standings, looks_of_arms, strict=True):
            row = {
                "arm": name,
                "seeds": str(standing.seeds),
                f"to {baseline}": "baseline",
                "to the best": f"{standing.place}{_state_in_words(standing)}",
                "difference": "",
            }
            if standing.to_baseline is not None:
                row[f"to {baseline}"] = standing.to_baseline.verdict
            if by_seeds:
                row["difference"] = f"{by_seeds[max(by_seeds)].mean:+.3f}"
            for seeds in shown:
                look = by_seeds.get(seeds)
                text = f"{look.low:+.3f} to {look.high:+.3f}" if look else ""
                row[f"after {seeds} seeds"] = text
            rows.append(row)
        return rows

    def plain(self) -> dict[str, Any]:
        """Return the settings, and each arm with its verdicts and sequences, in JSON types."""
        pairs = zip(self.names, self.standings, strict=True)
        arms = [{"name": name, **asdict(standing)} for name, standing in pairs]
        return {**self.race.plain(), "arms": arms, "limits": self.limits}


def _looks_by_seeds(standing: Standing) -> dict[int, Look]:
    """Return the looks at an arm's difference to the baseline by their number of seeds."""
    if standing.to_baseline is None:
        return {}
    return {look.n: look for look in standing.to_baseline.looks}


def _state_in_words(standing: Standing) -> str:
    if standing.is_racing:
        return ", racing"
    return " at the end" if standing.place == "open" else ""


def read_race(store: Store, sweep: str) -> RaceRecord | None:
    """Return how the race of a sweep stands; None for a sweep without one.

    Raises:
        NotFoundError: there is no such sweep.
    """
    node: Any = store.sweeps.spec(sweep).get(RACE_KEY)
    try:
        race = Race.build(node["settings"])
        names = [str(arm["name"]) for arm in node["arms"]]
        runs = [[str(identity) for identity in arm["runs"]] for arm in node["arms"]]
    except (ConfigError, KeyError, TypeError):
        return None
    if len(runs) < 2 or not runs[0] or len({len(seeds) for seeds in runs}) > 1:
        return None
    # It loads numpy, which `status` of other sweeps can do without.
    from advsweep.statistics.racing import judge_race

    stored = store.runs.by_identity(sweep)
    done = [run.id for run in stored.values() if run.status is Status.DONE]
    measured = store.metrics.means(done, race.metric, last=1)

    def value(identity: str) -> float | None:
        run = stored.get(identity)
        return None if run is None or not run.is_conclusive else measured.get(run.id, math.nan)

    values = [[value(identity) for identity in seeds] for seeds in runs]
    standings = judge_race(
        values, margin=race.margin, alpha=race.alpha, lower=race.lower, gives_up=race.give_up
    )
    return RaceRecord(race=race, names=names, runs=runs, standings=standings)
