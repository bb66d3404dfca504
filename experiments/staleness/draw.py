"""Draw what staleness costs each loss.

    python experiments/staleness/draw.py

Reads report.csv, of `python experiments/study.py staleness`, and writes staleness.svg: differences
in pass@1 to the clipped loss on fresh rollouts, with their 95 % intervals.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

FOLDER = Path(__file__).resolve().parent
STALE = (0, 1, 4, 16)
# Okabe and Ito's, which any kind of colour vision tells apart.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = "osD^vP"
CORRECTION = "decoupled_token_is"


def loss(row: pd.Series) -> str:
    """Name the loss of a row, which is the clipped one in three forms."""
    if row["objective"] != "clipped":
        return str(row["objective"]).upper()
    if row["objective.ratio"] == "sequence":
        return "GSPO"
    is_corrected = row["objective.correction"] == CORRECTION
    return "clip, truncated weights" if is_corrected else "clip"


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "staleness"
    rows = pd.read_csv(FOLDER / "report.csv")
    rows = rows[rows["objective"].notna()]
    trained = rows[rows["estimator"] == "rloo"]
    lines = dict(iter(trained.groupby(trained.apply(loss, axis=1), sort=False)))
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    column = "pass@1_difference"
    [again] = rows[rows["estimator"] == "rloo (A/A)"].to_dict("records")
    axis.axhspan(again[f"{column}_low"], again[f"{column}_high"], color="0.9")
    axis.axhline(0, color="0.6", lw=0.8)
    styles = zip(mpl.colormaps["cividis"].resampled(len(lines)).colors, "osD^vP", strict=True)
    for place, ((name, own), (colour, marker)) in enumerate(
        zip(lines.items(), styles, strict=True)
    ):
        values = own.set_index("backend.stale_steps").fillna({column: 0.0})
        at = [STALE.index(stale) + (place - (len(lines) - 1) / 2) * 0.07 for stale in values.index]
        errors = [
            (values[column] - values[f"{column}_low"]).fillna(0),
            (values[f"{column}_high"] - values[column]).fillna(0),
        ]
        axis.errorbar(
            at, values[column], errors, label=name, marker=marker, capsize=2, color=colour
        )
    axis.set_xticks(range(len(STALE)), map(str, STALE))
    axis.set_xlabel("age of the rollouts' weights, steps")
    axis.set_ylabel("difference in pass@1 to clip, fresh")
    [placebo] = rows[rows["estimator"] == "rloo (placebo)"][column]
    axis.set_title(
        f"grey: the A/A arm's interval; the placebo arm is at {placebo:+.2f}", fontsize=9
    )
    axis.legend(frameon=False, ncols=2)
    figure.savefig(FOLDER / "staleness.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
