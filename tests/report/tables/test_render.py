"""How a report is written: a golden file for each format, and what none of them may do.

The golden files were made from the sweep of `conftest.demo`. Their numbers, by hand: for grpo
ACR is 0.35, 0.45 and 0.55 over all steps and 0.05 less at the end, so that s = 0.1 and half the
interval is 4.302653 s / √3 = 0.248; pass@1 is 1/4, 1/2 and 3/4, half 0.621; pass@2 is 5/12, 5/6
and 11/12: mean 0.722, s = 0.267879, half 0.665. The seeds of fade are all alike, so that the
differences to grpo are as wide; pass@1 is 0.25 more, t = 0.25 √3 / 0.25 = 1.732 and p = 0.225.
Hedges' correction for two degrees of freedom is Γ(1)/(√1 Γ(1/2)) = 0.5642, times 0.25 / 0.25.
A run of fade is better than 2 of 3 runs of grpo, and as good as the third: 2.5/3 = 0.83.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.report.data.columns import parse_column
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out, render
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report
from advsweep.store import Status
from advsweep.writing import (
    FORMATS,
    Document,
    Entry,
    Line,
    Mark,
    Table,
    latex_text,
    show_interval,
    write,
    write_table,
)
from tests.report.latex_tables import check_latex_tables

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def report(demo) -> Report:
    demo.run("power_alpha", 0, status=Status.FAILED)
    return build_report(demo.store, ReportRequest("demo"))


def _golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def test_a_table_for_a_terminal(report):
    assert write_table(lay_out(report), width=80, styled=False) == _golden("demo.table.txt")


def test_sentences_are_wrapped_for_a_terminal(report):
    text = write_table(lay_out(report), width=60, styled=False, wrapped=True)
    whole = write_table(lay_out(report), width=60, styled=False)
    assert max(map(len, text.splitlines())) <= 60 < max(map(len, whole.splitlines()))
    assert text.split() == whole.split()


def test_markdown(report):
    assert render(report, "markdown") == _golden("demo.md")


def test_latex(report):
    assert render(report, "latex") == _golden("demo.tex")
    assert check_latex_tables(_golden("demo.tex")) == 1 + 4 + 1 + 2 + 1 + 1


def _close(a: object, b: object) -> bool:
    """Equal, but for the last digits of numbers, which are the processor's."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-15)
    return a == b


def test_json(report):
    assert _close(json.loads(render(report, "json")), json.loads(_golden("demo.json")))


def test_csv(report):
    def cells(text: str) -> list[list[float | str]]:
        number = re.compile(r"-?\d+\.\d+")
        rows = csv.reader(io.StringIO(text))
        return [[float(c) if number.fullmatch(c) else c for c in row] for row in rows]

    assert _close(cells(render(report, "csv")), cells(_golden("demo.csv")))


def test_json_has_null_for_non_finite_numbers(lab, constant):
    lab.run("grpo", 0, points=constant(collapse__acr=math.inf, reward__mean=math.nan))
    lab.run("grpo", 1, points=constant(collapse__acr=0.5))
    report = build_report(lab.store, ReportRequest("demo", columns=["collapse/acr"]))
    text = render(report, "json")
    [_, row] = json.loads(text, parse_constant=pytest.fail)["rows"]
    assert row["metrics"]["collapse/acr"]["values"] == [None, 0.5]
    assert row["metrics"]["collapse/acr"]["mean"] is None
    for name in FORMATS:
        render(report, name)


@pytest.mark.parametrize("width", [20, 80, 171])
def test_tables_fit_the_terminal_and_lose_nothing(report, width):
    text = write_table(lay_out(report), width=width, styled=False)
    table = text[: text.index("Differences")]
    longest = max(map(len, table.splitlines()))
    one_column = len("estimator  n  0.12 (±0.12)")
    assert longest <= max(width, one_column)
    for column in report.columns:
        assert table.count(column.header) == 1
    for i, row in enumerate(report.rows):
        name = row.group["estimator"]
        lines = [line for line in table.splitlines() if line.startswith(f"{name} ")]
        numbers = re.findall(r"(?<=[ ])(?:\d\.\d+|–)", " ".join(lines))
        assert len(numbers) == len(report.columns), (i, lines)


def test_marks_in_each_format(lab, constant):
    # Of three rows, each is far from the others.
    values = {"grpo": (0.75, 0.77, 0.76), "fade": (0.26, 0.25, 0.27), "rloo": (0.5, 0.51, 0.53)}
    for estimator, own in values.items():
        for seed, acr in enumerate(own):
            lab.run(estimator, seed, points=constant(collapse__acr=acr), solved=None)
    column = parse_column("collapse/acr")
    report = build_report(
        lab.store, ReportRequest("demo", columns=["collapse/acr"], outcomes=[column])
    )
    cells = {row.group["estimator"]: row.cells["collapse/acr"] for row in report.rows}
    means = {name: show_interval(cell.mean, cell.half_width) for name, cell in cells.items()}
    text = write_table(lay_out(report), width=200, styled=True)
    assert f"\x1b[1m{means['fade'][0]}\x1b[0m ±{means['fade'][1]}" in text
    assert f"\x1b[4m{means['rloo'][0]}\x1b[0m ±{means['rloo'][1]}" in text
    assert "†" not in text
    assert "bold: significantly better than all other rows with at least 3 seeds" in text
    assert "underlined: significantly better than all rows below" in text
    text = write_table(lay_out(report), width=200, styled=False)
    assert f"{means['fade'][0]} ±{means['fade'][1]}*" in text
    assert f"{means['rloo'][0]} ±{means['rloo'][1]}†" in text
    for form, best, second in (
        ("markdown", "**{}** ±{}", "<u>{}</u> ±{}"),
        ("latex", r"\textbf{{{}}} $\pm$ {}", r"\underline{{{}}} $\pm$ {}"),
    ):
        rendered = render(report, form)
        assert best.format(*means["fade"]) in rendered
        assert second.format(*means["rloo"]) in rendered


def test_notes_missing_values(lab, constant):
    lab.run("grpo", 0, points=constant(collapse__acr=0.5))
    lab.run("grpo", 1)
    for name in ("table", "markdown", "latex"):
        text = render(
            build_report(lab.store, ReportRequest("demo", columns=["collapse/acr@end"])), name
        )
        assert "ACR end: 1 of 2 runs have no number" in text
        assert "0.500 (n=1)" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("power_alpha", r"power\_alpha"),
        ("50 % & $x$ #1", r"50 \% \& \$x\$ \#1"),
        ("{a}^~\\", r"\{a\}\textasciicircum{}\textasciitilde{}\textbackslash{}"),
    ],
)
def test_latex_escapes_commands(text, escaped):
    assert latex_text(text) == escaped


TEXTS = st.text(st.sampled_from("aZ0.-+ &%$#_{}\\\\~^<>[]*|–±†Δ\n\x1b\"'"), max_size=12)
ENTRIES = st.builds(
    Entry,
    text=TEXTS,
    half_width=st.sampled_from(["", "0.25"]),
    mark=st.sampled_from([None, *Mark]),
    aside=TEXTS,
)


@given(st.data())
def test_any_text_stays_in_its_cell_of_latex(data):
    names = data.draw(st.lists(TEXTS, min_size=1, max_size=3))
    columns = data.draw(st.lists(TEXTS, max_size=3))
    line = st.builds(
        Line,
        names=st.tuples(*[TEXTS] * len(names)),
        entries=st.tuples(*[ENTRIES] * len(columns)),
    )
    lines = data.draw(st.lists(line, min_size=1, max_size=3))
    table = Table(tuple(names), tuple(columns), (tuple(lines),), title=data.draw(TEXTS))
    notes = tuple(data.draw(st.lists(TEXTS, max_size=2)))
    text = write(Document((table, table), notes, notes, notes), "latex")
    assert check_latex_tables(text) == 2 * (1 + len(lines))


def test_markdown_escapes_columns(lab):
    lab.run("grpo", 0, estimator__text="a|b")
    lab.run("grpo", 0, estimator__text="c")
    lines = render(build_report(lab.store, ReportRequest("demo")), "markdown").splitlines()
    assert lines[3].startswith(r"| grpo | a\|b | 1 |")


def test_unknown_format(report):
    with pytest.raises(ConfigError, match=r"'mardown'; did you mean 'markdown'"):
        render(report, "mardown")
