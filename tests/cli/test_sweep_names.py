"""Names, notes and tags of sweeps, what is shown of a run, and sweeps that are resumed by name."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from advsweep.cli.commands import keys
from advsweep.store import Owner, Status, open_store
from advsweep.store.tuning_records import TUNE_KEY


@pytest.fixture
def own_folder(fake_folder, tmp_path, monkeypatch):
    """A copy of the finished sweep `two`, which a test may change."""
    folder = tmp_path / "own"
    shutil.copytree(fake_folder, folder)
    monkeypatch.chdir(folder)
    return folder


def test_notes_and_tags_are_listed_filtered_and_in_reports(own_folder, succeeds, called):
    assert succeeds("tag", "two", "paper", "table-2")[0] == "paper\ntable-2\n"
    assert succeeds("note", "two", "the", "rates", "of\x1b[31mtable 2")[0] == ""
    assert succeeds("tag", "two", "paper", "--remove")[0] == "table-2\n"
    assert "\\x1b" in succeeds("note", "two")[0]  # as it is stored, and no escape code
    [sweep] = json.loads(succeeds("ls", "--sweeps", "--tag", "table-2", "--format", "json")[0])
    assert (sweep["sweep"], sweep["runs"], sweep["tags"]) == ("two", 6, ["table-2"])
    rows = json.loads(succeeds("ls", "--tag", "table-2", "--format", "json")[0])
    assert len(rows) == 6
    assert succeeds("ls", "--limit", "1", "--tag", "table-2")[0].count("table-2") == 1
    head = ["note: the rates of\\x1b[31mtable 2", "tags: table-2"]
    assert succeeds("status", "two")[0].splitlines()[1:3] == head
    record = json.loads(succeeds("status", "two", "--format", "json")[0])
    assert record["tags"] == ["table-2"]
    for options in ([], ["--full"]):
        assert succeeds("report", "two", *options)[0].splitlines()[:3] == [*head, ""]
    assert "the rates of" in succeeds("report", "two", "--format", "markdown")[0].splitlines()[0]
    assert "% tags: table-2" in succeeds("report", "two", "--format", "latex")[0].splitlines()
    page = succeeds("report", "two", "--format", "html")[0]
    assert "<dt>tags</dt><dd>table-2</dd>" in page
    code, _, err = called("ls", "--tag", "tabel-2")
    assert (code, "did you mean 'table-2'?" in err) == (2, True)
    code, _, err = called("tag", "two", "paper", "--remove")
    assert (code, "sweep two has no tag 'paper'" in err) == (2, True)


def test_a_renamed_sweep_is_found_by_its_new_name(own_folder, succeeds, called):
    assert succeeds("rename", "two", "rates")[1] == "sweep two is now rates\n"
    assert "fade" in succeeds("report", "rates")[0]
    code, _, err = called("report", "two")
    assert (code, "no sweep 'two'" in err) == (2, True)
    code, _, err = called("rename", "rates", "7")
    assert (code, "which is no number" in err) == (2, True)


def test_a_stored_sweep_goes_on_by_its_name(own_folder, advsweep, monkeypatch, called):
    """The run that is not done is trained, and no other; results choose those of a tuned one."""
    with open_store("advsweep.db") as store:
        runs = store.runs.select(newest_first=False)
        store.sweeps.add("half", {"overrides": ["estimator=grpo"]})
        again = store.runs.new_attempt(runs[0].id)
        store.leases.claim(again, Owner.current())
        store.leases.finish(again, Status.INTERRUPTED)
        spec = {"key": "optimizer.lr", "metric": "pass@1", "lower": False, "seeds": [1]}
        tuned = {**spec, "sweep": "t", "arms": []}
        store.sweeps.add("tuned", {"overrides": ["mine.yaml", "steps=3"], TUNE_KEY: tuned})
    url = str(own_folder / "advsweep.db")
    runs_of = str(own_folder / "advsweep-runs")
    done = advsweep("sweep", "two", "--store", url, ADVSWEEP_RUNS=runs_of)
    assert done.returncode == 0, done.stderr
    assert "Skipped 5 of 6 runs" in done.stderr
    assert "1 run: 1 done" in done.stderr
    refused = {
        ("two", "--dry-run"): "--dry-run: expected the values of a sweep",
        ("two", "--name", "x"): "--name: expected the values of a sweep",
        ("two", "steps=7"): "config of a planned run cannot change",
        ("tuned",): "own command: advsweep sweep mine.yaml steps=3",
        ("tow",): "expected KEY=VALUE",
    }
    for words, expected in refused.items():
        code, _, err = called("sweep", *words)
        assert (code, expected in err) == (2, True), err


def test_a_run_is_shown_by_what_is_special_about_it(in_process):
    _, short, err = in_process("show", "last")
    _, full, _ = in_process("show", "last", "--full")
    config = short.partition("config, where it differs from the defaults\n")[2].partition("\n\n")[0]
    shown = dict(line.split(maxsplit=1) for line in config.splitlines())
    # What the sweep of `conftest.py` sets; defaults such as group_size are left out.
    assert shown["estimator"] == "fade"
    assert (shown["steps"], shown["evaluation.n"], shown["seed"]) == ("12", "16", "2")
    assert "evaluation.every" in shown
    assert not {"group_size", "optimizer.lr", "evaluation.temperature"} & {*shown}
    assert "--full` has every key" in err
    assert 2 * len(short.splitlines()) < len(full.splitlines())
    for key in ("group_size", "optimizer.lr", "environment", "metrics, last values"):
        assert key in full


def test_keys_fit_a_narrow_terminal(called, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(keys.shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    rows = [
        {
            "key": "optimizer.lr",
            "of": of,
            "default": 0.0003,
            "type": "a number",
            "range": "> 0",
            "meaning": "learning rate " * 8,
        }
        for of in ("adamw", "sgd")
    ]
    keys._print_narrow(rows, 80)
    code, out, _ = called("version")
    lines = out.splitlines()
    assert lines[0] == "optimizer.lr = 0.0003  (adamw; a number; > 0)"
    assert lines[1].startswith("    learning rate")
    assert lines[2].startswith("    ")
    assert max(map(len, lines)) <= 80
    assert code == 0
