"""Real commands: what they log, how they end, and that nothing of them is left."""

import signal
import subprocess
import sys
import time

import pytest

from advsweep.errors import NoMemoryError, ProcessKilledError, TrainingError
from tests.backends.command.conftest import lives, processes_with

NEEDED = ["{estimator.name}", "{seed}", "{steps}"]


def ends(pid, seconds=20.0):
    deadline = time.monotonic() + seconds
    while lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not lives(pid)


def test_metrics_checkpoints_and_output_are_reported(command_run, train, tmp_path):
    reporter = train(command_run(), tmp_path / "run")
    assert list(reporter.points) == [1, 2, 3, 4, 5, 6]
    assert set(reporter.points[3]) == {"reward/mean", "collapse/acr"}
    assert [step for step, _ in reporter.checkpoints] == [2, 4, 6]
    assert reporter.checkpoints[-1][1] == tmp_path / "run" / "output" / "checkpoint-6"
    assert "| starting after 0" in reporter.lines
    assert reporter.resumptions == []


def test_a_finished_run_has_nothing_left_to_do(command_run, train, tmp_path):
    train(command_run(), tmp_path)
    again = train(command_run(), tmp_path)
    assert again.resumptions == [6]
    assert not again.points
    assert not any(line.startswith("command:") for line in again.lines)


@pytest.mark.parametrize("how", ["stopped", "killed", "failed"])
def test_a_run_goes_on_from_its_last_checkpoint(command_run, train, KilledError, tmp_path, how):
    whole = train(command_run(), tmp_path / "whole")
    parts = tmp_path / "parts"
    if how == "stopped":
        begun = train(command_run(delay=0.3), parts, stop_after=3)
    elif how == "killed":
        with pytest.raises(KilledError):
            train(command_run(delay=0.3), parts, die_after=3)
        # Whether the worker died before or after it saw the first checkpoint is open.
    else:
        with pytest.raises(ProcessKilledError, match="SIGKILL after step 4 of 6"):
            train(command_run(mode="die at 5"), parts)
    rest = train(command_run(), parts)
    expected = {"stopped": (2, 4), "killed": (0, 2), "failed": (4,)}[how]
    (after,) = rest.resumptions
    assert after in expected
    assert rest.points == {s: v for s, v in whole.points.items() if s > after}
    assert "starting after 0" not in " ".join(rest.lines)
    assert [step for step, _ in rest.checkpoints][-1] == 6
    if how == "stopped":
        assert begun.points == {s: v for s, v in whole.points.items() if s <= max(begun.points)}
        assert max(begun.points) in (3, 4)


def test_a_checkpoint_that_the_store_missed_is_used_if_the_log_reaches_it(
    command_run, train, tmp_path
):
    """A worker that was killed wrote neither its last points nor its notes."""
    with pytest.raises(ProcessKilledError):
        train(command_run(mode="die at 5"), tmp_path)
    run = command_run()
    assert run.backend.discard_checkpoints(tmp_path, 1) == 2
    rest = train(run, tmp_path)
    assert rest.resumptions == [0]
    assert list(rest.points) == [1, 2, 3, 4, 5, 6]
    assert "starting after 4" in " ".join(rest.lines)


def test_without_a_sound_checkpoint_a_run_starts_anew(command_run, train, tmp_path):
    """Nothing of the earlier try is left, as the command might take it for its own."""
    with pytest.raises(ProcessKilledError):
        train(command_run(mode="die at 5"), tmp_path)
    for folder in (tmp_path / "output").glob("checkpoint-*"):
        (folder / "state.json").unlink()
    rest = train(command_run(), tmp_path)
    assert rest.resumptions == [0]
    assert list(rest.points) == [1, 2, 3, 4, 5, 6]
    assert any("starting from the beginning" in line for line in rest.lines)


def test_evaluations_come_from_a_file(command_run, train, tmp_path):
    file = {"evaluations": {"file": "{directory}/evaluations.jsonl", "task": "sums"}}
    reporter = train(command_run(file), tmp_path)
    assert sorted(reporter.counts) == [1, 2, 3, 4, 5, 6]
    task, problems = reporter.counts[3]
    assert task == "sums"
    assert [(p.problem, p.n, p.correct) for p in problems] == [("a", 4, 3), ("b", 4, 3)]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("exits", TrainingError, "exit code 3 after step 0 of 6"),
        ("nothing", TrainingError, "exit code 0 and logged no step.*metrics.jsonl"),
        ("memory", NoMemoryError, "ran out of memory.*CUDA out of memory"),
        ("killed", ProcessKilledError, "killed by SIGKILL"),
        ("end at 4", TrainingError, "exit code 0 after step 3 of 6: pass {steps}"),
    ],
)
def test_how_a_command_fails_is_said(command_run, train, tmp_path, mode, kind, words):
    with pytest.raises(kind, match=words):
        train(command_run(mode=mode), tmp_path)


def test_a_log_that_does_not_appear_ends_the_command(command_run, train, tmp_path):
    log = {"file": "{directory}/other.jsonl", "within": 0.2}
    with pytest.raises(TrainingError, match=r"other.jsonl within 0.2 s .metrics.within., got none"):
        train(command_run({"metrics": log}, delay=5), tmp_path)
    assert not processes_with(str(tmp_path), "--steps")
    # The log that is there is not overdue.
    train(command_run({"metrics": {"names": "trl", "within": 20}}), tmp_path / "b")


def test_a_program_that_does_not_exist(command_run, train, tmp_path):
    line = ["/no/such/program", "{estimator.name}", "{seed}", "{steps}"]
    run = command_run({"command": line, "parameters": None})
    with pytest.raises(TrainingError, match="cannot be started: /no/such/program: No such file"):
        train(run, tmp_path)


def test_a_command_that_goes_into_the_background_is_ended(command_run, train, tmp_path):
    with pytest.raises(TrainingError, match="a command must stay in the foreground"):
        train(command_run(mode="background"), tmp_path)
    assert ends(int((tmp_path / "output" / "daemon").read_text()))


def test_a_command_that_ignores_the_request_to_stop_is_killed(command_run, train, tmp_path):
    run = command_run({"stop": {"grace": 0.5}}, mode="deaf", delay=0.5)
    began = time.monotonic()
    reporter = train(run, tmp_path, stop_after=1)
    assert max(reporter.points) < 6
    assert time.monotonic() - began < 60
    assert not processes_with(str(tmp_path / "output"))


def test_output_is_bounded_and_harmless(command_run, train, tmp_path):
    hostile = train(command_run(mode="hostile"), tmp_path / "hostile").lines
    text = "\n".join(hostile)
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)
    assert "| \\x1b]52;c;eA==\\x07 \\u202e and \\x1b[2J" in hostile
    assert "| \ufffd\ufffd not UTF-8" in hostile
    # A bar that is drawn anew on its line is one line.
    assert "| bar 3" in hostile
    assert "| bar 1" not in hostile
    loud = train(command_run(mode="loud"), tmp_path / "loud").lines
    assert len(loud) < 3000
    assert sum(map(len, loud)) < 2_000_000
    assert any("of output; the last" in line for line in loud)


WORKER = """
import sys
from pathlib import Path
from advsweep.backends.command.process import RunningCommand
command = RunningCommand(
    [sys.executable, "-I", "-S", "-c", sys.argv[1]], environment={}, folder=Path("/"),
    grace=30, stop_signal=15,
)
print("ready", flush=True)
command.wait(600)
"""


def test_nothing_of_a_command_survives_its_worker(tmp_path):
    """Not even a grandchild of a session of its own, whose signals are ignored."""
    marker = str(tmp_path)
    inner = (
        "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
        f"open({marker + '/up'!r}, 'w').close(); time.sleep(600)"
    )
    code = (
        f"import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {inner!r}], start_new_session=True); "
        "time.sleep(600)"
    )
    worker = subprocess.Popen([sys.executable, "-c", WORKER, code], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [pid for pid in processes_with(marker) if pid != worker.pid]
    assert len(found) >= 2
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert all(ends(pid) for pid in found)


def test_the_working_folder_is_beside_the_template(command_run, train, tmp_path):
    (tmp_path / "work").mkdir()
    script = 'pwd; echo "$GREETING"; echo "{{\\"step\\": 3, \\"reward\\": 3}}" > "$0"'
    run = command_run(
        {
            "command": ["sh", "-c", script, "{directory}/metrics.jsonl", *NEEDED],
            "workdir": "work",
            "environment": {"GREETING": "hello {seed}"},
            "parameters": None,
            "checkpoints": None,
        },
        {"steps": 3},
    )
    reporter = train(run, tmp_path / "a run")
    assert reporter.points == {3: {"reward/mean": 3.0}}
    assert {f"| {tmp_path / 'work'}", "| hello 1"} <= {*reporter.lines}


def test_a_working_folder_that_does_not_exist(command_run, train, tmp_path):
    with pytest.raises(TrainingError, match="workdir: expected a folder"):
        train(command_run({"workdir": "missing"}), tmp_path / "run")


def test_damaged_lines_of_the_log_are_left_out_and_counted(command_run, train, tmp_path):
    """Cut lines, NaN, repeated steps and steps past the last one."""
    rows = ['{{"step": 1, "reward": NaN, "loss": 1}}', '{{"step": 1, "reward": 0.5}}', '{{"st']
    rows += ['{{"step": 2, "reward": 1}}', '{{"step": 1, "reward": 0.25}}', '{{"step": 9, "x": 1}}']
    code = f"open('{{directory}}/metrics.jsonl', 'w').write({chr(10).join(rows)!r})"
    line = ["{python}", "-I", "-S", "-c", code, "{estimator.name}", "{seed}", "{steps}"]
    run = command_run({"command": line, "parameters": None, "checkpoints": None}, {"steps": 2})
    reporter = train(run, tmp_path)
    assert reporter.points == {
        1: {"loss/policy": 1.0, "reward/mean": 0.25},
        2: {"reward/mean": 1.0},
    }
    (told,) = [text for text in reporter.lines if text.startswith("left out of metrics.jsonl")]
    assert "NaN" in told
    assert "steps after the last one, 2 (1)" in told
