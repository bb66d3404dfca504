"""What a judge found, in JSON types: the document of `advsweep judge --format json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from advsweep.judging.ideas import Examination, Idea
from advsweep.judging.plans import Setting
from advsweep.judging.verdict import Verdict


def plain_judge(idea: Idea, setting: Setting, examination: Examination) -> dict[str, Any]:
    """Return what an idea is without a training; what is not known then is null."""
    code = idea.estimator.named_code
    return {
        "idea": idea.label,
        "place": None if code is None else code.where,
        "checks": [asdict(each) for each in examination.properties],
        "group_size": examination.group_size,
        "masses": [asdict(each) for each in examination.masses],
        "relatives": [
            {"name": each.name, "cosine": each.cosine, "factor": each.factor, "error": each.error}
            for each in examination.relatives
        ],
        "is_baseline": examination.is_baseline,
        "setting": {"name": setting.name, "overrides": list(setting.overrides)},
        "plan": None,
        "sweep": None,
        "store": None,
        "verdict": None,
    }


def plain_verdict(verdict: Verdict, sentences: Sequence[str]) -> dict[str, Any]:
    """Return a verdict with its numbers.

    Args:
        sentences: the verdict for people.
    """
    return {**asdict(verdict), "sentences": list(sentences)}
