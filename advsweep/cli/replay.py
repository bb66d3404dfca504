"""`advsweep replay`: what every estimator would have done with rollouts that were dumped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    from advsweep.logs.replay import Replay, Replayed, Statistics

NAMES = {
    "zero_groups": "no_gradient",
    "mass_success": "m_S",
    "mass_failure": "m_F",
    "sign_ratio": "sign_ratio",
    "effective_prompts": "effective_prompts",
    "weight_variance": "weight_variance",
    "cosine": "cosine_grpo",
    "largest": "largest",
}
"""Name of each statistic in tables, CSV, JSON and figures."""


Part = Literal["step", "solve_rate"]
"""Parts of the rollouts that numbers are of."""


def replay(
    source: Annotated[str, complete_run],
    names: list[str] | None = None,
    steps: str | None = None,
    by: Part | None = None,
    rewards: list[str] | None = None,
    success_at: float | None = None,
    inputs: list[str] | None = None,
    target: Path | None = None,
    output: options.ListFormat | None = None,
    store: options.Store = None,
) -> None:
    """Nothing is trained: each estimator computes the advantages of the same rollouts, step by
    step. The rollouts are files that verl or TRL dumped, JSON lines of your own, or a run of the
    store.

    Arguments:
        PATH|RUN (source): Rollouts: verl's rollout_data_dir, TRL's output folder with
            completions, or JSON lines {step, prompt, rewards}. Without such a path a run of the
            store: its groups, rebuilt from solved/K.

    Options:
        --estimators, -e NAME,... (names): Replay these; options follow colons:
            grpo,power_alpha:alpha=3 (default: all).
        --steps A:B: Use steps A to B, both included; either may be left out.
        --by: Show the numbers of each step or solve rate (default: of all steps).
        --reward NAME[=WEIGHT],... (rewards): Use the weighted sum of these fields or
            columns as reward (default: verl's score; the sum of TRL's reward functions).
        --success-at REWARD: Count rollouts with at least this reward as successes (default:
            the larger of two rewards; of more, those at or above the mean of their group).
        --input NAME=NUMBER (inputs): Assume an input that the rollouts lack, one number for
            all: token_entropy=0.3; may be repeated.
        --output, -o FILE (target): Draw into this .png, .svg or .pdf file.
        --format (output): Print the numbers in this format, in addition to a figure.

    Examples:
        advsweep replay rollouts
        advsweep replay outputs --estimators grpo,dr_grpo,maxrl --by solve_rate -o replay.svg
        advsweep replay last
    """
    from advsweep.cli.estimators import build_named, parse_inputs, single_numbers
    from advsweep.estimators import ESTIMATORS
    from advsweep.logs.replay import replay as replay_steps
    from advsweep.logs.rollouts import RolloutNotes, read_rollouts
    from advsweep.report.data.solved_groups import solved_groups
    from advsweep.store import open_store

    if target is not None:
        from advsweep.report.figures.draw import check_path

        check_path(target)
    first, last = _parse_steps(steps)
    weights = _parse_rewards(rewards or [])
    assumed = single_numbers(parse_inputs(inputs or []))
    notes = RolloutNotes()
    path = Path(source)
    # `last`, an id or the start of an identity, where no file has the name.
    is_run = not path.exists() and not set(source.removeprefix("last")) - set("0123456789abcdef")
    if is_run:
        with open_store(store, create=False) as opened:
            dump = solved_groups(opened, opened.runs.find(source).id, notes)
    else:
        dump = list(read_rollouts(path, rewards=weights, notes=notes))
    chosen = [step for step in dump if first <= step.step <= last]
    if not chosen:
        raise ConfigError(
            f"--steps {steps}: expected steps of the rollouts, which are {dump[0].step} to "
            f"{dump[-1].step}"
        )
    every = names or sorted(cls.name for cls in ESTIMATORS.classes())
    estimators = build_named(every)
    unread = assumed.keys() - {n for e in estimators.values() for n in e.needs | e.uses}
    for name in sorted(unread):
        raise ConfigError(f"--input {name}: no chosen estimator reads it; omit it")
    with progress_bar("Replaying", len(estimators)) as update:
        result = replay_steps(
            chosen, estimators, success_at=success_at, assumed=assumed, progress=update
        )
    for line in filter(None, (notes.message(), *notes.remarks, *result.remarks)):
        warn(line)
    if by == "solve_rate" and result.rates is None:
        raise ConfigError(
            "--by solve_rate: expected rewards of two values, or --success-at REWARD to say what "
            "a success is"
        )
    records = _records(result, by)
    if target is not None:
        _draw(result, by or "step", target, f"run {source}" if is_run else path.name or source)
        echo_line(f"Wrote {target}.", err=True)
    if output == "json":
        groups, rollouts, reward, solve_rate, collapse = result.total()
        print_json(
            {
                "steps": result.steps,
                "groups": groups,
                "rollouts": rollouts,
                "mean_reward": reward,
                "solve_rate": None if result.rates is None else solve_rate,
                "equal_rewards": collapse,
                "by": by,
                "estimators": records,
                "lacking": result.lacking,
                "refused": result.refused,
                "left_out": notes.left_out,
                "remarks": [*notes.remarks, *result.remarks],
            }
        )
    elif output == "csv":
        print_listing(records, "csv")
    elif output == "table" or target is None:
        _print_table(result, records)
    else:
        echo_line(str(target))


def _parse_steps(text: str | None) -> tuple[float, float]:
    """Return the first and the last step."""
    if text is None:
        return 0, float("inf")
    start, colon, end = (part.strip() for part in text.partition(":"))
    if not all(part.isdecimal() or not part for part in (start, end)) or not (start or end):
        raise ConfigError(f"--steps: expected A:B, A:, :B or a step, got '{text}'")
    if not colon:
        return int(start), int(start)
    return int(start or 0), int(end) if end else float("inf")


def _parse_rewards(texts: Iterable[str]) -> dict[str, float] | None:
    """Return names and weights of rewards; None if there are none."""
    weights = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, weight = text.rpartition("=")
        name, weight = (name, weight) if equals else (text, "1")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            raise ConfigError(f"--reward: expected NAME or NAME=WEIGHT, got '{text}'") from None
        if not name.strip():
            raise ConfigError(f"--reward: expected NAME or NAME=WEIGHT, got '{text}'")
    return weights or None


def _by_cosine(result: Replay) -> dict[str, Replayed]:
    """Return what was logged, then the estimators, those first that are most like GRPO."""
    from advsweep.logs.replay import LOGGED

    def place(label: str) -> float:
        cosine = float(result.estimators[label].overall.cosine[0])
        similar = 2.0 if cosine != cosine else -cosine
        return -2.0 if label == LOGGED else similar

    return {label: result.estimators[label] for label in sorted(result.estimators, key=place)}


def _numbers(statistics: Statistics, place: int) -> dict[str, float]:
    return dict(zip(NAMES.values(), (float(part[place]) for part in statistics), strict=True))


def _records(result: Replay, by: Part | None) -> list[dict[str, Any]]:
    """Return a record per estimator, or per estimator and step or solve rate."""
    if by is None:
        ordered = _by_cosine(result).items()
        return [{"estimator": label, **_numbers(own.overall, 0)} for label, own in ordered]
    return [
        {"estimator": label, by: place, "groups": count, **_numbers(statistics, number)}
        for label, own in _by_cosine(result).items()
        for statistics, places, groups in [_parts(result, own, by)]
        for number, (place, count) in enumerate(zip(places, groups, strict=True))
    ]


def _parts(result: Replay, own: Replayed, by: Part) -> tuple[Statistics, list[float], list[int]]:
    """Return the statistics of the parts, the parts, and their numbers of groups."""
    if by == "step":
        return own.by_step, result.steps.tolist(), result.groups.tolist()
    assert own.by_rate is not None
    assert result.rates is not None
    assert result.rate_groups is not None
    return own.by_rate, result.rates.tolist(), result.rate_groups.tolist()


def _heading(result: Replay) -> str:
    groups, rollouts, reward, solve_rate, collapse = result.total()
    count = len(result.steps)
    solved = "" if result.rates is None else f", solve rate {solve_rate:.3g}"
    return (
        f"{counted(f'{count:,}', 'step')}, {counted(f'{groups:,}', 'group')}, "
        f"{counted(f'{rollouts:,}', 'rollout')}; mean reward "
        f"{reward:.3g}{solved}; {100 * collapse:.1f} % of the groups have equal rewards"
    )


def _print_table(result: Replay, records: list[dict[str, Any]]) -> None:
    lacking = {label: f"needs {', '.join(names)}" for label, names in result.lacking.items()}
    echo_line(_heading(result))
    if records:
        echo()
        print_columns(list(records[0]), [list(map(_cell, record.values())) for record in records])
    if unable := list((lacking | result.refused).items()):
        echo()
        print_columns(("not replayed", "why"), unable)


def _cell(value: Any) -> str:
    """Return a number with three digits."""
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _draw(result: Replay, by: Part, target: Path, source: str) -> None:
    from advsweep.report.figures.advantages import draw_replay, step_ranges
    from advsweep.report.figures.draw import write

    numbers: dict[str, dict[str, list[float]]] = {}
    x: list[float] = []
    for label, own in _by_cosine(result).items():
        statistics, x, _ = _parts(result, own, by)
        lists = (values.tolist() for values in statistics)
        numbers[label] = dict(zip(NAMES.values(), lists, strict=True))
    if not numbers:
        raise ConfigError(f"{target}: no estimator can be replayed, so there is nothing to draw")
    note = _heading(result)
    if by == "step" and (width := step_ranges(len(result.steps))) > 1:
        note += f"; a point is the mean of {width} steps"
    title = f"Advantages on the rollouts of {source}"
    x_label = by.replace("_", " ")
    write([draw_replay(title, note, numbers, x, x_label)], target)
