"""`advsweep replay`: what every estimator would have done with rollouts that were dumped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from advsweep.bounds import is_bounded
from advsweep.cli import options
from advsweep.cli.completion import complete_run
from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    print_listing,
    progress_bar,
    warn,
)
from advsweep.errors import ConfigError, counted

if TYPE_CHECKING:
    from advsweep.logs.replay import Replay
    from advsweep.logs.rollout_records import RolloutNotes, RolloutStep

# Names of the fields of `Statistics` in tables, CSV, JSON and figures.
NAMES = (
    "no_gradient",
    "m_S",
    "m_F",
    "sign_ratio",
    "effective_prompts",
    "weight_variance",
    "cosine_grpo",
    "largest",
)

# Those of `TurnStatistics`.
TURN_NAMES = ("mean", "mean_size", "no_gradient")

# Parts of the rollouts that numbers are of.
Part = Literal["step", "solve_rate", "turn"]

EXAMPLES = (
    "advsweep replay rollouts",
    "advsweep replay outputs -e grpo,dr_grpo --by solve_rate -o replay.svg",
    "advsweep replay last",
)


def replay(
    source: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="PATH|RUN",
            autocompletion=complete_run,
            help="Rollouts: verl's rollout_data_dir, TRL's output folder with completions, the "
            "folder of another trainer's run, or JSON lines {step, prompt, rewards}. "
            "Without such a path a run of the store: its groups, rebuilt from solved/K.",
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--estimators",
            "-e",
            metavar="NAME,...",
            help="Replay these; options follow colons: grpo,power_alpha:alpha=3 (default: all).",
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="A:B",
            help="Use steps A to B, both included; either may be left out.",
        ),
    ] = None,
    by: Annotated[
        Part | None,
        typer.Option(
            "--by",
            metavar="step|solve_rate|turn",
            help="Show the numbers of each step, solve rate or turn (default: of all steps).",
        ),
    ] = None,
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="NAME[=WEIGHT],...",
            help="Use the weighted sum of these fields as reward.",
        ),
    ] = None,
    success_at: Annotated[
        float | None,
        typer.Option(
            "--success-at",
            metavar="REWARD",
            help="Count rollouts with at least this reward as successes (default: the larger of "
            "two rewards; of more, those at or above the mean of their group).",
        ),
    ] = None,
    output: options.Drawing = None,
    output_format: Annotated[
        Literal["table", "csv", "json"] | None,
        typer.Option(
            "--format",
            metavar="table|csv|json",
            help="Print the numbers in this format, in addition to a figure.",
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Show what every estimator makes of recorded rollouts.

    Nothing is trained: each estimator computes the advantages of the same rollouts, step by
    step. The rollouts are files that verl, TRL, prime-rl, NeMo-RL or open-instruct dumped,
    JSON lines of your own, or a run of the store.
    """
    from advsweep.cli.estimators import build_named
    from advsweep.estimators import ESTIMATORS
    from advsweep.logs.replay import replay as replay_steps
    from advsweep.logs.rollout_records import RolloutNotes

    if output is not None:
        from advsweep.report.figures.draw import check_path

        check_path(output)
    first, last = _parse_steps(steps)
    notes = RolloutNotes()
    recorded = _read(source, store, _parse_rewards(rewards or []), notes)
    chosen = [step for step in recorded.steps if first <= step.step <= last]
    if not chosen:
        raise ConfigError(
            f"--steps {steps}: expected steps of the rollouts, which are "
            f"{recorded.steps[0].step} to {recorded.steps[-1].step}"
        )
    every = names or sorted(cls.name for cls in ESTIMATORS.classes())
    estimators = build_named(ESTIMATORS, every)
    with progress_bar("Replaying", len(estimators)) as update:
        result = replay_steps(chosen, estimators, success_at=success_at, progress=update)
    _warn_of_gaps(notes, result)
    _check_has_parts(result, by)
    if output is not None:
        _draw(result, by or "step", output, recorded.title)
        echo_line(f"Wrote {output}.", err=True)
    if output_format is None and output is not None:
        echo_line(str(output))
        return
    records = _records(result, by)
    if output_format == "json":
        print_json(_document(result, by, records, notes))
    elif output_format == "csv":
        print_listing(records, "csv")
    else:
        _print(result, records)


def _warn_of_gaps(notes: RolloutNotes, result: Replay) -> None:
    """Warn of what was left out or could not be used."""
    for line in (notes.message(), *notes.remarks, *result.remarks):
        if line:
            warn(line)


def _check_has_parts(result: Replay, by: Part | None) -> None:
    """Refuse parts that the rollouts do not have.

    Raises:
        ConfigError: there are none of these.
    """
    if by == "solve_rate" and result.rates is None:
        raise ConfigError(
            "--by solve_rate: expected rewards of two values, or --success-at REWARD to say what "
            "a success is"
        )
    if by == "turn" and result.turn_rollouts is None:
        raise ConfigError(
            "--by turn: expected rollouts of several turns, got rollouts of one turn, or of which "
            "nothing tells the turns (docs/replay.md)"
        )


class _Recorded(NamedTuple):
    """Rollouts of a source, of at least one step, and a title for them."""

    title: str
    steps: Sequence[RolloutStep]


def _read(
    source: str, store: str | None, rewards: Mapping[str, float] | None, notes: RolloutNotes
) -> _Recorded:
    """Read the rollouts of a path, or the solved groups of a run where no file has the name."""
    from advsweep.logs.rollouts import read_rollouts
    from advsweep.report.data.solved_groups import solved_groups
    from advsweep.store import open_store

    path = Path(source)
    # `last`, an id or the start of an identity.
    if not path.exists() and set(source.removeprefix("last")) <= set("0123456789abcdef"):
        with open_store(store, create=False) as opened:
            run = opened.runs.find(source)
            return _Recorded(f"run {source}", solved_groups(opened, run.id, notes))
    steps = list(read_rollouts(path, rewards=rewards, notes=notes))
    return _Recorded(path.name or source, steps)


def _parse_steps(text: str | None) -> tuple[int, float]:
    """Return the first and the last step of `A:B`, `A:`, `:B` or a number."""
    if text is None:
        return 0, math.inf
    match = re.fullmatch(r"\s*(?:(\d+)|(\d*)\s*:\s*(\d*))\s*", text)
    if match is None or not any(match.groups()):
        raise ConfigError(f"--steps: expected A:B, A:, :B or a step, got '{text}'")
    single, first, last = match.groups()
    if single:
        return int(single), int(single)
    return int(first or 0), float(last or "inf")


def _parse_rewards(texts: Iterable[str]) -> dict[str, float] | None:
    """Return names and weights of rewards; None if there are none."""
    weights = {}
    for text in (part.strip() for each in texts for part in each.split(",")):
        name, equals, weight = text.rpartition("=")
        if not equals:
            name, weight = text, "1"
        name = name.strip()
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ConfigError(f"--reward: expected NAME or NAME=WEIGHT, got '{text}'") from None
        if not name or not is_bounded(weights[name]):
            raise ConfigError(f"--reward: expected NAME or NAME=WEIGHT, got '{text}'")
    return weights or None


def _records(result: Replay, by: Part | None) -> list[dict[str, Any]]:
    """Return a record per estimator, or per estimator and step, solve rate or turn.

    What was logged comes first, then the estimators, those first that are most like GRPO.
    """
    parts = _parts(result, by)
    names = _names(by)
    records = []
    for label in sorted(result.estimators, key=lambda label: _order(result, label)):
        replayed = result.estimators[label]
        statistics = {
            None: replayed.overall,
            "step": replayed.by_step,
            "solve_rate": replayed.by_rate,
            "turn": replayed.by_turn,
        }[by]
        assert statistics is not None
        for number, part in enumerate(parts):
            numbers = [float(values[number]) for values in statistics]
            records.append({"estimator": label, **part, **dict(zip(names, numbers, strict=True))})
    return records


def _names(by: Part | None) -> tuple[str, ...]:
    return TURN_NAMES if by == "turn" else NAMES


def _parts(result: Replay, by: Part | None) -> list[dict[str, Any]]:
    """Return what tells the records of an estimator apart, and how much there is of it."""
    if by is None:
        return [{}]
    if by == "turn":
        assert result.turn_rollouts is not None
        counts = result.turn_rollouts.tolist()
        return [{"turn": turn, "rollouts": count} for turn, count in enumerate(counts, 1)]
    if by == "step":
        values, groups = result.steps, result.groups
    else:
        assert result.rates is not None
        assert result.rate_groups is not None
        values, groups = result.rates, result.rate_groups
    pairs = zip(values.tolist(), groups.tolist(), strict=True)
    return [{by: value, "groups": count} for value, count in pairs]


def _order(result: Replay, label: str) -> float:
    from advsweep.logs.replay import LOGGED

    if label == LOGGED:
        return -2.0
    cosine = float(result.estimators[label].overall.cosine[0])
    return 2.0 if math.isnan(cosine) else -cosine


def _document(
    result: Replay, by: Part | None, records: Sequence[Mapping[str, Any]], notes: RolloutNotes
) -> dict[str, Any]:
    """Return what `--format json` prints."""
    total = result.total()
    return {
        "steps": result.steps,
        **total,
        "solve_rate": None if result.rates is None else total["solve_rate"],
        "by": by,
        "estimators": records,
        "lacking": result.lacking,
        "refused": result.refused,
        "left_out": notes.left_out,
        "remarks": [*notes.remarks, *result.remarks],
    }


def _print(result: Replay, records: Sequence[Mapping[str, Any]]) -> None:
    echo_line(_heading(result))
    if records:
        echo()
        print_columns(list(records[0]), [list(map(_cell, r.values())) for r in records])
    reasons = {label: f"needs {', '.join(names)}" for label, names in result.lacking.items()}
    reasons |= result.refused
    if reasons:
        echo()
        print_columns(("not replayed", "why"), list(reasons.items()))


def _heading(result: Replay) -> str:
    total = result.total()
    counts = {"step": len(result.steps), "group": total["groups"], "rollout": total["rollouts"]}
    counted_parts = ", ".join(counted(f"{count:,}", noun) for noun, count in counts.items())
    solved = "" if result.rates is None else f", solve rate {total['solve_rate']:.3g}"
    return (
        f"{counted_parts}; mean reward {total['mean_reward']:.3g}{solved}; "
        f"{100 * total['equal_rewards']:.1f} % of the groups have equal rewards"
    )


def _cell(value: Any) -> str:
    """Return a number with three digits."""
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _draw(result: Replay, by: Part, output: Path, source: str) -> None:
    import numpy as np

    from advsweep.report.figures.advantages import draw_replay, step_ranges
    from advsweep.report.figures.draw import write

    numbers: dict[str, dict[str, list[float]]] = {}
    names = _names(by)
    for record in _records(result, by):
        series = numbers.setdefault(record["estimator"], {name: [] for name in names})
        for name in names:
            series[name].append(record[name])
    if not numbers:
        raise ConfigError(f"{output}: no estimator can be replayed, so there is nothing to draw")
    if by == "turn":
        assert result.turn_rollouts is not None
        x = np.arange(1, len(result.turn_rollouts) + 1)
    elif by == "step":
        x = result.steps
    else:
        assert result.rates is not None
        x = result.rates
    note = _heading(result)
    if by == "step" and (width := step_ranges(len(result.steps))) > 1:
        note += f"; a point is the mean of {width} steps"
    title = f"Advantages on the rollouts of {source}"
    write([draw_replay(title, note, numbers, x.tolist(), by.replace("_", " "))], output)
