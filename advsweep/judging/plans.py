"""What a judge trains: the tuning of the idea, its race against RLOO, and RLOO's A/A.

+experiment=judge/middle has the setting. The idea is tuned on two bases. RLOO keeps the rate
that the leaderboard's tuning chose for it on the same two, so that its runs are the same for
every idea, and are trained once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.build import name_of
from advsweep.config.space import SEED, Assignment
from advsweep.errors import ConfigError
from advsweep.judging.ideas import PREFIX, Idea
from advsweep.judging.leaderboard import BASELINE, baseline_rate
from advsweep.names import YAML_SUFFIXES
from advsweep.store.tuning_records import TUNE_KEY, TuningRecord
from advsweep.sweep.planning.plan import Change, Plan, make_plan
from advsweep.sweep.racing import plan_race
from advsweep.sweep.tuning import Tuning, plan_tuning
from advsweep.tasks.controls import AA, CONTROL

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

RATE = "optimizer.lr"

# The most seeds in a setting of the user's, whose runs may take hours.
_OWN_SEEDS = 6

# The parts of a run's config that tell whether two judges are of the same idea in the same setting.
_OF_IDEA = ("estimator", "objective", "rollout", "backend", "steps", "group_size")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """On what ideas are judged.

    Attributes:
        name: such as `middle`; a part of the names of sweeps.
        overrides: of the present command line, or the caller's own, the sweep file first.
        baseline_rate: RLOO's learning rate; None: both have that of the sweep file, and nothing is
            tuned.
        is_listed: whether the leaderboard has results in this setting.
        config_dirs: folders of the user's own config groups.
    """

    name: str
    overrides: Sequence[str]
    baseline_rate: float | None
    is_listed: bool
    config_dirs: Sequence[Path] = ()

    @property
    def is_own(self) -> bool:
        """Whether it is that of a sweep file of the user's, whose runs may take hours."""
        return self.baseline_rate is None


def range_setting(
    difficulty: str, overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()
) -> Setting:
    """Return the setting of a range of the leaderboard.

    Args:
        overrides: values that differ from the leaderboard's setting.
    """
    return Setting(
        name=difficulty,
        overrides=[f"+experiment=judge/{difficulty}", *overrides],
        baseline_rate=baseline_rate(difficulty),
        is_listed=not overrides,
        config_dirs=config_dirs,
    )


def own_setting(
    file: str, overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()
) -> Setting:
    """Return the setting of a sweep file of the user's, at whose learning rate all are trained.

    Args:
        file: of the present command line, or the caller's own.
    """
    race = f"sweep.race={{margin:0.02,alpha:0.01,most:{_OWN_SEEDS},give_up:false}}"
    return Setting(
        name=Path(file).stem,
        overrides=[file, race, *overrides],
        baseline_rate=None,
        is_listed=False,
        config_dirs=config_dirs,
    )


@dataclass(frozen=True, kw_only=True)
class JudgeWords:
    """The words behind an estimator, of the present command line or the caller's own.

    Attributes:
        options: of the idea, as `estimator.scale=0.5`.
        overrides: the other KEY=VALUE.
        file: a sweep file; None without one.
    """

    options: Sequence[str]
    overrides: Sequence[str]
    file: str | None

    def setting(self, difficulty: str, config_dirs: Sequence[Path] = ()) -> Setting:
        """Return the setting that they give: that of the sweep file, else of a range."""
        if self.file is not None:
            return own_setting(self.file, self.overrides, config_dirs)
        return range_setting(difficulty, self.overrides, config_dirs)


def sort_words(words: Iterable[str]) -> JudgeWords:
    """Tell the idea's options, keys of the setting and a sweep file apart.

    Raises:
        ConfigError: a word is neither a file nor KEY=VALUE, or there are several files.
    """
    options = []
    overrides = []
    files = []
    for word in words:
        if "=" not in word:
            if not word.endswith(YAML_SUFFIXES):
                raise ConfigError(
                    f"{word}: expected KEY=VALUE or a sweep file behind the estimator, got another "
                    "word"
                )
            files.append(word)
        elif word.startswith(PREFIX):
            options.append(word)
        else:
            overrides.append(word)
    if len(files) > 1:
        raise ConfigError(f"expected one sweep file, got {', '.join(files)}")
    return JudgeWords(options=options, overrides=overrides, file=files[0] if files else None)


@dataclass(frozen=True, kw_only=True)
class JudgePlans:
    """The stages of a judge.

    Attributes:
        name: of its sweep; the tuning's has a suffix.
        tuning: the idea at several rates on other bases; None in a setting without it.
    """

    idea: Idea
    setting: Setting
    name: str
    tuning: Tuning | None

    def race(self, rate: float | None, record: TuningRecord | None = None) -> Plan:
        """Plan the idea beside RLOO.

        Args:
            rate: the idea's learning rate; None: that of the sweep file.
            record: the tuning that chose it.
        """

        def at_rates(listed: Sequence[Assignment]) -> list[Assignment]:
            return [self._at_rate(point, rate) for point in listed]

        plan = self._plan(at_rates)
        if record is not None:
            plan = replace(plan, spec={**plan.spec, TUNE_KEY: record.plain()})
        return plan_race(plan)

    def repetition(self, raced: Plan, seeds: Iterable[int]) -> Plan:
        """Plan RLOO's A/A on some seeds, as further runs of the sweep of a race.

        Args:
            raced: the plan of the race, whose arms the sweep keeps.
        """
        wanted = set(seeds)

        def repeated(listed: Sequence[Assignment]) -> list[Assignment]:
            return [
                self._at_rate(point, self.setting.baseline_rate)
                for point in listed
                if point.get(CONTROL) == AA.name and point[SEED] in wanted
            ]

        plan = self._plan(repeated, "sweep.controls=[aa]")
        return replace(plan, spec=raced.spec, race=None)

    def _at_rate(self, point: Assignment, rate: float | None) -> Assignment:
        if point["estimator"] == BASELINE:
            return _with_rate(point, self.setting.baseline_rate)
        options = {f"{PREFIX}{key}": value for key, value in self.idea.options.items()}
        return _with_rate({**point, **options}, rate)

    def _plan(self, change: Change, *overrides: str) -> Plan:
        return make_plan(
            [*self.setting.overrides, f"estimator={BASELINE},{self.idea.name}", *overrides],
            config_dirs=self.setting.config_dirs,
            name=self.name,
            change=change,
        )


def _with_rate(point: Assignment, rate: float | None) -> Assignment:
    return point if rate is None else {**point, RATE: rate}


def plan_judge(idea: Idea, setting: Setting, is_free: Callable[[str, str], bool]) -> JudgePlans:
    """Plan the stages of a judge.

    Args:
        is_free: whether a sweep of a name has no runs but those of an idea, given as
            `signature_of` returns it.

    Raises:
        ConfigError: the idea cannot be trained in this setting. Nothing was started.
    """
    first = f"judge-{idea.name}-{setting.name}"
    plans = _plan_judge(idea, setting, first)
    tuning = plans.tuning
    runs = plans.race(None).runs if tuning is None else tuning.test.runs
    signature = signature_of(runs[-1].config)
    numbered = (f"{first}-{number}" for number in itertools.count(2))
    names = itertools.chain([first], numbered)
    name = next(each for each in names if is_free(each, signature))
    return plans if name == first else _plan_judge(idea, setting, name)


def _plan_judge(idea: Idea, setting: Setting, name: str) -> JudgePlans:
    tuning = None
    if setting.baseline_rate is not None:
        options = [f"{PREFIX}{key}={_written(value)}" for key, value in idea.options.items()]
        texts = [*setting.overrides, "sweep.race=null", f"estimator={idea.name}", *options]
        tuning = plan_tuning(texts, config_dirs=setting.config_dirs, name=name)
        if tuning is None:
            raise ConfigError(
                f"{setting.overrides[0]}: expected a sweep file with `tune`, in which the idea "
                "finds its learning rate, got none"
            )
    return JudgePlans(idea=idea, setting=setting, name=name, tuning=tuning)


def _written(value: Any) -> str:
    """Write the value of an option as an override has it."""
    return json.dumps(value)


def signature_of(config: Mapping[str, Any]) -> str:
    """Return what tells whether two runs are of the same idea in the same setting."""
    return json.dumps({key: config.get(key) for key in _OF_IDEA}, sort_keys=True)


def has_room(store: Store | None, name: str, signature: str) -> bool:
    """Tell whether a sweep of a name has no runs but those of an idea, and of RLOO.

    Args:
        store: None if it does not exist yet.
        signature: as `signature_of` returns it.
    """
    return all(signature_of(run.config) == signature for run in _runs_of_idea(store, name))


def _runs_of_idea(store: Store | None, name: str) -> list[RunRecord]:
    if store is None:
        return []
    wanted = {name, f"{name}-tuning"}
    known = [each for each in store.sweeps.names() if each in wanted]
    runs = [run for sweep in known for run in store.runs.select(sweep=sweep)]
    return [run for run in runs if name_of(run.config.get("estimator")) != BASELINE]
