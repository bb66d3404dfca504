"""Trains a run with its command: starts it, follows its log, and says how it ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.command.arguments import (
    command_line,
    file_below,
    metrics_file,
    values_of,
    variables,
    working_folder,
)
from advsweep.backends.command.checkpoints import FOLDER, CommandCheckpoints, Found
from advsweep.backends.command.evaluations import CountsFile, counts_of_lines
from advsweep.backends.command.metric_feed import MetricFeed, MetricLines, Steps
from advsweep.backends.command.output_log import (
    CollectedLines,
    OutputLog,
    failure,
    last_words,
)
from advsweep.backends.command.process import Ended, Output, RunningCommand
from advsweep.backends.command.template import Template
from advsweep.errors import TrainingError, counted
from advsweep.kernel import memory_kills

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run

POLL_SECONDS = 0.25
CHECKPOINT_SECONDS = 1.0
"""Interval at which the command's folder is searched for checkpoints."""
QUIET_SECONDS = 60.0
"""Time after which the log says that no step has been logged; doubled each time."""


@dataclass(frozen=True)
class Setup:
    """A template, and what a run sets of it.

    Attributes:
        parameters: values of the template's parameters.
        file: the template's file.
        folder: the working folder of the advsweep command.
    """

    template: Template
    parameters: Mapping[str, Any]
    file: str
    folder: str


class CommandTraining:
    """One training, from its checkpoint to the end of its command.

    Args:
        setup: the template, and what the run sets of it.
        directory: the run's directory; `output/` in it belongs to the command.
    """

    def __init__(self, run: Run, setup: Setup, directory: Path, reporter: Reporter) -> None:
        self._run = run
        self._reporter = reporter
        self._template = setup.template
        self._setup = setup
        # A command may run in another working folder than this process.
        self._folder = (directory / FOLDER).absolute()
        self._values = values_of(run, setup.parameters, self._folder, setup.file)
        options = self._template.metric_options
        self._metrics_file = metrics_file(self._template, self._values, self._folder)
        self._lines = MetricLines(options, self._metrics_file)
        self._feed = MetricFeed(options, self._metrics_file, run.steps)
        self._checkpoints = CommandCheckpoints(
            self._template.checkpoint_options, directory.absolute(), run.steps
        )
        self._counts = self._counts_file()
        self._registered: dict[int, Path] = {}
        self._searched = 0.0
        self._step = 0
        self._start = 0
        self._stopping = False

    def run(self) -> None:
        """Train to the last step, or until the reporter asks to stop.

        Raises:
            TrainingError: the command failed; the message has its last lines of output.
        """
        self._checkpoints.prepare()
        found = self._position()
        if found is not None and found.step == self._run.steps:
            self._evaluate_checkpoints()
            return
        kills = memory_kills()
        with self._started(found) as command:
            output = OutputLog(self._reporter, self._template.progress)
            ended = self._follow(command, output)
            output.finish(command.output)
        if ended.left:
            left = counted(ended.left, "process", "processes")
            self._reporter.log(f"ended {left} that the command had left behind")
        if left_out := self._feed.left_out():
            self._reporter.log(left_out)
        if not self._stopping:
            self._check_end(ended, command.output, kills)
            self._evaluate_checkpoints()

    def _position(self) -> Found | None:
        """Choose the checkpoint to resume from, and report what the log has of its steps."""
        logged = self._feed.read()
        every = self._template.metric_options.every
        found = self._checkpoints.to_resume(logged.keys(), every)
        if found is None:
            if any(self._checkpoints.folder.iterdir()) or self._metrics_file.exists():
                self._reporter.log("no checkpoint to resume from: starting from the beginning")
                self._checkpoints.discard_all()
                self._metrics_file.unlink(missing_ok=True)
                self._feed = MetricFeed(
                    self._template.metric_options, self._metrics_file, self._run.steps
                )
                self._counts = self._counts_file()
                self._reporter.resumed(0)
            return None
        noted = self._checkpoints.last_noted(found.step)
        self._reporter.resumed(noted)
        self._report({s: v for s, v in logged.items() if noted < s <= found.step})
        self._step = self._start = found.step
        for late in self._checkpoints.found():
            # What is past this step is written again; the command must not take it for its own.
            if late.step > found.step:
                _delete(late.path)
        self._checkpoints.forget_after(found.step)
        self._register(found)
        self._registered |= {
            old.step: old.path
            for old in self._checkpoints.found()
            if old.step in self._checkpoints.noted
        }
        if self._counts is not None:
            self._counts.skip(found.step)
        self._set_log_aside(found.step)
        return found

    def _set_log_aside(self, step: int) -> None:
        """Rename the log of earlier processes: the command may go on with it, or begin it anew."""
        if self._metrics_file.is_file() and not self._metrics_file.is_symlink():
            self._metrics_file.replace(f"{self._metrics_file}.until-{step}")
            self._feed = MetricFeed(
                self._template.metric_options, self._metrics_file, self._run.steps
            )

    @contextmanager
    def _started(self, found: Found | None) -> Iterator[RunningCommand]:
        """Run the command, and end all of its processes in any case."""
        values = self._values
        if found is not None:
            values = values.with_runtime(checkpoint=str(found.path), step=found.step)
        argv = command_line(self._template, values, resume=found is not None)
        command = self._start_command(argv, self._lines)
        try:
            yield command
        finally:
            command.close()

    def _start_command(
        self, argv: Sequence[str], lines: MetricLines | CollectedLines
    ) -> RunningCommand:
        template, values = self._template, self._values
        folder = working_folder(template, values, self._setup.file, self._setup.folder)
        self._reporter.log(f"command: {argv} in {folder}")
        return RunningCommand(
            argv,
            environment=variables(template, values),
            folder=folder,
            grace=template.stop_options.grace,
            stop_signal=template.stop_options.number,
            on_line=lines.add if lines.is_used else None,
        )

    def _follow(self, command: RunningCommand, output: OutputLog) -> Ended:
        """Report what the command does until it has ended."""
        began = heard = time.monotonic()
        quiet = QUIET_SECONDS
        while True:
            ended = command.wait(POLL_SECONDS)
            output.take(command.output)
            steps = self._feed.finish() if ended else self._feed.read()
            new = self._report({s: v for s, v in steps.items() if s > self._start or s == 0})
            self._report_checkpoints(ended=ended is not None)
            self._report_counts(ended=ended is not None)
            now = time.monotonic()
            if new or ended is not None:
                heard = now
            if not self._stopping and self._reporter.stop_requested():
                self._stopping = True
            if ended is not None:
                return ended
            if self._stopping:
                command.stop()
                continue
            if self._step == self._start and now - began > quiet:
                quiet *= 2
                self._reporter.log(f"no step logged yet in {self._metrics_file}")
            silence = self._template.silence
            if silence and now - max(heard, command.output.last) > silence:
                raise TrainingError(
                    f"the command wrote nothing and logged no step for {silence:g} s, after step "
                    f"{self._step} of {self._run.steps}; it was ended (see `silence` of the "
                    f"template)"
                )

    def _report(self, steps: Steps) -> bool:
        """Report steps; return whether there were any."""
        for step, values in steps.items():
            self._reporter.metrics(step, values)
            self._step = max(self._step, step)
            if not self._stopping and self._reporter.stop_requested():
                self._stopping = True
        return bool(steps)

    def _report_checkpoints(self, *, ended: bool) -> None:
        options, now = self._template.checkpoint_options, time.monotonic()
        if options is None or (not ended and now - self._searched < CHECKPOINT_SECONDS):
            return
        self._searched = now
        found = {each.step: each for each in self._checkpoints.found()}
        reached = self._step + self._template.metric_options.every - 1
        for step, each in found.items():
            # Without a file that is written last, a later step says that this one is complete.
            whole = bool(options.complete) or step < self._step or (ended and not self._stopping)
            if step not in self._registered and step <= reached and whole:
                self._register(each)
        for step in [s for s in self._registered if s not in found]:
            path = self._registered.pop(step)
            if not path.exists():
                self._reporter.pruned(path)

    def _register(self, found: Found) -> None:
        self._reporter.checkpoint(found.step, found.path)
        self._checkpoints.note(found.step)
        self._registered[found.step] = found.path

    def _counts_file(self) -> CountsFile | None:
        options = self._template.evaluation_options
        if options is None or not options.file:
            return None
        path = file_below(options.file, self._values, self._folder, "evaluations.file")
        return CountsFile(path)

    def _report_counts(self, *, ended: bool) -> None:
        options = self._template.evaluation_options
        if self._counts is None or options is None:
            return
        for step, problems in (self._counts.finish() if ended else self._counts.read()).items():
            if step > self._run.steps:
                self._counts.left_out["evaluations after the last step"] += 1
            elif step > self._start or step == 0:
                self._reporter.counted(step, options.task, problems)
        if ended and self._counts.left_out:
            reasons = [f"{reason} ({n:,})" for reason, n in self._counts.left_out.items()]
            self._reporter.log(f"left out of the evaluations: {', '.join(reasons)}")

    def _evaluate_checkpoints(self) -> None:
        """Run the evaluation command for each checkpoint that is left."""
        options = self._template.evaluation_options
        if options is None or not options.command:
            return
        found = self._checkpoints.found()
        for number, each in enumerate(found):
            self._reporter.progress("evaluating", number, len(found))
            if self._reporter.stop_requested():
                return
            self._evaluate(each, options.task, options.seconds)
        self._reporter.progress("evaluating", len(found), len(found))

    def _evaluate(self, found: Found, task: str, seconds: float) -> None:
        values = self._values.with_runtime(checkpoint=str(found.path), step=found.step)
        collected = CollectedLines()
        command = self._start_command(
            command_line(self._template, values, evaluate=True), collected
        )
        deadline = time.monotonic() + seconds
        try:
            while (ended := command.wait(POLL_SECONDS)) is None:
                command.output.take()
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"the evaluation of step {found.step} took longer than {seconds:g} s "
                        f"(`evaluations.seconds` of the template)"
                    )
        finally:
            command.close()
        problems, left_out = counts_of_lines(collected.lines, found.step)
        if ended.code != 0 or not problems:
            raise TrainingError(
                f"the evaluation of step {found.step} ended with exit code {ended.code} and "
                f"counts of {counted(len(problems), 'problem')}; expected 0, and lines such as "
                f'{{"problem": "a", "n": 8, "correct": 3}}{last_words(command.output)}'
            )
        if left_out:
            self._reporter.log(f"{counted(left_out, 'line')} of the evaluation without counts")
        self._reporter.counted(found.step, task, problems)

    def _check_end(self, ended: Ended, output: Output, kills: int) -> None:
        """Raise the error of a command that failed, or that did less than it should.

        Raises:
            TrainingError: with the class of the failure.
        """
        steps = self._run.steps
        if ended.error:
            raise TrainingError(f"the command cannot be started: {ended.error}")
        if ended.code not in self._template.success:
            where = f"after step {self._step} of {self._run.steps}"
            memory = self._template.memory_options
            raise failure(ended.code, output, memory, kills=kills, where=where)
        if self._step == self._start:
            behind = (
                f"; ended {ended.left} of its processes, which were in the background: a command "
                "must stay in the foreground"
                if ended.left
                else ""
            )
            raise TrainingError(
                f"the command ended with exit code {ended.code} and logged no step; expected "
                f"metrics in {self._metrics_file}{behind}{last_words(output)}"
            )
        if self._step + self._template.metric_options.every <= steps:
            raise TrainingError(
                f"the command ended with exit code {ended.code} after step {self._step}; expected "
                f"its last step to be {steps}: pass {{steps}} to it, or say how often it logs by "
                f"`metrics.every`{last_words(output)}"
            )
        if self._step < steps:
            self._reporter.metrics(steps, {})
            self._step = steps
            self._report_checkpoints(ended=True)


def check_arguments(run: Run, setup: Setup) -> None:
    """Refuse a run that lacks a value of a placeholder.

    Raises:
        ConfigError: names the place and the placeholder.
    """
    template, directory = setup.template, Path("/run")
    values = values_of(run, setup.parameters, directory, setup.file)
    command_line(template, values)
    later = values.with_runtime(checkpoint="/checkpoint", step=1)
    command_line(template, later, resume=True)
    command_line(template, later, evaluate=True)
    variables(template, values)
    metrics_file(template, values, directory)
    if template.evaluation_options is not None and template.evaluation_options.file:
        file_below(template.evaluation_options.file, values, directory, "evaluations.file")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
