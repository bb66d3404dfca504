"""Evaluations that may be compared along a training, although some drew fewer samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from advsweep.names import ANSWER_ENTROPY
from advsweep.report.data.columns import parse_column
from advsweep.report.data.evaluation_sources import RAREFIED_ENTROPY, RIGHT_ENTROPY
from advsweep.report.data.windows import Curve
from advsweep.report.figures.data import FigureData

# The entropy of the answers that were drawn rises with their number. Rarefied entropy does not.
_DEPENDS_ON_SAMPLES = (ANSWER_ENTROPY, RIGHT_ENTROPY)


def with_equal_samples(
    data: FigureData, name: str, curves: Mapping[int, Curve]
) -> tuple[Mapping[int, Curve], Sequence[str]]:
    """Return the curves of a column without evaluations that are not comparable with the others.

    These are evaluations of another number of samples than most, in a column that depends on it.

    Returns:
        The curves by run id, and a note on what is left out.
    """
    samples = data.samples()
    counts = Counter(n for run in curves for n in samples.get(run, {}).values())
    column = parse_column(name)
    if len(counts) < 2 or column is None or column.source.name not in _DEPENDS_ON_SAMPLES:
        return curves, []
    [(usual, _)] = counts.most_common(1)
    kept = {}
    for run, (steps, values) in curves.items():
        alike = np.array([samples[run].get(int(step)) == usual for step in steps])
        kept[run] = steps[alike], values[alike]
    note = (
        f"only evaluations of {usual} samples per problem: {name} of unequal numbers of samples "
        f"is not comparable, {RAREFIED_ENTROPY} is"
    )
    return kept, [note]
