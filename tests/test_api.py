"""Sweeps from Python: the words of the command line, functions as estimators, runs and stops."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import advsweep
from advsweep.api import words_of_call
from advsweep.config.overrides import parse_overrides
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.function_text import text_of
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.screens import NotebookScreen

FAKE = ("backend=fake", "task=countdown", "steps=4", "evaluation.n=4", "evaluation.k=[1]")

CELL = """
HALF = 0.5

def centred(rewards):
    return rewards - rewards.mean(-1, keepdim=True)

def halved(rewards):
    return HALF * centred(rewards)
"""


@pytest.fixture
def halved(tmp_path, monkeypatch):
    """A function of a program that no other process can import."""
    path = tmp_path / "cell.py"
    path.write_text(CELL)
    spec = importlib.util.spec_from_file_location("cell", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cell", module)
    spec.loader.exec_module(module)
    return module.halved


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=8),
)


@given(st.lists(st.one_of(values, st.lists(values, max_size=3)), min_size=1, max_size=4))
def test_what_a_list_holds_is_what_the_words_mean(listed):
    [word] = words_of_call([{"key.inner": listed}], {})
    [override] = parse_overrides([word])
    assert override.key == "key.inner"
    # Hydra marks a quoted text that is not swept over.
    read = [getattr(value, "text", value) for value in override.values]
    assert list(map(plain, read)) == listed
    assert list(map(type, map(plain, read))) == list(map(type, listed))


def plain(value):
    return list(map(plain, value)) if isinstance(value, list) else getattr(value, "text", value)


@given(
    estimators=st.lists(st.sampled_from(["grpo", "rloo", "psr"]), min_size=1, unique=True),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
    rates=st.lists(st.sampled_from([1e-4, 0.003, 0.1]), min_size=1, unique=True),
)
def test_words_and_values_are_read_alike(estimators, seeds, rates):
    typed = [
        f"optimizer.lr={','.join(map(str, rates))}",
        f"estimator={','.join(estimators)}",
        f"seed={','.join(map(str, seeds))}",
    ]
    called = words_of_call([{"optimizer.lr": rates}], {"estimator": estimators, "seed": seeds})
    read = [[(each.key, each.values) for each in parse_overrides(w)] for w in (typed, called)]
    assert read[0] == read[1]


@pytest.mark.slow
def test_words_and_values_make_the_same_plan():
    typed = [*FAKE, "estimator=grpo,psr", "seed=0,1", "optimizer.lr=0.1,0.003"]
    called = words_of_call(
        [*FAKE], {"estimator": ["grpo", "psr"], "seed": range(2), "optimizer.lr": (1e-1, 3e-3)}
    )
    plans = [make_plan(words) for words in (typed, called)]
    identities = [[planned.run.identity for planned in plan.runs] for plan in plans]
    assert identities[0] == identities[1]
    assert len(set(identities[0])) == 8


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"seed": range(3)}, "seed=0,1,2"),
        ({"estimator": "grpo,fade"}, "estimator=grpo,fade"),
        ({"evaluation.k": [[1, 8]]}, "evaluation.k=[1,8]"),
        ({"model.path": Path("/a b")}, "model.path='/a b'"),
        ({"task.reward": {"name": "accuracy"}}, "task.reward={name:accuracy}"),
        ({"rate": None}, "rate=null"),
    ],
)
def test_values_are_written_as_on_the_command_line(values, word):
    assert words_of_call([], values) == [word]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": []}, "seed: expected at least one value"),
        ({"seed": object()}, "seed: expected numbers, texts, .* got object"),
        ({"estimator": lambda rewards: rewards}, "estimator: expected a function with a name"),
    ],
)
def test_what_no_word_can_say_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        words_of_call([], values)


def test_a_function_is_written_with_what_it_uses(halved):
    module = types.ModuleType("read")
    exec(text_of(halved, "estimator"), vars(module))
    # The mean of 1 and 0 is 0.5: half of what is left is 0.25 and -0.25.
    assert module.halved(torch.tensor([[1.0, 0.0]])).tolist() == [[0.25, -0.25]]

    def closing(rewards):
        return rewards * len(module.__dict__)

    with pytest.raises(ConfigError, match="'closing', which uses 'module' of a function around it"):
        text_of(closing, "estimator")


@pytest.mark.slow
def test_a_sweep_trains_and_has_its_frames(halved, tmp_path, write_code, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = advsweep.sweep(*FAKE, estimator=["grpo", halved], seed=[0, 1], name="first")
    assert repr(sweep) == "<sweep first of 4 runs: 4 done>"
    assert list(sweep.runs["estimator"]) == ["grpo", "grpo", "halved", "halved"]
    assert set(sweep.metrics["estimator"]) == {"grpo", "halved"}
    assert set(sweep.evaluations["step"]) == {0, 4}
    assert sweep.report(columns=["pass@1"]).to_frame()["estimator"].tolist()[-2:] == [
        "grpo",
        "halved",
    ]
    again = advsweep.sweep(*FAKE, estimator=["grpo", halved], seed=[0, 1], name="first")
    assert repr(again) == "<sweep first of 4 runs: 4 done before>"


@pytest.mark.slow
def test_errors_are_raised_and_failures_are_warnings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        advsweep.sweep(*FAKE, estimator="grop", progress=False)
    assert not (tmp_path / "advsweep.db").exists()
    with pytest.warns(AdvsweepWarning, match="run 1 failed: RuntimeError: step 3 fails"):
        sweep = advsweep.sweep(*FAKE, {"backend.fail_at": 3}, progress=False)
    assert list(sweep.runs["status"]) == ["failed"]
    assert capsys.readouterr() == ("", "")


# A job in the background of a shell ignores Ctrl-C.
SCRIPT = """
import signal
import advsweep
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    advsweep.sweep({words}, seed=[0, 1], name="slow", jobs=1)
except KeyboardInterrupt as stop:
    print(stop)
"""


@pytest.mark.slow
def test_ctrl_c_stops_with_a_checkpoint_and_the_same_call_goes_on(tmp_path):
    slow = [*FAKE, "steps=400", "backend.step_seconds=0.01"]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(words=", ".join(map(repr, slow))))
    process = subprocess.Popen(
        [sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"started" in process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == b"sweep slow was stopped; the same call goes on with it\n"
    assert process.returncode == 0


def test_a_notebook_shows_a_bar_and_how_it_ended():
    shown = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data))

    def display(data, raw, display_id):
        shown.append(data)
        return handle

    screen = NotebookScreen(types.SimpleNamespace(display=display))
    screen.show(0.25, ["1 of 4 done", "2 <running>"])
    screen.conclude("4 runs: 4 done")
    assert shown[1] == {
        "text/html": '<progress value="0.250" max="1"></progress> 1 of 4 done, 2 &lt;running&gt;',
        "text/plain": "1 of 4 done, 2 <running>",
    }
    assert shown[-1] == {"text/html": "4 runs: 4 done", "text/plain": "4 runs: 4 done"}
