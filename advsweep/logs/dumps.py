"""Runs of trainers whose dumps of rollouts are known: prime-rl, NeMo-RL, open-instruct.

    advsweep import rollouts RUNS --set estimator=grpo

`advsweep.logs.forms` says where their files are and what is in them. prime-rl's `metrics.jsonl`
beside them is read, too; logs of the others are read by `tensorboard` and `wandb`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, existing
from advsweep.logs.dump_checks import problem_counts, success_reward
from advsweep.logs.forms import TRACES, DumpedRun, find_dumps
from advsweep.logs.json_lines import JsonLines
from advsweep.logs.names import LoggedStep
from advsweep.logs.rollout_records import RolloutNotes
from advsweep.logs.rollouts import read_rollouts
from advsweep.printable import printable_line

_METRICS = "metrics.jsonl"


@dataclass(kw_only=True)
class RolloutDumps(Reader):
    """Reads folders of runs, a run each.

    A setting `success_at` is the reward from which a rollout counts as a success (1).
    """

    name: ClassVar[str] = "rollouts"
    table: ClassVar[str] = "jsonl"

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        runs = find_dumps(root) if root.is_dir() else [DumpedRun(root, [root])]
        if not runs:
            raise ConfigError(
                f"{printable_line(str(source))}: expected step_N/train/all/{TRACES} "
                "(prime-rl), train_data_stepN.jsonl (NeMo-RL) or NAME_rollouts_NNNNNN.jsonl "
                "(open-instruct, with --save_traces), got none"
            )
        for run in runs:
            yield _imported(run, root.resolve(), options)


def _imported(run: DumpedRun, root: Path, options: ImportOptions) -> ImportedRun:
    # torch is needed for rollouts alone.
    from advsweep.logs.rollout_metrics import DumpMetrics, metrics_of_dump

    # Above a single run, its own folder has its name.
    inside = run.home.is_relative_to(root) and run.home != root
    source = run.home.relative_to(root).as_posix() if inside else root.name
    given = options.settings_of(source)
    success_at = success_reward(given)
    left_out: Counter[str] = Counter()
    reading = RolloutNotes(left_out=left_out)
    dump = DumpMetrics()
    if run.training:
        try:
            steps = list(read_rollouts(run.training, notes=reading))
        except ConfigError:  # A run without rollouts does not hide the others.
            steps = []
            left_out["dumps without a rollout that can be read"] += 1
        # Groups that were filtered out are in no dump, so that the cost is not known.
        dump = metrics_of_dump(steps, given, success_at=success_at, counts_rollouts=False)
    logged: list[LoggedStep] = []
    if (metrics := run.home / _METRICS).is_file():
        log = JsonLines().open(metrics)
        logged = list(log.steps())
        left_out.update(log.left_out)
    return ImportedRun(
        source=source,
        config=dict(dump.sizes),
        steps=options.names.combine(logged, dict(dump.steps)),
        evaluations=problem_counts(run.validation, success_at, left_out),
        left_out=left_out,
        notes=[*reading.remarks, *dump.notes],
    )
