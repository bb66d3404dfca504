"""Reports of other people's logs: never empty, and no number of another step without a word."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import advsweep
from advsweep.errors import AdvsweepError, ConfigError, NotFoundError
from advsweep.importing import import_runs
from advsweep.importing.write import ImportContext, gather, write_run
from advsweep.logs import READERS
from advsweep.logs.base import ProblemCount
from advsweep.report.claims.sentences import lay_out_short
from advsweep.report.data.columns import parse_column, parse_outcomes
from advsweep.report.data.early_ends import FAILED, parse_ended_early
from advsweep.report.data.filters import parse_where
from advsweep.report.data.runs import read_runs
from advsweep.report.data.sources import Metric
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.registry import FIGURES
from advsweep.report.html import render_page
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import render
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import NoteKind, Report
from advsweep.store import Status, Store, open_store
from advsweep.writing import write

Values = Callable[[str, int, int], Mapping[str, float]]


def take(store: Store, folder: Path, values: Values, *, steps: int = 12, seeds: int = 2) -> None:
    """Import logs of grpo and rloo, whose values are those of an estimator, a seed and a step."""
    folder.mkdir(parents=True)
    for estimator in ("grpo", "rloo"):
        for seed in range(seeds):
            lines: list[Mapping[str, object]] = [{"config": {"estimator": estimator, "seed": seed}}]
            for step in range(1, steps + 1):
                lines.append({"step": step, **values(estimator, seed, step)})
            file = folder / f"{estimator}-{seed}.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_runs(store, READERS.build("jsonl"), str(folder))


@pytest.fixture
def store(tmp_path) -> Store:
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened


def short(report: Report) -> str:
    return write(lay_out_short(report))


def test_metrics_of_none_of_our_names_are_shown_at_their_end(store, tmp_path):
    def values(estimator: str, seed: int, step: int) -> dict[str, float]:
        logged = {"speed": 3.0}
        if step == 1:
            # Logged once, before the last ten steps.
            logged["my_accuracy"] = 0.25 + 0.5 * (estimator == "rloo") + 0.01 * seed
        return logged

    take(store, tmp_path / "logs", values)
    report = build_report(store, ReportRequest())
    assert [column.name for column in report.columns] == ["my_accuracy@last", "speed@end"]
    assert [row.cells["my_accuracy@last"].mean for row in report.rows] == [0.255, 0.755]
    assert report.outcomes == ()
    assert "`--outcomes my_accuracy@last` declares what to test" in short(report)
    assert "my_accuracy@last" in short(report)
    tested = build_report(
        store,
        ReportRequest(outcomes=parse_outcomes(["my_accuracy@last"], "x"), declared_by="--outcomes"),
    )
    (difference,) = tested.differences
    assert difference.comparison.difference == pytest.approx(0.5)
    assert "my_accuracy@last" in render(tested, "table")


def test_the_first_metrics_stand_for_many(store, tmp_path):
    take(store, tmp_path / "logs", lambda *_: {f"m{i:02}": 1.0 for i in range(20)})
    report = build_report(store, ReportRequest())
    assert [column.name for column in report.columns] == [f"m{i:02}@end" for i in range(8)]
    assert any("12 more: --columns m08, m09" in remark for remark in report.remarks)


def test_a_logged_share_pass_1_is_pass_1(store, tmp_path):
    take(store, tmp_path / "logs", lambda e, s, t: {"pass@1": 0.25 + s / 8 + (e == "rloo") / 4})
    report = build_report(store, ReportRequest())
    assert [outcome.name for outcome in report.outcomes] == ["pass@1"]
    # .25 and .375; a quarter more.
    assert [row.cells["pass@1"].mean for row in report.rows] == [0.3125, 0.5625]
    assert "p@1: the last number that the logs have" in render(report, "table")
    assert FigureData(store, NamedRuns(read_runs(store, None), "x")).series("pass@1")


def test_a_logged_pass_1_that_is_no_share_is_another_metric(store, tmp_path):
    take(store, tmp_path / "logs", lambda e, s, t: {"pass@1": 25.0})
    assert [column.name for column in build_report(store, ReportRequest()).columns] == [
        "pass_at_1@end"
    ]


def test_a_missing_pass_1_names_what_logs_have(store, tmp_path):
    take(store, tmp_path / "logs", lambda *_: {"my_accuracy": 0.5})
    with pytest.raises(NotFoundError, match=r"got logs with my_accuracy; METRIC@end"):
        build_report(store, ReportRequest(columns=["pass@1"]))
    with pytest.raises(NotFoundError, match=r"no number 'pass@1'|a number 'pass@1'") as error:
        FigureData(store, NamedRuns(read_runs(store, None), "x")).values("pass@1")
    assert "did you mean 'pass@1'" not in str(error.value)


def cut(step_of: Mapping[tuple[str, int], int]) -> Values:
    """Return values of which some runs have NaN after a step."""

    def values(estimator: str, seed: int, step: int) -> dict[str, float]:
        last = step_of.get((estimator, seed), 99)
        return {"reward": math.nan if step > last else 0.5 + seed / 8, "other": 1.0}

    return values


def test_a_run_that_ends_in_nan_is_named_below_every_table(store, tmp_path):
    take(store, tmp_path / "logs", cut({("grpo", 1): 5}), seeds=3)
    report = build_report(store, ReportRequest())
    sentence = "ended early: mean reward end of grpo (run 2 at step 5 of 12)"
    for text in (
        short(report),
        *(render(report, form) for form in ("table", "markdown")),
        render_page(report, store).replace("&#x27;", "'"),
    ):
        assert sentence in text
    forest = FIGURES["forest"](FigureData(store, NamedRuns(read_runs(store, None), "x")))
    assert any(sentence in note for note in forest.notes)
    curves = FIGURES["curves"](FigureData(store, NamedRuns(read_runs(store, None), "x")))
    assert any("(run 2 at step 5 of 12)" in note for note in curves.notes)


def test_such_runs_may_count_as_failed(store, tmp_path):
    take(store, tmp_path / "logs", cut({("grpo", 1): 5}), seeds=3)
    failed = build_report(store, ReportRequest(ended_early=FAILED))
    assert [(row.n, row.seeds) for row in failed.rows] == [(2, (0, 2)), (3, (0, 1, 2))]
    assert failed.rows[0].cells["reward/mean@end"].mean == (0.5 + 0.75) / 2
    assert "failed, as they ended early: grpo 1 of 3 runs; left out" in short(failed)
    zero = build_report(store, ReportRequest(ended_early=0.0))
    assert zero.rows[0].cells["reward/mean@end"].values == (0.5, 0.0, 0.75)
    assert "they count with 0 in the outcomes" in short(zero)
    assert advsweep.report(store, ended_early=0).report.rows[0].n == 3


@pytest.mark.parametrize("text", ["", "worst", "nan", "inf"])
def test_other_words_are_refused(text):
    with pytest.raises(ConfigError, match="--ended-early: expected keep, failed, or a number"):
        parse_ended_early(text)


def test_runs_of_equal_lengths_have_no_note(store, tmp_path):
    take(store, tmp_path / "logs", cut({}))
    assert build_report(store, ReportRequest()).texts(NoteKind.EARLY_END) == ()
    assert "ended early" not in short(build_report(store, ReportRequest()))


def test_rows_of_other_lengths_that_name_them_are_no_others(lab, constant):
    for steps in (10, 20):
        for seed in range(2):
            points = [("reward/mean", step, 0.5) for step in range(1, steps + 1)]
            lab.run("grpo", seed, points=points, solved=None, steps=steps)
    assert build_report(lab.store, ReportRequest("demo")).texts(NoteKind.EARLY_END) == ()


def test_a_run_of_ours_that_diverged_is_named_and_an_optional_metric_is_not(lab):
    steps = range(1, 21)
    for seed in range(3):
        diverged = [math.nan if seed == 2 and step > 15 else 0.5 for step in steps]
        # Undefined at single steps, of which the last is one.
        optional = [math.nan if step % 4 == 0 else 0.25 for step in steps]
        points = [("reward/mean", step, diverged[step - 1]) for step in steps]
        points += [("reward/partial", step, optional[step - 1]) for step in steps]
        lab.run("grpo", seed, points=points, solved=None)
    columns = ["reward/mean@end", "reward/partial@end"]
    report = build_report(lab.store, ReportRequest("demo", columns=columns))
    (text,) = report.texts(NoteKind.EARLY_END)
    assert "ended early: mean reward end of grpo (run 3 at step 15 of 20)" in text


def test_a_run_that_failed_and_is_selected_is_named(lab):
    for seed, (last, status) in enumerate(
        [(20, Status.DONE), (20, Status.DONE), (7, Status.FAILED)]
    ):
        points = [("reward/mean", step, 0.5) for step in range(1, last + 1)]
        lab.run("grpo", seed, points=points, solved=None, status=status)
    report = build_report(
        lab.store,
        ReportRequest("demo", columns=["reward/mean"], where=parse_where("status=done,failed")),
    )
    (text,) = report.texts(NoteKind.EARLY_END)
    assert "(run 3 at step 7 of 20)" in text


def counts(ns: Sequence[int]) -> list[ProblemCount]:
    return [ProblemCount(5, f"p{place}", n, 1) for place, n in enumerate(ns)]


def test_means_over_fewer_problems_say_so(store):
    for seed in range(2):
        config = {
            "backend": {"name": "imported", "format": "x"},
            "estimator": {"name": "grpo"},
            "seed": seed,
        }
        # Four problems, of which three have two samples and one has four.
        content = gather("x", f"log{seed}", config, [], counts([1, 2, 2, 4]))
        write_run(store, content, ImportContext(environment={}))
    report = build_report(store, ReportRequest(columns=["pass@1", "pass@2", "pass@4"]))
    (caution,) = [text for text in report.texts(NoteKind.CAUTION) if "fewer problems" in text]
    assert "p@2 over 3 of 4; p@4 over 1 of 4" in caution
    assert "p@1 over" not in caution


LIKE_OURS = (
    "solved/8x", "solved/08", "total/steps", "total/rollouts", "entropy/right", "entropy/answer",
    "law/a", "law/mse/power", "kl/base", "pass@x", "pass@1@end", "pass_at_0", "pass_at_\u0663",
    "collapse/acr@first100", "reward/mean@end", "reached@x=1", "level=3", "pass@*", "@end",
    "loss[0]", "weights/x", "selected/step", "cost/rollouts", "reward/mean@last",
)  # fmt: skip


def check_name(folder: Path, name: str) -> None:
    """Import a metric of a name, and make every table, page and figure of it."""
    with open_store(str(folder / "advsweep.db")) as store:
        take(store, folder / "logs", lambda e, s, t: {name: s / 8 + t / 64})
        names = {own for run in store.runs.select() for own in store.metrics.names(run.id)}
        assert all(parse_column(own).source == Metric(own) for own in names if parse_column(own))
        report = build_report(store, ReportRequest())
        # Never empty.
        assert any(row.cells[column.name].n for row in report.rows for column in report.columns)
        short(report)
        for form in ("table", "markdown", "latex", "csv", "json"):
            render(report, form)
        render_page(report, store)
        data = FigureData(store, NamedRuns(read_runs(store, None), "x"))
        for figure in FIGURES.values():
            # One may have nothing to draw.
            with contextlib.suppress(AdvsweepError):
                figure(data)
        advsweep.load_metrics(store, wide=True)


@pytest.mark.parametrize("name", LIKE_OURS)
def test_a_name_like_ours_is_another_metric(tmp_path, name):
    check_name(tmp_path, name)


WORDS = [
    "solved",
    "pass",
    "pass@",
    "@",
    "end",
    "8",
    "1",
    "x",
    "/",
    "[",
    "]",
    "=",
    "_at_",
    "total",
    "steps",
    "entropy",
    "right",
    "law",
    "kl",
    "base",
    "reward",
    "mean",
    "*",
    ",",
    "first",
]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example("solved/8x")
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join)
    | st.text("ab/@_=", min_size=1)
)
def test_any_name_of_a_metric_can_be_reported(tmp_path_factory, name):
    if re.fullmatch(r"steps?|run|seed|estimator", name):
        return  # these are keys
    check_name(tmp_path_factory.mktemp("name"), name)
