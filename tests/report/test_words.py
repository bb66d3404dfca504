"""Words of tables and figures: one label for each column, and `describe` knows every one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from advsweep.cli.commands.describe import find_component
from advsweep.config.groups import ConfigGroups
from advsweep.errors import UnknownNameError
from advsweep.report.claims.lists import evaluate_claims, lay_out_claims, read_claim_list
from advsweep.report.claims.sentences import lay_out_short
from advsweep.report.data.columns import parse_column
from advsweep.report.data.metrics import read_catalogue
from advsweep.report.figures.chart import Chart
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.registry import FIGURES, collect
from advsweep.report.html.page import lay_out_runs
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest
from advsweep.report.words import find_column, find_word, read_words
from advsweep.sweep.registry import config_groups
from advsweep.tasks import TASKS
from advsweep.tasks.controls import CONTROLS
from advsweep.writing import Document

# What stands for a word in capitals in the names of the catalogue.
SAMPLES = {"K": "32", "L": "2", "T": "1", "I": "3", "COST": "tokens", "LAW": "power"}
SAMPLES |= {"NAME": "alpha"}
METRICS = [
    re.sub(r"(?<![A-Za-z])([A-Z]+)(?![a-z])", lambda match: SAMPLES[match[0]], entry.name)
    for entries in read_catalogue().values()
    for entry in entries
    if not entry.name.startswith("reached@")
]
UNITS = (", nats", ", seconds", ", tokens")


@pytest.mark.parametrize("name", METRICS)
def test_the_label_of_every_metric_stands_for_it_in_every_window(name: str) -> None:
    for text in (name, f"{name}@end", f"{name}@first100", f"{name}@slope", f"{name}@share>0.5"):
        column = parse_column(text)
        if column is None:
            assert text != name
            continue
        found = find_column(column.header)
        assert found is not None
        assert found.source == column.source
        assert found.window == column.window
        word = find_word(column.header)
        assert word is not None
        assert word.text == column.header
        assert word.name == text


@pytest.mark.parametrize(
    ("name", "label", "meaning"),
    [
        ("pass@32[above=guess]", "p@32 - guess", "minus that of the chance baseline `guess`"),
        ("pass@8[gsm8k,level=3]", "gsm8k level 3 p@8", "on the task gsm8k; problems of level 3"),
        ("pass@1[mean]", "mean p@1", "mean over the evaluated tasks"),
        ("pass@8[split=train]@selected", "train p@8 selected", "on training problems; at the step"),
        ("pass@1[base=0.1:0.5]", "base 0.1-0.5 p@1", "solves at a rate from 0.1 to 0.5"),
        ("entropy/right_rarefied[m=16]", "H right/16", "here of 16 right answers"),
        ("pass@32@pass@1=0.45", "p@32 @ pass@1=0.45", "first comes to pass@1=0.45"),
        ("collapse/acr@first100", "ACR 1-100", "mean over the first 100 steps"),
    ],
)
def test_a_label_says_which_column_it_is(name: str, label: str, meaning: str) -> None:
    column = parse_column(name)
    assert column is not None
    assert column.header == label
    word = find_word(label)
    assert word is not None
    assert word.name == name
    assert meaning in word.meaning


@pytest.fixture(scope="module")
def groups() -> Iterator[ConfigGroups]:
    with config_groups() as found:
        yield found


@pytest.fixture
def known(groups: ConfigGroups) -> Callable[[str], None]:
    """Asserts that `describe` knows a word."""

    def check(word: str) -> None:
        try:
            find_component(groups, [word])
        except UnknownNameError as error:
            pytest.fail(f"{error}: write what {word!r} means into advsweep/report/words.yaml")

    return check


def headings(document: Document) -> set[str]:
    texts = {text for table in document.tables for text in (*table.names, *table.columns)}
    return {text.strip() for text in texts}


@pytest.fixture
def sweep(lab: Any, constant: Any) -> Any:
    """Two estimators, two rates, three seeds and five evaluations each."""
    lab.samples = 32
    for seed in range(3):
        for rate in (1e-4, 1e-3):
            for place, estimator in enumerate(("grpo", "psr")):
                noise = (3 * seed + place) % 4
                collapse = 0.2 + 0.1 * seed + 0.02 * noise
                points = constant(collapse__acr=collapse, turns__collapsed__turn_1=collapse)
                run = lab.run(
                    estimator, seed, solved=None, points=points, optimizer__lr=rate, group_size=8
                )
                for step in (0, 5, 10, 15, 20):
                    right = 4 + 2 * step // 5 + (noise if step else 0)
                    counts = [[right - 2, 2], [right - 3, 3]]
                    subject = f"{estimator} {rate} {seed}@{step}"
                    lab.evaluate(run, subject, step, (right, right), right=counts)
    return lab


def test_every_heading_and_every_row_is_a_word(sweep: Any, known: Callable[[str], None]) -> None:
    report = build_report(
        sweep.store,
        ReportRequest("demo", rank="pass@1", margins=("0.1",), baseline="grpo"),
    )
    words = headings(lay_out(report)) | headings(lay_out_short(report))
    # Not all are in every report.
    assert {
        "p@1",
        "ACR end",
        "lr",
        "rank",
        "p adj",
        "p equal",
        "seeds needed",
        "P(better)",
    } <= words
    assert any(word.startswith("Δ p@1") for word in words)
    words |= {str(row.group["estimator"]) for row in report.rows}
    runs = sweep.store.runs.select()
    page = lay_out_runs(runs, {runs[0].id: {"pass@1": 0.5, "reward/mean": 0.5}})
    words |= headings(Document((page,)))
    for word in words:
        known(word)


def test_every_floor_and_control_is_a_word(known: Callable[[str], None]) -> None:
    words = read_words()["rows of a report"]
    assert {"base", "(edge)"} <= words.keys()
    for name in ("bandit", "countdown", "routes"):
        assert set(TASKS.build(name).floors()) <= words.keys()
    for name in CONTROLS.names():
        title = CONTROLS.get(name).title
        if title:
            known(title)
            known(f"grpo ({title})")


def test_the_headings_of_claims_are_words(
    sweep: Any, tmp_path: Any, known: Callable[[str], None]
) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(
        "common: {sweep: demo}\nclaims:\n  - {id: one, says: so, "
        "statement: 'pass@1[estimator=psr optimizer.lr=1e-4] > 0.1'}\n"
    )
    document = lay_out_claims(evaluate_claims(sweep.store, read_claim_list(path)))
    assert document.tables[0].lines[0].names[2] == "p@1"
    for word in headings(document):
        known(word)


def charts(lab: Any) -> Iterator[Chart]:
    runs = lab.store.runs.select(newest_first=False)
    data = FigureData(lab.store, NamedRuns(runs, "demo", "demo"))
    for name in FIGURES:
        options = {"baseline": "estimator=grpo optimizer.lr=1e-4"} if name == "forest" else {}
        yield collect(name, data, **options)


def test_every_axis_is_a_word(sweep: Any, known: Callable[[str], None]) -> None:
    words = set()
    for chart in charts(sweep):
        for panel in chart.panels:
            words |= {panel.x_label, panel.y_label}
            if panel.cells is not None:
                words.add(panel.cells.label)
            if chart.name in ("forest", "matched", "curves"):
                words.add(panel.title)
    assert {"p@1", "p@k", "H ans, nats", "H right/8, nats", "ACR 1-20", "lr"} <= words
    for word in words - {""}:
        for unit in UNITS:
            word = word.removesuffix(unit)
        known(word)
