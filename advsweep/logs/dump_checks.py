"""What dumps of rollouts tell besides metrics: missing steps, and the results of problems."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, counted
from advsweep.logs.base import ProblemCount, is_number
from advsweep.logs.rollout_records import RolloutNotes
from advsweep.logs.rollouts import read_rollouts


def problem_counts(
    files: Iterable[Path], success_at: float, left_out: Counter[str]
) -> list[ProblemCount]:
    """Return n and c of the problems of each validation, a file per step.

    A problem is known by its prompt, since dumps give it another id in each validation. A sample
    is correct by its `acc`, which reward functions may return beside a score, or else by its
    reward; one without a verdict is not correct.
    """
    counts: dict[tuple[int, str, str], list[int]] = {}
    for file in files:
        for rewards, least in (({"acc": 1.0}, 1.0), (None, success_at)):
            notes = RolloutNotes()
            try:
                steps = list(read_rollouts(file, rewards=rewards, notes=notes))
            except ConfigError:
                continue  # No line has a verdict of its own; then the scores say it.
            left_out.update(notes.left_out)
            for step, groups in steps:
                for group in groups:
                    digest = hashlib.sha256(group.prompt.encode("utf-8", "replace")).hexdigest()
                    count = counts.setdefault((step, group.task, digest[:16]), [0, 0])
                    count[0] += len(group.rewards)
                    count[1] += sum(reward >= least for reward in group.rewards)
            break
        else:
            left_out["validations without a sample that can be read"] += 1
    return [ProblemCount(step, key, n, c, task) for (step, task, key), (n, c) in counts.items()]


def missing_steps(logged: Iterable[int], dumped: Iterable[int]) -> list[str]:
    """Return a sentence on logged steps without rollouts, and one on rollouts without a log."""
    log, dump = set(logged), set(dumped)
    named = ((log - dump, "of the log without rollouts"), (dump - log, "without a line of the log"))
    return [
        f"{counted(f'{len(steps):,}', 'step')} {what}, the first is {min(steps)}"
        for steps, what in named
        if steps and log
    ]


def fewer_than_usual(counts: Mapping[int, int], what: str) -> list[str]:
    """Return a sentence on steps with fewer rollouts or samples than at least half of them have."""
    times = Counter(counts.values())
    usual = max(times, key=lambda count: (times[count], count), default=0)
    fewer = sorted(step for step, count in counts.items() if count < usual)
    if not fewer or 2 * times[usual] < len(counts):
        return []
    return [
        f"{counted(f'{len(fewer):,}', 'step')} with fewer {what} than usual, the first is "
        f"{fewer[0]}: {counts[fewer[0]]:,} of {usual:,}"
    ]


def success_reward(settings: Mapping[str, Any]) -> float:
    """Return the reward from which a rollout is a success: the setting `success_at`, or 1.

    Raises:
        ConfigError: the setting is not a number.
    """
    value = settings.get("success_at", 1.0)
    if not is_number(value):
        raise ConfigError(
            f"success_at: expected the reward of a success, a number, got {str(value)[:100]!r}"
        )
    return float(value)
