"""Figures without training: masses over the solve rate, weights over the ratio, and replays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from advsweep.errors import ReportError
from advsweep.report.figures import chart
from advsweep.report.figures.style import COLOURS, MOST_STYLES, RowStyle, choose_styles

# The numbers of a replay, and the title of the panel of each.
NUMBERS = {
    "mean": "mean advantage",
    "mean_size": "mean |A|",
    "no_gradient": "groups without a gradient",
    "m_S": "m_S: mass of successes",
    "m_F": "m_F: mass of failures",
    "cosine_grpo": "cosine with GRPO",
    "effective_prompts": "effective prompts",
    "weight_variance": "variance of weights",
    "sign_ratio": "sign ratio",
    "largest": "largest |A|",
}

_MASSES = ("m_S", "m_F", "m_S + m_F", "m_S / m_F")
# The axis is logarithmic if the largest number is more than so many times the lower quartile.
_WIDE = 8.0
_MOST_POINTS = 60
_RATIOS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
# The axis of ratios is logarithmic if a ratio is further from 1 than the first factor; it ends at
# the second.
_FAR, _FARTHEST = 10.0, 100.0


def draw_masses(
    curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]], title: str
) -> chart.Chart:
    """Draw m_S, m_F, their sum and their ratio over the solve rate, as in FADE's Figure 2.

    Args:
        curves: by estimator the solve rates, and the four numbers at each.
    """
    panels = []
    for place, name in enumerate(_MASSES):
        lines = {
            label: ([rate for rate, _ in curve], [own[place] for _, own in curve])
            for label, curve in curves.items()
        }
        axis: dict[str, Any] = {"x_limits": (-0.02, 1.02)}
        if name == _MASSES[-1]:
            # A line at 1, where weights are balanced. Ratios of 0 and less, which push successes
            # down, have no place on a logarithmic axis.
            axis["guides"] = [("y", 1.0)]
            positive = [y for _, ys in lines.values() for y in ys if 0 < y < math.inf]
            low, high = min([1.0, *positive]), max([1.0, *positive])
            if max(high, 1 / low) > _FAR:
                ends = (max(low, 1 / _FARTHEST) / 1.3, min(high, _FARTHEST) * 1.3)
                axis |= {"y_scale": "log", "y_limits": ends}
        panels.append(_panel(name, lines, chart.LINE, "solve rate p", 2.6, **axis))
    return chart.Chart(title=title, panels=panels, columns=2)


def draw_episodes(
    turns: Mapping[str, Sequence[Mapping[str, Any]]], title: str, note: str
) -> chart.Chart:
    """Draw the advantages of the turns of a few episodes: a panel per estimator, a row per episode.

    Args:
        turns: by estimator `episode` and `turn`, from 1, and `state`, `reward` and `advantage`.
    """
    # The colours of all panels mean the same, and those of both signs are as strong.
    largest = max(abs(row["advantage"]) for rows in turns.values() for row in rows) or 1.0
    panels = []
    for label, rows in turns.items():
        rewards = {row["episode"]: row["reward"] for row in rows}
        values = np.full((len(rewards), max(row["turn"] for row in rows)), np.nan)
        texts = {}
        for row in rows:
            # The first episode is at the top.
            place = (len(rewards) - row["episode"], row["turn"] - 1)
            values[place] = row["advantage"]
            texts[place] = f"{row['state']}\n{row['advantage']:.2f}"
        cells = chart.Cells(
            values=values, texts=texts, candidates=[], limits=(-largest, largest), label="advantage"
        )
        panel = chart.Panel(
            title=label,
            cells=cells,
            x_label="turn",
            y_label="reward of the episode",
            x_ticks={number: str(number + 1) for number in range(values.shape[1])},
            y_ticks={len(rewards) - number: f"{reward:g}" for number, reward in rewards.items()},
            height=0.75 + 0.42 * len(rewards),
        )
        panels.append(panel)
    return chart.Chart(title=title, notes=[note], panels=panels, columns=2)


def draw_weights(records: Sequence[Mapping[str, float]], title: str) -> chart.Chart:
    """Draw a token's weight over its importance ratio, by its advantage.

    Args:
        records: an advantage, a ratio, and the weight by each objective.
    """
    panels = []
    x_ticks = {tick: f"{tick:g}" for tick in _RATIOS}
    axis: dict[str, Any] = {"x_scale": "log", "x_ticks": x_ticks, "threshold": 1.0}
    for advantage in dict.fromkeys(record["advantage"] for record in records):
        own = [record for record in records if record["advantage"] == advantage]
        ratios = [record["ratio"] for record in own]
        labels = [label for label in own[0] if label not in ("advantage", "ratio")]
        lines = {label: (ratios, [record[label] for record in own]) for label in labels}
        weights = [y for _, ys in lines.values() for y in ys]
        ticks = (sign * tick for tick in (0, 0.5, 1, 2, 5, 10) for sign in (1, -1))
        axis["y_ticks"] = {t: f"{t:g}" for t in ticks if min(weights) <= t <= max(weights)}
        panels.append(_panel(f"A = {advantage:+g}", lines, chart.LINE, "ratio π/π₀", 2.6, **axis))
    return chart.Chart(title=title, panels=panels, columns=2)


def draw_replay(
    title: str,
    note: str,
    numbers: Mapping[str, Mapping[str, Sequence[float]]],
    x: Sequence[float],
    x_label: str,
) -> chart.Chart:
    """Draw a line per estimator over steps, solve rates or turns.

    Args:
        numbers: by estimator some of the `NUMBERS`, one for each of `x`.

    Raises:
        ReportError: there are more estimators than lines can be told apart.
    """
    if len(numbers) > MOST_STYLES:
        raise ReportError(
            f"expected at most {MOST_STYLES} estimators for a figure of lines, got "
            f"{len(numbers)}; choose some with --estimators"
        )
    width = step_ranges(len(x))
    panels = []
    drawn = set().union(*numbers.values())
    for name, title_of in NUMBERS.items():
        if name not in drawn:
            continue
        how = "max" if name == "largest" else "mean"
        lines = {
            label: (_ranges(x, width), _ranges(own[name], width, how))
            for label, own in numbers.items()
        }
        sizes = sorted(abs(y) for _, ys in lines.values() for y in ys if y and math.isfinite(y))
        axis: dict[str, Any] = {"guides": [("y", 1.0)] if name == "sign_ratio" else ()}
        if name == "no_gradient":
            axis["y_limits"] = (-0.04, 1.04)
        elif name != "cosine_grpo" and sizes and sizes[-1] > _WIDE * sizes[len(sizes) // 4]:
            # Zeros, and a few numbers that are much larger than the rest.
            axis["threshold"] = 10.0 ** math.floor(math.log10(sizes[len(sizes) // 4]))
        panels.append(_panel(title_of, lines, chart.JOINED, x_label, 1.9, **axis))
    return chart.Chart(title=title, notes=[note], panels=panels, columns=2)


def draw_audition(
    title: str, note: str, records: Sequence[Mapping[str, Any]], baseline: str
) -> chart.Chart:
    """Draw a row per candidate: how its changes of held-out prompts differ from a baseline's.

    Args:
        records: the differences with the ends of their intervals.
    """
    panels = {
        "log-odds": {f"log_odds_{name}": f"{name} prompts" for name in ("hard", "middle", "easy")},
        "pass@k": {"pass@1": "pass@1", "pass@8": "pass@8"},
        "token entropy, nats": {"token_entropy": ""},
    }
    others = [record for record in records if record["candidate"] != baseline]
    labels = [record["candidate"] for record in others]
    drawn = []
    for place, (name, columns) in enumerate(panels.items()):
        series = []
        for number, (column, label) in enumerate(columns.items()):
            # The intervals of a row lie below each other.
            y = np.arange(len(others)) + 0.25 * (number - (len(columns) - 1) / 2)
            x, low, high = (
                [record[f"{column}_difference{end}"] for record in others]
                for end in ("", "_low", "_high")
            )
            style = RowStyle(COLOURS[number], "os^"[number])
            series.append(chart.Series(label, style, x, y, chart.POINTS, x_low=low, x_high=high))
        drawn.append(
            chart.Panel(
                title=name,
                series=series,
                x_label=f"difference to {baseline}",
                rows=labels if place == 0 else [""] * len(labels),
                guides=[("x", 0.0)],
                height=0.6 + 0.26 * len(labels),
            )
        )
    return chart.Chart(title=title, notes=[note], panels=drawn, columns=len(drawn))


def _panel(
    title: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    mark: chart.Mark,
    x_label: str,
    height: float,
    **axis: Any,
) -> chart.Panel:
    """Draw a line per estimator."""
    styles = choose_styles(list(lines), list(lines))
    series = [
        chart.Series(label, style, x, [own if math.isfinite(own) else math.nan for own in y], mark)
        for (label, (x, y)), style in zip(lines.items(), styles, strict=True)
    ]
    return chart.Panel(title=title, series=series, x_label=x_label, height=height, **axis)


def step_ranges(steps: int) -> int:
    """Return how many steps a point of a line is the mean of."""
    return math.ceil(steps / _MOST_POINTS)


def _ranges(values: Sequence[float], width: int, how: str = "mean") -> list[float]:
    """Return the means, or another statistic, of ranges of values, of those that are finite."""
    known = pd.Series(values, dtype=np.float64).replace([math.inf, -math.inf], math.nan)
    ranges: list[float] = known.groupby(np.arange(len(known)) // width).agg(how).tolist()
    return ranges
