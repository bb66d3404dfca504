"""`advsweep estimators plot`: masses drawn, and the same as numbers."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from advsweep.cli import main
from advsweep.cli.commands.estimators.plot import split

PLOT = ("advsweep", "estimators", "plot")


@pytest.fixture
def plot(monkeypatch, capsys, tmp_path):
    """`plot(ARGUMENTS)` in an empty folder: stdout and stderr of a success."""

    def called(*arguments: str) -> tuple[str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", [*PLOT, *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert not exit_.value.code, printed.err
        return printed.out, printed.err

    return called


@pytest.fixture
def drawn(plot, monkeypatch):
    """The axes that a call draws, as {label: {p: value}} each."""
    figures = []
    monkeypatch.setattr(
        "advsweep.report.figures.style.save", lambda figure, path: figures.append(figure)
    )

    def called(*arguments: str) -> list[dict[str, dict[float, float]]]:
        plot(*arguments, "-o", "masses.png")
        return [
            {
                line.get_label(): dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
                for line in axes.lines
            }
            for axes in figures.pop().axes
        ]

    return called


G = 8
FADE_FAMILY = {
    # Expected masses of the mean-centred forms have 1 - 1/G; of a square, from the third
    # moment of the binomial.
    "dr_grpo": (lambda p, q: p * q * (1 - 1 / G), 1.0),
    "asym_grpo:delta=0.3": (lambda p, q: p * q * (1 - 1 / G), 0.3),
    "power_alpha:alpha=2": (
        lambda p, q: ((G - 1) * (G - 2) * p * q**2 + (G - 1) * p * q) / G**2,
        1.0,
    ),
}


def test_the_fade_family_is_drawn_as_its_closed_forms(drawn):
    success, failure, total, ratio = drawn(*FADE_FAMILY, "--compare", "--group-size", str(G))
    for spec, (form, delta) in FADE_FAMILY.items():
        label = spec.replace(":", " ")
        assert list(success[label]) == [percent / 100 for percent in range(1, 100)]
        for p, mass in success[label].items():
            assert mass == pytest.approx(form(p, 1 - p))
            assert failure[label][p] == pytest.approx(form(p, 1 - p) / delta)
            assert total[label][p] == pytest.approx(form(p, 1 - p) * (1 + 1 / delta))
            assert ratio[label][p] == pytest.approx(delta)


def test_the_rest_of_the_batch_can_have_a_rate_of_its_own(drawn):
    # β = 0 and p̂ = 0.4: α = 2.25 for every prompt, δ = 1.
    masses, *_ = drawn("fade:beta=0", "--kind", "population", "--batch-rate", "0.4")
    for p, mass in masses["$m_S$"].items():
        assert mass == pytest.approx(p * (1 - p) ** 2.25)


def test_reports_assumed_inputs(plot):
    out, err = plot("fade,t2t", "--format", "csv")
    assert err.splitlines() == [
        "Assuming lengths = 1; set it with --input lengths=...",
        "Assuming token_entropy = 0.3; set it with --input token_entropy=...",
    ]
    same, err = plot(
        "fade,t2t", "--format", "csv", "--input", "lengths=1", "--input", "token_entropy=0.3"
    )
    assert (same, err) == (out, "")


def test_populations_are_drawn_as_the_printed_forms(drawn):
    # β = 0: p̂ = p, so α = 3(1-p)/(2p) between 1 and 3; δ = 1 + 0.2 - 0.6.
    spec = "fade:beta=0:h_star=0.6"
    masses, ratio, *_ = drawn(
        f"{spec},grpo", "--kind", "population", "--input", "token_entropy=0.2"
    )
    for p, mass in masses["$m_S$"].items():
        alpha = min(max(1.5 * (1 - p) / p, 1), 3)
        assert mass == pytest.approx(p * (1 - p) ** alpha)
        assert masses["$m_F$"][p] == pytest.approx(mass / 0.6)
        assert ratio["$m_S\\,/\\,m_F$"][p] == pytest.approx(0.6)


def test_groups_are_drawn_at_their_own_rates(drawn):
    masses, _ = drawn("maxrl", "--kind", "group", "--group-size", "4")
    # q on mixed groups, 0 on homogeneous ones.
    assert masses["$m_S$"] == pytest.approx({0: 0, 0.25: 0.75, 0.5: 0.5, 0.75: 0.25, 1: 0})


def test_numbers_instead_of_a_picture(plot):
    out, err = plot("passk_loo:k=2", "reinforce", "--group-size", "4", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert err == ""
    assert [row["estimator"] for row in rows] == ["passk_loo k=2"] * 99 + ["reinforce"] * 99
    for row in rows[:99]:
        p = float(row["p"])
        assert float(row["m_S"]) == pytest.approx(p * (1 - p))
        assert (float(row["m_F"]), row["ratio"]) == (0, "")
    whole = json.loads(plot("reinforce", "--group-size", "4", "--format", "json")[0])
    assert whole[29] == {
        "estimator": "reinforce",
        "kind": "expected",
        "group_size": 4,
        "p": 0.3,
        "m_S": pytest.approx(0.3),
        "m_F": 0,
        "sum": pytest.approx(0.3),
        "ratio": None,
    }
    assert len(plot("grpo")[0].splitlines()) == 100


def test_references_are_given_by_their_solve_rate(plot):
    # m_S - m_F = 0.28 p (1-p₀) - 0.2 q p₀, as grpo's own are equal.
    for row in json.loads(plot("aapo", "--input", "ref_rewards=0.4", "--format", "json")[0]):
        difference = 0.28 * row["p"] * 0.6 - 0.2 * (1 - row["p"]) * 0.4
        assert row["m_S"] - row["m_F"] == pytest.approx(difference)


def test_an_input_is_for_those_that_read_it(plot):
    rows = json.loads(plot("grpo,fade", "--input", "token_entropy=0.3", "--format", "json")[0])
    assert {row["estimator"] for row in rows} == {"grpo", "fade"}


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_file_is_written(suffix, plot, tmp_path):
    out, err = plot("grpo", "-o", f"masses.{suffix}")
    assert out == f"masses.{suffix}\n"
    assert err == f"Wrote masses.{suffix}.\n"
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert (tmp_path / f"masses.{suffix}").read_bytes().startswith(start)
    out, _ = plot("grpo", "-o", f"masses.{suffix}", "--format", "csv")
    assert out.startswith("estimator,kind")


def test_names_are_split_outside_of_brackets():
    assert split(" a,b:k=[1,2],  c:base={name:x,y:z}", ", ") == [
        "a",
        "b:k=[1,2]",
        "c:base={name:x,y:z}",
    ]
    assert split("c:base={name:x,y:z}:alpha=1", ":") == ["c", "base={name:x,y:z}", "alpha=1"]


def test_options_reach_the_base(plot):
    spec = "a_grae:base={name:grpo,std:sample}:alpha=0.5"
    rows = json.loads(plot(spec, "--kind", "group", "--group-size", "4", "--format", "json")[0])
    # ω = p = 1/2 = α; A-GRAE's weight is (1/2)/√½ and σ the sample's, √(4/3) of the population's.
    assert rows[2]["m_S"] == pytest.approx(0.5 * math.sqrt(0.5) * math.sqrt(3 / 4))
    assert rows[2]["ratio"] == pytest.approx(1)


MISTAKES = {
    "unknown name": (["grop"], ["grop", "grpo"]),
    "no name": ([","], ["at least one estimator"]),
    "unknown option": (["grpo:epz=1"], ["epz", "eps"]),
    "option without a value": (["grpo:eps"], ["'eps'", "FIELD=VALUE"]),
    "rate of the batch": (["fade", "--batch-rate", "1.2"], ["batch_rate", "[0, 1]", "1.2"]),
    "input that none reads": (["grpo", "--input", "lengths=1"], ["lengths", "grpo"]),
    "several numbers for one": (
        ["fade", "--input", "token_entropy=0.2,0.3"],
        ["token_entropy", "one number", "2"],
    ),
    "suffix": (["grpo", "-o", "masses.gif"], [".gif", ".png, .svg, .pdf"]),
    "folder": (["grpo", "-o", "nowhere/masses.png"], ["nowhere", "make it"]),
    "group too small": (["rloo", "--group-size", "1"], ["rloo", "at least 2"]),
    "group that does not divide": (["passk_loo:k=3"], ["passk_loo", "multiple of 3"]),
    "group too large for its orders": (
        ["passk_loo:k=4", "--group-size", "20"],
        ["passk_loo", "1 to 16", "20"],
    ),
    "population with an order": (
        ["passk_loo:k=4", "--kind", "population"],
        ["passk_loo", "expected or group"],
    ),
    "no use of rewards": (
        ["rent"],
        ["rent", "does not read rewards"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, refused):
    arguments, words = MISTAKES[mistake]
    refused(words, *PLOT[1:], *arguments)
