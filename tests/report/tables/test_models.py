"""The table of models that were evaluated without a run."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report import build_model_report, build_report, lay_out, render


@pytest.fixture
def models(lab):
    """Two models on two tasks, and one of them with another temperature."""
    for model, solved in {"a/small": (1, 0), "b/large": (4, 3)}.items():
        lab.evaluate(None, f"model:{model}", 0, solved, task="math500", model=model)
        lab.evaluate(None, f"model:{model}", 0, solved, task="aime24", model=model, k=[1])
    lab.evaluate(None, "model:hot", 0, (2, 1), task="aime24", model="a/small", temperature=2.0)
    return lab


def test_a_row_for_each_model_and_way_of_sampling(models):
    report = build_model_report(models.store)
    assert [c.name for c in report.columns] == [
        *("pass@1[math500]", "pass@2[math500]", "entropy/answer[math500]"),
        *("pass@1[aime24]", "pass@2[aime24]", "entropy/answer[aime24]"),
    ]
    assert [row.group for row in report.rows] == [
        {"model": "a/small", "temperature": 1.0},
        {"model": "b/large", "temperature": 1.0},
        {"model": "a/small", "temperature": 2.0},
    ]
    # 1 and 0 of 4 are right, 4 and 3 of 4, 2 and 1 of 4.
    means = [row.cells["pass@1[aime24]"].mean for row in report.rows]
    assert means == pytest.approx([0.125, 0.875, 0.375])
    assert [row.cells["pass@1[math500]"].n for row in report.rows] == [1, 1, 0]


def test_intervals_are_over_problems(models):
    report = build_model_report(models.store)
    cell = report.rows[1].cells["pass@1[math500]"]
    assert cell.low < cell.mean < cell.high
    document = lay_out(report)
    assert document.notes[0].startswith("mean ± half the 95 % interval over problems like these")
    assert not document.legend
    assert document.provenance[0] == (
        "advsweep.db: models evaluated without a run, made 2026-03-01"
    )
    for name in ("table", "markdown", "latex", "csv", "json"):
        assert "b/large" in render(report, name)


def test_named_columns(models):
    report = build_model_report(models.store, ["pass@1[*]", "pass@1[mean]"])
    assert [c.header for c in report.columns] == ["math500 p@1", "aime24 p@1", "mean p@1"]
    assert report.rows[0].cells["pass@1[mean]"].mean == pytest.approx(0.125)
    assert math.isnan(report.rows[2].cells["pass@1[mean]"].mean)
    with pytest.raises(ReportError, match="expected columns of evaluations, got collapse/acr"):
        build_model_report(models.store, ["collapse/acr"])
    with pytest.raises(NotFoundError, match="on 'math50'; did you mean 'math500'"):
        build_model_report(models.store, ["pass@1[math50]"])
    # A metric may have such a name.
    with pytest.raises(ReportError, match="expected columns of evaluations, got pas@1"):
        build_model_report(models.store, ["pas@1"])


def test_a_store_without_models(lab):
    with pytest.raises(ReportError, match="has no models that were evaluated without a run"):
        build_model_report(lab.store)


def test_a_store_without_runs_names_the_models(models):
    with pytest.raises(ReportError, match="`report --models` has what `eval --model` evaluated"):
        build_report(models.store)


def test_a_model_that_solves_nothing_or_everything_has_an_interval(lab):
    lab.unscorable = (0,) * 10
    lab.evaluate(None, "model:none", 0, (0,) * 10, model="none")
    lab.evaluate(None, "model:all", 0, (4,) * 10, model="all")
    report = build_model_report(lab.store, ["pass@1"])
    none, everything = (row.cells["pass@1"] for row in report.rows)
    # Clopper-Pearson for 0 and for 10 of 10.
    assert (none.mean, none.low, none.high) == pytest.approx((0, 0, 0.308), abs=5e-4)
    assert (everything.low, everything.high) == pytest.approx((0.692, 1), abs=5e-4)
    text = render(report, "table")
    assert "0.000 [0.000, 0.308]" in text
    assert "1.000 [0.692, 1.000]" in text
    assert "±0" not in text
    assert "Clopper-Pearson" in text


def test_intervals_of_models_that_solve_some_problems(models):
    text = render(build_model_report(models.store, ["pass@1[math500]"]), "table")
    assert "Clopper-Pearson" not in text
    assert "±" in text


def test_models_and_runs_with_other_prompts_were_not_evaluated_alike(lab):
    lab.run("grpo", 0, solved=(4, 4))
    lab.evaluate(None, "model:one", 0, (1, 1), model="one")
    lab.evaluate(None, "model:two", 0, (2, 2), model="two", prompt="Think: ")
    report = build_report(lab.store, "demo", columns=["pass@1"])
    names = [row.group["estimator"] for row in report.rows]
    assert "grpo" in names
    assert len([name for name in names if "one" in str(name)]) == 1
    assert not [name for name in names if "two" in str(name)]
    other = lab.run("fade", 0, solved=None)
    lab.evaluate(other, "fade@20", 20, (4, 4), prompt="Think: ")
    with pytest.raises(ReportError, match="the problems themselves, or their prompts"):
        build_report(lab.store, "demo", columns=["pass@1"])


def _made(lab, model: str, **how: object) -> None:
    lab.evaluate(None, f"model:{model} {how}", 0, (1, 0), model=model, **how)


def _groups(lab) -> list[dict[str, object]]:
    return [dict(row.group) for row in build_model_report(lab.store, ["pass@1"]).rows]


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("verifier", "numeric", "boxed_math revision=2"),
        ("max_tokens", 512, 1024),
        ("system", "none", "1a2b3c4d"),
    ],
)
def test_a_model_has_a_row_for_each_verifier(lab, key, first, second):
    _made(lab, "one", **{key: first})
    _made(lab, "one", **{key: second})
    assert _groups(lab) == [{"model": "one", key: first}, {"model": "one", key: second}]
    assert str(second) in render(build_model_report(lab.store, ["pass@1"]), "table")


def test_a_model_has_a_row_for_each_prompt(lab):
    _made(lab, "one")
    _made(lab, "one", prompt="Think: ")
    first, second = _groups(lab)
    assert first["model"] == second["model"] == "one"
    assert first["prompts"] != second["prompts"]


def test_tasks_with_verifiers_of_their_own_share_the_row_of_a_model(lab):
    _made(lab, "one", task="math500", verifier="boxed_math revision=2")
    _made(lab, "one", task="mbpp", verifier="code revision=2")
    [row] = build_model_report(lab.store, ["pass@1[*]"]).rows
    assert row.group == {"model": "one"}
