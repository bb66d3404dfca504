"""Logs that are lines of named values, of which some are texts: the runs that are in them."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError, nearest
from advsweep.logs.base import (
    LAST_STEP,
    MAX_NAME,
    MAX_NAMES,
    ImportedRun,
    ImportOptions,
    existing,
)
from advsweep.logs.keys import (
    BY,
    Collision,
    Line,
    find_collision,
    is_moment,
    named_settings,
    parsed,
    usual_name,
    without_names_of_runs,
)
from advsweep.logs.line_log import LineLog
from advsweep.logs.names import STEP, step_names
from advsweep.printable import printable_line

NOT_WHOLE = f"lines whose step is no whole number from 0 to {LAST_STEP:,}"
NO_STEP = "lines without a step"
CUT_VALUES = "last values of a line without its end"

# Runs of one file.
MAX_RUNS = 10_000

# wandb's own count, which rises with each call of log(), several of which may be of one step.
OWN_STEP = "_step"

# What wandb and TensorBoard add to each line; their times are no metrics.
_OWN_COLUMNS = frozenset({OWN_STEP, "_runtime", "_timestamp", "_wandb", "Wall time"})

# What pandas calls the column of its index in a header; in the file it has no name.
INDEX = "Unnamed: 0"

# Columns of a table with a line per value: the name of the metric, and its value.
PAIR_NAMES = ("metric", "metric_name", "tag", "key", "variable", "name")
PAIR_VALUES = ("value", "metric_value")

# The columns with their values that tell one run of a file apart.
Tag = tuple[tuple[str, str], ...]


def _source_of(place: str, tag: Tag) -> str:
    """Return what a run of a file is called."""
    return "/".join([place, *(f"{key}={text}" for key, text in tag)])


class _RunTexts:
    """The texts of one run, of which those that never change are settings.

    Attributes:
        changing: the columns whose texts change.
    """

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str | None, int]] = {}
        """The only text of a name, with how often; None if it has numbers or other texts, too."""
        self.changing: set[str] = set()

    @property
    def settings(self) -> dict[str, str]:
        """The texts that were the same on every line."""
        return {name: text for name, (text, _) in self._texts.items() if text is not None}

    def add(self, name: str, text: str, *, may_be_setting: bool) -> int:
        """Add a text; return how many texts of that name turned out to be no setting."""
        known, count = self._texts.get(name, (text, 0))
        is_room = len(text) <= MAX_NAME and len(self._texts) < MAX_NAMES
        if known == text and (count or (is_room and may_be_setting)):
            self._texts[name] = text, count + 1
            return 0
        if known is not None and known != text:
            self.changing.add(name)
        return self.drop(name) + 1

    def drop(self, name: str) -> int:
        """Say that a name is no setting; return how many of its texts were taken for one."""
        count = self._texts.get(name, (None, 0))[1]
        self._texts[name] = None, 0
        return count

    def __contains__(self, name: str) -> bool:
        return name in self._texts


@dataclass(kw_only=True)
class TextLog(LineLog):
    """A log of lines with named values, of which some are texts: one run, or several.

    A text that is the same on every line is a setting of the run. In an import a folder stands
    for all its files of the format.

    Attributes:
        endings: of the files in a folder.
        tag: the columns with their values that tell the run of the last line apart.
        texts: the texts of the last line.
        is_timeless: whether the table has no column of the step; its lines are of step 0.
    """

    endings: ClassVar[tuple[str, ...]]

    step_keys: tuple[str, ...] = option(
        (),
        help="names of the step; the first that a line has counts (default: those of the format)",
    )
    by: tuple[str, ...] = option(
        (), help="names whose values tell the runs of one file apart; they are no metrics"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step_names = self.step_keys or step_names(self.table)
        self.tag: Tag = ()
        self.texts: dict[str, str] = {}
        self.is_timeless = False
        self._is_import = False
        self._of_runs: dict[Tag, _RunTexts] = {}
        self._named_step: dict[Tag, int] = {}
        self._key_names: dict[str, bool] = {}
        self._columns: dict[str, None] = {}
        self._keys_seen: set[str] = set()
        self._numeric: set[str] = set()
        self._odd_step: Any = None

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        yield from self._runs_of(self._files(root), root, options)

    def _runs_of(
        self, files: Iterable[Path], root: Path, options: ImportOptions
    ) -> Iterator[ImportedRun]:
        """Yield the runs of some files below what the user named, or of that file."""
        by = dict.fromkeys([*BY, *options.names.settings, *options.by])
        reader = dataclasses.replace(self, step_keys=options.names.steps, by=tuple(by))
        seen: set[str] = set()
        columns: set[str] = set()
        for file in files:
            place = file.name if file == root else file.relative_to(root).as_posix()
            log = reader.open(file)
            log._is_import = True
            yield from log._runs(place, options)
            seen |= log._keys_seen
            columns.update(log._columns)
        for name in options.by:
            if columns and name not in seen:
                raise ConfigError(
                    f"--by: expected columns of the table, got {name!r}; {nearest(name, columns)}"
                )

    def _files(self, root: Path) -> list[Path]:
        """Return the files of a source.

        Raises:
            ConfigError: there are none.
        """
        files = [root]
        if root.is_dir():
            endings = tuple(f"{end}{more}" for end in self.endings for more in ("", ".gz"))
            inside = (file for file in root.rglob("*") if file.name.endswith(endings))
            files = sorted(file for file in inside if file.is_file())
        if not files:
            some = ", ".join(f"*{ending}" for ending in self.endings)
            raise ConfigError(f"{root}: expected a file, or a folder with {some}, got none")
        return files

    def _runs(self, place: str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of one file."""
        self.on_read = options.on_read
        lines = self._lines_of_runs()
        notes = self._check_lines(lines)
        lines = lines or {(): []}
        sources = [_source_of(place, tag if len(lines) > 1 else ()) for tag in lines]
        configs = without_names_of_runs(
            [self._settings_of(tag) for tag in lines],
            [{**(options.in_name(source) or {}), **options.settings} for source in sources],
        )
        for source, of_run, config in zip(sources, lines.values(), configs, strict=True):
            yield ImportedRun(
                source=source,
                config=config,
                steps=[options.names.rename_step(line.logged) for line in of_run],
                left_out=self.left_out,
                notes=notes,
            )
            # What is wrong with a file is told once.
            self.left_out = Counter()
            notes = []

    def _lines_of_runs(self) -> dict[Tag, list[Line]]:
        """Read the file; return the lines of each run in it."""
        lines: dict[Tag, list[Line]] = {}
        for step in self.steps():
            if self.tag in lines or len(lines) < MAX_RUNS:
                lines.setdefault(self.tag, []).append(Line(step, self.texts))
            else:
                self.left_out[f"lines of more than {MAX_RUNS:,} runs"] += 1
        if lines:
            return lines
        if self.path.stat().st_size == 0:
            self.left_out["empty files"] += 1
        lines = self._timeless_lines()
        count = self.left_out.pop(NOT_WHOLE, 0)
        if count:
            shown = printable_line(str(self._odd_step))[:40]
            self.left_out[f"{NOT_WHOLE}, such as {shown}"] += count
        return lines

    def _check_lines(self, lines: Mapping[Tag, list[Line]]) -> list[str]:
        """Refuse lines that are not those of separate runs; return what a reader should know.

        Raises:
            ConfigError: several lines of a run have the same step, or none.
        """
        if not lines:
            return []
        if self.is_timeless:
            self._check_timeless(lines)
        for tag, of_run in lines.items():
            self._check_collisions(tag, of_run)
        every_line = [line for of_run in lines.values() for line in of_run]
        if not any(line.logged.values for line in every_line):
            cells = ", ".join(f"{name}: {text}" for name, text in every_line[0].texts.items())
            self.left_out[f"tables without a number (the first line has {cells[:300]})"] += 1
        if not self.is_timeless:
            return []
        return [
            "there is no column of the step: each line is the result of a run, at step 0; "
            "--map COLUMN=step names one"
        ]

    def _settings_of(self, tag: Tag) -> dict[str, Any]:
        """Return the settings of the run whose columns `BY` have these values."""
        texts = self._of_runs[tag].settings if tag in self._of_runs else {}
        texts = {name: text for name, text in texts.items() if not is_moment(name, text)}
        return named_settings(self._config | parsed({**texts, **dict(tag)}))

    def _timeless_lines(self) -> dict[Tag, list[Line]]:
        """Return the lines of a file in which no line has a step, if they are results of runs."""
        return {}

    def _check_collisions(self, tag: Tag, lines: list[Line]) -> None:
        """Refuse lines of several runs that would become one.

        Raises:
            ConfigError: some do; the message proposes what tells them apart.
        """
        collision = find_collision(lines)
        if collision is None:
            return
        run = ", ".join(f"{key}={text}" for key, text in tag)
        more = shlex.quote(",".join(collision.by))
        first, second = (f"{value:g}" for value in collision.values)
        seen = (
            f"{self.path}: expected one value of {printable_line(collision.metric)} at step "
            f"{collision.step:,}{' of ' + printable_line(run) if run else ''}, got {first} and "
            f"{second}"
        )
        if not collision.by:
            raise ConfigError(
                f"{seen}, as at most steps and at the last one, and no column tells the lines "
                "apart: if they are of several runs, add a column seed or run that does, or write "
                "a file for each; of a run that was trained anew, remove the lines before"
            )
        apart = "" if collision.parts_all else "; further columns may be needed"
        raise ConfigError(
            f"{seen} on lines that differ in {printable_line(' and '.join(collision.by))}: "
            f"--by {printable_line(more)} makes them runs of their own{apart}"
            f"{self._step_hint(collision, lines)}"
        )

    def _step_hint(self, collision: Collision, lines: Sequence[Line]) -> str:
        """Return how to say that a column is the step, where it may be it; empty otherwise."""
        if not self.is_timeless or len(collision.by) > 1:
            return ""
        name = collision.by[0]
        values = [line.logged.values.get(name, math.nan) for line in lines]
        is_rising = all(before < after for before, after in pairwise(values))
        if not is_rising or not all(value.is_integer() for value in values):
            return ""
        return f"; --map {printable_line(shlex.quote(f'{name}={STEP}'))} if it is the step"

    def _check_timeless(self, lines: Mapping[Tag, list[Line]]) -> None:
        """Refuse a table without a column of the step that has several lines of a run.

        Raises:
            ConfigError: it has; the message names its columns.
        """
        for tag, of_run in lines.items():
            if find_collision(of_run) is not None:
                self._check_collisions(tag, of_run)
            names = Counter(name for line in of_run for name in line.logged.values)
            if max(names.values(), default=0) > 1:
                raise self._stepless()

    def _stepless(self) -> ConfigError:
        """Return the error for a table without a column of the step."""
        known = ", ".join(name for name in self._step_names if name in ("step", "global_step"))
        columns = printable_line(", ".join(self._columns))[:300]
        others = "or tell runs apart with --by COLUMN or a column seed"
        if INDEX in self._columns:
            others = f"or take each line for a run with --by {shlex.quote(INDEX)}"
        return ConfigError(
            f"{self.path}: expected a header with a column of the step "
            f"({known or ', '.join(self._step_names[:4])}, ...), got: {columns}; name it with "
            f"--map COLUMN={STEP}, {others}"
        )

    @property
    def config(self) -> Mapping[str, Any]:
        texts = self._of_runs[()].settings if () in self._of_runs else {}
        return texts | self._config

    def _find_tag(self, entry: Mapping[str, Any]) -> None:
        """Keep the values of `entry` that tell runs apart."""
        if not self.by:
            return
        found = {}
        key_names = self._key_names
        for name, value in entry.items():
            is_key = key_names[name] if name in key_names else self._is_key(name)
            if not is_key or value is None or isinstance(value, (dict, list)):
                continue
            text = str(value).strip()[:MAX_NAME]
            if text:
                found[name] = text
                self._keys_seen.add(name)
        if len(found) < 2:
            self.tag = tuple(found.items())
            return
        order = {name: rank for rank, name in enumerate(self.by)}
        ranks = sorted(found, key=lambda name: order.get(name, order.get(usual_name(name), 0)))
        self.tag = tuple((name, found[name]) for name in ranks)

    def _is_key(self, name: str) -> bool:
        """Return whether a column tells the runs of one file apart."""
        known = self._key_names.get(name)
        if known is None:
            known = name in self.by or (usual_name(name) in BY and bool(self.by))
            if len(self._key_names) < MAX_NAMES:
                self._key_names[name] = known
        return known

    def _no_step(self, value: Any, columns: Iterable[str] = ()) -> None:
        """Count a line without a step."""
        if len(self._columns) < MAX_NAMES:
            self._columns |= dict.fromkeys(columns)
        number = self._number(value)
        if number is not None and self._odd_step is None:
            self._odd_step = value
        self.left_out[NO_STEP if number is None else NOT_WHOLE] += 1

    def _step_of(self, name: str, step: int) -> int:
        """Return the step of a line by its column and number.

        wandb's own count rises with each call of log(): a line that has this count alone belongs
        to the last step that was named.
        """
        if name == OWN_STEP:
            return self._named_step.get(self.tag, step)
        self._named_step[self.tag] = step
        return step

    def _values(self, items: Iterable[tuple[str, Any]]) -> dict[str, float]:
        """Return the numbers of a line, and keep its texts as settings."""
        texts = self._texts_of_run()
        self.texts = {}
        numbers = []
        for name, value in items:
            if name in _OWN_COLUMNS or name in self._keys_seen:
                continue
            if isinstance(value, bool):
                value = str(value)
            number = self._number(value) if isinstance(value, str) else value
            if number is None:
                # Whether a text is a setting is not known before the last line: until another
                # value comes it is one, and then all of them are counted at once.
                self.texts[name] = value[:MAX_NAME]
                if dropped := texts.add(name, value, may_be_setting=name not in self._numeric):
                    self._drop_texts(texts, name, dropped)
            else:
                numbers.append((name, number))
                self._numeric.add(name)
                if name in texts and (dropped := texts.drop(name)):
                    self._drop_texts(texts, name, dropped)
        return self._numbers(numbers)

    def _texts_of_run(self) -> _RunTexts:
        """Return the texts of the run of the last line."""
        texts = self._of_runs.get(self.tag)
        if texts is None:
            texts = self._of_runs[self.tag] = _RunTexts()
        return texts

    def _drop_texts(self, texts: _RunTexts, name: str, count: int) -> None:
        """Count texts that are no settings."""
        changes = name in texts.changing and name not in self._numeric
        why = "that are texts which change within a run" if changes else "that are not numbers"
        self._drop(name, why, count)
