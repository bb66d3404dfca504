"""`advsweep audition` on a run and on a dump: the table, the numbers, the figure, refusals."""

from __future__ import annotations

import csv
import io
import json

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SMALL = (
    *("backend=tiny", "task=routes", "steps=1", "group_size=4", "prompts_per_step=8"),
    *("model.pretraining_steps=150", "evaluation.n=4", "evaluation.k=[1]"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a store whose run 1 is of the tiny backend, and its exported weights."""
    from tests.cli.conftest import _advsweep

    folder = tmp_path_factory.mktemp("audition")
    done = _advsweep(folder, "run", *SMALL)
    assert done.returncode == 0, done.stderr
    done = _advsweep(folder, "export", "1", "weights", "--step", "0")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def call(folder, monkeypatch, succeeds):
    monkeypatch.chdir(folder)
    return succeeds


def test_the_table_of_a_run(call):
    out, err = call("audition", "1", "--step", "0", "-e", "grpo,psr,nsr,aapo", "-o", "audition.svg")
    heading, _, head, *rows = out.splitlines()
    assert heading.startswith("run 1 after step 0: ")
    assert head.split() == ["candidate", "log-odds", "pass@1", "pass@8", "entropy", "cos"]
    assert sorted(row.split()[0] for row in rows[:3]) == ["grpo", "nsr", "psr"]
    assert "aapo       needs ref_rewards" in out
    assert "grpo: change; other rows: difference to it; ±: 95 % over held-out prompts" in out
    assert max(map(len, out.splitlines()[2:])) <= 80
    assert err == "Wrote audition.svg.\n"


def test_numbers_of_a_dump_are_those_of_the_run(call, folder):
    """The run's rollouts, written as JSON lines, and its exported weights."""
    from advsweep.backends.trl.audition import open_model, sample_rollouts
    from advsweep.store import open_store
    from advsweep.sweep.planning.resume import stored_run

    with open_store("advsweep.db", create=False) as store:
        record = store.runs.find("1")
    run, (_, tokenizer) = stored_run(record), open_model("weights")
    sampler = run.backend.sampler(run, record.directory, 0)
    groups = sample_rollouts(run, sampler, tokenizer, prompts=128, rollouts=32)
    lines = [
        {"step": 1, "prompt": g.prompt, "rewards": g.rewards, "completions": g.completions}
        for g in groups
    ]
    (folder / "dump.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = ("-e", "rloo,psr", "--format", "json")
    own = json.loads(call("audition", "1", "--step", "0", *names)[0])
    dumped = ("--model", "weights", "--rollouts", "dump.jsonl", "--group-size", "4")
    other = json.loads(call("audition", *dumped, *names)[0])
    assert other["candidates"] == own["candidates"]


def test_every_objective_with_every_estimator(call):
    arguments = ("-e", "grpo,rloo", "--objectives", "clipped,gspo", "--updates", "2")
    out, _ = call("audition", "1", *arguments, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    labels = ["grpo, clipped", "grpo, gspo", "rloo, clipped", "rloo, gspo"]
    assert sorted(row["candidate"] for row in rows) == labels
    [baseline] = [row for row in rows if row["candidate"] == "grpo, clipped"]
    assert float(baseline["log_odds_difference"]) == 0
    for row in rows:
        difference = float(row["log_odds"]) - float(baseline["log_odds"])
        assert float(row["log_odds_difference"]) == pytest.approx(difference, abs=1e-4)
        assert float(row["log_odds_low"]) < float(row["log_odds"]) < float(row["log_odds_high"])


def test_rollouts_of_another_temperature_are_noticed(call):
    _, err = call("audition", "1", "--temperature", "0.5", "-e", "rloo,psr")
    assert "another --temperature or template sampled them" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["RUN, or --model with --rollouts"]),
        (["1", "--model", "x", "--rollouts", "y"], ["RUN, or --model with --rollouts"]),
        (["--model", "x"], ["RUN, or --model with --rollouts"]),
        (["1", "-e", "gripo"], ["gripo", "grpo"]),
        (["1", "--objectives", "clip"], ["clip"]),
        (["1", "-o", "x.txt"], [".png"]),
        (["1", "--kl", "0"], ["--kl: expected a number above 0, got 0"]),
        (["1", "--kl", "-1"], ["--kl: expected a number above 0, got -1"]),
        (["1", "--temperature", "nan"], ["--temperature: expected a number above 0, got nan"]),
    ],
)
def test_refusals(refused, arguments, words):
    refused(words, "audition", *arguments)
