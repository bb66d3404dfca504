"""`advsweep weights`: of folders, of a run and of a sweep, in every format, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from advsweep.cli import main
from advsweep.store import NewAnalysis, open_store
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.scheduled_runs import new_run

Call = Callable[..., tuple[str, str]]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Call]:
    """Runs `advsweep weights ARGUMENTS` in this process; returns what it printed."""
    threads = torch.get_num_threads()

    def called(*arguments: str) -> tuple[str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["advsweep", "weights", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        printed = capsys.readouterr()
        return printed.out, printed.err

    yield called
    torch.set_num_threads(threads)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, ...]:
    """Two folders: of two matrices one changes by diag(4, 2), the head by a single 3."""
    base = {"model.layers.0.up_proj.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(3, 2)}
    tuned = {name: tensor.clone() for name, tensor in base.items()}
    tuned["model.layers.0.up_proj.weight"] += torch.diag(torch.tensor([4.0, 2.0]))
    tuned["lm_head.weight"][2, 1] -= 3
    for name, tensors in (("base", base), ("tuned", tuned)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    return ("--base", "base", "--tuned", "tuned")


def test_two_folders_as_a_table(call, pair):
    # Squares: 16 + 4 and 9, of 29 in all.
    out, err = call(*pair)
    assert err == ""
    total, _, matrices = out.partition("\nmatrix by matrix\n")
    assert [line.split() for line in total.splitlines()] == [
        ["what", "changed"],
        ["part", "matrices", "norm", "share", "s1/s2", "r1", "srank"],
        ["all", "2", "5.385", "100.0%", "inf", "86.2%", "1.5"],
        ["head", "1", "3", "31.0%", "inf", "100.0%", "1"],
        ["layers", "1", "4.472", "69.0%", "2", "80.0%", "2"],
        ["layer", "0", "1", "4.472", "69.0%", "2", "80.0%", "2"],
    ]
    assert "lm_head.weight                 head     3 x 2  3      31.0%" in matrices


def test_two_folders_as_data(call, pair):
    out, _ = call(*pair, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows] == ["lm_head.weight", "model.layers.0.up_proj.weight"]
    assert float(rows[1]["s1_over_s2"]) == pytest.approx(2)
    out, _ = call(*pair, "--format", "json")
    whole = json.loads(out)
    assert (whole["identical"], whole["tied"], whole["left_out"]) == (False, False, {})
    assert whole["total"][0]["norm"] == pytest.approx(math.sqrt(29))
    assert whole["matrices"][0]["s1_over_s2"] is None  # infinite
    out, _ = call(*pair, "--format", "markdown", "--table", "total")
    assert out.startswith("| part | matrices | norm | share | s1/s2 | r1 | srank |\n")


def test_bounds_and_errors_stand_beside_what_they_are_of(call, pair, tmp_path):
    generator = torch.Generator().manual_seed(0)
    save_file(
        {"layers.0.w": torch.randn(60, 40, generator=generator)},
        tmp_path / "tuned/model.safetensors",
    )
    save_file({"layers.0.w": torch.zeros(60, 40)}, tmp_path / "base/model.safetensors")
    out, _ = call(*pair, "--values", "leading", "--table", "matrices")
    assert out.count(" ±") == 2
    srank = out.split()[-1]
    low, high = map(int, srank.split("-"))
    assert 16 < low < high <= 40


def test_reports_identical_models(call, pair):
    out, err = call("--base", "base", "--tuned", "base")
    assert err == "The weights are equal: no matrix differs.\n"
    assert ["all", "2", "0", "-", "-", "-", "-"] in [line.split() for line in out.splitlines()]
    out, _ = call("--base", "base", "--tuned", "base", "--format", "json")
    assert json.loads(out)["identical"] is True


def test_reports_skipped_matrices(call, pair, tmp_path):
    save_file({"lm_head.weight": torch.ones(3, 2)}, tmp_path / "tuned/model.safetensors")
    _, err = call(*pair)
    assert "Skipped matrices: model.layers.0.up_proj.weight (in base alone)\n" in err


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("expected either a run or a sweep, or both --base DIR and --tuned DIR", []),
        ("expected either a run or a sweep, or both", ["--base", "a"]),
        ("expected either a run or a sweep, or both", ["1", "--base", "a", "--tuned", "b"]),
        ("--step: valid only with a run", ["--base", "a", "--tuned", "b", "--step", "3"]),
        ("--delta: expected a number above 0 and below 1", ["1", "--delta", "1"]),
        ("a pair has no alignment", ["--base", "a", "--tuned", "b", "--table", "alignment"]),
        ("expected a folder with model.safetensors", ["--base", "a", "--tuned", "b"]),
        ("there is no store at", ["1"]),
    ],
)
def test_what_cannot_be_compared(refused, words, arguments):
    refused([words], "weights", *arguments)


@pytest.fixture
def analysed(tmp_path: Path) -> None:
    """A store with a sweep of three runs, of which two were analysed, one after two steps.

    The left vectors of layer 0 are e₀ and (0.6, 0.8) at the first run's steps, e₁ in the other.
    """
    plan = make_plan(
        [
            "backend=tiny",
            "estimator=grpo",
            "seed=0,1,2",
            "model.pretraining_steps=1",
            "model.pretraining_seed=0",
        ],
        name="three",
    )
    with open_store(str(tmp_path / "advsweep.db")) as store:
        store.sweeps.add("three", {})
        ids = store.runs.add([new_run(planned) for planned in plan.runs], "three")
        keys = [planned.run.backend.base_key(planned.run) for planned in plan.runs]
        for run, step, directions in (
            (0, 50, [1.0, 0, 1, 0]),
            (0, 100, [0.6, 0.8, 0, 1]),
            (1, 100, [0.0, 1, 0, 1]),
        ):
            matrices = [
                {
                    "name": name, "part": part, "rows": 2, "columns": 2, "norm": 2.0,
                    "share": 0.5, "s1": 1.6, "s1_error": 0.0, "s2": 1.2, "s2_error": 0.0,
                    "s1_over_s2": 4 / 3, "r1": 0.64, "r1_error": 0.0, "srank": 2, "srank_most": 2,
                }
                for name, part in (("layers.0.w", "layer 0"), ("embed_tokens.weight", "head"))
            ]  # fmt: skip
            settings = {"base": keys[run], "values": "auto", "delta": 0.01, "revision": 1}
            result = {"matrices": matrices, "left_out": {}, "vectors": 0, "tied": True,
                      "delta": 0.01}  # fmt: skip
            store.analyses.add(
                ids[run],
                NewAnalysis(
                    kind="weights",
                    step=step,
                    settings=settings,
                    result=result,
                    directions=torch.tensor(directions).numpy(),
                ),
            )


@pytest.mark.usefixtures("analysed")
def test_the_checkpoints_of_a_run_are_aligned(call, monkeypatch, capsys):
    out, _ = call("1", "--format", "json")
    whole = json.loads(out)
    assert (whole["run"], whole["estimator"], whole["seed"]) == (1, "grpo", 0)
    assert {row["step"] for row in whole["matrices"]} == {50, 100}
    previous, last = whole["alignment"]
    assert (previous["step"], previous["other"], previous["to"]) == (100, 50, "previous")
    assert (last["step"], last["other"], last["to"]) == (50, 100, "last")
    assert previous["layers"] == pytest.approx(0.6)
    assert previous["head"] == pytest.approx(0)
    monkeypatch.setattr("sys.argv", ["advsweep", "show", "1"])
    with pytest.raises(SystemExit):
        main()
    assert "\nanalyses\n  weights after step 50\n" in capsys.readouterr().out
    # People are shown the last step alone.
    out, _ = call("1")
    assert out.count("embed_tokens.weight") == 1
    assert "|cos| of leading left singular vectors" in out


@pytest.mark.usefixtures("analysed")
def test_the_runs_of_a_sweep_are_aligned(call):
    out, err = call("three", "--format", "json")
    assert "skipping run 3: expected a checkpoint of run 3 to compare" in err
    whole = json.loads(out)
    assert [(row["run"], row["step"]) for row in whole["total"]] == [(1, 100), (2, 100)]
    # 1.6² / 2²
    assert whole["total"][0]["head_r1"] == pytest.approx(0.64)
    [pair] = whole["alignment"]
    assert (pair["run"], pair["other"]) == (1, 2)
    assert pair["layers"] == pytest.approx(0.8)
    assert pair["head"] == pytest.approx(1)
    out, _ = call("1", "2", "--format", "csv")
    assert len(out.splitlines()) == 3
    out, _ = call("1", "2")
    assert out.splitlines()[-1].split() == ["grpo", "grpo", "1", "1", "0.8", "-", "-", "-"]


@pytest.mark.usefixtures("analysed")
def test_a_single_step_has_nothing_to_be_aligned_with(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["advsweep", "weights", "2", "--table", "alignment"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "a run with several checkpoints (backend.keep_every=50" in capsys.readouterr().err
