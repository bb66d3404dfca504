"""What stands in a report: arithmetic, rows, marks and refusals."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.columns import parse_outcomes
from advsweep.report.data.filters import parse_where
from advsweep.report.tables.build import build_report
from advsweep.report.tables.marks import find_marks
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Subject
from advsweep.store import Owner, Status
from advsweep.writing import Mark


def _rows(report):
    return {row.group["estimator"]: row for row in report.rows}


def test_collapsed_trainings_are_counted_below_the_table(demo):
    [first] = [
        r.id for r in demo.store.runs.select(sweep="demo") if (r.estimator, r.seed) == ("fade", 1)
    ]
    demo.store.metrics.set_summaries(first, {"collapse/detected": 1.0})
    report = build_report(demo.store, ReportRequest("demo"))
    line = "the policy collapsed in training (collapse/detected=1): 1 of 3 runs of fade"
    assert line in report.remarks


def test_models_without_a_run_are_rows_where_they_were_evaluated_as_the_runs(demo):
    before = build_report(demo.store, ReportRequest("demo"))
    alike = {"model": "Qwen/Qwen2.5-0.5B", "top_p": 1.0, "k": [1], "name": "standard"}
    demo.evaluate(None, "model:aa", 0, (4, 1), **alike)
    demo.evaluate(None, "model:aa", 0, (4, 1), **{**alike, "top_p": 0.95})
    demo.evaluate(None, "model:aa", 0, (4, 1), **{**alike, "temperature": 0.6})
    report = build_report(demo.store, ReportRequest("demo"))
    # As texts, in which NaN is NaN.
    others = [str(row) for row in report.rows if row != report.rows[1]]
    assert others == [str(row) for row in before.rows]
    model = report.rows[1]
    assert (model.group, model.seeds) == ({"estimator": "model Qwen/Qwen2.5-0.5B"}, ())
    # 4 and 1 of 4 samples are correct.
    assert model.cells["pass@1"].values == pytest.approx((0.625,))
    assert model.cells["collapse/acr@end"].n == 0


def test_correct_answers_without_diversity_are_no_outcome(lab):
    for seed in range(2):
        lab.run("grpo", seed)
    names = [column.name for column in build_report(lab.store, ReportRequest("demo")).outcomes]
    assert names == ["pass@1", "entropy/right"]
    # As where every problem has one correct answer; one run has none.
    lab.right_entropy = 0.0
    for seed, solved in enumerate([(2, 0), (0, 0)]):
        lab.run("grpo", seed, sweep="single", solved=solved, group_size=4)
    assert [
        column.name for column in build_report(lab.store, ReportRequest("single")).outcomes
    ] == ["pass@1"]
    declared = parse_outcomes(["entropy/right"], "outcomes")
    assert build_report(lab.store, ReportRequest("single", outcomes=declared)).outcomes == tuple(
        declared
    )


def test_best_and_second_among_rows_of_three_seeds(lab):
    # Of 8 samples of two problems fade solves 4, 5 and 6 more than grpo: pass@1 is .3125 ± .155
    # higher. psr is ahead of both with one seed, and the base model is no rival either.
    lab.samples = 8
    for seed in range(3):
        lab.run("grpo", seed, solved=(2, 0))
        lab.run("fade", seed, solved=(4, 2 + seed))
    lab.run("psr", 0, solved=(8, 8))
    report = build_report(lab.store, ReportRequest("demo"))
    number = {row.group["estimator"]: i for i, row in enumerate(report.rows)}
    assert find_marks(report) == {
        (number["fade"], "pass@1"): Mark.BEST,
        # The largest k that eight samples support.
        (number["fade"], "pass@2"): Mark.BEST,
    }
    # grpo has no row below it, until one is worse than it.
    for seed in range(3):
        lab.run("rloo", seed, solved=(seed % 2, 0))
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"], baseline="rloo"))
    marks = {report.rows[i].group["estimator"]: mark for (i, _), mark in find_marks(report).items()}
    assert marks == {"fade": Mark.BEST, "grpo": Mark.SECOND}


def test_a_mark_needs_a_baseline_and_an_adjusted_p(lab, constant):
    # p of b against a is .022 alone and .065 among three differences.
    values = {"a": [0.5, 0.6, 0.4], "b": [0.53, 0.64, 0.45], "c": [0.52, 0.58, 0.41]}
    values["d"] = [0.48, 0.61, 0.42]
    report, found = _accuracies(lab, constant, **values)
    [b, _, _] = report.differences
    assert b.comparison.p_value < 0.05 < b.p_adjusted
    assert found == {}
    where = parse_where("estimator=a,b")
    alone = build_report(lab.store, ReportRequest("demo", columns=["reward/mean@end"], where=where))
    assert set(find_marks(alone).values()) == {Mark.BEST}
    without = build_report(
        lab.store, ReportRequest("demo", columns=["reward/mean@end"], where=where, baseline="none")
    )
    assert find_marks(without) == {}


def _accuracies(lab, constant, **rewards):
    for estimator, values in rewards.items():
        for seed, value in enumerate(values):
            lab.run(estimator, seed, points=constant(reward__mean=value), solved=None)
    report = build_report(lab.store, ReportRequest("demo", columns=["reward/mean@end"]))
    found = {report.rows[i].group["estimator"]: mark for (i, _), mark in find_marks(report).items()}
    return report, found


def test_best_differs_from_every_other_row(lab, constant):
    # b is behind a by 0.05, 0.06, 0.07 (± 0.025), and c, further behind, by 0.1 ± 0.78.
    noisy = [0.5, 0.1, 0.6]
    _, found = _accuracies(lab, constant, a=[0.5, 0.5, 0.5], b=[0.45, 0.44, 0.43], c=noisy)
    assert found == {}


def test_second_differs_from_the_rows_behind_it(lab, constant):
    # b is before c by -0.01, 0.02 and 0.01, which is nothing; the third row changes nothing.
    a, b, c = [0.90, 0.91, 0.92], [0.80, 0.82, 0.81], [0.81, 0.80, 0.80]
    assert _accuracies(lab, constant, a=a, b=b, c=c)[1] == {"a": Mark.BEST}
    report = build_report(
        lab.store,
        ReportRequest(None, columns=["reward/mean@end"], where=parse_where("estimator!=c")),
    )
    # The last row is better than nothing.
    assert list(find_marks(report).values()) == [Mark.BEST]


def test_rows_without_shared_seeds_compare_unpaired(lab, constant):
    for estimator, first, values in (("a", 0, (0.9, 0.91, 0.92)), ("b", 5, (0.5, 0.51, 0.52))):
        for seed, value in enumerate(values, start=first):
            lab.run(estimator, seed, points=constant(reward__mean=value), solved=None)
    report = build_report(lab.store, ReportRequest("demo", columns=["reward/mean@end"]))
    assert list(find_marks(report).values()) == [Mark.BEST]
    [difference] = report.differences
    assert not difference.comparison.paired


def test_notes_rows_whose_seeds_are_equal(lab, constant):
    report, found = _accuracies(lab, constant, a=[0.5] * 3, b=[0.25] * 3)
    # A difference without spread excludes 0, but was never tested.
    assert found == {}
    [difference] = report.differences
    assert math.isnan(difference.p_adjusted)
    assert difference.seeds is None
    assert (
        "zero spread, so that ±0 is no interval: all seeds of a (mean reward end), "
        "b (mean reward end) have the same value"
    ) in lay_out(report).notes


def test_varying_keys_name_rows(lab):
    lab.run("fade", 0, estimator__h_star=0.3, group_size=16, optimizer={"name": "adamw", "lr": 1})
    lab.run("fade", 1, estimator__h_star=0.3, group_size=16, optimizer={"name": "adamw", "lr": 1})
    lab.run("fade", 0, estimator__h_star=0.5, group_size=8, optimizer={"name": "adamw", "lr": 1})
    lab.run("grpo", 0, estimator__eps=0.0, group_size=8, optimizer={"name": "adamw", "lr": 1})
    report = build_report(lab.store, ReportRequest("demo"))
    assert [(list(row.group.items()), row.n) for row in report.rows[1:]] == [
        ([("estimator", "fade"), ("group_size", 16), ("estimator.h_star", 0.3)], 2),
        ([("estimator", "fade"), ("group_size", 8), ("estimator.h_star", 0.5)], 1),
        ([("estimator", "grpo"), ("group_size", 8)], 1),
    ]
    assert report.keys == ["estimator", "group_size", "estimator.h_star"]


def test_parameters_of_a_wrapped_estimator_compare_within_the_same_one(lab):
    for base in ({"name": "grpo", "std": "sample"}, {"name": "grpo", "std": "population"}):
        lab.run("a_grae", 0, estimator__base=base)
    lab.run("a_grae", 0, estimator__base={"name": "rloo", "loo": True})
    assert [row.group for row in build_report(lab.store, ReportRequest("demo")).rows[1:]] == [
        {"estimator": "a_grae", "estimator.base": "grpo", "estimator.base.std": "sample"},
        {"estimator": "a_grae", "estimator.base": "grpo", "estimator.base.std": "population"},
        {"estimator": "a_grae", "estimator.base": "rloo"},
    ]


def test_keys_without_effect_make_no_rows(lab):
    # Declared so by the backends; and replicates that differ in a key show that it is free.
    for seed in range(2):
        free = {"backend__checkpoint_every": 10 + seed, "task__folder": f"/data/{seed}"}
        lab.run("grpo", seed, identity_free=free)
    lab.run("rloo", 0, identity_free={"backend__checkpoint_every": 7, "task__folder": "/other"})
    assert [
        (row.group, row.n) for row in build_report(lab.store, ReportRequest("demo")).rows[1:]
    ] == [
        ({"estimator": "grpo"}, 2),
        ({"estimator": "rloo"}, 1),
    ]


def test_rows_are_named_by_parts_that_others_lack(lab):
    part = {"weight": 1.0, "limit": 4}
    lab.run("grpo", 0, task__reward={"accuracy": {"weight": 1.0}})
    lab.run("grpo", 0, task__reward={"accuracy": {"weight": 1.0}, "overlong": part})
    groups = [row.group for row in build_report(lab.store, ReportRequest("demo")).rows[1:]]
    assert groups[0] == {"estimator": "grpo"}
    assert groups[1]["task.reward.overlong.limit"] == 4


def test_revisions_have_rows_of_their_own(lab):
    # The same config with another hash: a component's revision was raised.
    ids = [lab.run("grpo", 0), lab.run("grpo", 0, group_size=9)]
    with lab.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE runs SET config = (SELECT config FROM runs WHERE id=1)")
    rows = build_report(lab.store, ReportRequest("demo")).rows[1:]
    hashes = [run.config_hash[:8] for run in lab.store.runs.select(ids=ids)]
    assert [row.group for row in rows] == [
        {"estimator": "grpo", "config_hash": hashes[0]},
        {"estimator": "grpo", "config_hash": hashes[1]},
    ]


def test_base_models_with_equal_names_show_their_keys(lab):
    lab.run("grpo", 0, base="base:aaaaaaaaaaaa")
    lab.run("rloo", 0, base="base:bbbbbbbbbbbb")
    assert [row.group for row in build_report(lab.store, ReportRequest("demo")).rows[:2]] == [
        {"estimator": "base", "base": "aaaaaaaa"},
        {"estimator": "base", "base": "bbbbbbbb"},
    ]


def _base_of_each_seed(lab, *estimators, solved=((1, 0), (2, 1), (3, 0))):
    for estimator in estimators:
        for seed, of_base in enumerate(solved):
            base = {"base": f"base:{seed}{seed}", "base_solved": of_base}
            lab.run(estimator, seed, solved=(3 + seed % 2, 1), **base)


def test_bases_of_seeds_make_one_row(lab):
    _base_of_each_seed(lab, "grpo", "rloo")
    base, *trained = build_report(
        lab.store, ReportRequest("demo", columns=["pass@1", "pass@1[level=0]"])
    ).rows
    assert (base.group, base.subject, base.n) == ({"estimator": "base"}, Subject.BASE, 3)
    assert base.seeds == (0, 1, 2)
    # 4 samples of each of 2 problems.
    cell = base.cells["pass@1"]
    assert cell.values == pytest.approx((1 / 8, 3 / 8, 3 / 8))
    assert cell.n == 3
    # s = √(1/48) = .1443 and t(.975; 2) = 4.303.
    assert cell.mean == pytest.approx(7 / 24)
    assert cell.half_width == pytest.approx(4.302653 * 0.144338 / 3**0.5, rel=1e-5)
    assert base.cells["pass@1[level=0]"].values == pytest.approx((1 / 4, 2 / 4, 3 / 4))
    assert [row.n for row in trained] == [3, 3]
    assert not any(row.is_untrained for row in trained)


def test_a_configuration_that_lacks_seeds_shares_the_row_of_its_bases(lab):
    _base_of_each_seed(lab, "grpo")
    lab.run("rloo", 1, base="base:11", base_solved=(2, 1))
    lab.run("rloo", 2, base="base:22", base_solved=(3, 0))
    rows = build_report(lab.store, ReportRequest("demo")).rows
    assert [row.group["estimator"] for row in rows] == ["base", "grpo", "rloo"]
    assert rows[0].seeds == (0, 1, 2)


def test_shared_and_own_bases_have_rows_of_their_own(lab):
    """`model.pretraining_seed` is 0 for some runs, and that of the run for others."""
    for seed in range(3):
        one = {"name": "tiny", "pretraining_seed": 0}
        lab.run("grpo", seed, base="base:00", model=one)
        own = {"name": "tiny", "pretraining_seed": "seed"}
        lab.run("grpo", seed, base=f"base:{seed}{seed}", model=own)
    rows = build_report(lab.store, ReportRequest("demo")).rows
    assert [(row.group, row.seeds) for row in rows if row.is_untrained] == [
        ({"estimator": "base", "model.pretraining_seed": 0}, ()),
        ({"estimator": "base", "model.pretraining_seed": "seed"}, (0, 1, 2)),
    ]


def test_newest_finished_attempt_counts(lab):
    first = lab.run("grpo", 0, solved=(2, 0))
    second = lab.store.runs.new_attempt(first)
    assert build_report(lab.store, ReportRequest(None)).provenance["runs"] == 1
    lab.store.leases.claim(second, Owner.current())
    lab.evaluate(second, "again", 20, (4, 4))
    lab.store.leases.finish(second, Status.DONE)
    assert _rows(build_report(lab.store, ReportRequest(None)))["grpo"].cells["pass@1"].values == (
        1.0,
    )


def test_a_number_that_is_missing_is_counted_as_missing(lab, constant):
    lab.run("grpo", 0, points=constant(collapse__acr=0.5))
    lab.run("grpo", 1, points=constant(collapse__acr=math.nan))
    lab.run("grpo", 2, solved=None)
    row = _rows(build_report(lab.store, ReportRequest("demo")))["grpo"]
    acr, accuracy = row.cells["collapse/acr@end"], row.cells["pass@1"]
    assert (row.n, acr.n, accuracy.n) == (3, 1, 2)
    assert acr.values[0] == 0.5
    assert all(math.isnan(value) for value in acr.values[1:])


@pytest.mark.security
def test_samples_that_could_not_be_scored_count_as_not_correct(lab):
    lab.unscorable = (3, 0)
    lab.run("grpo", 0, solved=(1, 2))
    report = build_report(lab.store, ReportRequest("demo"))
    cells = _rows(report)["grpo"].cells
    # One right and three that could not be scored are 1 of 4, and pass@2 is 1 - C(3, 2)/C(4, 2);
    # of the other problem two of four are right: 1 - C(2, 2)/C(4, 2) = 5/6.
    assert cells["pass@1"].mean == (0.25 + 0.5) / 2
    assert cells["pass@2"].mean == pytest.approx((1 / 2 + 5 / 6) / 2)
    assert report.unscorable == 3 / 8
    notes = "\n".join(lay_out(report).notes)
    assert "37.50% of the samples could not be scored" in notes
    assert "left out of pass@k" not in notes
    [_, last] = lab.store.evaluations.select([1])
    assert last.scores()["evaluation/unscorable"] == 3 / 8


def test_pass_at_k_leaves_out_problems_without_scored_samples(lab):
    lab.unscorable = (0, 4)
    lab.run("grpo", 0, solved=(2, 0))
    report = build_report(lab.store, ReportRequest("demo"))
    cells = _rows(report)["grpo"].cells
    assert cells["pass@1"].mean == 0.5
    assert cells["pass@2"].mean == pytest.approx(5 / 6)
    assert (report.unscorable, report.unjudged) == (0, 1)
    notes = "\n".join(lay_out(report).notes)
    assert "left out of pass@k, as none of their samples could be scored: 1 " in notes
    assert "of the samples could not be scored" not in notes
    assert "evaluation/unscorable" not in lab.store.evaluations.select([1])[-1].scores()


def test_refuses_runs_with_different_evaluations(lab):
    lab.run("grpo", 0)
    lab.samples = 8
    lab.run("fade", 0)
    with pytest.raises(ReportError, match=r"evaluation\.n: 4 \(1 run\) and 8 \(1 run\)") as error:
        build_report(lab.store, ReportRequest("demo"))
    assert "temperature" not in str(error.value)


def test_refuses_runs_with_different_verifiers(lab):
    for estimator, verifier, tokens in (("grpo", "numeric", 1024), ("fade", "choice", 512)):
        run = lab.run(estimator, 0, solved=None)
        own = {"verifier": verifier, "max_tokens": tokens, "system": estimator}
        lab.evaluate(run, f"{run}@20", 20, (2, 0), **own)
        lab.evaluate(run, "base", 0, (1, 0), **own)
    with pytest.raises(ReportError, match="one table cannot hold them") as error:
        build_report(lab.store, ReportRequest("demo"))
    for key in ("verifier: ", "max_tokens: ", "system: "):
        assert key in str(error.value)


def test_last_used_shared_protocol_counts(lab):
    ids = [lab.run("grpo", 0, solved=(2, 0)), lab.run("fade", 0, solved=(2, 0))]
    for run_id in ids:
        # Made later: evaluations of the same age would be told apart by nothing.
        lab.store.evaluations._now = lambda: lab.store.runs.select()[0].created.replace(hour=13)
        lab.evaluate(run_id, f"run {run_id}", 20, (8, 8), n=8)
    report = build_report(lab.store, ReportRequest("demo"))
    assert report.provenance["evaluations"] == [
        {"task": "countdown", "n": 8, "temperature": 1.0, "seed": 0, "problems": 2}
    ]
    assert _rows(report)["grpo"].cells["pass@1"].mean == 1.0


def test_nothing_to_report(lab):
    with pytest.raises(ReportError, match=r"advsweep\.db has no runs to report"):
        build_report(lab.store, ReportRequest(None))
    lab.run("grpo", 0, status=Status.FAILED)
    lab.run("grpo", 1, status=Status.PENDING)
    with pytest.raises(
        ReportError, match=r"sweep 'demo' has no finished run to report yet \(1 pending, 1 failed\)"
    ):
        build_report(lab.store, ReportRequest("demo"))
    with pytest.raises(NotFoundError, match=r"no sweep 'dem'.*did you mean 'demo'"):
        build_report(lab.store, ReportRequest("dem"))


def _adamw(match="none", reference="dr_grpo"):
    return {"name": "adamw", "match": match, "match_reference": {"name": reference}}


def _rates(report):
    [line] = [line for line in lay_out(report).notes if line.startswith("learning rates: ")]
    return line.removeprefix("learning rates: ")


def test_how_learning_rates_were_matched(lab, constant):
    for estimator, rate in {"grpo": 9.92157e-05, "dr_grpo": 3e-4}.items():
        for seed in (0, 1):
            points = [*constant(optim__lr=rate / 2)[:3], ("optim/lr", 20, rate)]
            lab.run(estimator, seed, points=points, optimizer=_adamw("max_advantage"))
    report = build_report(lab.store, ReportRequest("demo"))
    assert _rates(report) == "matched by max_advantage to dr_grpo (grpo 9.92e-05, dr_grpo 0.0003)"
    assert [row.group for row in report.rows[1:]] == [
        {"estimator": "grpo"},
        {"estimator": "dr_grpo"},
    ]
    assert report.provenance["learning_rates"] == [
        {
            "match": "max_advantage",
            "reference": "dr_grpo",
            "rates": {"grpo": [9.92157e-05], "dr_grpo": [3e-4]},
        }
    ]
