"""Reads the metrics of a command while it logs them, by step and under our names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from advsweep.backends.command.template import OUTPUT, Metrics
from advsweep.errors import ConfigError
from advsweep.local_files import open_private
from advsweep.logs import Reader, open_metric_log
from advsweep.logs.names import NameMap
from advsweep.printable import printable_line

Steps = dict[int, dict[str, float]]
"""Metrics by step, counted from 1; 0 is the model before training."""


class MetricFeed:
    """The metrics of one run, read as far as the command has logged them.

    Args:
        options: the template's.
        path: the log.
        steps: the steps of the run; later ones are left out.
    """

    def __init__(self, options: Metrics, path: Path, steps: int) -> None:
        self.path = path
        self._options = options
        self._steps = steps
        self._log = make_log(options, path)
        self._names = make_names(options)
        self._left_out: Counter[str] = Counter()

    def read(self) -> Steps:
        """Return what was logged since the last call; later values of a step replace earlier ones.

        Raises:
            ConfigError: the log is of another format, or cannot be read.
        """
        found: Steps = {}
        for step, values in self._log.poll():
            number = step + 1 - self._options.first_step
            if number > self._steps:
                self._left_out[f"steps after the last one, {self._steps}"] += 1
            elif number >= 0 and values:
                found.setdefault(number, {}).update(self._names.apply(values))
        return dict(sorted(found.items()))

    def finish(self) -> Steps:
        """Return the rest of a log that will not grow."""
        found = self.read()
        self._log.finish()
        for step, values in self.read().items():
            found.setdefault(step, {}).update(values)
        return found

    def left_out(self) -> str:
        """Return what was not used, as one sentence; empty if everything was."""
        reasons = self._log.left_out + self._left_out
        parts = [f"{printable_line(reason)} ({n:,})" for reason, n in sorted(reasons.items())]
        return f"left out of {self.path.name}: {', '.join(parts)}" if parts else ""


class MetricLines:
    """Keeps the lines of a command's output that hold metrics, for the reader of patterns.

    The output itself is bounded; these lines are what a log of metrics holds.

    Args:
        options: the template's; without `file: output` nothing is kept.
        path: the file to append to.
    """

    def __init__(self, options: Metrics, path: Path) -> None:
        self.is_used = options.file == OUTPUT
        given = options.options.get("pattern", ())
        texts = [given] if isinstance(given, str) else given
        self._patterns = [re.compile(text) for text in texts] if self.is_used else []
        self._path = path

    def add(self, line: str) -> None:
        """Keep a line if it matches a pattern."""
        if any(pattern.search(line) for pattern in self._patterns):
            with open_private(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def make_log(options: Metrics, path: Path) -> Reader:
    """Open the log of a template.

    Raises:
        ConfigError: there is no such kind of log, or it has no such option.
    """
    try:
        return open_metric_log(options.kind, path, **options.options)
    except ConfigError as error:
        raise type(error)(f"metrics: {error}") from error


def make_names(options: Metrics) -> NameMap:
    """Return the table of names of a template.

    Raises:
        ConfigError: there is no such table, or a name is no text.
    """
    for theirs, ours in options.rename.items():
        if not isinstance(ours, str) or not ours or printable_line(ours) != ours:
            raise ConfigError(f"metrics.rename.{theirs}: expected a name, got {ours!r}")
    if options.names:
        return NameMap.load(options.names, options.rename)
    return NameMap({}, extra=options.rename)
