"""Tables laid out as papers print theirs, and the papers' own numbers."""

from __future__ import annotations

import csv
import io
import re

import pytest

from advsweep.errors import ConfigError, ReportError
from advsweep.report import Mark, build_report, choose_layout, lay_out, parse_where, render
from advsweep.report.data.columns import parse_column
from advsweep.report.papers.published import methods, paper_names, printed_table, table_names
from advsweep.report.tables.comparison import rank

# What is bold in print, and not the best of its column, or the best and not bold: by table, the
# task and k, or the benchmark. Those of A-GRAE's tables 2 and 4 are nine in all.
WRONG_BOLD = {
    "a_grae-table2": {
        *("math pass@1", "math pass@2", "math pass@4", "math pass@128"),
        *("aime25 pass@32", "amc23 pass@64"),
    },
    "a_grae-table3": {"pass@1[mathvision]", "pass@1[ct300]"},
    "a_grae-table4": {"math pass@1", "math pass@2", "math pass@4"},
}
# Likewise what is underlined where what is bold is right: other numbers than the second best,
# or the third as well. Tables 2 and 3 of AAPO have two rows and underline nothing.
WRONG_UNDERLINE = {
    "a_grae-table2": {
        *("math pass@64", "math pass@256", "aime25 pass@16", "aime25 pass@64", "aime25 pass@256"),
        *("amc23 pass@1", "amc23 pass@2", "amc23 pass@128", "amc23 pass@256"),
    },
    "a_grae-table3": {"pass@1[geo3k]", "pass@1[mathverse]"},
    "a_grae-table4": {
        *("math pass@8", "math pass@32", "math pass@256"),
        *("aime25 pass@1", "aime25 pass@2", "aime25 pass@4", "aime25 pass@8"),
        *("amc23 pass@1", "amc23 pass@2", "amc23 pass@4", "amc23 pass@8", "amc23 pass@16"),
        *("amc23 pass@32", "amc23 pass@64", "amc23 pass@128"),
    },
}
WITHOUT_UNDERLINES = {"aapo-table2", "aapo-table3"}
MARKED = [
    "a_grae-table2",
    "a_grae-table3",
    "a_grae-table4",
    "aapo-table1",
    *sorted(WITHOUT_UNDERLINES),
]


def _fields(name):
    """The numbers of each column of a table that has marks, of a model and a task."""
    table = printed_table(name)
    fields = {}
    for row in table.rows:
        for column, number in row.numbers.items():
            place = f"{row.task} {column}" if row.task else column
            fields.setdefault((row.model, place, column), {})[row.method] = number
    return {
        key: numbers for key, numbers in fields.items() if any(n.mark for n in numbers.values())
    }


def _only(marks, mark):
    return {method for method, own in marks.items() if own is mark}


@pytest.mark.parametrize("name", MARKED)
def test_marks_are_those_in_print_but_where_the_paper_is_wrong(name):
    wrong_bold, wrong_underline, right = set(), set(), 0
    for (_, place, column), numbers in _fields(name).items():
        better = parse_column(column).direction
        ours = rank({method: n.value for method, n in numbers.items()}, better)
        printed = {method: n.mark for method, n in numbers.items()}
        if _only(ours, Mark.BEST) != _only(printed, Mark.BEST):
            wrong_bold.add(place)
        elif _only(ours, Mark.SECOND) != _only(printed, Mark.SECOND):
            wrong_underline.add(place)
        else:
            right += 1
    assert wrong_bold == WRONG_BOLD.get(name, set())
    if name in WITHOUT_UNDERLINES:
        assert not any(n.mark is Mark.SECOND for ns in _fields(name).values() for n in ns.values())
    else:
        assert wrong_underline == WRONG_UNDERLINE.get(name, set())
        assert right > 0


def test_numbers_as_they_are_printed():
    assert paper_names() == ["a_grae", "aapo", "avspo", "fade", "two_stage"]
    row = next(r for r in printed_table("avspo-table1").rows if r.numbers and r.method == "AVSPO")
    assert (row.model, row.numbers["collapse/acr"].text) == ("Qwen2.5-0.5B", "0.18")
    assert row.numbers["pass@1[math500]"].value == 31.4
    # Six models, six methods, eight averages and benchmarks and ACR, which three methods have.
    numbers = [n for row in printed_table("avspo-table1").rows for n in row.numbers]
    assert len(numbers) == 36 * 8 + 18
    entropies = printed_table("two_stage-table4")
    assert "entropy/token[aime24]" in entropies.columns


@pytest.mark.parametrize(
    ("options", "names"),
    [({"style": "foo"}, table_names()), ({"paper": "foo"}, paper_names())],
)
def test_a_name_that_is_none_is_refused_with_no_name_twice(options, names):
    with pytest.raises(ConfigError, match="got 'foo'") as error:
        choose_layout(**{"style": None, "paper": None, **options})
    words = re.findall(r"[\w-]+", str(error.value))
    assert max(words.count(name) for name in names) == 1


def test_spreads_that_are_printed_follow_the_reported_numbers(runs):
    report = _styled(runs, paper="a_grae", where=parse_where("estimator=grpo"))
    table = lay_out(report).tables[0]
    names = ("Qwen2.5-Math-7B", "MATH", "Dr.GRPO + A-GRAE", "reported")
    [line] = [line for line in table.lines if line.names == names]
    assert (line.entries[0].text, line.entries[0].half_width) == ("78.6", "0.3")
    assert any("which does not say what it is" in note for note in lay_out(report).notes)
    assert "latest version" not in " ".join(lay_out(_styled(runs, paper="avspo")).notes)


@pytest.mark.parametrize("name", table_names())
def test_columns_have_names_of_ours_and_methods_are_known(name):
    table = printed_table(name)
    assert all(parse_column(column) is not None for column in table.columns)
    assert methods(table.paper)
    assert len({(r.model, r.task, r.method) for r in table.rows}) == len(table.rows)


@pytest.fixture
def runs(lab, constant):
    """Three seeds each of GRPO, AVSPO and rloo on a model of the paper, on two of its tasks."""
    model = {"name": "hf", "path": "Qwen/Qwen2.5-Math-1.5B"}
    own = {"model": model, "task": {"name": "math500"}, "rollout": {"name": "plain"}}
    for estimator, first in (("rloo", (4, 0)), ("avspo", (4, 2)), ("grpo", (2, 0))):
        for seed in range(3):
            points = constant(collapse__acr=0.25 + seed / 100)
            run = lab.run(estimator, seed, solved=None, points=points, **own)
            for task, solved in (("math500", first), ("gsm8k", (first[0], seed))):
                lab.evaluate(run, f"{run} {task}", 20, solved, task=task)
                lab.evaluate(run, "base:aa", 0, (1, 0), task=task)
    return lab


def _styled(lab, style=None, paper=None, **options):
    return build_report(lab.store, None, layout=choose_layout(style, paper), **options)


def _lines(report):
    table = lay_out(report).tables[0]
    return table, [(line.names, [entry.text for entry in line.entries]) for line in table.lines]


def test_methods_under_their_model_and_benchmarks_as_columns(runs):
    table, lines = _lines(_styled(runs, "avspo-table1"))
    assert table.names == ("model", "method")
    assert [h.levels for h in table.columns] == [("ACR",), ("MATH-500",), ("GSM8K",), ("Avg",)]
    model = "Qwen2.5-Math-1.5B"
    # MATH-500 is 2/8 for GRPO and 6/8 for AVSPO; GSM8K 2/8 to 4/8 and 4/8 to 6/8.
    assert lines == [
        ((model, "Base"), ["–", "12", "12", "12.5"]),
        ((model, "GRPO"), ["0.260", "25.0", "38", "31"]),
        ((model, "AVSPO"), ["0.260", "75.0", "62", "69"]),
        ((model, "rloo"), ["0.260", "50.0", "62", "56"]),
    ]


def test_reported_numbers_stand_beside_ours(runs):
    report = _styled(runs, paper="avspo")
    table, lines = _lines(report)
    assert table.names == ("model", "method", "source")
    # Of the paper's six models the one that ours is.
    assert {names[0] for names, _ in lines} == {"Qwen2.5-Math-1.5B"}
    assert [names[1:] for names, _ in lines] == [
        *(("Base", "ours"), ("Base", "reported"), ("INTUITOR", "reported"), ("RENT", "reported")),
        *(("DCPO", "reported"), ("GRPO", "ours"), ("GRPO", "reported"), ("AVSPO", "ours")),
        *(("AVSPO", "reported"), ("rloo", "ours")),
    ]
    by_names = {names[1:]: line for (names, _), line in zip(lines, table.lines, strict=True)}
    reported = by_names["AVSPO", "reported"].entries
    assert [entry.text for entry in reported[:3]] == ["0.15", "67.2", "59.3"]
    assert [entry.mark for entry in reported[:3]] == [Mark.BEST, Mark.BEST, Mark.SECOND]
    assert by_names["Base", "reported"].entries[2].mark is Mark.BEST
    assert "laid out as avspo-table1; accuracies in percent" in lay_out(report).notes
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    [row] = [r for r in rows if (r["method"], r["source"]) == ("GRPO", "reported")]
    assert (row["collapse/acr"], float(row["pass@1[math500]"])) == ("0.4", pytest.approx(0.586))
    # Reported numbers have no seeds: no test is made of them.
    assert {report.rows[d.row].group.get("source") for d in report.differences} == {None}


def test_methods_are_compared_within_their_model(runs, constant):
    own = {"task": {"name": "math500"}, "rollout": {"name": "plain"}}
    for estimator in ("grpo", "avspo"):
        for seed in range(3):
            points = constant(collapse__acr=0.1 + seed / 100)
            runs.run(
                estimator, seed, points=points, solved=None,
                model={"name": "hf", "path": "/models/Qwen2.5-14B/"}, **own
            )  # fmt: skip
    report = _styled(runs, "avspo-table1")
    pairs = {
        (report.rows[d.row].group["model"], report.rows[d.baseline].group["method"])
        for d in report.differences
    }
    assert pairs == {("Qwen2.5-14B", "GRPO"), ("Qwen2.5-Math-1.5B", "GRPO")}
    table = lay_out(report).tables[0]
    models = [section[0].names[0] for section in table.sections]
    assert models == ["Qwen2.5-14B", "Qwen2.5-Math-1.5B"]


def test_k_as_columns_and_a_section_for_each_task(runs):
    table, lines = _lines(_styled(runs, "two_stage-table1", where=parse_where("estimator=grpo")))
    assert table.names == ("model", "task", "method")
    assert [h.levels for h in table.columns[:3]] == [("pass@k", k) for k in ("1", "2", "4")]
    # MATH-500 is not in that table of the paper, nor GSM8K: in order of their evaluation.
    assert [names[1:] for names, _ in lines] == [
        *(("MATH-500", "Base"), ("MATH-500", "grpo"), ("GSM8K", "Base"), ("GSM8K", "grpo"))
    ]
    assert len(table.sections) == 2


def test_a_paper_that_prints_standard_deviations(runs):
    report = _styled(runs, "fade-table3", where=parse_where("estimator=grpo"))
    table, _ = _lines(report)
    [gsm8k] = [line for line in table.lines if line.names[1:] == ("GSM8K", "grpo")]
    # 2/8, 3/8 and 4/8: s = 12.5 percent.
    assert (gsm8k.entries[0].text, gsm8k.entries[0].half_width) == ("38", "12")
    assert "± is the standard deviation over seeds here, as in print, not an interval" in (
        lay_out(report).notes
    )


def test_runs_of_one_method_that_differ_are_refused_unless_pooled(runs):
    model = {"name": "hf", "path": "Qwen/Qwen2.5-Math-1.5B"}
    own = {"model": model, "task": {"name": "math500"}, "rollout": {"name": "plain"}}
    runs.run("grpo", 0, solved=(4, 4), group_size=16, **own)
    with pytest.raises(ReportError, match=r"method=GRPO differ in other keys as well \(group_size"):
        _styled(runs, "avspo-table1")
    pooled = _styled(runs, "avspo-table1", pool=True)
    assert [row.runs for row in pooled.rows if row.group["method"] == "GRPO"] == [4]
    # Its runs started from two base models.
    assert [row.group["method"] for row in pooled.rows[:2]] == ["Base aa", "Base aaaabbbb"]


@pytest.mark.parametrize(
    ("style", "paper", "error", "message"),
    [
        ("avspo-tabel1", None, ConfigError, "got 'avspo-tabel1'; did you mean 'avspo-table1'"),
        (None, "avsop", ConfigError, "expected a paper with tables, .*did you mean 'avspo'"),
        ("avspo-table1", "aapo", ConfigError, "expected a style of that paper, got 'avspo-table1'"),
        ("fade-table3", "fade", ReportError, "the numbers of fade-table3 are not in the text"),
    ],
)
def test_styles_that_are_not_there(style, paper, error, message):
    with pytest.raises(error, match=message):
        choose_layout(style, paper)
