"""What the axes of figures are called."""

import pytest

from advsweep.report.figures.axes import label_axis


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("pass@1", "pass@1"),
        ("pass@8[level=3]", "pass@8[level=3]"),
        ("entropy/answer", "answer entropy, nats"),
        ("entropy/right_rarefied", "entropy/right_rarefied, nats"),
        ("entropy/answer[gsm8k]", "entropy/answer[gsm8k], nats"),
        ("collapse/acr@first100", "ACR, mean over the first 100 steps"),
        ("collapse/acr@slope", "collapse/acr@slope"),
        ("entropy/token@slope", "entropy/token@slope"),
        ("a/metric/of/another/trainer", "a/metric/of/another/trainer"),
    ],
)
def test_an_axis_names_its_column_and_the_unit(column: str, label: str) -> None:
    assert label_axis(column) == label
