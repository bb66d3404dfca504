"""Runs of verl: its file logger, its dumps of rollouts and validation, Hydra's settings.

    advsweep import verl outputs/grpo-gsm8k

Facts about the formats are of verl 0.9.1, its V1 trainer and the one before. The file logger
starts its file anew when a run is resumed; dumps of earlier steps remain. NaN is written as null.
`verl_files` finds the files of each run, and reads their settings.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.logs.base import ImportedRun, ImportOptions, ProblemResult
from advsweep.logs.lines import JsonLines
from advsweep.logs.names import LoggedStep, merged
from advsweep.logs.rollout_files import read_rollouts
from advsweep.logs.rollout_metrics import (
    DumpMetrics,
    fewer_than_usual,
    metrics_of_dump,
    missing_steps,
    success_reward,
)
from advsweep.logs.rollouts import RolloutNotes, RolloutStep
from advsweep.logs.verl_files import Settings, VerlFiles, find_runs

_ACCURACY = "acc"
"""The verdict beside a score, in validation samples of reward functions that return one."""


@dataclass(kw_only=True)
class Verl(JsonLines):
    """Reads folders of runs of verl; while a run trains, the JSON lines of its file logger.

    A setting `success_at` is the score from which a rollout counts as a success (1), where dumps
    have no `acc`.
    """

    name: ClassVar[str] = "verl"
    table: ClassVar[str] = "verl"

    data_key: str = option("data", help="key of the mapping with the values")

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        runs, remarks = find_runs(Path(source))
        for number, files in enumerate(runs):
            run = self._imported(files, options)
            if number == 0:
                run.notes += remarks
            yield run

    def _imported(self, files: VerlFiles, options: ImportOptions) -> ImportedRun:
        settings = Settings(files.settings)
        config = settings.config()
        given = options.settings_of(files.source)
        success_at = success_reward(given)
        left_out: Counter[str] = Counter()
        notes = [f"the settings were left out: {settings.problem}"] if settings.problem else []
        dump = DumpMetrics()
        if files.rollouts:
            reading = RolloutNotes(left_out=left_out)
            rollouts = _steps_of(files.rollouts, reading)
            dump = metrics_of_dump(rollouts, merged(config, given), success_at=success_at)
            notes += reading.remarks
        for key, value in (("prompts_per_step", dump.prompts), ("group_size", dump.group_size)):
            if value is not None:
                config.setdefault(key, value)
        evaluations = _evaluations(files.validation, success_at, left_out)
        samples = Counter[int]()
        for result in evaluations:
            samples[result.step] += result.n
        notes += dump.notes + fewer_than_usual(samples, "validation samples")
        logged: list[LoggedStep] = []
        if files.log is not None:
            log = self.open(files.log)
            logged = list(log.steps())
            left_out.update(log.left_out)
        if not logged:
            notes.append("there is no line of the file logger: metrics are those of the rollouts")
        if dump.rollouts:
            steps = [step for step, values in logged if "critic/score/mean" in values]
            notes += missing_steps(steps, dump.rollouts)
        if not settings.theirs:
            notes.append("there are no settings (.hydra/config.yaml); --set adds what is known")
        known = merged(config, given)
        prompts, size = known.get("prompts_per_step"), known.get("group_size")
        per_step = None
        if isinstance(prompts, int) and isinstance(size, int) and settings.keeps_all_rollouts:
            per_step = prompts * size
        return ImportedRun(
            source=files.source,
            config=config,
            steps=_steps(logged, dump, options, per_step),
            evaluations=evaluations,
            left_out=left_out,
            notes=notes,
        )


def _steps_of(files: list[Path], notes: RolloutNotes) -> Iterator[RolloutStep]:
    """Yield the steps of dumps of one file each; a damaged file does not hide the others."""
    for file in files:
        try:
            yield from read_rollouts(file, "verl", notes=notes)
        except ConfigError:
            notes.left_out["dumps without a rollout that can be read"] += 1


def _steps(
    logged: Iterable[LoggedStep], dump: DumpMetrics, options: ImportOptions, per_step: int | None
) -> Iterator[LoggedStep]:
    """Yield what is logged, then what the rollouts say, which counts where both say it."""
    found = dict(dump.steps)
    for step, values in logged:
        own = found.get(step, {})
        named = options.names.apply(values)
        if per_step is not None and "critic/score/mean" in values:
            named.setdefault("cost/rollouts", 1.0)
            if (length := values.get("response_length/mean")) is not None:
                named.setdefault("cost/tokens", length * per_step)
        yield LoggedStep(step, {name: v for name, v in named.items() if name not in own})
    yield from dump.steps


def _evaluations(
    files: list[Path], success_at: float, left_out: Counter[str]
) -> list[ProblemResult]:
    """Return n and c of the problems of each validation.

    A problem is known by its prompt, since verl gives it another uid in each validation. A sample
    without a verdict is not correct.
    """
    counts: dict[tuple[int, str], list[int]] = {}
    for file in files:
        for step, problem, verdicts in _verdicts(file, success_at, left_out):
            count = counts.setdefault((step, problem), [0, 0])
            count[0] += len(verdicts)
            count[1] += sum(verdicts)
    return [ProblemResult(step, problem, n, c) for (step, problem), (n, c) in counts.items()]


def _verdicts(
    file: Path, success_at: float, left_out: Counter[str]
) -> Iterator[tuple[int, str, list[bool]]]:
    """Yield step, problem and whether each sample is correct, of a file of one validation."""
    for rewards, least in (({_ACCURACY: 1.0}, 1.0), (None, success_at)):
        notes = RolloutNotes()
        try:
            steps = list(read_rollouts(file, "verl", rewards=rewards, notes=notes))
        except ConfigError:
            continue  # No line has a verdict of its own; then the scores say it.
        left_out.update(notes.left_out)
        for step, groups in steps:
            for group in groups:
                digest = hashlib.sha256(group.prompt.encode("utf-8", "replace")).hexdigest()
                yield step, digest[:16], [reward >= least for reward in group.rewards]
        return
    left_out["validations without a sample that can be read"] += 1
