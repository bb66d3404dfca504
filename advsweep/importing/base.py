"""What an importer of a format reads, and what it hands to the store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.components import Component
from advsweep.importing.settings import merged
from advsweep.logs.base import LoggedStep
from advsweep.logs.names import NameMap


class ProblemResult(NamedTuple):
    """The samples of one problem in one evaluation.

    Attributes:
        step: training steps of the weights; 0 is the base model.
        problem: a stable name of the problem.
        n: samples.
        correct: those that are right; at most `n`.
        task: the name of the set of problems; empty for the run's own task.
    """

    step: int
    problem: str
    n: int
    correct: int
    task: str = ""


@dataclass
class ImportedRun:
    """A run of another trainer, as far as its files tell.

    Attributes:
        source: where it comes from, relative to what the user named; `.` for a single run. Runs
            of one import have different sources.
        key: an id that its trainer gave it, which then identifies it instead of its place.
        estimator: that whose advantages the files show, where the user names another; it then
            names the run.
        path: the folders and names in which --name-pattern looks; None for those of `source`.
        config: its settings as the files have them, in JSON types. The estimator and the seed
            are added from the options of the command where they are missing.
        steps: values by our names (`ImportOptions.names.rename_step`). A step may come several
            times; the last value wins.
        evaluations: results per problem; several results of one step and task are one evaluation.
        left_out: why parts of the files were not used, with how often. It is complete once
            `steps` has been read.
        notes: what else a reader of a report should know, a sentence each.
    """

    source: str
    config: dict[str, Any]
    steps: Iterable[LoggedStep]
    evaluations: list[ProblemResult] = field(default_factory=list)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    key: str | None = None
    path: str | None = None
    estimator: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the user says about the files.

    Attributes:
        names: their names of metrics and ours.
        settings: values of config keys that the user gives; importers may read theirs.
        by: columns whose values tell the runs of one file apart.
        in_name: returns the settings in the name of a run, by its `path`.
    """

    names: NameMap
    settings: Mapping[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    in_name: Callable[[str], Mapping[str, Any] | None] = lambda source: None

    def settings_of(self, path: str) -> dict[str, Any]:
        """Return what the user says about the settings of one run."""
        return merged(self.in_name(path) or {}, self.settings)


@dataclass(kw_only=True)
class Importer(Component):
    """Reads the runs of one format; a component, registered in `advsweep.importing.IMPORTERS`.

    Attributes:
        table: the YAML file of `advsweep/logs/names/` with the metrics of the format.
    """

    table: ClassVar[str] = "jsonl"

    @abstractmethod
    def read(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yields the runs of a file, a folder or an address, in a fixed order.

        Damaged parts are left out and counted in `ImportedRun.left_out`.

        Raises:
            ConfigError: the source does not exist or holds no run of this format; the message
                says what was expected.
        """
