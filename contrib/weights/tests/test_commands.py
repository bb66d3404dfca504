"""The commands and columns of an installed package, on runs that advsweep trained."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from advsweep.report.data.analyses import analysis_columns
from advsweep.store import NewAnalysis, open_store


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def rows(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


def test_advsweep_lists_the_commands_and_what_the_package_adds(call):
    assert "  weights " in call("--help")[1]
    assert "--run-code " in call("hidden-states", "--help")[1]
    listed = json.loads(call("list", "plugins", "--format", "json")[1])
    assert {(each["kind"], each["name"], each["state"]) for each in listed} >= {
        ("command", "weights", "usable"),
        ("command", "hidden_states", "usable"),
        ("columns", "weights", "usable"),
        ("columns", "hidden", "usable"),
    }


@pytest.mark.slow
def test_a_run_is_compared_with_its_base_as_its_weights_have_it(here, call, tmp_path):
    code, out, err = call("weights", "1", "--table", "matrices", "--format", "json")
    assert (code, err) == (0, "")
    matrices = json.loads(out)
    assert [row["step"] for row in matrices] == sorted(row["step"] for row in matrices)
    assert {row["step"] for row in matrices} == {2, 4}
    for step in ("0", "4"):
        assert call("export", "1", str(tmp_path / step), "--step", step)[0] == 0
    base, last = (load_file(tmp_path / step / "model.safetensors") for step in ("0", "4"))
    for row in (row for row in matrices if row["step"] == 4):
        s = torch.linalg.svdvals((last[row["name"]] - base[row["name"]]).double())
        assert row["norm"] == pytest.approx(s.norm().item())
        assert row["s1"] == pytest.approx(s[0].item())
    # And two folders are compared in the same way.
    pair = ["--base", str(tmp_path / "0"), "--tuned", str(tmp_path / "4")]
    [total, head, *_] = rows(call("weights", *pair, "--format", "csv")[1])
    assert (total["part"], head["part"]) == ("all", "head")
    ours = {row["name"]: row["norm"] for row in matrices if row["step"] == 4}
    assert float(total["norm"]) == pytest.approx(math.sqrt(sum(n**2 for n in ours.values())))


def test_an_analysis_is_made_once_and_read_without_the_checkpoint(here, call, monkeypatch):
    first = call("weights", "2", "--step", "4", "--format", "json")
    monkeypatch.setattr("advsweep_weights.analyses.weight_changes", None)
    assert call("weights", "2", "--step", "4", "--format", "json") == first
    assert "weights after step 4" in call("show", "2")[1]


def test_the_checkpoints_of_a_run_and_the_runs_of_a_sweep_are_aligned(here, call):
    previous, last = json.loads(call("weights", "1", "--table", "alignment", "--format", "json")[1])
    assert (previous["step"], previous["other"], previous["to"]) == (4, 2, "previous")
    assert (last["step"], last["other"], last["to"]) == (2, 4, "last")
    assert previous["head"] == last["head"] > 0.5
    each = rows(call("weights", "two", "--format", "csv")[1])
    assert [(row["run"], row["step"]) for row in each] == [("1", "4"), ("2", "4")]
    assert 0 < float(each[0]["head_share"]) < 1
    table = call("weights", "two", "--table", "alignment")[1].splitlines()
    assert table[1].split()[:4] == ["1", "grpo", "2", "ha_dw"]


def test_hidden_states_are_those_that_predict_the_tokens(here, call, monkeypatch):
    found = []
    real = "advsweep_weights.analyses.analyse_hidden_states"
    from advsweep_weights.hidden_states import analyse_hidden_states

    def recorded(sampled, *rest, **options):
        found.append(sampled)
        return analyse_hidden_states(sampled, *rest, **options)

    monkeypatch.setattr(real, recorded)
    asked = ["hidden-states", "1", "--prompts", "4", "--format", "json"]
    [row] = json.loads(call(*asked)[1])
    [sampled] = found
    assert row["rollouts_correct"] + row["rollouts_failed"] == 4 * 8
    assert row["tokens_correct"] + row["tokens_failed"] == len(sampled.tokens)
    # A pretrained model is surer of what it drew than of any one of 17 tokens.
    log_p = (sampled.hidden @ sampled.head.T / sampled.temperature).log_softmax(dim=1)
    surprisal = -log_p.gather(1, sampled.tokens[:, None]).mean().item()
    entropy = torch.special.entr(log_p.exp()).sum(dim=1).mean().item()
    assert surprisal == pytest.approx(entropy, rel=0.3)
    assert surprisal < 0.8 * math.log(len(sampled.head))
    assert [json.loads(call(*asked)[1]), len(found)] == [[row], 1]
    for direction in ("gradient", "weights"):
        code, _, err = call(*asked, "--direction", direction)
        assert code == 0 or "got zeros" in err


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("expected either a run or a sweep, or both --base DIR and --tuned DIR", []),
        ("expected either a run or a sweep, or both", ["--base", "a"]),
        ("expected either a run or a sweep, or both", ["1", "--base", "a", "--tuned", "b"]),
        ("--delta: expected a number above 0 and below 1", ["1", "--delta", "1"]),
        ("expected a folder with model.safetensors", ["--base", "a", "--tuned", "b"]),
        ("no checkpoint of step 3", ["1", "--step", "3"]),
        ("there is no store at", ["1", "--store", "none.db"]),
        ("expected a step above 0", ["hidden-states", "1", "--step", "0", "--direction=weights"]),
        ("estimator of the rewards alone", ["hidden-states", "2", "--direction", "gradient"]),
    ],
)
def test_what_cannot_be_analysed(here, call, words, arguments):
    if "hidden-states" not in arguments:
        arguments = ["weights", *arguments]
    code, _, err = call(*arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_what_is_left_out_of_a_pair_is_said(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, extra in (
        ("base", {"model.layers.0.up_proj.weight": torch.ones(2, 2)}),
        ("tuned", {}),
    ):
        (tmp_path / name).mkdir()
        tensors = {"lm_head.weight": torch.ones(3, 2), **extra}
        save_file(tensors, tmp_path / name / "model.safetensors")
    _, _, err = call("weights", "--base", "base", "--tuned", "tuned")
    assert err == (
        "The weights are equal: no matrix differs.\n"
        "Skipped matrices: model.layers.0.up_proj.weight (in base alone)\n"
    )


MATRICES = [
    {"name": "h", "part": "head", "norm": 3.0, "share": 0.36, "s1": 2.0, "s1_over_s2": 2.0},
    {"name": "l", "part": "layer 0", "norm": 4.0, "share": 0.64, "s1": 4.0, "s1_over_s2": None},
    {"name": "u", "part": "layer 1", "norm": 0.0, "share": 0.0, "s1": 0.0, "s1_over_s2": None},
]
STATES = {
    "correct": {"rho": 0.3, "residual": 2.0},
    "failed": {"rho": None, "residual": 1.0},
    "along": 0.9,
    "residual_ratio": 0.5,
    "clt_baseline": 0.4,
}


def test_columns_are_of_the_last_analysis(here, call):
    """Norms 3, 4 and 0 make 5; r1 is (4 + 16)/25, and of the head alone 4/9."""
    with open_store("advsweep.db") as store:
        for run in (1, 2):
            for step, scale in ((50, 0.5), (60, 1.0)):
                matrices = [
                    {**m, "norm": m["norm"] * scale, "srank": 2 + i} for i, m in enumerate(MATRICES)
                ]
                for kind, result in (
                    ("weights", {"matrices": matrices}),
                    ("hidden_states", STATES),
                ):
                    analysis = NewAnalysis(kind=kind, step=step, settings={}, result=result)
                    store.analyses.add(run, analysis)
    expected = {
        "weights/norm": 5.0,
        "weights/norm@max": 5.0,
        "weights/r1": 20 / 25,
        "weights/r1/head": 4 / 9,
        "weights/share/layers": 0.64,
        "weights/s1_over_s2/head": 2.0,
        "weights/srank": 2.5,
        "weights/norm/layer_0": 4.0,
        "hidden/rho/correct": 0.3,
        "hidden/residual/failed": 1.0,
        "hidden/along": 0.9,
    }
    columns = ["--columns", ",".join(expected)]
    code, out, err = call("report", "two", *columns, "--format", "csv")
    assert code == 0, err
    [row] = [row for row in rows(out) if row["estimator"] == "grpo"]
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected)
    assert analysis_columns("weights/rank") is None
    assert analysis_columns("hidden/rho") is None
