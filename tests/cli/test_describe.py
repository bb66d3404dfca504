"""`advsweep describe`: estimators, applied and drawn; tasks; presets; other components."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest

from advsweep.objectives import OBJECTIVES

JSON = ("--format", "json")
CSV = ("--format", "csv")


@pytest.fixture
def run(succeeds, monkeypatch, tmp_path):
    """`advsweep describe ARGUMENTS` in an empty folder: stdout and stderr of a success."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: succeeds("describe", *arguments)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# One estimator


def degenerate(run, *arguments: str) -> dict[str, list[float] | str]:
    shown = json.loads(run(*arguments, *JSON)[0])
    return {
        row["group"]: row["refused"] if row["advantages"] is None else row["advantages"]
        for row in shown["degenerate"]
    }


def test_degenerate_groups_are_computed(run):
    # δ = 0.01 below the mean, whatever it is; with another δ another number.
    for delta, options in ((0.01, ()), (0.5, ("--set", "delta=0.5"))):
        found = degenerate(run, "asym_re", *options)
        assert found["all wrong"] == found["all correct"] == [-delta] * 4
        assert found["one rollout, correct"] == [-delta]
    found = degenerate(run, "binary_contrastive")
    assert found["all correct"] == [1] * 4
    assert "0 and 1 only, got 0.9" in found["all 0.9"]
    # Alone in a batch ACR = 1, so K = 4.
    assert degenerate(run, "avspo")["all wrong"] == pytest.approx([-0.8451542547] * 4, rel=1e-6)
    assert degenerate(run, "passk_loo", "--set", "k=3")["all wrong"] == [0] * 6


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            ["passk_loo", "--set", "k=3"],
            ["at least 3, a multiple of 3\n"],
        ),
        (["grpo"], ["any finite numbers\n"]),
        (["filter_drop"], ["left out of the update"]),
        (["avspo"], ["the authors' released code (--set preset=released): another algorithm."]),
        (["estimator=dr_grpo"], ["dr_grpo (also mean_grpo): "]),
    ],
)
def test_the_page_of_an_estimator(run, arguments, texts):
    out, _ = run(*arguments)
    for text in texts:
        assert text in out
    assert "Released code" not in out


# The turns of four episodes: A B C and A C succeed, A B B and A D do not.


def turns_of(run, *arguments: str) -> dict[tuple[int, int], float]:
    described = json.loads(run(*arguments, *JSON)[0])["episodes"]
    assert described["refused"] is None
    return {(row["episode"], row["turn"]): row["advantage"] for row in described["turns"]}


def test_an_estimator_of_turns_shows_those_of_four_episodes(run):
    # Less the mean of the others with the turn: of 1, 0, 0; and of 0 at the third.
    first, third = pytest.approx(2 / 3), 1
    found = turns_of(run, "turn_return")
    assert [found[1, 1], found[3, 2], found[1, 3], found[2, 3]] == [first, first, third, -third]
    # Only two come to B, one of them twice: 1 less the mean of 1, 0, 0.
    assert turns_of(run, "by_turn:base=dr_grpo:group=state")[1, 2] == first
    assert "episode  reward  turn 1" in run("turn_return")[0]
    assert "A, V 0.5: 0 " in run("vine")[0]
    # Rewards of turns are part of the episode's.
    assert "1.5     A, r 0.25: " in run("turn_grpo")[0]


@pytest.mark.parametrize("key", ["base", "base.name"])
def test_the_base_of_an_estimator_may_be_a_file(run, tmp_path, key):
    idea = "def advantages(rewards):\n    return rewards - rewards.mean(dim=1, keepdim=True)\n"
    (tmp_path / "idea.py").write_text(idea, encoding="utf-8")
    given = ("--rewards", "1,0,0,0", "--input", "lengths=1", *JSON)
    found = json.loads(run("by_turn", "--set", f"{key}=idea.py", *given)[0])
    # 1 - 1/4 and 0 - 1/4.
    assert found["advantages"] == [[0.75, -0.25, -0.25, -0.25]]
    assert found["estimator"]["base"]["name"].endswith("idea")


def test_other_estimators_show_no_episodes(run):
    assert json.loads(run("grpo", *JSON)[0])["episodes"] is None
    assert "episode" not in run("grpo")[0]


def test_turns_are_drawn_below_the_masses(run, tmp_path):
    run("turn_return,grpo", "-o", "turns.svg")
    drawn = (tmp_path / "turns.svg").read_text(encoding="utf-8")
    run("dr_grpo,grpo", "-o", "masses.svg")
    others = (tmp_path / "masses.svg").read_text(encoding="utf-8")
    assert "reward of the episode" in drawn
    assert "reward of the episode" not in others


# Applied to rewards


def test_rewards_give_advantages_and_masses(run):
    # δ = 0.5: 1/2 and -1/2 / 0.5; m_S = 1/4, m_F = 1/2. Then 3/4 and -1/4 / 0.5.
    given = ("asym_grpo", "--rewards", "1,0,0,1;0,0,0,1", "--set", "delta=0.5")
    found = json.loads(run(*given, *JSON)[0])
    assert found["estimator"] == {"name": "asym_grpo", "delta": 0.5, "scale": "mean"}
    assert found["advantages"] == [[0.5, -1, -1, 0.5], [-0.5, -0.5, -0.5, 0.75]]
    assert found["masses"] == [
        {"success": 0.25, "failure": 0.5},
        {"success": 0.1875, "failure": 0.375},
    ]
    table = rows(run(*given, *CSV)[0])
    assert [float(row["advantage"]) for row in table] == [
        value for row in found["advantages"] for value in row
    ]
    text = run(*given)[0]
    assert "0.1875" in text
    assert "keep" not in text


def test_missing_rollouts_are_left_out(run):
    found = json.loads(run("grpo", "--rewards", "1,-,0", *JSON)[0])
    assert found["rewards"] == [[1, None, 0]]
    assert found["advantages"] == [[1, 0, -1]]
    assert found["keep"] == [[True, False, True]]
    table = rows(run("grpo", "--rewards", "1,-,0", *CSV)[0])
    assert [row["reward"] for row in table] == ["1.0", "", "0.0"]
    assert "keep" not in run("grpo", "--rewards", "1,-,0")[0]
    assert "keep" in run("filter_drop", "--rewards", "1,0;0,0")[0]


APPLIED = {
    # R = 0.1 L of a wrong group: the longest gains.
    "lengths": (["t2t", "0,0;0,0", "lengths=3,9;4,4"], [[-1, 1], [0, 0]]),
    # 0 and the margin: clip(1 - 0, 0.28) and clip(1 - 1, 0.28).
    "references": (["aapo", "1,1", "ref_rewards=0,1"], [[0.28, 0]]),
    # Two visits of one prompt, as in the worked values of `dcpo`.
    "one prompt": (
        ["dcpo", "1,0,0,0;1,1,0,0", "prompt_ids=1;1"],
        [[1.5, -0.5, -0.5, -0.5], [0.9967472229] * 2 + [-0.7712534145] * 2],
    ),
    # (1-p)^(1.917-1) (r-p), over 0.802 for the failure.
    "counters": (
        ["fade:mode=log_schedule", "1,0", "step=10", "total_steps=10"],
        [[0.5**1.917, -(0.5**1.917) / 0.802]],
    ),
    # dr_grpo: 1/2 and -1/2; the bonus of every token is .4 x .5 and .4 x .1.
    "tokens": (
        ["entropy_shaped:base=dr_grpo", "1,0", "lengths=3,5", "token_entropies=0.5,0.1"],
        [[0.7, -0.46]],
    ),
    # Two turns before one state, 1 and 0, and one alone: ±1/2 and the others' mean, 1/3.
    "states": (
        ["gigpo:f_norm=1", "1,0,0", "lengths=1", "turn_states=4,4,5"],
        [[2 / 3 + 1 / 2, -1 / 3 - 1 / 2, -1 / 3]],
    ),
    # d = √½ and -√½ with σ of the sample, the first twice as much.
    "an option of a base": (
        ["positive_dominant:base.std=sample:beta=2", "1,0"],
        [[2**0.5, -(0.5**0.5)]],
    ),
    "a base in braces": (
        ["positive_dominant:base={name:grpo,std:sample}:beta=2", "1,0"],
        [[2**0.5, -(0.5**0.5)]],
    ),
}


@pytest.mark.parametrize("case", APPLIED)
def test_other_inputs_and_options(run, case):
    (name, rewards, *inputs), expected = APPLIED[case]
    given = [word for text in inputs for word in ("--input", text)]
    found = json.loads(run(name, "--rewards", rewards, *given, *JSON)[0])
    assert found["advantages"] == [pytest.approx(row, abs=1e-5) for row in expected]


# Masses


def test_masses_are_those_of_closed_forms(run):
    table = rows(run("dr_grpo,asym_grpo:delta=0.3", *CSV)[0])
    assert [row["estimator"] for row in table] == ["dr_grpo"] * 99 + ["asym_grpo delta=0.3"] * 99
    # p (1 - p) (1 - 1/G) at p = .5, over δ.
    assert float(table[49]["m_S"]) == pytest.approx(7 / 32)
    assert float(table[148]["m_F"]) == pytest.approx(7 / 32 / 0.3)
    # 9 rollouts are the smallest group of at least 8 that k = 3 divides.
    whole = json.loads(run("reinforce", "passk_loo:k=3", *JSON)[0])
    assert whole[29] == {
        "estimator": "reinforce",
        "group_size": 9,
        "p": 0.3,
        "m_S": pytest.approx(0.3),
        "m_F": 0,
        "sum": pytest.approx(0.3),
        "ratio": None,
    }


def test_masses_are_drawn(run, tmp_path):
    assert run("grpo,dr_grpo", "-o", "masses.svg") == ("", "Wrote masses.svg.\n")
    assert (tmp_path / "masses.svg").read_bytes().startswith(b"<?xml")


# Tasks and others


@pytest.fixture
def sums(tmp_path):
    path = tmp_path / "sums.jsonl"
    lines = [{"question": f"{i} + {i}?", "answer": f"#### {2 * i}"} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_task_has_its_problems(run, sums, tmp_path):
    data = ("--set", f"data={sums}", "--set", "held_out=2")
    text, _ = run("gsm8k", *data)
    assert text.startswith("train: 4 problems\nheld-out: 2 problems\n")
    assert text.count("--- gold: ") == 4
    record = json.loads(run("file", *data, *JSON)[0])
    assert record["settings"]["name"] == "dataset"
    assert record["splits"]["train"]["levels"] == {"0": 4}
    assert set(record["splits"]["train"]["examples"][0]["gold"]) == {"answer"}
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "mine.yaml").write_text(
        f"name: file\ndata: {sums}\nheld_out: 2\nverifier: numeric\nprompt: 'Q: {{question}}'\n"
    )
    assert "Q: " in run("mine", "--config-dir", "conf")[0]


def test_a_task_has_its_floors(run):
    text, _ = run("countdown", "--set", "levels=[0]")
    assert "\nfloor guess, uniform expressions over the given digits: pass@1 0." in text
    # 16 of 64 behaviours are correct.
    record = json.loads(run("task=bandit", "--set", "correct=16", *JSON)[0])
    assert record["floors"]["guess"]["pass@1"] == pytest.approx(0.25)


def test_presets_and_components(run):
    assert "clipped aggregation=token_mean" in run("method=dapo", *CSV)[0]
    assert json.loads(run("demo", *JSON)[0])[0]["task"] == "routes"
    out, _ = run("transformers")
    assert out.startswith("generation=transformers\n")
    assert "generation.temperature" in out


# Objectives


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_every_objective_can_be_described(name, run):
    shown = json.loads(run(f"objective={name}", *JSON)[0])
    assert shown["name"] == name
    assert shown["description"]
    assert shown["source"] != "not named"
    first_line = OBJECTIVES.get(name).formula.splitlines()[0]
    assert f"\n\n    {first_line}\n" in shown["description"]
    assert "\n\nWhen to use it: " in shown["description"]
    assert all(math.isfinite(w["A = 1"]) and math.isfinite(w["A = -1"]) for w in shown["weights"])


def test_a_loss_that_treats_few_tokens_apart_shows_what_most_get(run):
    # Alone in a minibatch a token has its largest covariance, and KL-Cov would penalise it.
    assert "0.5    0.5    -0.5" in run("objective=kl_cov")[0]
    # If all tokens are penalised: w A - penalty sgn(d), with d = log .5.
    text = run("objective=kl_cov", "--set", "fraction=1")[0]
    assert "0.5    0.6    -0.4" in text


def test_a_name_of_a_method_and_of_a_loss_says_how_they_differ(run):
    method = " ".join(run("method=gspo")[0].split())
    assert "objective=gspo is the loss alone, with the clip of GSPO's own paper" in method
    objective = " ".join(run("objective=gspo")[0].split())
    assert "method=gspo trains it as the two-stage view" in objective


def test_the_page_and_the_figure_of_objectives(run, tmp_path):
    out, _ = run("clipped", "--set", "kl_coef=0.1")
    assert out.startswith("clipped\n\nClipped surrogate of PPO")
    assert "\nsource: Schulman et al. 2017" in out
    # Beyond the clip only the penalty is left: -0.1 (1 - 1/1.35).
    assert "\n1.35   -0.0259259" in out
    out, _ = run("clipped,cross_entropy")
    assert out.splitlines()[0].split() == ["advantage", "ratio", "clipped", "cross_entropy"]
    run("clipped,adaptive_clipped", "-o", "weights.svg")
    drawn = (tmp_path / "weights.svg").read_text(encoding="utf-8")
    assert "ratio π/π₀" in drawn
    assert "$" not in drawn
    (tmp_path / "objective").mkdir()
    (tmp_path / "objective" / "dual.yaml").write_text("name: clipped\ndual_clip: 3.0\n")
    out, _ = run("dual", "--config-dir", ".")
    assert out.startswith("dual (clipped)\n")
    assert re.search(r"^dual_clip +a number +3.0 ", out, re.MULTILINE)
    assert re.search(r"^4.5 +0 +0$", out, re.MULTILINE)


APPLY = ["grpo", "--rewards"]
MISTAKES = {
    "unknown name": (["grop"], ["grop", "grpo"]),
    "rewards of a task": (["countdown", "--rewards", "1"], ["with estimators", "task 'countdown'"]),
    "options of a method": (["method=dapo", "--set", "a=1"], ["--set with tasks", "'dapo'"]),
    "name without a definition": (["ngrpo"], ["ngrpo", "formula and constants"]),
    "unknown option": ([*APPLY, "1,0", "--set", "epz=1"], ["epz", "eps"]),
    "ragged rewards": ([*APPLY, "1,0;1"], ["same length", "2, 1"]),
    "text in rewards": ([*APPLY, "1,x"], ["--rewards", "got '1,x'"]),
    "rewards of several": (["grpo,rloo", "--rewards", "1,0"], ["one estimator"]),
    "missing input": (["fade", "--rewards", "1,0"], ["fade", "--input token_entropy="]),
    "unknown input": ([*APPLY, "1,0", "--input", "lenght=1"], ["lenght", "lengths"]),
    "input that is not read": ([*APPLY, "1,0", "--input", "lengths=1"], ["lengths", "omit it"]),
    "states between numbers": (
        ["gigpo", "--rewards", "1,0", "--input", "lengths=1", "--input", "turn_states=1,1.5"],
        ["turn_states: expected whole numbers"],
    ),
    "input without use": (["fade", "--input", "token_entropy=1"], ["--rewards or --output"]),
    "several prompts of a group": (
        ["dcpo", "--rewards", "1,0", "--input", "prompt_ids=1,2"],
        ["prompt_ids", "one number per group"],
    ),
    "a step before the first": (
        ["fade", "--rewards", "1,0", "--input", "step=0"],
        ["step", ">= 1", "'0'"],
    ),
    "several numbers for one": (
        ["fade", *CSV, "--input", "token_entropy=0.2,0.3"],
        ["token_entropy", "one number", "0.3"],
    ),
    "no use of rewards": (["rent", *CSV], ["rent", "does not read rewards"]),
    "rewards of an objective": (["clipped", "--rewards", "1,0"], ["--output with objectives"]),
    "no such objective": (["clipped,cisp"], ["objective", "cisp"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, refused):
    arguments, words = MISTAKES[mistake]
    refused(words, "describe", *arguments)


@pytest.mark.parametrize("rewards", ["1e308,-1e308", "1,1e100", "inf,0"])
def test_rewards_are_bounded(in_process, rewards):
    code, _, err = in_process("describe", "grpo", "--rewards", rewards)
    assert code == 2
    assert "expected numbers below 1e+100 in absolute value, got" in err
