"""Trains a run with its command: starts it, follows its log, and says how it ended."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.backends.command.arguments import Values, command_line, file_below, variables
from advsweep.backends.command.process import Ended, Output, RunningCommand
from advsweep.backends.command.program import working_folder
from advsweep.backends.command.records import CommandCheckpoints, CountsFile, delete
from advsweep.backends.command.template import Template
from advsweep.errors import NoMemoryError, ProcessKilledError, TrainingError, counted
from advsweep.failures import Failure, classify_exit, line_out_of_memory
from advsweep.machine import memory_kills
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from advsweep.backends.reporter import Reporter

POLL_SECONDS = 0.25
# Interval at which the command's folder is searched for checkpoints.
CHECKPOINT_SECONDS = 1.0
# Time after which the log says that no step has been logged; doubled each time.
QUIET_SECONDS = 60.0


@dataclass(eq=False)
class CommandTraining:
    """One training, from its checkpoint to the end of its command.

    Attributes:
        values: the values of the template's placeholders.
        places: the template's file, and the working folder of the advsweep command.
        directory: the run's directory; `output/` in it belongs to the command.
    """

    steps: int
    template: Template
    values: Values
    places: Mapping[str, str]
    directory: Path
    reporter: Reporter

    def __post_init__(self) -> None:
        self._checkpoints = CommandCheckpoints(self.template.saved, self.directory, self.steps)
        self._metrics_file = file_below(self.template.log.file, self.values, "metrics.file")
        self._open_logs()
        self._registered: dict[int, Path] = {}
        self._searched = 0.0
        self._step = self._start = 0
        self._stopping = False
        self._quiet = QUIET_SECONDS

    def _open_logs(self) -> None:
        """Read the command's files from their beginning."""
        self._log, self._names = self.template.log.open_log(self._metrics_file)
        self._late: Counter[str] = Counter()
        self._counts: CountsFile | None = None
        if self.template.counted:
            file = file_below(self.template.counted.file, self.values, "evaluations.file")
            self._counts = CountsFile(file)

    def run(self) -> None:
        """Train to the last step, or until the reporter asks to stop.

        Raises:
            TrainingError: the command failed; the message has its last lines of output.
        """
        self._checkpoints.prepare()
        resumed = self._position()
        if resumed == self.steps:
            return
        # The kernel says of no process why it was killed; a higher count since the start does.
        kills = memory_kills()
        with closing(self._start_command(resumed)) as command:
            ended = self._follow(command)
            for line in command.output.last():
                self.reporter.log(line)
        if ended.left:
            left = counted(ended.left, "process", "processes")
            self.reporter.log(f"ended {left} that the command had left behind")
        self._report_left_out(self._metrics_file.name, self._log.left_out + self._late)
        if self._counts:
            self._report_left_out("the evaluations", self._counts.left_out)
        if not self._stopping:
            self._check_end(ended, command.output, kills)

    def _report_left_out(self, what: str, reasons: Mapping[str, int]) -> None:
        parts = [f"{printable_line(reason)} ({n:,})" for reason, n in sorted(reasons.items()) if n]
        if parts:
            self.reporter.log(f"left out of {what}: {', '.join(parts)}")

    def _position(self) -> int | None:
        """Choose the checkpoint to resume from, and report what the log has of its steps."""
        checkpoints = self._checkpoints
        logged = self._logged()
        step = checkpoints.to_resume(logged.keys(), self.template.log.every)
        if step is None:
            if any(checkpoints.folder.iterdir()):
                # Nothing of an earlier try may stay: the command might take it for its own.
                self.reporter.log("no checkpoint to resume from: starting from the beginning")
                checkpoints.discard_all()
                self._open_logs()
                self.reporter.resumed(0)
            return None
        # A killed worker's last points never reached the store: its log still has them.
        noted = checkpoints.last_noted(step)
        self.reporter.resumed(noted)
        self._report({s: v for s, v in logged.items() if noted < s <= step})
        self._step = self._start = step
        checkpoints.note({s for s in checkpoints.noted if s <= step})
        for other, path in checkpoints.found().items():
            # What is past this step is written again; the command must not take it for its own.
            if other > step:
                delete(path)
            elif other in checkpoints.noted:
                self._registered[other] = path
        self._register(step, checkpoints.found()[step])
        if self._metrics_file.is_file() and not self._metrics_file.is_symlink():
            # The command may go on with its log, or begin it anew.
            self._metrics_file.replace(f"{self._metrics_file}.until-{step}")
        counts = self._counts
        self._open_logs()
        if counts is not None:
            counts.skip(step)
            self._counts = counts
        return step

    def _start_command(self, step: int | None) -> RunningCommand:
        template = self.template
        values = self.values
        if step is not None:
            values = {**values, "checkpoint": str(self._registered[step]), "step": step}
        argv = command_line(template, values, resume=step is not None)
        folder = working_folder(template, values, self.places)
        self.reporter.log(f"command: {argv} in {folder}")
        return RunningCommand(
            argv,
            environment=variables(template, values),
            folder=folder,
            grace=template.ending.grace,
            stop_signal=template.ending.number,
        )

    def _follow(self, command: RunningCommand) -> Ended:
        """Report what the command does until it has ended."""
        began = time.monotonic()
        while True:
            ended = command.wait(POLL_SECONDS)
            for line in command.output.take():
                self.reporter.log(line)
            # In this order: what the command wrote before its end is read before it is judged.
            if ended is not None:
                self._log.finish()
            steps = self._logged()
            self._report({s: v for s, v in steps.items() if s > self._start or s == 0})
            self._report_checkpoints(ended=ended is not None)
            self._report_counts(ended=ended is not None)
            self._stopping = self._stopping or self.reporter.stop_requested()
            if ended is not None:
                return ended
            if self._stopping:
                command.stop()
            elif self._step == self._start:
                self._check_log(time.monotonic() - began)

    def _report_counts(self, *, ended: bool) -> None:
        """Report the evaluations that the command has counted since the last call."""
        if self._counts is None or self.template.counted is None:
            return
        for step, problems in self._counts.read(ended=ended).items():
            if step > self.steps:
                self._counts.left_out["evaluations after the last step"] += 1
            elif step > self._start or step == 0:
                self.reporter.counted(step, self.template.counted.task, problems)

    def _check_log(self, seconds: float) -> None:
        """Say from time to time that no step has been logged; raise if the log is overdue.

        Raises:
            TrainingError: there is no log after `metrics.within`.
        """
        file = self._metrics_file
        within = self.template.log.within
        is_there = file.exists()
        if 0 < within < seconds and not is_there:
            raise TrainingError(
                f"expected the log {file} within {within:g} s (metrics.within), got none; the "
                "command was ended"
            )
        if seconds > self._quiet:
            self._quiet *= 2
            missing = "" if is_there else ", which does not exist"
            self.reporter.log(f"no step logged yet in {file}{missing}")

    def _logged(self) -> dict[int, dict[str, float]]:
        """Return the metrics that were logged since the last call, by step and under our names.

        Steps count from 1; 0 is the model before training. Of two values of a step the later one
        counts; steps past the run's last one are left out.
        """
        logged: dict[int, dict[str, float]] = {}
        for step, values in self._log.poll():
            number = step + 1 - self.template.log.first_step
            if number > self.steps:
                self._late[f"steps after the last one, {self.steps}"] += 1
            elif number >= 0 and values:
                logged.setdefault(number, {}).update(self._names.apply(values))
        return dict(sorted(logged.items()))

    def _report(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        for step, values in steps.items():
            self.reporter.metrics(step, values)
            self._step = max(self._step, step)
            self._stopping = self._stopping or self.reporter.stop_requested()

    def _report_checkpoints(self, *, ended: bool) -> None:
        options = self.template.saved
        now = time.monotonic()
        if options is None or (not ended and now - self._searched < CHECKPOINT_SECONDS):
            return
        self._searched = now
        complete = self._checkpoints.found()
        reached = self._step + self.template.log.every - 1
        for step, path in complete.items():
            # Without a file that is written last, a later step says that this one is complete.
            whole = bool(options.complete) or step < self._step or (ended and not self._stopping)
            # Metrics first: a checkpoint whose steps the store lacks could not be resumed from.
            if step not in self._registered and step <= reached and whole:
                self._register(step, path)
        for step in [s for s in self._registered if s not in complete]:
            path = self._registered.pop(step)
            if not path.exists():
                self.reporter.pruned(path)

    def _register(self, step: int, path: Path) -> None:
        # First the store, then the note: it says that the store has every step until then.
        self.reporter.checkpoint(step, path)
        self._checkpoints.note({*self._checkpoints.noted, step})
        self._registered[step] = path

    def _check_end(self, ended: Ended, output: Output, kills: int) -> None:
        """Raise the error of a command that failed, or that did less than it should.

        Raises:
            TrainingError: with the class of the failure.
        """
        steps = self.steps
        every = self.template.log.every
        if ended.error:
            raise TrainingError(f"the command cannot be started: {ended.error}")
        where = f"after step {self._step} of {steps}"
        if ended.code != 0:
            raise failure(ended.code, output, kills=kills, where=where)
        behind = "; a command must stay in the foreground" if ended.left else ""
        if self._step == self._start:
            raise TrainingError(
                f"the command ended with exit code 0 and logged no step; expected metrics in "
                f"{self._metrics_file}{behind}{output.last_words()}"
            )
        if self._step + every <= steps:
            raise TrainingError(
                f"the command ended with exit code 0 {where}: pass {{steps}} to it, or say how "
                f"often it logs by `metrics.every`{behind}{output.last_words()}"
            )
        if self._step < steps:
            self.reporter.metrics(steps, {})
            self._step = steps
            self._report_checkpoints(ended=True)


def failure(code: int, output: Output, *, kills: int, where: str) -> TrainingError:
    """Return the error of a command that failed, by its exit code and its last lines.

    Args:
        kills: the kernel's kills for lack of memory before the command started.
        where: the step that it reached, for the message.
    """
    # A shell, torchrun and the like report a signal N of their children as 128 + N.
    number = -code if code < 0 else code - 128
    names = {int(each): each.name for each in signal.Signals}
    is_signal = code < 0 or number in names
    name = names.get(number, f"signal {number}")
    kind = classify_exit(-number if is_signal else code, killed_by_kernel=memory_kills() > kills)
    if kind is Failure.OOM:
        return NoMemoryError(f"the command was killed by the kernel, out of memory, {where}")
    line = line_out_of_memory(reversed(output.tail))
    if line is not None:
        return NoMemoryError(
            f"the command ran out of memory {where} (exit code {code}): {line[:300]}"
        )
    if kind is Failure.DISK:
        return TrainingError(
            f"the command was ended by {name} {where}: File too large (a quota, or ulimit -f)"
            f"{output.last_words()}"
        )
    if kind is Failure.KILLED:
        return ProcessKilledError(f"the command was killed by {name} {where}{output.last_words()}")
    return TrainingError(f"the command ended with exit code {code} {where}{output.last_words()}")
