"""`advsweep estimators`: the listing, and what `show` and `apply` compute."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from advsweep.cli import main
from advsweep.cli.commands.estimators.describe import markdown_table
from advsweep.estimators import ESTIMATORS, GroupBatch, estimator_names

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "own_estimator.md"
Run = Callable[..., tuple[str, str]]
HELD = {"paper", "released code", "ours", "paper, ours", "released code, ours"}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Run:
    """`advsweep estimators ARGUMENTS` in an empty folder: stdout and stderr of a success."""

    def called(*arguments: str) -> tuple[str, str]:
        # In this process, as importing torch each time would take most of the time.
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["advsweep", "estimators", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert not exit_.value.code, printed.err
        return printed.out, printed.err

    return called


# The listing

SPECIFIED = """
reinforce grpo dr_grpo rloo gpg min_baseline relu skew_r power_norm power_alpha easy_power
asym_power_alpha asym_grpo maxrl binary_contrastive t2t passk_loo passk_analytic passk_mix
asym_re quantile mc_grpo softmax log_mean_exp ha_dw psr nsr w_reinforce positive_dominant
negative_dominant hard_focused easy_focused a_grae aapo grpo_n gspo gspo_n avspo filter_drop
dapo fade dcpo grpo_lead intuitor rent mean_grpo asym_rl lme median pass_at_k_tang
pass_at_k_chen asym_norm
"""


def test_every_name_is_listed(run):
    listed = json.loads(run("--format", "json")[0])
    names = [name for e in listed for name in (e["name"], *e["aliases"])]
    assert sorted(names) == sorted({*estimator_names(), *ESTIMATORS.aliases()})
    assert set(names) >= set(SPECIFIED.split())
    assert [e["family"] for e in listed] == sorted(e["family"] for e in listed)
    for output in ("table", "csv", "markdown"):
        text = run("--format", output)[0]
        assert all(name in text for name in SPECIFIED.split()), output


def test_lists_names_without_a_definition_below_the_table(run):
    out, err = run()
    for name in ESTIMATORS.unavailable():
        assert name in err
    assert "ngrpo" not in out
    for output in ("csv", "json", "markdown"):
        assert run("--format", output)[1] == ""


def test_bars_are_escaped_in_markdown(monkeypatch):
    monkeypatch.setattr(ESTIMATORS.get("relu"), "formula", "Aᵢ = |x|")
    [row] = [line for line in markdown_table().splitlines() if "`relu`" in line]
    assert "| Aᵢ = \\|x\\| |" in row


def test_the_listing_says_what_each_is_held_to(run):
    listed = {e["name"]: e for e in json.loads(run("--format", "json")[0])}
    assert all(e["held"] in HELD for e in listed.values())
    assert listed["grpo"]["held"] == "paper"
    assert listed["w_reinforce"]["held"] == "released code"
    assert listed["t2t"]["held"] == "paper, ours"
    assert listed["avspo"]["released"] == ["preset=released"]
    assert "| paper, ours; `preset=released` |" in run("--format", "markdown")[0]


# One estimator


@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_can_be_shown(name, run):
    shown = json.loads(run("show", name, "--format", "json")[0])
    assert shown["name"] == name
    assert shown["description"]
    assert shown["departures"]
    assert "Departures" not in shown["description"]
    assert set(shown["inputs"]) == set(shown["needs"])
    for row in shown["degenerate"]:
        assert (row["advantages"] is None) != (row["refused"] is None)
    assert shown["masses"]["refused"] is None
    text = run("show", name)[0]
    for word in (shown["formula"], shown["paper"], "departures from the source", "group size"):
        assert word in text


def degenerate(run: Run, *arguments: str) -> dict[str, list[float] | str]:
    shown = json.loads(run("show", *arguments, "--format", "json")[0])
    return {
        row["group"]: row["refused"] if row["advantages"] is None else row["advantages"]
        for row in shown["degenerate"]
    }


def test_degenerate_groups_are_computed(run):
    # δ = 0.01 below the mean, whatever it is; with another δ another number.
    for delta, options in ((0.01, ()), (0.5, ("-o", "delta=0.5"))):
        found = degenerate(run, "asym_re", *options)
        assert found["all wrong"] == found["all correct"] == [-delta] * 4
        assert found["all 0.9"] == pytest.approx([-delta] * 4)
        assert found["one rollout, correct"] == [-delta]
    found = degenerate(run, "binary_contrastive")
    assert found["all wrong"] == [0] * 4
    assert found["all correct"] == [1] * 4
    assert "0 and 1 only, got 0.9" in found["all 0.9"]
    # Alone in a batch ACR = 1, so K = 4.
    found = degenerate(run, "avspo")
    assert found["all wrong"] == pytest.approx([-0.8451542547] * 4, rel=1e-6)
    assert "at least 2 rollouts" in degenerate(run, "rloo")["one rollout, wrong"]
    assert degenerate(run, "passk_loo", "-o", "k=3")["all wrong"] == [0] * 6


def test_show_tells_limits_departures_and_dropped_groups(run):
    assert "departures from the source: none.\n" in run("show", "relu")[0]
    assert "departures from the source: C = 1 as in Algorithm 1" in run("show", "power_alpha")[0]
    text = run("show", "passk_loo", "-o", "k=3")[0]
    assert "group size: at least 3, a multiple of 3" in text
    assert "order of the rollouts" in text
    for name, rewards in (
        ("grpo", "any finite numbers"),
        ("a_grae", "means of a group in [0, 1]"),
        ("psr", "0 and 1 only"),
        ("rent", "not read"),
    ):
        assert f"rewards: {rewards}\n" in run("show", name)[0]
    assert run("show", "filter_drop")[0].count("left out of the update") >= 5
    assert "tau 0.5, previous_mean null" in run("show", "avspo")[0]
    assert "token_entropy 0.3" in run("show", "fade")[0]


def test_show_by_an_alias(run):
    assert run("show", "mean_grpo")[0].startswith("dr_grpo (also mean_grpo): ")


# Applied to rewards


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_apply_prints_advantages_and_masses(run):
    # δ = 0.5: 1/2 and -1/2 / 0.5; m_S = 1/4, m_F = 1/2. Then 3/4 and -1/4 / 0.5.
    given = ("apply", "asym_grpo", "--rewards", "1,0,0,1;0,0,0,1", "-o", "delta=0.5")
    found = json.loads(run(*given, "--format", "json")[0])
    assert found["estimator"] == {"name": "asym_grpo", "delta": 0.5, "scale": "mean"}
    assert found["advantages"] == [[0.5, -1, -1, 0.5], [-0.5, -0.5, -0.5, 0.75]]
    assert found["masses"] == [
        {"success": 0.25, "failure": 0.5},
        {"success": 0.1875, "failure": 0.375},
    ]
    table = rows(run(*given, "--format", "csv")[0])
    assert [float(row["advantage"]) for row in table] == [
        value for row in found["advantages"] for value in row
    ]
    assert table[7] == {
        "group": "2", "rollout": "4", "reward": "1.0", "advantage": "0.75", "keep": "true"
    }  # fmt: skip
    text = run(*given)[0]
    assert "0.1875" in text
    assert "keep" not in text


def test_apply_leaves_missing_rollouts_out(run):
    found = json.loads(run("apply", "grpo", "--rewards", "1,-,0", "--format", "json")[0])
    assert found["rewards"] == [[1, None, 0]]
    assert found["advantages"] == [[1, 0, -1]]
    assert found["keep"] == [[True, False, True]]
    table = rows(run("apply", "grpo", "--rewards", "1,-,0", "--format", "csv")[0])
    assert [row["reward"] for row in table] == ["1.0", "", "0.0"]
    assert "keep" not in run("apply", "grpo", "--rewards", "1,-,0")[0]
    assert "keep" in run("apply", "filter_drop", "--rewards", "1,0;0,0")[0]


@pytest.mark.parametrize(("precision", "shown"), [("float32", 0.333333), ("float64", 1 / 3)])
def test_apply_rounds_what_depends_on_the_processor(run, precision, shown):
    # Vector units round the last digit of a division differently: 0.9999999999999998 is 1.
    given = ("apply", "reinforce", "--rewards", "0.9999999999999998,0.33333333333333333")
    given += ("--precision", precision)
    found = json.loads(run(*given, "--format", "json")[0])
    assert found["advantages"] == [[1, pytest.approx(shown, rel=1e-12)]]
    assert found["rewards"] == found["advantages"]
    table = rows(run(*given, "--format", "csv")[0])
    assert [float(row["advantage"]) for row in table] == found["advantages"][0]


def test_apply_takes_successes_of_graded_rewards_from_the_mean(run):
    # p = 0.5: d = 0.4, -0.1, -0.3.
    found = json.loads(run("apply", "dr_grpo", "--rewards", "0.9,0.4,0.2", "--format", "json")[0])
    assert found["masses"] == [pytest.approx({"success": 0.4 / 3, "failure": 0.4 / 3})]


def test_apply_in_the_precision_of_trainers(run):
    # In float32 the mean of eight 0.9 is not 0.9, and TRL's formula takes the rest for signal.
    arguments = ("apply", "grpo", "--rewards", ",".join(["0.9"] * 8), "-o", "preset=trl")
    single = json.loads(run(*arguments, "--precision", "float32", "--format", "json")[0])
    assert all(abs(value) == pytest.approx(6e-4, rel=0.1) for value in single["advantages"][0])
    double = json.loads(run(*arguments, "--format", "json")[0])
    assert all(abs(value) < 1e-11 for value in double["advantages"][0])


def test_apply_with_other_inputs(run):
    def advantages(*arguments: str) -> list[list[float]]:
        return json.loads(run("apply", *arguments, "--format", "json")[0])["advantages"]

    # R = 0.1 L of a wrong group: the longest gains.
    lengths = ("--input", "lengths=3,9;4,4")
    assert advantages("t2t", "--rewards", "0,0;0,0", *lengths) == [
        pytest.approx([-1, 1]),
        [0, 0],
    ]
    # 0 and the margin: clip(0 - 1, -0.2) and clip(1 - 0, 0.28) with one number for all.
    assert advantages("aapo", "--rewards", "0,0", "--input", "ref_rewards=1") == [[-0.2, -0.2]]
    assert advantages("aapo", "--rewards", "1,1", "--input", "ref_rewards=0,1") == [[0.28, 0]]
    # ω = 3/4; the rates of the two groups given as 1/4 and 1, at the second no reweighting:
    # 1 · (ω/(2√¼) + (1-ω)/(2√¾)), and ω for its success.
    found = advantages("a_grae", "--rewards", "1,0;1,1", "--input", "solve_rates=0.25;1")
    weight = 0.75 + 0.25 / (2 * 0.75**0.5)
    assert found[0] == pytest.approx([0.75 * weight, -weight])
    counters = ("--input", "step=10", "--input", "total_steps=10")
    found = advantages("fade", "--rewards", "1,0", "-o", "mode=log_schedule", *counters)
    # (1-p)^(1.917-1) (r-p), over 0.802 for the failure.
    assert found == [pytest.approx([0.5**1.917, -(0.5**1.917) / 0.802])]


def test_apply_with_prompts_and_answers(run):
    def advantages(*arguments: str) -> list[list[float]]:
        return json.loads(run("apply", *arguments, "--format", "json")[0])["advantages"]

    # Two visits of one prompt, as in the worked values of `dcpo`; then the first of two prompts.
    batch = ("dcpo", "--rewards", "1,0,0,0;1,1,0,0")
    same = advantages(*batch, "--input", "prompt_ids=1;1")
    assert same[0] == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert same[1] == pytest.approx([0.9967472229] * 2 + [-0.7712534145] * 2)
    assert advantages(*batch, "--input", "prompt_ids=7") == [pytest.approx(row) for row in same]
    other = advantages(*batch, "--input", "prompt_ids=1;2")
    assert other[1] == pytest.approx([0.75**0.5] * 2 + [-(0.75**0.5)] * 2)

    # Three rewards of -0.3 and, without an answer, -7: 1.5 and -0.5 of the sample σ.
    given = ("rent", "--rewards", "1,0,0,1", "-o", "preset=released")
    inputs = ("--input", "token_entropy_exact=0.3", "--input", "answered=1,0,1,1")
    assert advantages(*given, *inputs) == [pytest.approx([0.5, -1.5, 0.5, 0.5], abs=1e-5)]


def test_plot_of_estimators_with_further_inputs(run):
    given = ("plot", "dcpo,grpo_lead,grpo", "--group-size", "8", "--format", "csv")
    given += ("--input", "lengths=100", "--input", "prompt_ids=0")
    table = rows(run(*given)[0])
    assert {row["estimator"] for row in table} == {"dcpo", "grpo_lead", "grpo"}
    assert all(float(row["m_S"]) >= 0 for row in table)


def test_apply_gives_means_over_tokens(run):
    # dr_grpo: 1/2 and -1/2; the bonus of every token is .4 x .5 and .4 x .1.
    inputs = ("--input", "lengths=3,5", "--input", "token_entropies=0.5,0.1")
    text = run(*SHAPED, "-o", "base=dr_grpo", *inputs, "--format", "json")[0]
    assert json.loads(text)["advantages"] == [pytest.approx([0.7, -0.46])]


def test_plot_of_turns(run):
    given = ("plot", "rloo", "--group-size", "4", "--turns", "3", "--format", "csv")
    table = {(row["estimator"], row["p"]): row for row in rows(run(*given)[0])}
    for turn in (1, 2, 3):
        row = table[f"rloo, turn {turn}", "0.3"]
        assert float(row["m_S"]) == pytest.approx(0.3 * 0.7**turn)
    # Every rollout of four failed: .7^4.
    table = rows(run(*given, "--retry-if", "all")[0])
    (row,) = (r for r in table if r["estimator"] == "rloo, turn 2" and r["p"] == "0.3")
    assert float(row["m_F"]) == pytest.approx(0.21 * 0.7**4)


def test_show_tells_paper_released_code_and_ours_apart(run):
    text = run("show", "avspo")[0]
    assert "defaults held to: paper, ours\n" in text
    assert "the authors' released code (-o preset=released): another algorithm." in text
    assert "departures from the source: the paper prints no ε; 1e-8 is ours." in text
    assert "Released code" not in text
    shown = json.loads(run("show", "aapo", "--format", "json")[0])
    assert shown["held"] == "paper"
    assert shown["released_options"] == ["preset=released_1_5b", "preset=released_7b"]
    assert shown["released"].startswith("two scripts")
    assert "released" not in shown["description"].lower()
    assert "released code" not in run("show", "relu")[0]


def test_apply_with_options_of_a_base(run):
    def shown(*arguments: str) -> dict[str, object]:
        given = ("apply", "positive_dominant", "--rewards", "1,0", "--format", "json")
        return json.loads(run(*given, *arguments)[0])

    # d = 1/2 and -1/2, the first ten times as much.
    assert shown("-o", "base=dr_grpo")["advantages"] == [[5, -0.5]]
    assert shown("-o", "base.name=dr_grpo")["advantages"] == [[5, -0.5]]
    # The default base with an option of its own; sample σ is √½.
    sample = shown("-o", "base.std=sample", "-o", "beta=2")
    assert sample["estimator"]["base"]["name"] == "grpo"
    assert sample["advantages"] == [pytest.approx([2**0.5, -(0.5**0.5)])]
    assert shown("-o", "base={name:grpo,std:sample}", "-o", "beta=2") == sample


def test_apply_repeats_with_memory(run):
    # All wrong: ACR 1 exceeds τ, which then sinks by 0.01 (1 - 0.5) from the second call on.
    given = ("apply", "avspo", "-o", "threshold_rule=piecewise")
    given = (*given, "--rewards", "0,0,0,0", "--format", "json")
    taus = [json.loads(run(*given, "--repeat", str(n))[0])["info"]["tau"] for n in (1, 2, 3)]
    assert taus == pytest.approx([0.5, 0.5, 0.495])


# Mistakes

APPLY = ["apply", "grpo", "--rewards"]
SHAPED = ["apply", "entropy_shaped", "--rewards", "1,0"]
RENT = ["apply", "rent", "--rewards", "1,0", "-o", "preset=released"]
MISTAKES = {
    "unknown name": (["show", "grop"], ["grop", "grpo"]),
    "name without a definition": (["show", "ngrpo"], ["ngrpo", "formula and constants"]),
    "unknown option": ([*APPLY, "1,0", "-o", "epz=1"], ["epz", "eps"]),
    "option out of range": (
        ["apply", "asym_grpo", "--rewards", "1,0", "-o", "delta=0"],
        ["delta", "> 0", "0"],
    ),
    "option of the wrong type": (
        ["apply", "asym_grpo", "--rewards", "1,0", "-o", "delta=a"],
        ["delta", "a number", "'a'"],
    ),
    "option without a value": ([*APPLY, "1,0", "-o", "eps"], ["eps", "FIELD=VALUE"]),
    "option with two values": ([*APPLY, "1,0", "-o", "eps=0,1"], ["eps=0,1", "one value"]),
    "ragged rewards": ([*APPLY, "1,0;1"], ["same length", "2, 1"]),
    "no rewards": ([*APPLY, ""], ["--rewards", "got nothing"]),
    "text in rewards": ([*APPLY, "1,x"], ["--rewards", "'x'"]),
    "NaN in rewards": ([*APPLY, "1,nan"], ["finite"]),
    "group too small": (["apply", "rloo", "--rewards", "1"], ["rloo", "at least 2"]),
    "graded where binary": (["apply", "psr", "--rewards", "0.5,1"], ["psr", "0 and 1", "0.5"]),
    "missing input": (["apply", "fade", "--rewards", "1,0"], ["fade", "--input token_entropy="]),
    "unknown input": ([*APPLY, "1,0", "--input", "lenght=1"], ["lenght", "lengths"]),
    "input without a value": ([*APPLY, "1,0", "--input", "lengths"], ["NAME=VALUES"]),
    "input that is not read": ([*APPLY, "1,0", "--input", "lengths=1"], ["lengths", "grpo"]),
    "input of another shape": (
        ["apply", "t2t", "--rewards", "1,0", "--input", "lengths=1,2,3"],
        ["lengths", "[1, 2]", "[1, 3]"],
    ),
    "several rates of a group": (
        ["apply", "a_grae", "--rewards", "1,0", "--input", "solve_rates=0.5,0.5"],
        ["solve_rates", "one number per group"],
    ),
    "no prompts": (
        ["apply", "dcpo", "--rewards", "1,0"],
        ["dcpo", "prompt_ids", "--input prompt_ids="],
    ),
    "several prompts of a group": (
        ["apply", "dcpo", "--rewards", "1,0", "--input", "prompt_ids=1,2"],
        ["prompt_ids", "one number per group"],
    ),
    "prompts that are no numbers": (
        ["apply", "dcpo", "--rewards", "1,0", "--input", "prompt_ids=a"],
        ["prompt_ids", "'a'"],
    ),
    "no answers": (
        [*RENT, "--input", "token_entropy_exact=0.3"],
        ["rent", "--input answered="],
    ),
    "answers that are neither": (
        [*RENT, "--input", "token_entropy_exact=0.3", "--input", "answered=0.5"],
        ["answered", "1 or 0", "0.5"],
    ),
    "token entropies of another shape": (
        [*SHAPED, "--input", "lengths=1,2", "--input", "token_entropies=1,2,3"],
        ["token_entropies", "[1, 2, 'tokens']", "[1, 3, 2]"],
    ),
    "turns of one group": (
        ["plot", "rloo", "--turns", "2", "--kind", "group"],
        ["--turns", "expected", "group"],
    ),
    "an unknown reason to retry": (
        ["plot", "rloo", "--turns", "2", "--retry-if", "some"],
        ["retry_if", "first, all, any", "'some'"],
    ),
    "a step before the first": (
        ["apply", "fade", "--rewards", "1,0", "--input", "step=0"],
        ["step", ">= 1", "'0'"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, refused):
    arguments, words = MISTAKES[mistake]
    refused(words, "estimators", *arguments)


def test_the_estimator_of_the_tutorial_works_in_a_registry(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "halved_of_tutorial.py").write_text(
        text.split('```python title="halved.py"\n')[1].split("```")[0], encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from advsweep.registry import Registry

    estimator = Registry("estimator", {"halved": "halved_of_tutorial"}).build("halved", scale=0.25)
    assert estimator(GroupBatch(rewards=torch.tensor([[1.0, 0.0]]))).tolist() == [[0.125, -0.125]]
