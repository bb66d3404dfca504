"""Judges from Python, in the words of the command line.

    import advsweep

    judged = advsweep.judge("idea.py", range="hard")
    print(judged)
    judged.verdict, judged.outcomes, judged.report.differences()

`advsweep` imports this module when `advsweep.judge` is first called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError, nearest
from advsweep.function_text import write_text_of
from advsweep.judging.leaderboard import RANGES
from advsweep.judging.plans import sort_words
from advsweep.judging.session import Candidate, Judgement, Session, consider, settle, store_for
from advsweep.report.api import ReportTable
from advsweep.report.data.frames import record_frame
from advsweep.store import open_store
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.screens import NoScreen, screen_of_python

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class JudgedEstimator:
    """What `advsweep.judge` found of an estimator.

    It prints as the command does.
    """

    _candidate: Candidate
    _judgement: Judgement | None = None

    @property
    def verdict(self) -> str | None:
        """`equivalent`, `better`, `worse`, `cannot tell`, `failed`, `the same`; None unjudged."""
        return None if self._judgement is None else self._judgement.verdict.kind.value

    @property
    def sentences(self) -> list[str]:
        """The verdict in sentences; empty unjudged."""
        return [] if self._judgement is None else self._judgement.sentences

    @property
    def checks(self) -> pd.DataFrame:
        """A row per check: `name`, `sentence`, `is_usual`."""
        return record_frame(map(asdict, self._candidate.examination.properties))

    @property
    def masses(self) -> pd.DataFrame:
        """The expected masses: `rate`, `success`, `failure`."""
        return record_frame(map(asdict, self._candidate.examination.masses))

    @property
    def relatives(self) -> pd.DataFrame:
        """A row per registered estimator, the nearest first: `name`, `cosine`, `factor`, ..."""
        return record_frame(map(asdict, self._candidate.examination.relatives))

    @property
    def outcomes(self) -> pd.DataFrame:
        """A row per outcome: means, the difference to RLOO with its interval, and RLOO's A/A."""
        if self._judgement is None:
            return record_frame([])
        rows = []
        for row in self._judgement.verdict.outcomes:
            repeated = row.repetition
            rows.append(
                {
                    "outcome": row.column,
                    "idea": row.idea,
                    "baseline": row.baseline,
                    **asdict(row.to_baseline),
                    "aa_difference": None if repeated is None else repeated.difference,
                    "aa_low": None if repeated is None else repeated.low,
                    "aa_high": None if repeated is None else repeated.high,
                }
            )
        return record_frame(rows)

    @property
    def matched(self) -> pd.DataFrame:
        """A row per outcome at equal pass@1: `outcome`, `level`, `difference`, `low`, `high`."""
        rows = () if self._judgement is None else self._judgement.verdict.matched
        return record_frame(map(asdict, rows))

    @property
    def report(self) -> ReportTable | None:
        """What the verdict rests on, as `advsweep.report` returns it; None without a training."""
        report = None if self._judgement is None else self._judgement.report
        return None if report is None else ReportTable(report)

    @property
    def sweep(self) -> str | None:
        """The sweep that has its runs; None without a training."""
        return None if self._judgement is None else self._judgement.judged.sweep or None

    @property
    def store(self) -> str | None:
        """The path or URL of the store that has its runs; None without a training."""
        return None if self._judgement is None else self._judgement.store or None

    def plain(self) -> dict[str, Any]:
        """All of it in JSON types: the document of `advsweep judge --format json`."""
        if self._judgement is None:
            return self._candidate.plain()
        return self._judgement.plain()

    def __str__(self) -> str:
        lines = [self._candidate.describe()]
        if self._judgement is not None:
            lines += self._judgement.lines
        return "\n".join(lines).rstrip("\n")

    def __repr__(self) -> str:
        return f"<judge of {self._candidate.idea.label}: {self.verdict or 'checks alone'}>"


def judge(
    estimator: str | os.PathLike[str] | Callable[..., Any],
    *words: str | os.PathLike[str],
    range: str = "middle",
    checks: bool = False,
    jobs: int | None = None,
    store: str | os.PathLike[str] | None = None,
    config_dirs: Sequence[str | os.PathLike[str]] = (),
    progress: bool = True,
) -> JudgedEstimator:
    """Judge an estimator, as `advsweep judge` does.

    Ctrl-C, or the stop button of a notebook, lets the runs write a checkpoint and then raises
    KeyboardInterrupt; the same call later goes on from there.

    Args:
        estimator: a file (`idea.py`, `idea.py:Name`), `package.module:Name`, a registered name, or
            a function or class, which stands for its source.
        words: its options (`"estimator.scale=0.5"`), and other keys of the setting, or a sweep
            file (`"problems.yaml"`), in whose setting it is then judged.
        range: of the leaderboard, without a sweep file: `easy`, `middle` or `hard`.
        checks: only check it; train nothing.
        jobs: how many runs are trained at once; None: one for each core.
        store: its path or URL; None: `$ADVSWEEP_STORE`, else one for this user of the machine.
        config_dirs: folders of config groups, searched first.
        progress: show a bar: on the terminal, or below the cell of a notebook.

    Raises:
        AdvsweepError: the estimator cannot be used or trained, or the store cannot be used.
        KeyboardInterrupt: it was stopped.
    """
    if range not in RANGES:
        raise ConfigError(f"range: expected one of {', '.join(RANGES)}; {nearest(range, RANGES)}")
    sorted_words = sort_words([os.fspath(each) for each in words])
    setting = sorted_words.setting(range, [Path(folder) for folder in config_dirs])
    word = estimator if isinstance(estimator, str) else _word_of(estimator)
    candidate = consider(word, sorted_words.options, setting)
    if checks:
        return JudgedEstimator(candidate)
    if candidate.is_settled:
        return JudgedEstimator(candidate, settle(candidate))
    url = store_for(None if store is None else os.fspath(store))
    screen = screen_of_python() if progress else NoScreen()
    with open_store(url, patience=store_patience()) as opened:
        session = Session(
            store=opened,
            jobs=jobs,
            say=screen.say,
            screen=screen,
        )
        judgement, _ = session.judge(candidate)
    if judgement is None:
        raise KeyboardInterrupt("the judge was stopped; the same call goes on with it")
    return JudgedEstimator(candidate, judgement)


def _word_of(estimator: os.PathLike[str] | Callable[..., Any]) -> str:
    """Return the word of the command line that a path, a function or a class stands for."""
    if isinstance(estimator, os.PathLike):
        return os.fspath(estimator)
    return write_text_of(estimator, "estimator")
