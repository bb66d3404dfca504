"""What trainers print: values and steps of each form, and what is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.logs import READERS, ImportedRun, ImportOptions, open_metric_log
from advsweep.logs.names import LoggedStep, NameMap

BAR = "{:3.0f}%|####      | {}/{} [00:10<00:10,  5.0it/s]"


def read(tmp_path: Path, text: str, form: str = "console", **given) -> ImportedRun:
    file = tmp_path / "train.log"
    file.write_text(text)
    options = ImportOptions(names=NameMap(), settings=given)
    (run,) = READERS.build(form).runs(file, options)
    return run


TRL = """\
/x/warnings.py:1: UserWarning: unused arguments {'a': 'b', 'n': 3}
{'loss': 0.0, 'reward': 0.25, 'kl': nan, 'rewards/acc/mean': 0.25, 'epoch': 0.1}
\x1b[34m\u2502 {'loss': 7.0, 'epoch': 3} \u2502\x1b[0m
{'eval_reward': 0.3, 'epoch': 0.1}
{'loss': '1e-05', 'reward': '0.75', 'epoch': '1.0'}
{'train_runtime': 12.5, 'train_loss': 0.1, 'epoch': 1.0}
"""


@pytest.mark.parametrize("form", ["console", "trl", "verl"])
def test_lines_of_transformers_are_numbered(tmp_path, form):
    run = read(tmp_path, TRL, form)
    assert list(run.steps) == [
        LoggedStep(1, {"loss": 0.0, "reward": 0.25, "rewards/acc/mean": 0.25, "epoch": 0.1}),
        LoggedStep(1, {"eval_reward": 0.3}),
        LoggedStep(2, {"loss": 1e-05, "reward": 0.75, "epoch": 1.0}),
    ]
    assert run.left_out == {"values of kl that are NaN or infinite": 1}
    assert any("--set logging_steps=N" in note for note in run.notes)


def test_steps_between_lines_are_given_or_follow_from_a_bar_that_ended(tmp_path):
    run = read(tmp_path, TRL, logging_steps=10)
    assert [step for step, _ in run.steps] == [10, 10, 20]
    # The bar of an evaluation is shorter; that of the training ends at 50 = 2 x 25.
    lines = TRL.splitlines(keepends=True)
    bars = [BAR.format(50, 25, 50), BAR.format(100, 4, 4), BAR.format(100, 50, 50)]
    text = f"{bars[0]}\r" + "".join(lines[:4]) + f"\n{bars[1]}\n{bars[2]}" + "".join(lines[4:])
    run = read(tmp_path, text)
    assert [step for step, _ in run.steps] == [25, 25, 50]
    assert any("by the progress bar of 50 steps" in note for note in run.notes)


def test_a_training_that_was_killed_says_nothing_about_its_steps(tmp_path):
    run = read(tmp_path, TRL + BAR.format(40, 40, 100) + "\n")
    assert [step for step, _ in run.steps] == [1, 1, 2]


VERL = (
    "\x1b[36m(TaskRunner pid=12)\x1b[0m step:0 - val-core/gsm8k/acc/mean@1:0.25\n"
    "\x1b[36m(TaskRunner pid=12, ip=10.0.0.1)\x1b[0m step:1 - actor/pg_loss:np.float64(-0.01) - "
    "critic/score/mean:0.125 - actor/grad_norm:nan - perf/total_num_tokens:1e+04\n"
    "Training Progress:   1%| | 1/100 [00:10<10:00]\r(WorkerDict pid=9) INFO step 3 begins\n"
    "(TaskRunner pid=12) step:2 - critic/score/mean:0.5\n"
)


@pytest.mark.parametrize("form", ["console", "verl", "trl"])
def test_lines_of_verl(tmp_path, form):
    run = read(tmp_path, VERL, form)
    assert list(run.steps) == [
        LoggedStep(0, {"val-core/gsm8k/acc/mean@1": 0.25}),
        LoggedStep(
            1, {"actor/pg_loss": -0.01, "critic/score/mean": 0.125, "perf/total_num_tokens": 1e4}
        ),
        LoggedStep(2, {"critic/score/mean": 0.5}),
    ]
    assert run.left_out == {"values of actor/grad_norm that are NaN or infinite": 1}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        # slime
        ("(RolloutManager pid=5) rollout 3: {'rollout/raw_reward': 0.25, 'rollout/len': 9}\n",
         [(3, {"rollout/raw_reward": 0.25, "rollout/len": 9.0})]),
        ("step 4: {'train/loss': 0.5, 'train/step': 8}\n", [(8, {"train/loss": 0.5})]),
        # OpenRLHF
        ("2025-01-01 10:00:00 INFO \u2728 Global step 7: {'policy_loss': 0.5, 'kl': 1}\n",
         [(7, {"policy_loss": 0.5, "kl": 1.0})]),
        # prime-rl
        ("12:00:05 [ SUCCESS] Step 2 | Time: 3.21s | Reward: 0.3500 | Throughput: 12.5 tokens/s"
         " | Seq. Length: 512.0 tokens/sample\n",
         [(2, {"time": 3.21, "reward": 0.35, "throughput": 12.5, "seq_length": 512.0})]),
        # NeMo-RL
        ("====== Step 3/10 ======\n  \u2022 Loss: 0.0123\n  \u2022 Avg Reward: 0.35\n"
         "  \u2022 Total step time: 12.34s\n",
         [(3, {"loss": 0.0123}), (3, {"avg_reward": 0.35}), (3, {"total_step_time": 12.34})]),
        # Loops of one's own
        ("lr=1e-6\nstep=1 reward=0.5 loss=1e-3\n", [(1, {"reward": 0.5, "loss": 0.001})]),
        ("[iter 3] loss: 0.3, reward: -0.7\n", [(3, {"loss": 0.3, "reward": -0.7})]),
        ("INFO step 12/100 - reward: .5 - time: 3 s\n", [(12, {"reward": 0.5, "time": 3.0})]),
    ],
)  # fmt: skip
def test_lines_of_other_trainers(tmp_path, text, steps):
    assert [tuple(step) for step in read(tmp_path, text).steps] == steps


def test_a_text_without_values_is_shown(tmp_path):
    with pytest.raises(ConfigError, match=r"got: 'Hello'; 'world'; TRL .* trainer_state\.json"):
        read(tmp_path, "Hello\n\nworld\n")
    with pytest.raises(ConfigError, match="got: an empty file"):
        read(tmp_path, "")


def test_json_is_no_console(tmp_path):
    """The files of verl and of transformers have mappings in their lines, too."""
    line = {"step": 1, "data": {"critic/score/mean": 0.5}}
    run = read(tmp_path, json.dumps(line) + "\n", "verl")
    assert list(run.steps) == [LoggedStep(1, {"critic/score/mean": 0.5})]
    state = {"global_step": 1, "log_history": [{"step": 1, "loss": 0.5}]}
    run = read(tmp_path, json.dumps(state), "trl")
    assert list(run.steps) == [LoggedStep(1, {"loss": 0.5})]


def test_a_growing_console_is_polled(tmp_path):
    file = tmp_path / "train.log"
    log = open_metric_log("console", file, logging_steps=5)
    file.write_text("{'loss': 0.5, 'epoch': 1}\n{'loss': 0.2")
    assert list(log.poll()) == [LoggedStep(5, {"loss": 0.5, "epoch": 1.0})]
    with file.open("a") as more:
        more.write("5, 'epoch': 2}\n")
    assert list(log.poll()) == [LoggedStep(10, {"loss": 0.25, "epoch": 2.0})]


@pytest.mark.security
def test_hostile_lines_stay_text_and_take_no_time(tmp_path):
    evil = "{'loss': 1, '\x1b]0;x\x07\u202e': 2, '__import__(1)': 3, 'epoch': 1}\n"
    evil += "{'" * 50_000 + "\n" + "step 1 " + "a=" * 30_000 + "\n" + "=" * 60_000 + "\n"
    evil += "step:1 - " + "a:1 - " * 20_000 + "x\n"
    run = read(tmp_path, evil)
    names = [name for step in run.steps for name in step.values]
    assert all(name.isprintable() for name in names)
