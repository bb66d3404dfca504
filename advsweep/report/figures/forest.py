"""The forest plot: each row's difference to the baseline in the primary outcomes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.columns import parse_column
from advsweep.report.data.outcomes import find_outcome
from advsweep.report.figures.chart import GREY, Chart, Options, find_label
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import BLACK, COLOURS, label_rows
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.types import Difference
from advsweep.tasks.controls import AA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_AA = f"({AA.title})"
_WIDE = 3.0
"""A difference that lies so many times farther out than the median one is drawn as an arrow."""
_SHADE = "#d9ead3"


@dataclass(frozen=True, kw_only=True)
class Forest(Chart):
    """Differences to the baseline with their intervals, a panel for each primary outcome.

    Attributes:
        baseline: the baseline in words.
        panels: the differences in each outcome, by label.
        labels: the labels of the rows, from top to bottom.
        controls: the labels of A/A rows, whose differences are noise.
        margins: the margin of equivalence of an outcome.
    """

    name: ClassVar[str] = "forest"
    summary: ClassVar[str] = (
        "differences to the baseline in the primary outcomes (--baseline), with a margin of "
        "equivalence (--margin) and the A/A row (--control)"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"baseline", "margin", "control", "metrics"})

    baseline: str
    panels: Mapping[str, Mapping[str, Difference]]
    labels: Sequence[str]
    controls: Collection[str]
    margins: Mapping[str, float]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        if options.task is not None:
            raise ReportError(
                "primary outcomes are of the runs' own task; without --task, "
                f"--metric 'pass@1[{options.task}]' names one of another"
            )
        report = data.report(options.metrics or None, options.baseline)
        if report.baseline is None:
            raise ReportError(f"{data.name} has no two rows, or too many; --baseline names one")
        rows = [place for place, row in enumerate(report.rows) if not row.is_base]
        texts, remarks = label_rows([report.rows[row].group for row in rows])
        named = dict(zip(rows, texts, strict=True))
        found = [parse_column(name) for name in options.metrics] or report.outcomes
        panels = {
            column.name: {named[d.row]: d for d in own}
            for column in found
            if column
            and (own := [d for d in report.differences if find_outcome(column, [d.column])])
        }
        if not panels:
            raise ReportError(
                f"no row of {data.name} can be compared with {report.baseline}: expected two "
                "seeds of each"
            )
        controls = {label for label in texts if _AA in label}
        if options.control is not None:
            controls.add(find_label("--control", options.control, texts))
        shown = list(dict.fromkeys(label for own in panels.values() for label in own))
        others = {d.baseline for own in panels.values() for d in own.values()}
        baseline = report.baseline
        if len(others) == 1 and (other := others.pop()) in named:
            baseline = named[other]
        first = next(iter(panels.values()))

        def place(label: str) -> tuple[bool, float]:
            own = first.get(label)
            return label not in controls, math.inf if own is None else -own.comparison.difference

        margins = _margins(options.margin, list(panels))
        return cls(
            title=f"{data.name}: differences to {baseline}",
            notes=[*_notes(panels, controls, margins, report.family.text), *remarks],
            baseline=baseline,
            panels=panels,
            labels=sorted(shown, key=place),
            controls=controls,
            margins=margins,
        )

    @property
    def height(self) -> float:
        return 0.95 + 0.21 * len(self.labels)

    def draw(self, canvas: FigureBase) -> None:
        every = canvas.subplots(1, len(self.panels), squeeze=False, sharey=True)[0]
        for axes, (name, differences) in zip(every, self.panels.items(), strict=True):
            margin = self.margins.get(name, 0.0)
            if margin:
                axes.axvspan(-margin, margin, color=_SHADE, linewidth=0, zorder=0)
            axes.axvline(0, color=BLACK, linewidth=0.8)
            low, high = _limits(differences.values(), margin)
            pad = 0.05 * (high - low)
            axes.set_xlim(low - pad, high + pad)
            for label, one in differences.items():
                self._draw_row(axes, label, one)
            axes.locator_params(axis="x", nbins=3)
            axes.spines["left"].set_visible(False)
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
            axes.set_title(name)
            axes.set_xlabel("difference")
        shown = [f"{x} {_AA}" if x in self.controls and _AA not in x else x for x in self.labels]
        every[0].set_yticks(range(len(shown)), shown)
        every[0].set_ylim(len(shown) - 0.4, -0.6)

    def _draw_row(self, axes: Axes, label: str, one: Difference) -> None:
        place, found = self.labels.index(label), one.comparison
        colour = COLOURS[1] if label in self.controls else COLOURS[0]
        # Without a test p is NaN.
        filled = colour if one.p_adjusted <= LEVEL else "white"
        style: dict[str, Any] = {"color": colour, "markerfacecolor": filled}
        low, high = axes.get_xlim()
        if low <= found.difference <= high:
            axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.3)
            marker = "D" if label in self.controls else "o"
            axes.plot(found.difference, place, marker, markersize=5, **style)
            return
        is_above = found.difference > high
        end = high if is_above else low
        axes.plot(end, place, ">" if is_above else "<", markersize=6, clip_on=False, **style)
        axes.annotate(
            f"{found.difference:+.3f}",
            (end, place),
            xytext=(-7 if is_above else 7, 0),
            textcoords="offset points",
            ha="right" if is_above else "left",
            va="center",
            fontsize=7,
            color=GREY,
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "outcome": name,
                "row": label,
                "control": label in self.controls,
                "difference": one.comparison.difference,
                "low": one.comparison.low,
                "high": one.comparison.high,
                "n": one.comparison.n,
                "paired": one.comparison.paired,
                "p_adjusted": one.p_adjusted,
                "margin": self.margins.get(name),
            }
            for name, differences in self.panels.items()
            for label in self.labels
            if (one := differences.get(label)) is not None
        ]


def _limits(differences: Iterable[Difference], margin: float) -> tuple[float, float]:
    """Return the ends of an axis: no farther out than some times the median row."""
    ends = np.array([[d.comparison.low, d.comparison.high] for d in differences])
    extents = np.abs(ends).max(axis=1)
    is_shown = extents <= _WIDE * np.median(extents)
    shown = ends[is_shown]
    # With nothing but zeros any range will do.
    wide = 1.2 * margin or float(extents[is_shown].max()) / 4 or 1.0
    return min(float(shown.min()), -wide), max(float(shown.max()), wide)


def _margins(texts: Sequence[str], outcomes: Sequence[str]) -> dict[str, float]:
    """Parse margins: a number for every pass@k, or OUTCOME=NUMBER.

    Raises:
        ConfigError: a text is neither, or names another outcome.
    """
    margins: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            margin = float(number)
        except ValueError:
            margin = math.nan
        named = [name] if name else [each for each in outcomes if each.startswith("pass@")]
        if not 0 < margin < math.inf or not {*named} <= {*outcomes}:
            raise ConfigError(
                f"--margin: expected a positive NUMBER, or OUTCOME=NUMBER with one of "
                f"{', '.join(outcomes)}, got {text!r}"
            )
        margins |= dict.fromkeys(named, margin)
    return margins


def _notes(
    panels: Mapping[str, Mapping[str, Difference]],
    controls: Collection[str],
    margins: Mapping[str, float],
    family: str,
) -> list[str]:
    found = [one for own in panels.values() for one in own.values()]
    counts = sorted({one.comparison.n for one in found})
    paired = "paired by seed, " if all(one.comparison.paired for one in found) else ""
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    notes = [f"means with 95 % intervals, {paired}over {seeds} seeds, as in the report"]
    if any(one.is_primary for one in found):
        notes.append(f"filled: p of at most {LEVEL} after Benjamini-Hochberg over {family}")
    if described := [name for name, own in panels.items() if not _is_tested(own)]:
        notes.append(f"described without a test: {', '.join(described)}")
    if margins:
        listed = ", ".join(f"{name} {margin:g}" for name, margin in margins.items())
        notes.append(f"shaded: the margin of equivalence ({listed})")
    if controls:
        notes.append("diamonds: A/A rows, which repeat the baseline and show the noise")
    beyond = []
    for name, own in panels.items():
        low, high = _limits(own.values(), margins.get(name, 0.0))
        if any(not low <= one.comparison.difference <= high for one in own.values()):
            beyond.append(name)
    if beyond:
        notes.append(f"arrows: beyond the axis of {', '.join(beyond)}")
    return notes


def _is_tested(differences: Mapping[str, Difference]) -> bool:
    return any(one.is_primary for one in differences.values())
