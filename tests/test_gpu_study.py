"""The study for GPUs, in small on a CPU, and its tables on known numbers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from advsweep.sweep.planning.plan import make_plan

FOLDER = Path(__file__).parents[1] / "experiments" / "gpu"


def script(name: str) -> ModuleType:
    spec = spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_sweep_differs_from_the_cpu_s_in_model_backend_and_rate_alone():
    # vLLM is not installed everywhere, and planning refuses it where it is not.
    gpu = make_plan(["+experiment=gpu/routes", "generation=transformers"]).runs
    cpu = make_plan(["+experiment=gpu/cpu"]).runs
    ours, theirs = gpu[0].config, cpu[0].config
    for key in ("task", "objective", "rollout", "evaluation", "steps"):
        assert ours[key] == theirs[key], key
    for key in ("group_size", "prompts_per_step"):
        assert ours[key] == theirs[key], key
    for key in ("minibatches", "inner_epochs"):
        assert ours["backend"][key] == theirs["backend"][key], key
    same = {key: value for key, value in theirs["optimizer"].items() if key != "lr"}
    assert {key: value for key, value in ours["optimizer"].items() if key != "lr"} == same
    of_cpu = {run.run.estimator.name: run.config["estimator"] for run in cpu}
    for run in gpu:
        assert run.config["estimator"] == of_cpu[run.run.estimator.name]


def test_speed_takes_medians_over_steps_and_means_over_runs():
    speed = script("report").speed
    # Steps of 10 (the first, which loads), 1 and 1 s; the other run's steps take 4 s.
    rows = [
        (1, 8.0, 1.0, 0.5, 0.5, 100.0),
        (1, 0.5, 0.25, 0.05, 0.2, 300.0),
        (1, 0.5, 0.25, 0.05, 0.2, 200.0),
        (2, 2.0, 1.0, 0.2, 0.8, 500.0),
    ]
    names = ["run", "time/rollout", "time/reward", "time/estimator", "time/update"]
    frame = pd.DataFrame(rows, columns=[*names, "memory/peak_mb"])
    [row] = speed(frame.assign(estimator="rloo")).to_dict("records")
    assert row["runs"] == 2
    assert row["steps_per_second"] == pytest.approx((1 + 1 / 4) / 2)
    assert row["estimator_ms"] == pytest.approx((50 + 200) / 2)
    assert row["estimator_share"] == pytest.approx(0.05)
    assert row["rollout_share"] == pytest.approx(0.5)
    assert row["peak_mb"] == pytest.approx((300 + 500) / 2)
    assert math.isnan(row["peak_gpu_mb"])


def test_agreement_is_of_signs_whose_intervals_leave_0_out():
    agreement = script("report").agreement
    # Differences to RLOO of +.1 +- .01, -.1 +- .01 and 0 +- .1 in every metric.
    base = [0.3, 0.4, 0.5]
    moves = {"a": [0.11, 0.1, 0.09], "b": [-0.11, -0.1, -0.09], "c": [0.1, 0.0, -0.1]}
    values = {
        "rloo": base,
        **{n: [x + m for x, m in zip(base, moves[n], strict=True)] for n in moves},
    }
    metrics = ["pass@1", "pass@32", "entropy/right", "collapse/acr@first30"]
    runs = pd.DataFrame(
        [
            {"estimator": name, "seed": seed, **dict.fromkeys(metrics, value)}
            for name, listed in values.items()
            for seed, value in enumerate(listed)
        ]
    )
    columns = ["pass@1", "pass@32[above=guess]", "entropy/right", "collapse/acr@first30"]
    cpu = pd.DataFrame(
        [
            {
                "estimator": name,
                **{f"{column}_difference": 0.05 for column in columns},
                **{f"{column}_difference_low": 0.04 for column in columns},
                **{f"{column}_difference_high": 0.06 for column in columns},
            }
            for name in ("a", "b", "c")
        ]
    )
    found = agreement(runs, cpu)
    assert len(found) == 12
    verdicts = {(r["estimator"], r["metric"]): r["verdict"] for r in found.to_dict("records")}
    expected = {"a": "agrees", "b": "contradicts", "c": "cannot tell"}
    assert verdicts == {(n, m): expected[n] for n in moves for m in metrics}
    first = found.iloc[0]
    assert first["gpu_difference"] == pytest.approx(0.1)
    # The spread is that of a and b: c spreads more, and RLOO, which is each seed's mean of them,
    # not at all. Their residuals of .01 have a sum of squares of .0004, over (2 - 1)(3 - 1) = 2,
    # and a difference has twice that variance: its sd is .02. t(.975, 2) = 4.3027.
    assert first["gpu_high"] == pytest.approx(0.1 + 4.3027 * 0.02 / 3**0.5, abs=1e-5)
    assert set(agreement(runs, None)["verdict"]) == {"no CPU result"}
    unknown = agreement(runs, cpu[cpu["estimator"] != "a"]).set_index("estimator")
    assert set(unknown.loc["a", "verdict"]) == {"no CPU result"}


def test_the_recorded_agreement_follows_from_the_recorded_runs():
    runs, cpu = pd.read_csv(FOLDER / "h200" / "runs.csv"), pd.read_csv(FOLDER / "cpu.csv")
    assert runs.groupby("estimator").size().to_dict() == {"rloo": 5, "psr": 5, "power_alpha": 4}
    found = script("report").agreement(runs, cpu)
    recorded = pd.read_csv(FOLDER / "h200" / "agreement.csv")
    pd.testing.assert_frame_equal(found, recorded, rtol=0, atol=1e-5)
    assert set(recorded["verdict"]) == {"agrees", "cannot tell"}


@pytest.mark.slow
def test_a_batch_is_half_routes_half_countdown_and_learns_answers_alone():
    pytest.importorskip("transformers")
    pretrain = script("pretrain")
    examples = pretrain.corpus(10, seed=0, step=0)
    alphabet = pretrain.SYMBOLS.alphabet
    texts = {"routes": 0, "countdown": 0}
    for inputs, labels in examples.tolist():
        learned = [label for label in labels if label != pretrain.NO_LOSS]
        end = inputs.index(pretrain.SYMBOLS.eos_id)
        text = "".join(alphabet[token] for token in inputs[:end])
        prompt, _, answer = text.partition(":")
        assert learned == [*map(alphabet.index, answer), pretrain.SYMBOLS.eos_id]
        texts["countdown" if "=" in prompt else "routes"] += 1
    assert texts == {"routes": 5, "countdown": 5}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_small_study_from_bases_to_the_report(tmp_path):
    pytest.importorskip("trl")
    # Two of its five estimators; the others differ in their advantages alone.
    command = [sys.executable, str(FOLDER / "study.py"), "--size", "small", "--folder", "study"]
    command.append("estimator=rloo,fade")

    def study() -> None:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    study()
    results = tmp_path / "study" / "results"
    bases = pd.read_csv(results / "bases.csv")
    assert bases["seed"].tolist() == [0, 1]
    assert set(bases["updates"]) == {80}
    speed = pd.read_csv(results / "speed.csv")
    assert sorted(speed["estimator"]) == ["fade", "rloo"]
    assert set(speed["runs"]) == {2}
    assert (speed["steps_per_second"] > 0).all()
    assert speed["estimator_share"].between(0, 0.5).all()
    assert (speed["peak_mb"] > 100).all()
    agreement = pd.read_csv(results / "agreement.csv")
    assert len(agreement) == 4
    assert set(agreement["verdict"]) == {"no CPU result"}
    assert (results / "report.md").read_text("utf-8").count("## ") == 3
    # Started again it trains nothing.
    changed = {path: path.stat().st_mtime_ns for path in (tmp_path / "study/bases").iterdir()}
    study()
    assert {path: path.stat().st_mtime_ns for path in changed} == changed
    pd.testing.assert_frame_equal(pd.read_csv(results / "speed.csv"), speed)


@pytest.mark.slow
def test_the_real_model_s_script_runs_on_a_cpu_and_does_no_finished_part_again(tmp_path):
    pytest.importorskip("trl")
    command = [sys.executable, str(FOLDER / "real_model.py"), "study", "--size", "small"]
    for _ in range(2):
        subprocess.run(command, cwd=tmp_path, check=True)
    results = tmp_path / "study" / "results"
    ends = pd.read_csv(results / "study.csv")
    assert ends.groupby("estimator").size().to_dict() == {"psr": 2, "rloo": 2}
    sharing = pd.read_csv(results / "sharing.csv")
    assert sharing["share_prompts"].astype(str).str.lower().tolist() == ["false", "true", "auto"]
    assert (sharing["step"] > 0).all()
    assert sharing["times_the_speed"][0] == 1
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    assert summary["overlapping"] is None
