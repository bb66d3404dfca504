"""A judge from the words of a command line to a verdict, for the command and for Python callers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.judging.ideas import Examination, Idea, examine, read_idea
from advsweep.judging.plans import JudgePlans, Setting, has_room, plan_judge
from advsweep.judging.records import plain_judge, plain_verdict
from advsweep.judging.sentences import (
    Judged,
    describe_examination,
    describe_table,
    describe_verdict,
    joined,
    wrap,
)
from advsweep.judging.training import JudgeTraining, TrainedJudge
from advsweep.judging.verdict import Verdict, VerdictKind, reach_verdict
from advsweep.local_files import cache_folder
from advsweep.report.tables.types import Report
from advsweep.store import Store
from advsweep.sweep.events import SweepResult
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.screens import Screen
from advsweep.sweep.strategies import OnText, Stage, Train
from advsweep.sweep.watched import watched


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An idea that can be trained in a setting, with what it is without a training."""

    idea: Idea
    setting: Setting
    examination: Examination

    @property
    def is_settled(self) -> bool:
        """Whether no training can tell anything, as it is RLOO.

        Code that gives RLOO's advantages where it was tried may give others in another setting, as
        of other group sizes.
        """
        if self.idea.is_baseline:
            return True
        return self.examination.is_baseline and self.setting.is_listed

    def describe(self) -> str:
        """Return the checks, the masses and the relatives in lines."""
        return joined(describe_examination(self.idea, self.examination))

    def plain(self, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return it in JSON types.

        Args:
            plan: what is left to train, for a dry run.
        """
        return {**plain_judge(self.idea, self.setting, self.examination), "plan": plan}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a judge came to.

    Attributes:
        judged: the idea with the verdict on it.
        report: what the verdict rests on, as `advsweep report` makes it; None without a training.
        store: the path or URL of the store that has its runs; empty without a training.
    """

    judged: Judged
    report: Report | None = None
    store: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.judged.verdict

    @property
    def sentences(self) -> list[str]:
        """The verdict in sentences."""
        return describe_verdict(self.judged)

    @property
    def lines(self) -> list[str]:
        """The verdict and its table, in lines of 80 characters."""
        first, *others = self.sentences
        table = describe_table(self.judged)
        lines = wrap(first, "  ", "")
        if table:
            lines += ["", *table, ""]
        for each in others:
            lines += wrap(each, "  ", "")
        return lines

    def plain(self) -> dict[str, Any]:
        """Return all of it in JSON types."""
        judged = self.judged
        return {
            **plain_judge(judged.idea, judged.setting, judged.examination),
            "sweep": judged.sweep or None,
            "store": self.store or None,
            "verdict": plain_verdict(self.verdict, self.sentences),
        }


def consider(word: str, options: Sequence[str], setting: Setting) -> Candidate:
    """Load an idea, try whether it can be used and trained, and examine it.

    Args:
        word, options: as of `read_idea`.

    Raises:
        ConfigError: it cannot be. Nothing was started.
    """
    idea = read_idea(word, options)
    if not idea.is_baseline:  # RLOO beside RLOO is no plan
        plan_judge(idea, setting, lambda name, signature: True)
    return Candidate(idea=idea, setting=setting, examination=examine(idea))


def plans_in(candidate: Candidate, store: Store | None) -> JudgePlans:
    """Plan what a judge trains, under a name that no other idea has in a store."""
    return plan_judge(
        candidate.idea,
        candidate.setting,
        lambda name, signature: has_room(store, name, signature),
    )


def settle(candidate: Candidate) -> Judgement:
    """Return the judgement on an idea that is RLOO."""
    judged = Judged(
        idea=candidate.idea,
        setting=candidate.setting,
        examination=candidate.examination,
        verdict=Verdict(kind=VerdictKind.SAME),
        sweep="",
    )
    return Judgement(judged=judged)


@dataclass(frozen=True, kw_only=True)
class Session:
    """Where and how an idea is trained.

    Attributes:
        jobs: how many runs are trained at once; None: one for each core.
        say: receives what happens, a line each.
        screen: shows the progress; None: stderr.
    """

    store: Store
    jobs: int | None
    say: OnText
    screen: Screen | None = None

    def judge(self, candidate: Candidate) -> tuple[Judgement | None, int]:
        """Train what is missing and reach a verdict.

        Returns:
            The judgement, None if the user stopped it, and the exit code of the command.

        Raises:
            ConfigError: this machine cannot train it.
            ReportError: the runs cannot be compared.
        """
        plans = plans_in(candidate, self.store)
        first_plan(plans).check()
        self.say(f"sweep {plans.name}, kept in {self.store.name}")
        trained = train(plans, self.store, slots_of(plans, self.jobs), self._train, self.say)
        if not trained.is_complete:
            self.say(f"stopped; {plans.name} goes on where it was with the same command")
            return None, trained.exit_code
        return judge_trained(candidate, plans, self.store, trained), trained.exit_code

    def _train(self, stage: Stage) -> SweepResult:
        if stage.text:
            self.say(stage.text)
        plan = stage.plan
        with watched(plan, self.store, self.jobs, self.say, screen=self.screen) as on_event:
            return execute(plan, self.store, self.jobs, on_event, policy=Policy(retries=1))


def slots_of(plans: JudgePlans, jobs: int | None) -> int:
    """Return how many runs are trained side by side."""
    return first_plan(plans).executor.slots(jobs)


def first_plan(plans: JudgePlans) -> Plan:
    """Return the plan of the runs that are trained first."""
    return plans.race(None) if plans.tuning is None else plans.tuning.test


def train(
    plans: JudgePlans, store: Store, slots: int, train_stage: Train, on_text: OnText
) -> TrainedJudge:
    """Train what is missing, and note in the store what the sweep is."""
    training = JudgeTraining(
        plans=plans, store=store, slots=slots, train=train_stage, on_text=on_text
    )
    trained = training.execute()
    if not store.sweeps.find(plans.name).note:
        store.sweeps.set_note(plans.name, f"advsweep judge {Path(plans.idea.word).name}")
    return trained


def judge_trained(
    candidate: Candidate, plans: JudgePlans, store: Store, trained: TrainedJudge
) -> Judgement:
    """Return the judgement on an idea whose runs are over.

    Raises:
        ReportError: the runs cannot be compared.
    """
    verdict, report = reach_verdict(store, plans.name, plans.setting, trained)
    judged = Judged(
        idea=candidate.idea,
        setting=candidate.setting,
        examination=candidate.examination,
        verdict=verdict,
        sweep=plans.name,
    )
    return Judgement(judged=judged, report=report, store=store.name)


def store_for(url: str | None) -> str:
    """Return the store of judges: the one that is given, or one for this user of the machine.

    RLOO's runs are the same for every idea; in one store they are trained once.
    """
    if url is not None:
        return url
    if "ADVSWEEP_STORE" in os.environ:
        return os.environ["ADVSWEEP_STORE"]
    folder = cache_folder() / "judge"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "advsweep.db")
