"""What a judge found, in JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from advsweep.judging.ideas import Examination, Idea
from advsweep.judging.sentences import Judged

# Of the document that `--format json` prints.
VERSION = 1


def plain_examination(idea: Idea, examination: Examination) -> dict[str, Any]:
    """Return what an idea is without a training."""
    code = idea.estimator.named_code
    return {
        "version": VERSION,
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
    }


def plain_judged(judged: Judged, sentences: Sequence[str]) -> dict[str, Any]:
    """Return an idea with the verdict on it.

    Args:
        sentences: the verdict for people.
    """
    setting = judged.setting
    return {
        **plain_examination(judged.idea, judged.examination),
        "setting": {"name": setting.name, "overrides": list(setting.overrides)},
        "sweep": judged.sweep or None,
        "verdict": {**asdict(judged.verdict), "sentences": list(sentences)},
    }
