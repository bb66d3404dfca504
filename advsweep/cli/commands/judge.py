"""`advsweep judge`: from an estimator in a file to a verdict on it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_component
from advsweep.cli.output import echo, echo_line, print_json
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.judging.plans import JudgePlans, JudgeWords
    from advsweep.judging.session import Candidate, Judgement
    from advsweep.judging.training import TimeLeft
    from advsweep.store import Store

EXAMPLES = (
    "advsweep judge idea.py",
    "advsweep judge idea.py estimator.scale=0.5 --range hard",
    "advsweep judge psr --range easy --jobs 2",
    "advsweep judge idea.py --checks",
    "advsweep judge idea.py --data problems.csv --model ./model",
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
            help="Its options, as estimator.scale=0.5; other keys or a sweep file are the setting.",
        ),
    ] = None,
    difficulty: Annotated[
        Literal["easy", "middle", "hard"],
        typer.Option("--range", metavar="easy|middle|hard", help="Train on these prompts."),
    ] = "middle",
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PLACE",
            help="In place of a range, your own problems, as of `advsweep init --data`.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="With --data, the model to train: a folder, or a name on the hub.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask before a training on your own problems."),
    ] = False,
    run_code: options.RunCode = False,
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
    from advsweep.cli import consent
    from advsweep.cli.collection import without_collection
    from advsweep.judging import session
    from advsweep.judging.plans import sort_words

    as_json = output_format == "json"
    consent.allow_programs(run_code)
    words = sort_words(overrides or [])
    if data is not None or model is not None:
        words = _with_data(words, data, model)
    setting = words.setting(difficulty, config_dirs or ())
    with without_collection():
        candidate = session.consider(word, words.options, setting)
    if not as_json:
        echo(candidate.describe())
    if checks:
        if as_json:
            print_json(candidate.plain())
        return
    if candidate.is_settled:
        _print(session.settle(candidate), as_json=as_json)
        return
    url = session.store_for(store)
    if dry_run:
        _preview(candidate, url, jobs, as_json=as_json)
        return
    if setting.is_own and not yes:
        _ask(candidate, url, jobs)
    _judge(candidate, url, jobs=jobs, output=output, as_json=as_json)


def _with_data(words: JudgeWords, data: str | None, model: str | None) -> JudgeWords:
    """Return the words with the sweep file of the user's problems and model.

    Raises:
        ConfigError: one of the two is missing or cannot be used, or the words have a sweep file.
    """
    if data is None or model is None:
        raise ConfigError("--data and --model: expected both or none, got one alone")
    if words.file is not None:
        raise ConfigError(f"--data: expected no sweep file beside it, got {words.file}")
    return replace(words, file=_write_setting(data, model))


def _write_setting(data: str, model: str) -> str:
    """Write the sweep file of the user's problems and model, if it is not there; return its name.

    Raises:
        ConfigError: one of the two cannot be used.
    """
    from advsweep.cli.own_data import check_model, propose, sweep_file

    check_model(model)
    path = Path(f"{Path(data).stem}.yaml")
    if path.exists():
        echo_line(f"Taking {path} as it is; it says what is trained.", err=True)
        return str(path)
    proposal = propose(data)
    with path.open("x", encoding="utf-8") as file:
        file.write(sweep_file(proposal, data, model, Path()))
    for sentence in proposal.sentences:
        echo_line(f"Read: {sentence}.", err=True)
    echo_line(f"Wrote {path}: steps, prompts and learning rate are there to be changed.", err=True)
    return str(path)


def _ask(candidate: Candidate, url: str, jobs: int | None) -> None:
    """Say what a training in the user's own setting costs, and ask.

    Raises:
        ConfigError: nobody can answer.
    """
    from advsweep.cli.plans import describe_plan
    from advsweep.judging.training import describe_left

    plans, _, left = _what_is_left(candidate, url, jobs)
    if not left.runs:
        return
    echo_line(describe_plan(plans.race(None)), err=True)
    cost = f"with RLOO's A/A {describe_left(left)}"
    if not sys.stdin.isatty():
        raise ConfigError(f"{cost}: expected consent to train, got no terminal to ask on; --yes")
    if not typer.confirm(f"{cost}. Train?", err=True):
        raise typer.Exit(1)


def _preview(candidate: Candidate, url: str, jobs: int | None, *, as_json: bool) -> None:
    """Print what would be trained, and how long it takes at most."""
    from advsweep.judging.training import describe_left

    plans, slots, left = _what_is_left(candidate, url, jobs)
    if as_json:
        plan = {"sweep": plans.name, "store": url, **left.plain()}
        print_json(candidate.plain(plan=plan))
        return
    side = f", {slots} side by side" if left.runs else ""
    echo_line(f"sweep {plans.name} in {url}{side}: {describe_left(left)}")


def _what_is_left(
    candidate: Candidate, url: str, jobs: int | None
) -> tuple[JudgePlans, int, TimeLeft]:
    """Return the plans of a judge, its workers side by side, and what is left to train."""
    from advsweep.cli.plans import open_existing
    from advsweep.judging import session
    from advsweep.judging.training import left_of

    store = open_existing(url)
    plans = session.plans_in(candidate, store)
    slots = session.slots_of(plans, jobs)
    return plans, slots, left_of(plans, store, slots)


def _judge(
    candidate: Candidate, url: str, *, jobs: int | None, output: Path | None, as_json: bool
) -> None:
    from advsweep.cli import execution
    from advsweep.judging.session import Session

    def say(text: str) -> None:
        echo_line(text, err=True)

    with execution.writable_store(url) as opened:
        judgement, code = Session(store=opened, jobs=jobs, say=say).judge(candidate)
        if judgement is None:
            raise typer.Exit(code)
        _print(judgement, as_json=as_json)
        if output is not None or not as_json:
            _write_page(judgement, opened, output)
    if judgement.report is not None and not as_json:
        name = judgement.judged.sweep
        echo_line(f"All numbers: advsweep report {name} --full --store {shlex.quote(url)}")
    raise typer.Exit(code)


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
