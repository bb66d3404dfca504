"""`advsweep judge`: from an estimator in a file to a verdict on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_component
from advsweep.cli.output import echo, echo_line, print_json, warn
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.judging.plans import JudgePlans
    from advsweep.judging.session import Candidate, Judgement
    from advsweep.judging.training import TrainedJudge
    from advsweep.store import Store
    from advsweep.sweep.events import SweepResult
    from advsweep.sweep.strategies import Stage

EXAMPLES = (
    "advsweep judge idea.py",
    "advsweep judge idea.py estimator.scale=0.5 --range hard",
    "advsweep judge psr --range easy --jobs 2",
    "advsweep judge idea.py --checks",
)


def judge(
    word: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="ESTIMATOR",
            autocompletion=complete_component,
            help="A file (idea.py, idea.py:Name), package.module:Name, or a registered name.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            show_default=False,
            metavar="[KEY=VALUE]...",
            help="Its options, as estimator.scale=0.5; other keys change the setting.",
        ),
    ] = None,
    difficulty: Annotated[
        Literal["easy", "middle", "hard"],
        typer.Option("--range", metavar="easy|middle|hard", help="Train on these prompts."),
    ] = "middle",
    checks: Annotated[
        bool,
        typer.Option("--checks", help="Only check it; train nothing."),
    ] = False,
    dry_run: options.DryRun = False,
    jobs: options.Jobs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the page into this file (default: the sweep's name, here).",
        ),
    ] = None,
    config_dirs: options.ConfigDirs = None,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Judge an estimator: checks, a rate, a race against RLOO.

    Its learning rate is chosen from five on two bases; then it is compared with RLOO, and RLOO with
    itself, on twelve bases and maps of their own, in the leaderboard's setting. The same command
    resumes it. RLOO's runs are trained once and kept for all ideas (--store).
    """
    from advsweep.cli.collection import without_collection
    from advsweep.judging import session
    from advsweep.judging.ideas import PREFIX
    from advsweep.judging.plans import range_setting
    from advsweep.judging.records import plain_examination

    words = overrides or []
    for text in words:
        if "=" not in text:
            raise ConfigError(f"{text}: expected KEY=VALUE behind the estimator, got no '='")
    own = [text for text in words if text.startswith(PREFIX)]
    others = [text for text in words if not text.startswith(PREFIX)]
    as_json = output_format == "json"
    with without_collection():
        candidate = session.consider(
            word, own, range_setting(difficulty, others, config_dirs or ())
        )
    if not as_json:
        echo(candidate.describe())
    if candidate.is_settled and not checks:
        _print(session.settle(candidate), as_json=as_json)
        return
    if checks:
        if as_json:
            print_json(plain_examination(candidate.idea, candidate.examination))
        return
    url = session.store_for(store)
    if dry_run:
        _preview(candidate, url, jobs)
        return
    _judge(candidate, url, jobs=jobs, output=output, as_json=as_json)


def _preview(candidate: Candidate, url: str, jobs: int | None) -> None:
    """Print what would be trained, and how long it takes at most."""
    from advsweep.cli.plans import open_existing
    from advsweep.judging import session
    from advsweep.judging.training import describe_left, plans_after
    from advsweep.sweep.planning.eta import estimate

    opened = open_existing(url)
    plans = session.plans_in(candidate, opened)
    slots = _slots(plans, jobs)
    left = [estimate(plan, opened, slots) for plan in plans_after(plans, 0)]
    echo_line(f"sweep {plans.name} in {url}: {describe_left(left)} with {slots} side by side")


def _slots(plans: JudgePlans, jobs: int | None) -> int:
    plan = plans.tuning.test
    return max(1, jobs or plan.executor.capacity())


def _judge(
    candidate: Candidate, url: str, *, jobs: int | None, output: Path | None, as_json: bool
) -> None:
    from advsweep.cli import execution, runs
    from advsweep.judging import session
    from advsweep.sweep.retry_policy import Policy

    def say(text: str) -> None:
        echo_line(text, err=True)

    with execution.writable_store(url) as opened:
        plans = session.plans_in(candidate, opened)
        plans.tuning.test.check()

        def train_stage(stage: Stage) -> SweepResult:
            if stage.text:
                say(stage.text)
            return execution.execute(
                stage.plan, opened, jobs=jobs, force=False, policy=Policy(retries=1)
            )

        say(f"sweep {plans.name}, kept in {url}")
        trained = session.train(plans, opened, _slots(plans, jobs), train_stage, say)
        if not trained.is_complete:
            _explain_cut(trained)
            raise typer.Exit(trained.exit_code)
        judgement = session.judge_trained(candidate, plans, opened, trained)
        for sentence in runs.describe_no_signal(opened, _run_ids(opened, plans.name)):
            say(sentence)
        _print(judgement, as_json=as_json)
        if output is not None or not as_json:
            _write_page(judgement, opened, output)
    if judgement.report is not None and not as_json:
        echo_line(f"All numbers: advsweep report {plans.name} --full --store {url}")
    raise typer.Exit(trained.exit_code)


def _run_ids(store: Store, name: str) -> list[int]:
    return [run.id for run in store.runs.select(sweep=name)]


def _explain_cut(trained: TrainedJudge) -> None:
    """Say how an interrupted judge goes on."""
    warn(
        f"interrupted; {trained.tuning.sweep.removesuffix('-tuning')} goes on where it was with "
        "the same command"
    )


def _print(judgement: Judgement, *, as_json: bool) -> None:
    if as_json:
        print_json(judgement.plain())
        return
    for line in judgement.lines:
        echo(line)


def _write_page(judgement: Judgement, store: Store, output: Path | None) -> None:
    """Write the page of a judgement that rests on a report."""
    if judgement.report is None:
        return
    from advsweep.report.html import render_page

    path = output or Path(f"{judgement.judged.sweep}.html")
    page = render_page(judgement.report, store, verdict=judgement.sentences)
    path.write_text(page, encoding="utf-8")
    echo_line(f"Wrote {path}.", err=True)
