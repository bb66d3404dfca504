"""From problems in GSM8K's form to a report, killed on the way: the study of GSM8K, in small."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from advsweep.store import Status, open_store

pytest.importorskip("math_verify")

STUDY = Path(__file__).parents[3] / "experiments" / "gsm8k_end_to_end" / "study.py"

STEPS, EVERY = 12, 4
SMALL = [
    *("--width", "32", f"steps={STEPS}", "prompts_per_step=8", "group_size=4", "task.train=40"),
    *("task.held_out=20", "generation.max_tokens=10", f"backend.checkpoint_every={EVERY}"),
    *("evaluation.every=6", "evaluation.n=4", "evaluation.k=[1,4]"),
]


@pytest.fixture
def data(tmp_path):
    """Sums as word problems, solved as GSM8K's are."""
    folder = tmp_path / "data"
    folder.mkdir()
    pairs = [(a, b) for a in range(2, 12) for b in range(2, 8)]
    random.Random(0).shuffle(pairs)
    rows = [
        {
            "question": f"Ann has {a} apples and buys {b} more. How many has she now?",
            "answer": f"She has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b}",
        }
        for a, b in pairs
    ]
    for split, part in (("train", rows[:40]), ("test", rows[40:])):
        lines = "".join(f"{json.dumps(row)}\n" for row in part)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_prompts_to_a_report_killed_on_the_way(data, tmp_path):
    folder = tmp_path / "study"
    done = subprocess.run(
        [sys.executable, str(STUDY), str(data), str(folder), *SMALL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert set(results["equal"].values()) == {True}
    assert results["training problems"]["base"]["mixed"] >= 0.25
    [resumed] = results["resumed after step"]
    assert resumed in range(EVERY, STEPS, EVERY)
    assert results["held out"].keys() == {"base", "trained", "exported"}
    # transformers' own bars would stand among the lines of the run's.
    assert "%|" not in done.stderr

    with open_store(str(folder / "killed.db"), create=False) as store:
        [run] = store.runs.select()
        assert (run.status, run.step) == (Status.DONE, STEPS)
        assert [c.step for c in store.checkpoints.select(run.id)] == [4, 8, 12]
        evaluations = store.evaluations.select([run.id])
        assert [(e.step, len(e.c)) for e in evaluations] == [(0, 20), (6, 20), (12, 20)]
        rewards = [value for _, _, value in store.metrics.points(run.id, ["reward/mean"])]
    # Some rollouts were right, and which is not a matter of chance alone.
    assert len(rewards) == STEPS
    assert 0 < max(rewards) < 1
