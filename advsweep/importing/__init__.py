"""Makes runs of the logs of other trainers, so that reports work on them.

`advsweep.logs` has the readers, `write` puts each run into the store; here is said what was taken,
renamed and left out. No worker claims an imported run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from advsweep import __version__
from advsweep.errors import ConfigError, counted, first_of, nearest
from advsweep.importing.write import (
    ImportAction,
    ImportContext,
    RunContent,
    Written,
    config_hash,
    gather,
    seed_of,
    stored_config,
    write_run,
)
from advsweep.logs.base import ImportedRun, ImportOptions, Reader
from advsweep.logs.csv_file import CsvFile
from advsweep.logs.json_lines import JsonLines
from advsweep.logs.names import STEP, UNKNOWN, NameMap, NamePattern, merged, value_at
from advsweep.printable import printable_line
from advsweep.store import Store
from advsweep.store.imported import IMPORTED
from advsweep.store.store import utc_now

# The formats of files by their endings.
_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".log": "console",
    ".out": "console",
}

_LONGEST = 200  # characters of a source in messages and environments


@dataclass
class ImportSummary:
    """What an import did.

    Attributes:
        runs: each run's source with what was done.
        left_out: why parts of the files were not used, with how often.
        notes: what else to know, without repetitions.
        unmatched: sources that the name pattern left out.
        names: the metrics of the logs, renamed and kept.
        metrics: names of all metrics, also of those that were computed from rollouts.
    """

    names: NameMap
    runs: list[tuple[str, Written]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)

    def count(self, action: ImportAction) -> int:
        """Return how many runs had this done."""
        return sum(written.action is action for _, written in self.runs)


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """What an import is asked for.

    Attributes:
        settings: values of config keys of every run; they replace what the files say.
        pattern: settings in the names of files or folders; runs that do not match are left out.
        names: names of the log with ours, before those of the format's table.
        by: columns whose values tell the runs of one file apart.
        rows: config keys that alone tell settings apart.
        sweep: a sweep that the runs become part of.
        dry_run: change nothing.
        on_run: called after each run with the number of runs so far.
        on_read: as in `ImportOptions`.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    pattern: NamePattern | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    by: Sequence[str] = ()
    rows: Sequence[str] | None = None
    sweep: str | None = None
    dry_run: bool = False
    on_run: Callable[[int], None] = lambda done: None
    on_read: Callable[[str, int, int], None] = lambda name, done, size: None


def import_runs(
    store: Store, reader: Reader, source: str, request: ImportRequest | None = None
) -> ImportSummary:
    """Import the runs of a file, a folder or an address.

    Each run is written in one transaction: an interruption leaves whole runs alone, and importing
    again does the rest.

    Raises:
        ConfigError: the source holds no runs of this format, or none matches the pattern.
        StoreError: the store cannot be written to.
    """
    request = request or ImportRequest()
    _check_sweep(store, request.sweep)
    names = NameMap(reader.table, request.names)
    summary = ImportSummary(names)
    root = Path(source).resolve() if Path(source).exists() else None

    def in_name(place: str) -> Mapping[str, Any] | None:
        if request.pattern is None:
            return {}
        if root is not None and place != root.name:
            place = f"{root.name}/{place}"  # With the name of what the user named.
        return request.pattern.settings(place)

    options = ImportOptions(
        names=names,
        settings=dict(request.settings),
        by=tuple(request.by),
        in_name=in_name,
        on_read=request.on_read,
    )
    writer = _RunWriter(store, reader, root, request, summary)
    # What cannot be read is refused before anything is written.
    gathered = []
    for run in reader.runs(source, options):
        place = run.source if run.path is None else run.path
        settings = in_name(place)
        if settings is None:
            summary.unmatched.append(_shown(place))
            continue
        content = writer.gather(run, merged(merged(run.config, settings), options.settings))
        if content is not None:
            run.steps = ()
            gathered.append((run, content))
    for run, content in gathered:
        writer.write(run, content)
        request.on_run(len(summary.runs))
    if not summary.runs:
        raise _nothing_found(source, summary, request.pattern)
    writer.said += _unused_names(request.names, names, writer.settings)
    others = _other_logs(root, reader)
    summary.notes |= dict.fromkeys([*names.notes(), *others, *writer.remarks()])
    return summary


def _nothing_found(source: str, summary: ImportSummary, pattern: NamePattern | None) -> ConfigError:
    """Return the error for a source without a run to import."""
    if pattern is not None and summary.unmatched:
        return ConfigError(
            f"--name-pattern: expected names such as '{pattern.text}', got "
            f"{first_of(summary.unmatched, 5)}; a field matches any text without a slash"
        )
    reasons = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
    return ConfigError(
        f"{printable_line(source)}: expected a run with a logged step and values, got none; "
        f"left out: {first_of(reasons, 8, '; ')}"
    )


def _unused_names(
    requested: Mapping[str, str], names: NameMap, settings: Collection[str]
) -> list[str]:
    """Return a sentence for each name of --map that no run has.

    Args:
        settings: the settings that runs have.
    """
    metrics = {*names.renamed, *names.kept}
    sentences = []
    for name, ours in requested.items():
        if ours == STEP or name in metrics or name in settings:
            continue
        what = "setting" if name in names.settings else "metric"
        hint = nearest(name, metrics)
        sentences.append(f"--map: no run has a {what} {printable_line(name)!r}; {hint}")
    return sentences


def _other_logs(root: Path | None, reader: Reader) -> list[str]:
    """Return a sentence on logs of other formats in a folder; none without any."""
    if root is None or not root.is_dir() or not isinstance(reader, (CsvFile, JsonLines)):
        return []
    if reader.name not in _FORMATS.values():
        return []
    found = []
    for file in sorted(root.rglob("*")):
        form = _FORMATS.get(file.suffix)
        if form is not None and not file.name.endswith(reader.endings):
            found.append(f"{_shown(file.relative_to(root).as_posix())} (import {form})")
    if not found:
        return []
    return [f"logs of other formats, which were not read: {first_of(found, 3)}"]


@dataclass
class _RunWriter:
    """Writes the runs of one import, and gathers what to say about them."""

    store: Store
    reader: Reader
    root: Path | None
    request: ImportRequest
    summary: ImportSummary
    begun: datetime = field(default_factory=utc_now)
    without: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    first: dict[object, str] = field(default_factory=dict)
    alike: list[str] = field(default_factory=list)
    settings: set[str] = field(default_factory=set)

    def gather(self, run: ImportedRun, theirs: Mapping[str, Any]) -> RunContent | None:
        """Return what a store gets of a run; None, and count it, if its files hold nothing."""
        summary = self.summary
        form = self.reader.name
        self.settings |= {name for name in summary.names.settings if value_at(theirs, name)}
        self.settings |= summary.names.settings.keys() & theirs.keys()
        settings = summary.names.with_settings(theirs)
        seed = seed_of(settings)
        config = stored_config(settings, form=form, rows=self.request.rows, seed=seed)
        content = gather(form, self._identifier(run), config, run.steps, run.evaluations)
        # Not before: a reader knows what it left out once its steps were read.
        summary.left_out.update(run.left_out)
        summary.notes |= dict.fromkeys(run.notes)
        if not content.curves and not content.evaluations:
            summary.left_out["sources without a logged value"] += 1
            return None
        if content.repeated:
            replaced = "values that a later line of the same step replaced"
            summary.left_out[replaced] += content.repeated
        return content

    def _identifier(self, run: ImportedRun) -> str:
        """Return what identifies a run among all of its format: its key, or else its place."""
        if run.key is not None or self.root is None:
            return run.key or run.source
        # The same whether a run's file or a folder above it was named: of a single file, or a
        # folder that is a run itself, the source has its name.
        is_single = run.source == self.root.name or not self.root.is_dir()
        folder = self.root.parent if is_single else self.root
        return (folder / run.source).as_posix()

    def write(self, run: ImportedRun, content: RunContent) -> None:
        """Write a run."""
        summary = self.summary
        # No path of this machine.
        imported = {
            "format": self.reader.name,
            "source": _shown(run.source),
            "left_out": {_shown(why): count for why, count in run.left_out.items()},
            "notes": [_shown(note) for note in [*summary.names.notes(), *run.notes]],
        }
        context = ImportContext(
            environment={"advsweep": __version__, "imported": imported},
            sweep=self.request.sweep,
            dry_run=self.request.dry_run,
        )
        created = self._created()
        store = self.store
        written = store.patience.call(lambda: write_run(store, content, context, created=created))
        summary.metrics |= content.curves.keys()
        name = _shown(run.source)
        summary.runs.append((name, written))
        self._compare(name, content)
        self.without["estimator"] += content.config["estimator"]["name"] == UNKNOWN
        self.without["seed"] += content.seed is None
        if written.action is ImportAction.SHORTER:
            self.said.append(
                f"{name} ends before run {written.run_id}, which stays as it is; if the log was "
                f"written anew, `advsweep rm {written.run_id} --force` first"
            )

    def _compare(self, name: str, content: RunContent) -> None:
        """Note a run with the settings and the seed of another, or without a seed its values."""
        key: object
        if content.seed is None:
            key = dataclasses.replace(content, config={}).digest()
        else:
            key = (config_hash(content.config), content.seed)
        first = self.first.setdefault(key, name)
        if first != name:
            self.alike.append(f"{name} (as {first})")

    def _created(self) -> datetime:
        """Return the time by which tables order a run.

        It is the same for all runs of a folder, so that the names of its files decide nothing.
        A file has an order of its own, and so has a project.
        """
        if self.root is not None and self.root.is_dir():
            return self.begun
        return self.begun + timedelta(microseconds=len(self.summary.runs))

    def remarks(self) -> list[str]:
        """Return what to say about all runs, a sentence each."""
        remarks = list(self.said)
        if self.alike:
            remarks.append(
                f"{counted(len(self.alike), 'run')} with the settings and the seed of another, or "
                f"with all its values: {first_of(self.alike, 3)}; move copies out of the source"
            )
        number = self.without["estimator"]
        if number:
            remarks.append(
                f"the estimator of {counted(number, 'run')} is not known: name it with --set "
                "estimator=NAME or --name-pattern"
            )
        number = self.without["seed"]
        if number:
            remarks.append(
                f"the seed of {counted(number, 'run')} is not known, so that runs of two settings "
                "are no pairs: --name-pattern or a column seed says which are"
            )
        return remarks


def _shown(text: str) -> str:
    line = printable_line(text)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _check_sweep(store: Store, name: str | None) -> None:
    """Refuse to add imported runs to a sweep that advsweep trains.

    Raises:
        ConfigError: it is such a sweep, or the name is none.
    """
    if name is None:
        return
    if not name or len(name) > _LONGEST or not name.isprintable():
        raise ConfigError(f"--sweep: expected a short name of one line, got {name!r}")
    for sweep in store.sweeps.select():
        if sweep.name == name and IMPORTED not in sweep.spec:
            raise ConfigError(
                f"--sweep: expected a sweep of imported runs, got '{name}', which advsweep trains; "
                "give another name"
            )
