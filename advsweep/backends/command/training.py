"""Trains a run with its command: starts it, follows its log, and says how it ended."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.command.arguments import (
    OUTPUT,
    Values,
    command_line,
    file_below,
    fill,
    values_of,
    variables,
)
from advsweep.backends.command.process import Ended, Output, RunningCommand
from advsweep.backends.command.records import (
    FOLDER,
    CommandCheckpoints,
    CountsFile,
    Found,
    counts_of_lines,
    delete,
)
from advsweep.backends.command.template import Metrics, OutOfMemory, Template
from advsweep.errors import NoMemoryError, ProcessKilledError, TrainingError, counted
from advsweep.local_files import open_private
from advsweep.machine import memory_kills
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run

POLL_SECONDS = 0.25
CHECKPOINT_SECONDS = 1.0
"""Interval at which the command's folder is searched for checkpoints."""
QUIET_SECONDS = 60.0
"""Time after which the log says that no step has been logged; doubled each time."""

LOGGED_LINES = 2000
LOGGED_CHARACTERS = 1_000_000
"""Lines and characters of output that the log of a run takes; later only the last lines."""
LAST_LINES = 40
EVALUATION_LINES = 1_000_000

Steps = dict[int, dict[str, float]]
"""Metrics by step, counted from 1; 0 is the model before training."""


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

    def values(self, run: Run, directory: Path) -> Values:
        """Return the values of all placeholders; `directory` belongs to the command."""
        return values_of(run, self.parameters, directory, self.file)

    def check(self, run: Run) -> None:
        """Refuse a run that lacks a value of a placeholder.

        Raises:
            ConfigError: names the place and the placeholder.
        """
        template, directory = self.template, Path("/run")
        values = self.values(run, directory)
        later = values.with_runtime(checkpoint="/checkpoint", step=1)
        command_line(template, values)
        command_line(template, later, "resume")
        command_line(template, later, "evaluate")
        variables(template, values)
        file_below(template.log.file, values, directory, "metrics.file")
        if template.counted:
            file_below(template.counted.file, values, directory, "evaluations.file")


class CommandTraining:
    """One training, from its checkpoint to the end of its command.

    Args:
        setup: the template, and what the run sets of it.
        directory: the run's directory; `output/` in it belongs to the command.
    """

    def __init__(self, run: Run, setup: Setup, directory: Path, reporter: Reporter) -> None:
        self._run = run
        self._setup = setup
        self._template = template = setup.template
        self._reporter = reporter
        # A command may run in another working folder than this process.
        self._folder = folder = (directory / FOLDER).absolute()
        self._values = setup.values(run, folder)
        self._checkpoints = CommandCheckpoints(template.saved, directory.absolute(), run.steps)
        self._metrics_file = file_below(template.log.file, self._values, folder, "metrics.file")
        self._open_logs()
        self._registered: dict[int, Path] = {}
        self._searched = 0.0
        self._step = self._start = 0
        self._stopping = False

    def _open_logs(self) -> None:
        """Read the command's files from their beginning."""
        self._feed = MetricFeed(self._template.log, self._metrics_file, self._run.steps)
        self._counts: CountsFile | None = None
        if self._template.counted and self._template.counted.file:
            file = self._template.counted.file
            self._counts = CountsFile(
                file_below(file, self._values, self._folder, "evaluations.file")
            )

    def run(self) -> None:
        """Train to the last step, or until the reporter asks to stop.

        Raises:
            TrainingError: the command failed; the message has its last lines of output.
        """
        self._checkpoints.prepare()
        found = self._position()
        if found is None or found.step < self._run.steps:
            kills = memory_kills()
            values, key = self._values, "command"
            if found is not None:
                values, key = (
                    values.with_runtime(checkpoint=str(found.path), step=found.step),
                    "resume",
                )
            argv = command_line(self._template, values, key)
            on_line = metric_lines(self._template.log, self._metrics_file)
            with closing(self._start_command(argv, on_line)) as command:
                log = OutputLog(self._reporter, self._template.progress)
                ended = self._follow(command, log)
                log.finish(command.output)
            if ended.left:
                left = counted(ended.left, "process", "processes")
                self._reporter.log(f"ended {left} that the command had left behind")
            self._report_left_out(self._metrics_file.name, self._feed.left_out())
            if self._stopping:
                return
            self._check_end(ended, command.output, kills)
        self._evaluate_checkpoints()

    def _at(self, found: Found) -> Values:
        return self._values.with_runtime(checkpoint=str(found.path), step=found.step)

    def _report_left_out(self, what: str, reasons: Mapping[str, int]) -> None:
        parts = [f"{printable_line(reason)} ({n:,})" for reason, n in sorted(reasons.items()) if n]
        if parts:
            self._reporter.log(f"left out of {what}: {', '.join(parts)}")

    def _position(self) -> Found | None:
        """Choose the checkpoint to resume from, and report what the log has of its steps."""
        checkpoints, logged = self._checkpoints, self._feed.read()
        found = checkpoints.to_resume(logged.keys(), self._template.log.every)
        if found is None:
            if any(checkpoints.folder.iterdir()) or self._metrics_file.exists():
                # Nothing of an earlier try may stay: the command might take it for its own.
                self._reporter.log("no checkpoint to resume from: starting from the beginning")
                checkpoints.discard_all()
                self._metrics_file.unlink(missing_ok=True)
                self._open_logs()
                self._reporter.resumed(0)
            return None
        noted = checkpoints.last_noted(found.step)
        self._reporter.resumed(noted)
        self._report({s: v for s, v in logged.items() if noted < s <= found.step})
        self._step = self._start = found.step
        checkpoints.note({step for step in checkpoints.noted if step <= found.step})
        for each in checkpoints.found():
            # What is past this step is written again; the command must not take it for its own.
            if each.step > found.step:
                delete(each.path)
            elif each.step in checkpoints.noted:
                self._registered[each.step] = each.path
        self._register(found)
        if self._metrics_file.is_file() and not self._metrics_file.is_symlink():
            # The command may go on with its log, or begin it anew.
            self._metrics_file.replace(f"{self._metrics_file}.until-{found.step}")
        counts = self._counts
        self._open_logs()
        if counts is not None:
            counts.skip(found.step)
            self._counts = counts
        return found

    def _start_command(
        self, argv: Sequence[str], on_line: Callable[[str], None] | None
    ) -> RunningCommand:
        template, values, setup = self._template, self._values, self._setup
        folder = Path(setup.folder or os.getcwd())
        if template.workdir:
            # A relative folder is one beside the template.
            own = Path(fill(template.workdir, values, "workdir")).expanduser()
            folder = own if own.is_absolute() else Path(setup.file).parent / own
        self._reporter.log(f"command: {argv} in {folder}")
        return RunningCommand(
            argv,
            environment=variables(template, values),
            folder=folder,
            grace=template.ending.grace,
            stop_signal=template.ending.number,
            on_line=on_line,
        )

    def _follow(self, command: RunningCommand, log: OutputLog) -> Ended:
        """Report what the command does until it has ended."""
        began = heard = time.monotonic()
        quiet, silence = QUIET_SECONDS, self._template.silence
        while True:
            ended = command.wait(POLL_SECONDS)
            log.take(command.output)
            steps = self._feed.read(ended=ended is not None)
            new = {s: v for s, v in steps.items() if s > self._start or s == 0}
            self._report(new)
            self._report_checkpoints(ended=ended is not None)
            self._report_counts(ended=ended is not None)
            self._stopping = self._stopping or self._reporter.stop_requested()
            if ended is not None:
                return ended
            if self._stopping:
                command.stop()
                continue
            now = time.monotonic()
            heard = now if new else heard
            if self._step == self._start and now - began > quiet:
                quiet *= 2
                self._reporter.log(f"no step logged yet in {self._metrics_file}")
            if silence and now - max(heard, command.output.last) > silence:
                raise TrainingError(
                    f"the command wrote nothing and logged no step for {silence:g} s, after step "
                    f"{self._step} of {self._run.steps}; it was ended (see `silence` of the "
                    f"template)"
                )

    def _report(self, steps: Steps) -> None:
        for step, values in steps.items():
            self._reporter.metrics(step, values)
            self._step = max(self._step, step)
            self._stopping = self._stopping or self._reporter.stop_requested()

    def _report_checkpoints(self, *, ended: bool) -> None:
        options, now = self._template.saved, time.monotonic()
        if options is None or (not ended and now - self._searched < CHECKPOINT_SECONDS):
            return
        self._searched = now
        found = {each.step: each for each in self._checkpoints.found()}
        reached = self._step + self._template.log.every - 1
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
        self._checkpoints.note({*self._checkpoints.noted, found.step})
        self._registered[found.step] = found.path

    def _report_counts(self, *, ended: bool) -> None:
        if self._counts is None or self._template.counted is None:
            return
        for step, problems in self._counts.read(ended=ended).items():
            if step > self._run.steps:
                self._counts.left_out["evaluations after the last step"] += 1
            elif step > self._start or step == 0:
                self._reporter.counted(step, self._template.counted.task, problems)
        if ended:
            self._report_left_out("the evaluations", self._counts.left_out)

    def _evaluate_checkpoints(self) -> None:
        """Run the evaluation command for each checkpoint that is left."""
        if not self._template.evaluation_parts:
            return
        found = self._checkpoints.found()
        for number, each in enumerate(found):
            self._reporter.progress("evaluating", number, len(found))
            if self._reporter.stop_requested():
                return
            self._evaluate(each)
        self._reporter.progress("evaluating", len(found), len(found))

    def _evaluate(self, found: Found) -> None:
        options = self._template.counted
        assert options is not None
        lines: list[str] = []

        def keep(line: str) -> None:
            if len(lines) < EVALUATION_LINES:
                lines.append(line)

        argv = command_line(self._template, self._at(found), "evaluate")
        deadline = time.monotonic() + options.seconds
        with closing(self._start_command(argv, keep)) as command:
            while (ended := command.wait(POLL_SECONDS)) is None:
                command.output.take()
                if time.monotonic() > deadline:
                    raise TrainingError(
                        f"the evaluation of step {found.step} took longer than "
                        f"{options.seconds:g} s (`evaluations.seconds` of the template)"
                    )
        problems, left_out = counts_of_lines(lines, found.step)
        if ended.code != 0 or not problems:
            raise TrainingError(
                f"the evaluation of step {found.step} ended with exit code {ended.code} and "
                f"counts of {counted(len(problems), 'problem')}; expected 0, and lines such as "
                f'{{"problem": "a", "n": 8, "correct": 3}}{command.output.last_words()}'
            )
        self._report_left_out("the evaluation", {"lines without counts": left_out})
        self._reporter.counted(found.step, options.task, problems)

    def _check_end(self, ended: Ended, output: Output, kills: int) -> None:
        """Raise the error of a command that failed, or that did less than it should.

        Raises:
            TrainingError: with the class of the failure.
        """
        steps, every = self._run.steps, self._template.log.every
        if ended.error:
            raise TrainingError(f"the command cannot be started: {ended.error}")
        if ended.code not in self._template.success:
            where = f"after step {self._step} of {steps}"
            raise failure(ended.code, output, self._template.memory, kills=kills, where=where)
        if self._step == self._start:
            behind = (
                f"; ended {ended.left} of its processes, which were in the background: a command "
                "must stay in the foreground"
                if ended.left
                else ""
            )
            raise TrainingError(
                f"the command ended with exit code {ended.code} and logged no step; expected "
                f"metrics in {self._metrics_file}{behind}{output.last_words()}"
            )
        if self._step + every <= steps:
            raise TrainingError(
                f"the command ended with exit code {ended.code} after step {self._step}; expected "
                f"its last step to be {steps}: pass {{steps}} to it, or say how often it logs by "
                f"`metrics.every`{output.last_words()}"
            )
        if self._step < steps:
            self._reporter.metrics(steps, {})
            self._step = steps
            self._report_checkpoints(ended=True)


class MetricFeed:
    """The metrics of one run, read as far as the command has logged them, under our names.

    Args:
        options: the template's.
        path: the log.
        steps: the steps of the run; later ones are left out.
    """

    def __init__(self, options: Metrics, path: Path, steps: int) -> None:
        self._first = options.first_step
        self._steps = steps
        self._log = options.open_log(path)
        self._names = options.name_map()
        self._late: Counter[str] = Counter()

    def read(self, *, ended: bool = False) -> Steps:
        """Return what was logged since the last call; later values of a step replace earlier ones.

        Args:
            ended: whether the log will not grow.

        Raises:
            ConfigError: the log is of another format, or cannot be read.
        """
        found: Steps = {}
        for last in (False, True)[: 1 + ended]:
            if last:
                self._log.finish()
            for step, values in self._log.poll():
                number = step + 1 - self._first
                if number > self._steps:
                    self._late[f"steps after the last one, {self._steps}"] += 1
                elif number >= 0 and values:
                    found.setdefault(number, {}).update(self._names.apply(values))
        return dict(sorted(found.items()))

    def left_out(self) -> Counter[str]:
        """Return how much was not used, by reason."""
        return self._log.left_out + self._late


def metric_lines(options: Metrics, path: Path) -> Callable[[str], None] | None:
    """Return what keeps the lines of a command's output that hold metrics, in a file.

    The output itself is bounded; these lines are the log of metrics. None without `file: output`.
    """
    if options.file != OUTPUT:
        return None
    given = options.options.get("pattern", ())
    patterns = [re.compile(text) for text in ([given] if isinstance(given, str) else given)]

    def keep(line: str) -> None:
        if any(pattern.search(line) for pattern in patterns):
            with open_private(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    return keep


class OutputLog:
    """Forwards the output of a command to the log of its run, as far as there is room."""

    def __init__(self, reporter: Reporter, progress: str) -> None:
        self._reporter = reporter
        self._progress = re.compile(progress) if progress else None
        self._lines = self._characters = self._left_out = 0

    def take(self, output: Output) -> None:
        """Forward the lines that came since the last call, and the progress that they tell."""
        for line in output.take():
            match = self._progress.search(line) if self._progress else None
            if match and all(re.fullmatch(r"\d{1,15}", match[n] or "") for n in ("done", "total")):
                done, total = int(match["done"]), int(match["total"])
                stage = match.groupdict().get("stage") or "command"
                if done <= total:
                    self._reporter.progress(stage[:40], done, total)
            if self._lines >= LOGGED_LINES or self._characters >= LOGGED_CHARACTERS:
                self._left_out += 1
                continue
            self._lines += 1
            self._characters += len(line)
            self._reporter.log(f"| {line}")

    def finish(self, output: Output) -> None:
        """Write the last lines of an output that was too long."""
        self.take(output)
        if not (left_out := self._left_out + output.dropped):
            return
        last = list(itertools.islice(reversed(output.tail), min(LAST_LINES, left_out)))
        self._reporter.log(
            f"left out {counted(f'{left_out:,}', 'line')} of output; the last {len(last)}:"
        )
        for line in reversed(last):
            self._reporter.log(f"| {line}")


def failure(
    code: int, output: Output, options: OutOfMemory, *, kills: int, where: str
) -> TrainingError:
    """Return the error of a command that failed, by its exit code and its last lines.

    Args:
        kills: the kernel's kills for lack of memory before the command started.
        where: the step that it reached, for the message.
    """
    # A shell, torchrun and the like report a signal N of their children as 128 + N.
    number = -code if code < 0 else code - 128
    known = {int(each) for each in signal.Signals}
    killed = code < 0 or number in known
    if number == signal.SIGKILL and memory_kills() > kills:
        return NoMemoryError(f"the command was killed by the kernel, out of memory, {where}")
    words = [str(text) for text in options.lines]
    found = next((line for line in reversed(output.tail) if any(w in line for w in words)), None)
    if code in options.exit_codes or found is not None:
        why = f": {found[:300]}" if found else ""
        return NoMemoryError(f"the command ran out of memory {where} (exit code {code}){why}")
    if killed:
        name = signal.Signals(number).name if number in known else f"signal {number}"
        return ProcessKilledError(f"the command was killed by {name} {where}{output.last_words()}")
    return TrainingError(f"the command ended with exit code {code} {where}{output.last_words()}")
