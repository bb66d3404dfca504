"""What the axes of figures are called."""

import pytest

from advsweep.report.figures.axes import label_axis


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("pass@1", "p@1"),
        ("pass@8[level=3]", "level 3 p@8"),
        ("pass@8[above=guess]", "p@8 - guess"),
        ("entropy/answer", "H ans, nats"),
        ("entropy/right_rarefied", "H right/8, nats"),
        ("entropy/answer[gsm8k]", "gsm8k H ans, nats"),
        ("collapse/acr@first100", "ACR 1-100"),
        ("collapse/acr@slope", "ACR slope"),
        ("entropy/token@slope", "H tok slope"),
        ("policy/kl_step@end", "policy/kl_step@end, nats"),
        ("a/metric/of/another/trainer", "a/metric/of/another/trainer"),
    ],
)
def test_an_axis_names_its_column_and_the_unit(column: str, label: str) -> None:
    assert label_axis(column) == label
