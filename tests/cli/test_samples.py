"""`advsweep samples`: what a model wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advsweep.store import AnswerSample, NewEvaluation, ProblemCounts, open_store


def _add(folder: Path, answer: str | None, **changes: Any) -> None:
    """Adds an evaluation of a model, with one sample; `changes` are of its settings."""
    read = changes.pop("read", None)
    sample = {
        "problem_id": "p",
        "prompt": "How many?\nThink.",
        "level": 2,
        "length": 5,
        "read": read,
        "reward": None,
    }
    problem = ProblemCounts(
        problem_id="p",
        prompt="How many?\nThink.",
        level=2,
        n=4,
        c=1,
        distinct=1,
        unscorable=0,
        answer_entropy=0.0,
    )
    with open_store(str(folder / "advsweep.db")) as store:
        store.evaluations.add(
            NewEvaluation(
                identity="ab" * 32,
                subject="model:x",
                run_id=None,
                step=0,
                task="sums",
                settings={"n": 4, "k": [1], "model": "small", **changes},
                problems=[problem],
            ),
            [] if answer is None else [AnswerSample(answer=answer, **sample)],
        )


def test_the_last_evaluation_is_shown(in_process):
    code, out, err = in_process("samples", "1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("run 1 after step 12, countdown: 8 of ")
    assert [line for line in lines if line.startswith("8. ")]
    assert not [line for line in lines if line.startswith("9. ")]
    verdicts = [line.split(",")[0] for line in lines if line.startswith("  verdict ")]
    assert len(verdicts) == 8
    assert set(verdicts) <= {"  verdict correct", "  verdict wrong"}
    assert err == "--step shows other evaluations: 0, 6\n"


def test_every_evaluation_keeps_answers_to_the_same_problems(in_process):
    kept = {}
    for step in (0, 6, 12):
        code, out, _ = in_process("samples", "1", "--step", str(step), "--format", "json")
        assert code == 0
        [evaluation] = json.loads(out)
        assert (evaluation["run"], evaluation["step"]) == (1, step)
        kept[step] = evaluation["samples"]
    problems = [[sample["problem_id"] for sample in samples] for samples in kept.values()]
    assert problems[0] == problems[1] == problems[2]
    assert len({sample["level"] for sample in kept[12]}) > 1
    for sample in kept[12]:
        assert sample["verdict"] == ("correct" if sample["reward"] == 1 else "wrong")
        assert sample["length"] == len(sample["answer"])


def test_a_step_without_an_evaluation(in_process):
    code, out, err = in_process("samples", "1", "--step", "5")
    assert (code, out) == (2, "")
    assert "run 1 (0, 6, 12), got 5" in err


def test_models_have_samples_too(advsweep, tmp_path):
    _add(tmp_path, "Three\nor four.")
    done = advsweep("samples", "--models")
    assert done.stdout.splitlines() == [
        "model small, sums: 1 of 1 problems",
        "",
        "1. p (level 2)",
        "  prompt  | How many?",
        "          | Think.",
        "  answer  | Three",
        "          | or four.",
        "  verdict unscorable, reward none",
        "",
    ]
