"""A judge from the words of a command line to a verdict, for the command and for Python callers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.judging.ideas import Examination, Idea, examine, read_idea
from advsweep.judging.plans import JudgePlans, Setting, has_room, plan_judge
from advsweep.judging.records import plain_judged
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
from advsweep.sweep.strategies import OnText, Train


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An idea that can be trained in a setting, with what it is without a training."""

    idea: Idea
    setting: Setting
    examination: Examination

    @property
    def is_settled(self) -> bool:
        """Whether no training can tell anything, as it is RLOO."""
        return self.examination.is_baseline and self.setting.is_listed

    def describe(self) -> str:
        """Return the checks, the masses and the relatives in lines."""
        return joined(describe_examination(self.idea, self.examination))


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a judge came to.

    Attributes:
        judged: the idea with the verdict on it.
        report: what the verdict rests on, as `advsweep report` makes it; None without a training.
    """

    judged: Judged
    report: Report | None = None

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
        return plain_judged(self.judged, self.sentences)


def consider(word: str, options: Sequence[str], setting: Setting) -> Candidate:
    """Load an idea, try whether it can be used and trained, and examine it.

    Args:
        word, options: as of `read_idea`.

    Raises:
        ConfigError: it cannot be. Nothing was started.
    """
    idea = read_idea(word, options)
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
    return Judgement(judged=judged, report=report)


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
