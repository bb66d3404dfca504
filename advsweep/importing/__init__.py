"""Makes runs of the logs of other trainers, so that reports work on them.

`advsweep.logs` has the readers, `write` puts each run into the store; here is said what was taken,
renamed and left out. No worker claims an imported run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from advsweep import __version__
from advsweep.errors import ConfigError, counted, first_of, nearest
from advsweep.importing.write import (
    ImportAction,
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


def import_runs(
    store: Store,
    reader: Reader,
    source: str,
    *,
    settings: Mapping[str, Any] | None = None,
    pattern: NamePattern | None = None,
    names: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
    rows: Sequence[str] | None = None,
    sweep: str | None = None,
    dry_run: bool = False,
    on_run: Callable[[int], None] = lambda done: None,
    on_read: Callable[[str, int, int], None] = lambda name, done, size: None,
) -> ImportSummary:
    """Import the runs of a file, a folder or an address.

    Each run is written in one transaction: an interruption leaves whole runs alone, and importing
    again does the rest.

    Args:
        settings: values of config keys of every run; they replace what the files say.
        pattern: settings in the names of files or folders; runs that do not match are left out.
        names: names of the log with ours, before those of the format's table.
        by: columns whose values tell the runs of one file apart.
        rows: config keys that alone tell settings apart.
        sweep: a sweep that the runs become part of.
        dry_run: change nothing.
        on_run: called after each run with the number of runs so far.
        on_read: as in `ImportOptions`.

    Raises:
        ConfigError: the source holds no runs of this format, or none matches the pattern.
        StoreError: the store cannot be written to.
    """
    _check_sweep(store, sweep)
    names_of_log = NameMap(reader.table, names)
    summary = ImportSummary(names_of_log)
    root = Path(source).resolve() if Path(source).exists() else None

    def in_name(place: str) -> Mapping[str, Any] | None:
        if pattern is None:
            return {}
        if root is not None and place != root.name:
            place = f"{root.name}/{place}"  # With the name of what the user named.
        return pattern.settings(place)

    options = ImportOptions(
        names=names_of_log,
        settings=dict(settings or {}),
        by=tuple(by),
        in_name=in_name,
        on_read=on_read,
    )
    writer = _RunWriter(store, reader, root, rows, sweep, summary, dry_run)
    # What cannot be read is refused before anything is written.
    gathered = []
    for found in reader.runs(source, options):
        place = found.source if found.path is None else found.path
        own = in_name(place)
        if own is None:
            summary.unmatched.append(_shown(place))
            continue
        content = writer.gather(found, merged(merged(found.config, own), options.settings))
        if content is not None:
            found.steps = ()
            gathered.append((found, content))
    for found, content in gathered:
        writer.write(found, content)
        on_run(len(summary.runs))
    if not summary.runs:
        if pattern is not None and summary.unmatched:
            raise ConfigError(
                f"--name-pattern: expected names such as '{pattern.text}', got "
                f"{first_of(summary.unmatched, 5)}; a field matches any text without a slash"
            )
        known = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
        raise ConfigError(
            f"{printable_line(source)}: expected a run with a logged step and values, got none; "
            f"left out: {first_of(known, 8, '; ')}"
        )
    seen = {*names_of_log.renamed, *names_of_log.kept}
    for name, ours in (names or {}).items():
        if ours != STEP and name not in seen and name not in writer.settings:
            hint = nearest(name, seen)
            what = "setting" if name in names_of_log.settings else "metric"
            writer.said.append(f"--map: no run has a {what} {printable_line(name)!r}; {hint}")
    others = _other_logs(root, reader)
    summary.notes |= dict.fromkeys([*names_of_log.notes(), *others, *writer.remarks()])
    return summary


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
    rows: Sequence[str] | None
    sweep: str | None
    summary: ImportSummary
    dry_run: bool
    begun: datetime = field(default_factory=utc_now)
    without: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    first: dict[object, str] = field(default_factory=dict)
    alike: list[str] = field(default_factory=list)
    settings: set[str] = field(default_factory=set)

    def gather(self, found: ImportedRun, theirs: Mapping[str, Any]) -> RunContent | None:
        """Return what a store gets of a run; None, and count it, if its files hold nothing."""
        summary, form = self.summary, self.reader.name
        self.settings |= {name for name in summary.names.settings if value_at(theirs, name)}
        self.settings |= summary.names.settings.keys() & theirs.keys()
        settings = summary.names.with_settings(theirs)
        config = stored_config(settings, form=form, rows=self.rows, seed=seed_of(settings))
        identifier = found.key or found.source
        if found.key is None and (root := self.root) is not None:
            # The same whether a run's file or a folder above it was named: of a single file, or a
            # folder that is a run itself, the source has its name.
            is_single = found.source == root.name or not root.is_dir()
            identifier = ((root.parent if is_single else root) / found.source).as_posix()
        content = gather(form, identifier, config, found.steps, found.evaluations)
        # Not before: a reader knows what it left out once its steps were read.
        summary.left_out.update(found.left_out)
        summary.notes |= dict.fromkeys(found.notes)
        if not content.curves and not content.evaluations:
            summary.left_out["sources without a logged value"] += 1
            return None
        if content.repeated:
            replaced = "values that a later line of the same step replaced"
            summary.left_out[replaced] += content.repeated
        return content

    def write(self, found: ImportedRun, content: RunContent) -> None:
        """Write a run."""
        summary, form, config = self.summary, self.reader.name, content.config
        # No path of this machine.
        imported = {
            "format": form,
            "source": _shown(found.source),
            "left_out": {_shown(why): count for why, count in found.left_out.items()},
            "notes": [_shown(note) for note in [*summary.names.notes(), *found.notes]],
        }
        environment = {"advsweep": __version__, "imported": imported}
        store, sweep, dry = self.store, self.sweep, self.dry_run
        created = self._place()
        written = store.patience.call(
            lambda: write_run(
                store,
                content,
                environment=environment,
                created=created,
                sweep=sweep,
                dry_run=dry,
            )
        )
        summary.metrics |= content.curves.keys()
        name, seed = _shown(found.source), config.get("seed")
        summary.runs.append((name, written))
        values = dataclasses.replace(content, config={}).digest()
        first = self.first.setdefault(values if seed is None else (config_hash(config), seed), name)
        if first != name:
            self.alike.append(f"{name} (as {first})")
        self.without["estimator"] += config["estimator"]["name"] == UNKNOWN
        self.without["seed"] += seed is None
        if written.action is ImportAction.SHORTER:
            self.said.append(
                f"{name} ends before run {written.run_id}, which stays as it is; if the log was "
                f"written anew, `advsweep rm {written.run_id} --force` first"
            )

    def _place(self) -> datetime:
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
        if number := self.without["estimator"]:
            remarks.append(
                f"the estimator of {counted(number, 'run')} is not known: name it with --set "
                "estimator=NAME or --name-pattern"
            )
        if number := self.without["seed"]:
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
