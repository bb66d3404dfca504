"""Training from Python, in the words of the command line.

    import advsweep

    first = advsweep.sweep("estimator=grpo,fade", "seed=0,1,2", name="first")
    print(first.report(columns=["pass@1", "pass@8"]))

`advsweep` imports this module when `advsweep.sweep` is first called. Runs are trained by processes
of their own, so that a script needs no `if __name__ == "__main__"`. All errors are
`advsweep.errors.AdvsweepError`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import AdvsweepWarning, ConfigError, counted
from advsweep.store import open_store
from advsweep.sweep.planning.values import words_of
from advsweep.sweep.planning.words import check_words
from advsweep.sweep.retry_policy import Policy, parse_duration, store_patience
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.screens import NoScreen, Screen, screen_of_python
from advsweep.sweep.strategies import SweepStrategy, TrainedSweep, plan_sweep
from advsweep.sweep.watched import watched

if TYPE_CHECKING:
    import pandas as pd

    from advsweep.report.api import Drawing, ReportTable
    from advsweep.store import Store
    from advsweep.sweep.events import SweepResult
    from advsweep.sweep.strategies import Stage

# Failed runs that warnings name.
_LISTED = 5


@dataclass(frozen=True)
class SweepRuns:
    """The runs of a sweep that `advsweep.sweep` has trained: their frames and reports.

    Each is read from the store when it is asked for.

    Attributes:
        name: the sweep's name.
        store: the URL of its store, which may contain a password.
        summary: how many runs are done, failed, ..., such as `9 runs: 9 done`.
    """

    name: str
    store: str = field(repr=False)
    summary: str

    @property
    def runs(self) -> pd.DataFrame:
        """A row per run; see `advsweep.load_runs`."""
        from advsweep.report.api import load_runs

        return load_runs(self.store, sweep=self.name)

    @property
    def metrics(self) -> pd.DataFrame:
        """The metric points; see `advsweep.load_metrics`."""
        from advsweep.report.api import load_metrics

        return load_metrics(self.store, sweep=self.name)

    @property
    def evaluations(self) -> pd.DataFrame:
        """A row per run and evaluation; see `advsweep.load_evaluations`."""
        from advsweep.report.api import load_evaluations

        return load_evaluations(self.store, sweep=self.name)

    @property
    def problems(self) -> pd.DataFrame:
        """A row per evaluated problem; see `advsweep.load_problems`."""
        from advsweep.report.api import load_problems

        return load_problems(self.store, sweep=self.name)

    def report(self, **options: Any) -> ReportTable:
        """Compare its arms; the options are those of `advsweep.report`."""
        from advsweep.report.api import report

        return report(self.store, sweep=self.name, **options)

    def plot(self, figure: str, **options: Any) -> Drawing:
        """Draw a figure, such as `passk`; the options are those of `advsweep.plot`."""
        from advsweep.report.api import plot

        return plot(self.store, sweep=self.name, figure=figure, **options)

    def __repr__(self) -> str:
        return f"<sweep {self.name} of {self.summary}>"


def sweep(
    *words: str | os.PathLike[str] | Mapping[str, Any],
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    force: bool = False,
    race: bool = False,
    retries: int = 2,
    max_failures: int | None = None,
    time_limit: str | None = None,
    run_code: bool = False,
    config_dirs: Sequence[str | os.PathLike[str]] = (),
    progress: bool = True,
    **values: Any,
) -> SweepRuns:
    """Train what is missing of a sweep, as `advsweep sweep` does, and return its runs.

    Ctrl-C, or the stop button of a notebook, lets the runs write a checkpoint and then raises
    KeyboardInterrupt; the same call later goes on from there.

    Args:
        words: words of the command line (`"estimator=grpo,fade"`), sweep files, or mappings of
            dotted keys (`{"estimator.delta": [0.3, 0.5]}`).
        name: the sweep's name; None: the file's, or a hash of its runs.
        store: its path or URL; None: `$ADVSWEEP_STORE`, else `advsweep.db` here. It is made if
            need be.
        jobs: how many runs are trained at once; None: one for each core.
        force: train completed runs again, as new attempts.
        race: train only seeds that settle a difference.
        retries: how often a failed run is tried again.
        max_failures: start no more runs once so many have failed.
        time_limit: of each attempt of a run, such as `15m`.
        run_code: let the verifier `code` run programs of a model here.
        config_dirs: folders of config groups, searched first.
        progress: show a bar: on the terminal, or below the cell of a notebook.
        values: further keys: `seed=range(3)`, `steps=200`. A list is swept over, a text is what
            the command line has after the `=`, and a function or class stands for its source.

    Raises:
        AdvsweepError: the plan does not fit, or the store cannot be used. A run that fails is no
            error: a warning names it, and `runs` has its state.
        KeyboardInterrupt: the sweep was stopped.
    """
    policy = Policy(
        retries=retries,
        max_failures=max_failures,
        time_limit=None if time_limit is None else parse_duration(time_limit),
    )
    texts = check_words(words_of_call(words, values))
    if not texts:
        raise ConfigError("sweep: expected values to sweep over, such as seed=[0, 1, 2], got none")
    if race:
        texts.append("sweep.race=true")
    if run_code:
        from advsweep.tasks.verifiers.base import give_consent

        give_consent()
    planned = plan_sweep(texts, config_dirs=[Path(folder) for folder in config_dirs], name=name)
    if force and planned.always_resumes:
        raise ConfigError("force: a tuned sweep or a race always resumes; choose another name")
    _warn_of(planned.plan.warnings)
    planned.plan.check()  # before creating a store
    url = None if store is None else os.fspath(store)
    screen = screen_of_python() if progress else NoScreen()
    with open_store(url, patience=store_patience()) as opened:
        trained = _train(planned, opened, screen, jobs=jobs, force=force, policy=policy)
        # A relative path would be another one after a change of folder.
        location = opened.url
    _warn_of(trained.remarks)
    return _runs_of(trained, location, screen)


def words_of_call(
    words: Iterable[str | os.PathLike[str] | Mapping[str, Any]], values: Mapping[str, Any]
) -> list[str]:
    """Return the words of the command line that a call of `sweep` stands for.

    Raises:
        ConfigError: a value cannot be written.
    """
    texts = []
    for word in words:
        if isinstance(word, Mapping):
            texts += words_of(word)
        else:
            texts.append(os.fspath(word))
    return [*texts, *words_of(values)]


def _train(
    planned: SweepStrategy,
    store: Store,
    screen: Screen,
    *,
    jobs: int | None,
    force: bool,
    policy: Policy,
) -> TrainedSweep:
    """Train the stages of a sweep.

    Raises:
        KeyboardInterrupt: the sweep was stopped.
    """

    def train(stage: Stage) -> SweepResult:
        plan = stage.plan
        with watched(plan, store, jobs, _warn, screen=screen) as on_event:
            return execute(plan, store, jobs, on_event, force=force, policy=policy)

    trained = planned.execute(store, train, lambda text: None)
    if trained.result.stopped:
        text = f"sweep {planned.plan.name} was stopped; the same call goes on with it"
        screen.conclude(text)
        raise KeyboardInterrupt(text)
    return trained


def _runs_of(trained: TrainedSweep, store: str, screen: Screen) -> SweepRuns:
    """Warn of what failed, show the end, and return the sweep's runs."""
    result = trained.result
    for run_id, error in list(result.failed.items())[:_LISTED]:
        _warn(f"run {run_id} failed: {error}")
    name = trained.plan.name
    assert name is not None
    summary = f"{counted(len(result.run_ids), 'run')}: {result.summary}"
    screen.conclude(f"sweep {name} of {summary}")
    return SweepRuns(name=name, store=store, summary=summary)


def _warn_of(texts: Iterable[str]) -> None:
    for text in texts:
        _warn(text)


def _warn(text: str) -> None:
    warnings.warn(text, AdvsweepWarning, stacklevel=3)
