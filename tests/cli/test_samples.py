"""`advsweep samples`: what a model wrote."""

from __future__ import annotations

import json


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
    assert [line[:12] for line in lines[2:5]] == [lines[2][:12], "  prompt  | ", "  answer  | "]
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
