"""Figures of a sweep: their numbers and what they draw."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from advsweep.errors import AdvsweepError, ConfigError, NotFoundError, ReportError
from advsweep.report.data.filters import parse_where
from advsweep.report.data.labels import label_rows
from advsweep.report.figures import chart
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.draw import draw_page, write
from advsweep.report.figures.registry import FIGURES, collect, collect_figures
from advsweep.report.figures.style import MOST_STYLES, choose_styles
from advsweep.report.figures.training import running_mean
from advsweep.statistics import mean_over_problems, pass_at_k, regress, student_t_interval
from advsweep.statistics.pass_laws import fit_pass_at_k
from advsweep.store import Status
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

OF_RATES = {"rate", "frontier"}
Records = list[dict[str, Any]]
T2 = 4.302652729911275  # Student's t of 2 degrees of freedom, at 97.5 %


def points_of(seed: int, level: float) -> list[tuple[str, int, float]]:
    """Twenty steps of every metric that a figure needs."""
    rng = np.random.default_rng(seed)
    found: list[tuple[str, int, float]] = []
    for step in range(1, 21):
        noise = float(rng.normal()) / 50
        shares = rng.dirichlet(np.ones(9))
        found += [
            ("reward/mean", step, level + noise),
            ("collapse/acr", step, level + seed / 10),
            ("entropy/token", step, 1 - step / 40 + noise),
            ("entropy/change", step, -0.02 + noise),
            ("entropy/drift", step, 0.1 * noise),
            ("entropy/covariance", step, 0.5 + noise),
            ("mass/success", step, 0.2 + noise),
            ("turns/collapsed/turn_1", step, level / 2 + noise),
            ("turns/collapsed/turn_2", step, level + noise),
            ("mass/failure", step, 0.3 + noise),
            *((f"solved/{k}", step, float(share)) for k, share in enumerate(shares)),
        ]
    return found


@pytest.fixture
def full(lab):
    """Two estimators of three seeds with everything recorded, at two group sizes each."""
    lab.samples = 16
    for size in (4, 8):
        for seed, solved in enumerate([(8, 1), (9, 2), (12, 1)]):
            lab.run("grpo", seed, solved=solved, points=points_of(seed, 0.4), group_size=size)
            more = [("estimator/alpha", step, 2.0) for step in range(1, 21)]
            points = points_of(seed + 3, 0.5) + more
            run = lab.run("fade", seed, solved=(12, 3), points=points, group_size=size)
            for step, along in ((5, (4, 0)), (10, (7, 1)), (15, (10, 2))):
                lab.evaluate(run, f"fade {size} {seed}@{step}", step, along)
    return lab


@pytest.fixture
def data(full) -> FigureData:
    return FigureData(full.store, NamedRuns(full.store.runs.select(newest_first=False), "demo"))


def data_of(lab: Any, where: str | None = None) -> FigureData:
    filters = [] if where is None else parse_where(where)
    return FigureData(
        lab.store, NamedRuns(lab.store.runs.select(newest_first=False), "demo"), filters
    )


def records_of(lab: Any, figure: str, **options: Any) -> Records:
    return collect(figure, data_of(lab), **options).records


def only(records: Records, **keys: Any) -> dict[str, Any]:
    (found,) = [r for r in records if all(r[key] == value for key, value in keys.items())]
    return found


def notes_of(lab: Any, figure: str, **options: Any) -> str:
    return collect(figure, data_of(lab), **options).caption.replace("\n", " ")


def test_curves_are_means_over_seeds_with_student_t(lab):
    for seed, value in enumerate([1.0, 2.0, 6.0]):
        lab.run("grpo", seed, points=[("reward/mean", s, value * s) for s in (1, 2)])
    first, second = records_of(lab, "curves")
    # Mean 3, s = √7: half is t √7/√3.
    half = T2 * math.sqrt(7 / 3)
    assert (first["metric"], first["row"], first["step"], first["n"]) == (
        "reward/mean", "grpo", 1, 3,
    )  # fmt: skip
    assert first["mean"] == pytest.approx(3)
    assert (first["low"], first["high"]) == pytest.approx((3 - half, 3 + half))
    assert (second["step"], second["mean"]) == (2, pytest.approx(6))


def test_curves_of_any_metrics_and_of_evaluations(lab):
    run = lab.run("grpo", points=[("entropy/token", 1, 0.5), ("reward/mean", 1, 0.1)])
    lab.evaluate(run, "half", 10, (3, 1))
    found = records_of(lab, "curves", metrics=("entropy/token", "pass@1"))
    # Before: (1, 0) of 4 samples; half-way: (3, 1); after: (2, 0).
    assert [(r["metric"], r["step"]) for r in found] == [
        ("entropy/token", 1),
        *[("pass@1", 0), ("pass@1", 10), ("pass@1", 20)],
    ]
    assert [r["mean"] for r in found] == pytest.approx([0.5, 0.125, 0.5, 0.25])


def test_curves_leave_non_finite_values_out(lab):
    lab.run("grpo", 0, points=[("reward/mean", 1, math.nan), ("reward/mean", 2, 0.5)])
    lab.run("grpo", 1, points=[("reward/mean", 1, 0.25), ("reward/mean", 2, 0.7)])
    found = records_of(lab, "curves")
    assert [(r["step"], r["mean"], r["n"]) for r in found] == [(1, 0.25, 1), (2, 0.6, 2)]


def test_a_metric_without_finite_values_is_refused(lab):
    lab.run("grpo", points=[("reward/mean", 1, math.nan)])
    with pytest.raises(ReportError, match="reward/mean is not a number at any step of any run"):
        records_of(lab, "curves")
    lab.run("fade", points=[("reward/mean", 1, 0.5)])
    assert [r["row"] for r in records_of(lab, "curves")] == ["fade"]


def test_one_seed_has_no_band_and_the_figure_says_so(lab):
    lab.run("grpo", 0, points=[("reward/mean", 1, 0.5)])
    (only_one,) = records_of(lab, "curves")
    assert math.isnan(only_one["low"])
    assert notes_of(lab, "curves") == "One seed each, so there are no bands."
    lab.run("fade", 0, points=[("reward/mean", 1, 0.5)])
    lab.run("fade", 1, points=[("reward/mean", 1, 0.5)])
    assert "over 1 to 2 seeds. Rows of one seed have no bands." in notes_of(lab, "curves")


def test_smoothing_is_over_steps_and_leaves_evaluations_as_they_are(lab):
    # Points every 4 steps: a window of 5 steps has two of them, one of 4 a single one.
    steps, values = np.array([4, 8, 12, 20]), np.array([1.0, 3.0, 8.0, 2.0])
    assert running_mean(steps, values, 4).tolist() == [1, 3, 8, 2]
    assert running_mean(steps, values, 5).tolist() == [1, 2, 5.5, 2]
    assert running_mean(steps, values, 50).tolist() == [1, 2, 4, 3.5]
    run = lab.run("grpo", points=[("reward/mean", 1, 0.1), ("reward/mean", 2, 0.3)])
    lab.evaluate(run, "half", 10, (3, 1))
    metrics = ("reward/mean", "pass@1")
    found = records_of(lab, "curves", metrics=metrics, smooth=20)
    # pass@1 before, half-way and after, as in the test of evaluations above.
    assert [r["mean"] for r in found] == pytest.approx([0.1, 0.2, 0.125, 0.5, 0.25])
    notes = notes_of(lab, "curves", metrics=metrics, smooth=20)
    assert "the mean of its last 20 steps; evaluations are not" in notes


def test_a_wide_band_is_cut_and_the_figure_says_so(lab):
    for seed, value in enumerate([0.0, 100.0]):
        lab.run("grpo", seed, points=[("reward/mean", s, value + s) for s in range(1, 10)])
    chart = collect("curves", data_of(lab))
    low, high = draw_page([chart]).axes[0].get_ylim()
    # Means 51 to 59 with intervals of ±635.
    assert 40 < low < 51
    assert 59 < high < 70


def test_pass_at_k_has_powers_of_two_up_to_a_quarter_of_the_samples_and_the_base(full):
    found = records_of(full, "passk")
    label = "grpo group_size=8"
    assert [r["k"] for r in found if r["row"] == label] == [1, 2, 4]
    assert "fitted to the means at k = 1, 2, ..., 16" in notes_of(full, "passk")
    one = only(found, row=label, k=1)
    # Of 2 problems with 16 samples: 9, 11 and 13 of 32 are right.
    expected = student_t_interval([9 / 32, 11 / 32, 13 / 32])
    assert (one["mean"], one["low"], one["high"], one["n"]) == pytest.approx(expected)
    base = only(found, row="base", k=2)
    # One problem was solved once: 1 - 15/16 · 14/15 = 1/8; the other never.
    assert (base["mean"], base["n"]) == (pytest.approx(1 / 16), 1)
    fitted = only(found, row=label, k=4)
    a, b, c = fitted["a"], fitted["b"], fitted["c"]
    assert fitted["law"] == pytest.approx(math.exp(-a * (4 + c) ** -b))
    assert fitted["law"] == pytest.approx(fitted["mean"], abs=0.02)
    assert fitted["refused"] is None


def test_pass_at_k_has_the_floors_as_dotted_lines_without_intervals(lab):
    task = Countdown(levels=(0,), held_out_per_level=2)
    lab.problems = [(p.id, p.prompt) for p in task.problems(Split.HELD_OUT)]
    for seed in range(2):
        lab.run("grpo", seed, solved=(2 + seed, 3), task=task.plain())
    found = [r for r in records_of(lab, "passk") if r["row"] == "guess"]
    # One and two of six expressions are right.
    expected = [1 - ((5 / 6) ** k + (4 / 6) ** k) / 2 for k in (1, 2)]
    assert [r["mean"] for r in found] == pytest.approx(expected)
    assert all(math.isnan(r["low"]) and r["law"] is None for r in found)
    assert "Dotted: guess, uniform expressions over the given digits" in notes_of(lab, "passk")
    (axes,) = draw_page([collect("passk", data_of(lab))]).axes
    [dotted] = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(dotted.get_ydata()) == pytest.approx(expected)


@pytest.mark.parametrize(("problems", "lacks"), [(15, 0), (14, 0), (15, 1)])
def test_laws_have_intervals_of_problems_where_there_are_enough(problems, lacks, lab):
    lab.samples, lab.unscorable = 16, (16 * lacks,) + (0,) * 14
    seeds = [np.arange(problems), np.arange(problems)[::-1].copy()]
    seeds[1][0] *= 1 - lacks
    for seed, solved in enumerate(seeds):
        run = lab.run("grpo", seed, solved=None)
        lab.evaluate(run, f"of seed {seed}", 20, solved.tolist())
    found = records_of(lab, "passk")[0]
    n, ks = np.full(problems, 16), (1, 2, 4, 8, 16)
    n[0] -= 16 * lacks
    table = np.array([[pass_at_k(n, c, k) for k in ks] for c in seeds])  # [seeds, k, problems]
    # A problem none of whose samples could be scored has no pass@k.
    resampled = problems == 15 and not lacks
    values = table.mean(axis=0).T if resampled else mean_over_problems(table).mean(axis=0)
    law = fit_pass_at_k(ks, values)
    for name in "abc":
        ends = [found[key] for key in (name, f"{name}_low", f"{name}_high")]
        assert ends == pytest.approx(getattr(law, name))
    assert found["r_squared"] == pytest.approx(law.r_squared)
    assert found["resampled"] == (15 if resampled else 0)


def test_a_failed_fit_gives_no_line_and_a_reason(lab):
    lab.run("grpo", solved=(2, 0))
    assert "No line for grpo: 3 points" in notes_of(lab, "passk")
    assert {r["law"] for r in records_of(lab, "passk")} == {None}
    (axes,) = draw_page([collect("passk", data_of(lab))]).axes
    # Points of grpo and of the base model, and no line.
    assert [line.get_linestyle() for line in axes.lines] == ["None", "None"]
    assert axes.get_xscale() == "log"


def test_early_collapse_is_regressed_over_runs(lab):
    # ACR of the first 100 steps is the mean of all 20.
    for seed, (acr, solved) in enumerate(
        [(0.2, (4, 2)), (0.4, (4, 0)), (0.5, (2, 0)), (0.8, (1, 0))]
    ):
        lab.run(
            "grpo", seed, solved=solved, points=[("collapse/acr", s, acr) for s in range(1, 21)]
        )
    found = records_of(lab, "acr")
    assert [r["seed"] for r in found] == [0, 1, 2, 3]
    assert [r["acr"] for r in found] == pytest.approx([0.2, 0.4, 0.5, 0.8])
    assert [r["pass@1"] for r in found] == pytest.approx([0.75, 0.5, 0.25, 0.125])
    line = regress([0.2, 0.4, 0.5, 0.8], [0.75, 0.5, 0.25, 0.125])
    assert found[0]["r_squared"] == pytest.approx(line.r_squared.value)
    for name in ("slope", "intercept", "r_squared"):
        ends = [found[0][key] for key in (name, f"{name}_low", f"{name}_high")]
        assert ends == pytest.approx(getattr(line, name))
    assert (found[0]["n"], found[0]["refused"]) == (4, None)
    assert "fewer than 100 steps count with all of them (20)" in notes_of(lab, "acr")
    (axes,) = draw_page([collect("acr", data_of(lab))]).axes
    assert axes.get_title(loc="left").startswith(f"R² = {line.r_squared.value:.2f}")


def test_diversity_is_pass_at_a_quarter_of_the_samples_and_answer_entropy(full):
    found = records_of(full, "diversity")
    fade = only(found, row="fade group_size=4", metric="pass@4")
    # Of 16 samples 12 and 3 are right: 1 - C(4, 4) / C(16, 4) and 1 - C(13, 4) / C(16, 4).
    assert (fade["mean"], fade["n"]) == (pytest.approx((1819 + 1105) / 3640), 3)
    entropy = only(found, row="grpo group_size=4", metric="entropy/answer")
    # 0.25 nats for each correct sample, in the lab: of (8, 1), (9, 2), (12, 1).
    assert entropy["mean"] == pytest.approx(0.125 * (9 + 11 + 13) / 3)
    assert only(found, row="base", metric="pass@1")["mean"] == pytest.approx(1 / 32)


def test_a_figure_of_one_number_takes_no_two(data):
    with pytest.raises(ConfigError, match="expected one number, got a, b"):
        collect("rate", data, metrics=("a", "b"))


def test_rounding_errors_of_the_layout_do_not_change_the_file(data, tmp_path, monkeypatch):
    """The layout solver adds in no fixed order, and the ids of an SVG are hashes of positions."""
    chart = collect("acr", data)
    write([chart], tmp_path / "plain.svg")
    lay_out = ConstrainedLayoutEngine.execute

    def move(box):
        return Bbox(box.get_points() * (1 + 1e-14))

    def other_bits(layout, figure):
        lay_out(layout, figure)
        for part in figure.subfigs:
            part.bbox_relative.set_points(move(part.bbox_relative).get_points())
        for axes in figure.axes:
            axes.set_position(move(axes.get_position()))

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", other_bits)
    write([chart], tmp_path / "other.svg")
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_have_plain_numbers_and_stay_within_the_page(figure, data):
    chart = collect(figure, data, x="group_size" if figure in OF_RATES else None)
    assert json.loads(json.dumps(chart.records))
    assert len({frozenset(record) for record in chart.records}) == 1
    page = draw_page([chart])
    page.draw_without_rendering()
    legends = [legend for part in page.findobj() for legend in getattr(part, "legends", ())]
    texts = [axes.title for axes in page.axes] + [axes.xaxis.label for axes in page.axes]
    for artist in [*legends, *texts]:
        box = artist.get_window_extent()
        assert page.bbox.x0 <= box.x0
        assert box.x1 <= page.bbox.x1 + 1
        assert page.bbox.y0 <= box.y0


@pytest.mark.slow
def test_a_pdf_has_a_page_for_each_figure(data, tmp_path):
    charts = collect_figures(data, [], {}).charts
    for name in "ab":
        write(charts, tmp_path / f"{name}.pdf")
    first, second = ((tmp_path / f"{name}.pdf").read_bytes() for name in "ab")
    assert first == second
    assert first.startswith(b"%PDF")
    assert first.count(b"/Type /Page ") == len(charts)


def test_figures_without_data_are_left_out_of_a_page(lab):
    lab.run("grpo", solved=None, points=[("reward/mean", 1, 0.5)])
    figures = collect_figures(data_of(lab), [], {})
    assert "curves" in {chart.name for chart in figures.charts}
    assert {"passk", "diversity", "acr", "forest"} <= figures.skipped.keys()
    reason = figures.skipped["passk"]
    assert reason.startswith("no run of demo was evaluated after its training")
    assert figures.skipped["diversity"] == reason
    lab.run("rloo", solved=None)
    with pytest.raises(
        ReportError, match=r"nothing of demo can be drawn: .*no run of demo recorded"
    ):
        collect_figures(data_of(lab, "estimator=rloo"), [], {})


def test_turns_by_hand(lab):
    """Two seeds of an estimator, and one of another whose episodes are shorter."""
    for seed, (first, second) in enumerate([(0.25, 0.5), (0.75, 0.75)]):
        # Of two steps, of which one has no group with a second turn.
        points = [
            ("turns/mean", 1, 2.0),
            ("turns/collapsed/turn_1", 1, first),
            ("turns/collapsed/turn_1", 2, first + 0.25),
            ("turns/collapsed/turn_2", 1, second),
            ("turns/collapsed/turn_10", 1, 1.0),
            ("credit/error/turn_1", 1, float(seed)),
        ]
        lab.run("rloo", seed, points=points, solved=None)
    lab.run("gigpo", 0, points=[("turns/collapsed/turn_1", 1, 0.5)], solved=None)
    numbers = {
        (r["metric"], r["row"], r["turn"]): (r["mean"], r["n"]) for r in records_of(lab, "turns")
    }
    assert numbers == {
        ("turns/collapsed", "rloo", 1): ((0.375 + 0.875) / 2, 2),
        ("turns/collapsed", "rloo", 2): ((0.5 + 0.75) / 2, 2),
        ("turns/collapsed", "rloo", 10): (1.0, 2),
        ("turns/collapsed", "gigpo", 1): (0.5, 1),
        ("credit/error", "rloo", 1): (0.5, 2),
    }
    collapse, error = collect("turns", data_of(lab)).panels
    assert (collapse.title, error.title) == ("turns collapsed", "credit error")
    # A share ends at 0 and 1; turns are in their order, as numbers.
    assert collapse.within == (0, 1)
    assert collapse.x_ticks == {1: "1", 2: "2", 10: "10"}
    [rloo, _] = collapse.series
    assert list(rloo.x) == [1, 2, 10]


MISSING = {
    "a misspelt metric": ("curves", {"metrics": ("reward/maen",)}, "did you mean 'reward/mean'"),
    "masses": ("curves", {"metrics": ("mass/success",)}, "no run of demo has a metric"),
    "collapse": ("acr", {}, "no run of demo has a number 'collapse/acr@first100'"),
    "one sample": ("diversity", {}, "with one sample for each problem"),
    "turns": ("turns", {}, "no run of demo has episodes of several turns"),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_data_are_named(case, lab):
    figure, options, message = MISSING[case]
    lab.samples = 1
    lab.run("grpo", solved=(1, 0), points=[("reward/mean", 1, 0.5)])
    with pytest.raises(AdvsweepError) as error:
        records_of(lab, figure, **options)
    assert message in str(error.value)


def test_runs_that_are_not_done_are_not_drawn(lab, constant):
    lab.run("grpo", status=Status.FAILED, points=constant(reward__mean=1.0))
    lab.run("grpo", 1, status=Status.PENDING)
    with pytest.raises(ReportError, match=r"no finished run to draw yet \(1 pending, 1 failed\)"):
        data_of(lab)
    lab.run("grpo", 2, points=constant(reward__mean=3.0))
    assert {r["mean"] for r in records_of(lab, "curves")} == {3.0}


def test_conditions_choose_runs_and_colours_stay(full):
    whole = {row.label: row.style for row in data_of(full).rows}
    some = data_of(full, "estimator=fade group_size=8")
    (row,) = some.rows
    # Of the one configuration nothing varies.
    assert row.label == "fade"
    assert row.style.colour == whole["fade group_size=8"].colour
    assert row.style.colour != whole["grpo group_size=8"].colour
    chart = collect("curves", some)
    assert "Chosen by estimator=fade group_size=8." in chart.caption
    with pytest.raises(ReportError, match="no finished run with group_size=99"):
        data_of(full, "group_size=99")


def test_evaluations_may_be_those_of_another_task(lab):
    run = lab.run("grpo", points=[("collapse/acr", 1, 0.5)], solved=(2, 0))
    lab.evaluate(run, "other", 20, (4, 4), task="other")
    runs = lab.store.runs.select()
    other = FigureData(lab.store, NamedRuns(runs, "demo"), task="other")
    chart = collect("passk", other)
    assert chart.title == "demo: pass@k on other"
    assert {(r["row"], r["mean"]) for r in chart.records} == {("grpo", 1.0)}
    assert [r["pass@1"] for r in collect("acr", other).records] == [1.0]
    with pytest.raises(NotFoundError, match="evaluated on 'ohter'; did you mean 'other'"):
        collect("diversity", FigureData(lab.store, NamedRuns(runs, "demo"), task="ohter"))


def test_runs_that_were_not_evaluated_alike_are_refused(lab):
    lab.run("grpo", 0, points=[("reward/mean", 1, 0.5)])
    lab.samples = 8
    lab.run("grpo", 1, points=[("reward/mean", 1, 0.5)])
    for figure in ("passk", "acr", "diversity"):
        with pytest.raises(ReportError, match=r"evaluation.n: 4 \(1 run\) and 8 \(1 run\)"):
            records_of(lab, figure)
    assert len(records_of(lab, "curves")) == 1


def test_styles_distinguish_rows():
    names = [f"e{i}" for i in range(12)]
    of_each = choose_styles([name for name in names for _ in range(2)], names)
    assert len(of_each) == MOST_STYLES
    # By lines and by points, and by bars, which have no markers.
    assert len(set(of_each)) == MOST_STYLES
    assert len({style.colour for style in of_each}) == MOST_STYLES
    grpo, wider, fade = choose_styles(["a", "a", "b"], ["a", "b"])
    assert len({grpo.colour, wider.colour, fade.colour}) == 3
    assert grpo.marker == wider.marker != fade.marker
    assert grpo.linestyle != wider.linestyle
    # Of one estimator alone each row has a colour, and so have many rows of one among others.
    alone = choose_styles(["a"] * MOST_STYLES, ["a"])
    assert len({style.colour for style in alone}) == MOST_STYLES
    among = choose_styles(["a"] * 8, ["a", "b"])
    assert len({(style.colour, style.variant) for style in among}) == 8


def test_labels_have_what_tells_rows_apart():
    def group(name: str, lr: float, clip: float = 0.2, size: int = 8) -> dict[str, Any]:
        return {"estimator": name, "group_size": size, "optimizer.lr": lr, "objective.clip": clip}

    # Each estimator has one row, so that its name is enough; what else differs is said.
    groups = [group("grpo", 0.1), group("fade", 0.2), group("rloo", 0.2)]
    keys = "group_size, objective.clip, optimizer.lr"
    assert label_rows(groups) == (["grpo", "fade", "rloo"], [f"rows differ in {keys} too"])
    # Most rows clip at 0.2, which labels then leave out; the rate is not needed.
    groups += [group("fade", 0.4, clip=0.3), group("fade", 0.2, size=4)]
    labels, remarks = label_rows(groups)
    assert labels == ["grpo", "fade", "rloo", "fade clip=0.3", "fade group_size=4"]
    assert remarks == [
        "unless a label says otherwise, group_size=8, clip=0.2",
        "rows differ in optimizer.lr too",
    ]
    # Without a majority each row has its value.
    labels, _ = label_rows([group("fade", 0.1), group("fade", 0.2)])
    assert labels == ["fade lr=0.1", "fade lr=0.2"]
    # Last parts that are alike stay whole.
    many = [{"estimator": "a", "x.eps": x, "y.eps": y} for x in (1, 2) for y in (1, 2)]
    assert label_rows(many)[0][0] == "a x.eps=1, y.eps=1"


def test_more_rows_than_styles_are_refused(lab, constant: Callable[..., Any]):
    for size in range(25):
        lab.run(
            "grpo", points=constant(reward__mean=1.0, collapse__acr=size / 25), group_size=size + 2
        )
    with pytest.raises(ReportError, match="25 rows of demo are more than can be told apart"):
        records_of(lab, "curves")
    # Their points then have the label of their estimator.
    assert [point["row"] for point in records_of(lab, "acr")] == ["grpo"] * 25


def test_bands_of_shares_stay_between_0_and_1(lab: Any, constant: Callable[..., Any]) -> None:
    for seed in (0, 1):
        lab.run("grpo", seed, points=constant(collapse__acr=seed, loss__policy=seed))
    metrics = ("collapse/acr", "loss/policy")
    share, loss = draw_page([collect("curves", data_of(lab), metrics=metrics)]).axes
    ends = [
        (path.vertices[:, 1].min(), path.vertices[:, 1].max())
        for axes in (share, loss)
        for path in axes.collections[0].get_paths()
    ]
    assert ends[0] == (0, 1)
    assert ends[1][0] < -5


def test_the_axis_of_a_share_ends_a_margin_past_it():
    (style,) = choose_styles(["a"], ["a"])
    band = chart.Series("a", style, [0, 1], [0.4, 0.9], low=[-0.5, 0.1], high=[1.0, 2.0])
    # The span of the means is .5: the band is shown from .4 - .3 to .9 + .3, which no share has.
    assert chart.limits([band]) == pytest.approx((0.1 - 0.055, 1.2 + 0.055))
    assert chart.limits([band], (0.0, 1.0)) == pytest.approx((0.1 - 0.045, 1 + 0.045))
