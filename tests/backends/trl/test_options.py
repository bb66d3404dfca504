"""What the backend refuses when a run is built, and how it divides rollouts; loads no TRL."""

import importlib.util
import json
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.trl.backend import TrlBackend
from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.tokenizer_file import describe_lost_characters
from advsweep.errors import ConfigError
from advsweep.sweep.executors.base import Resources
from advsweep.sweep.executors.debug import DebugExecutor


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"path": ""}}, r"model\.path: expected a folder or a name on the hub"),
        ({"model": {"path": "/no/such"}}, r"model\.path: expected a folder with a model, got '/no"),
        ({"model": {"hub_revision": "main"}}, r"model\.hub_revision: expected null with a folder"),
        ({"model": {"name": "tiny"}}, "model: backend 'trl' trains a model of transformers"),
        ({"group_size": 1}, "group_size: expected >= 2"),
        (
            {"objective": {"name": "clipped", "correction": "sequence_mask"}},
            r"objective\.correction: expected none with generation=transformers",
        ),
        (
            {"prompts_per_step": 7, "backend": {"minibatches": 4}},
            r"multiple of backend.minibatches = 4, got 7 x 6 = 42 rollouts$",
        ),
        ({"backend": {"accelerate": "/no.yaml"}}, "accelerate: trl has no parameter"),
        (
            {"backend": {"processes": 5}},
            r"minibatches = 2 times 5 processes, got 8 x 6 = 48 rollouts$",
        ),
        (
            {"backend": {"processes": 49, "minibatches": 1}},
            r"minibatches = 1 times 49 processes, got 8 x 6 = 48 rollouts$",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(small_config, changes, message):
    config = small_config("trl", **changes)
    if changes.get("model") == {"name": "tiny"}:
        config["model"] = {"name": "tiny"}
    with pytest.raises(ConfigError, match=message):
        build_run(config)


@pytest.mark.parametrize(
    ("missing", "changes", "message"),
    [
        ("trl", {}, r"backend: 'trl' needs trl, .*pip install .*'trl[!<>]"),
        ("peft", {"model": {"lora_rank": 4}}, "backend: 'trl' needs peft"),
    ],
)
def test_an_extra_that_is_not_installed(small_run, monkeypatch, missing, changes, message):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a)
    )
    with pytest.raises(ConfigError, match=message):
        small_run("trl", **changes)


@pytest.mark.slow
def test_a_run_is_planned_without_what_trains_it(small_config, tmp_path):
    """Importing TRL takes seconds, and plans are made in the time that a command takes."""
    job = tmp_path / "run.json"
    job.write_text(json.dumps(small_config("trl")))
    program = (
        "import json, sys; from advsweep.backends.build import build_run\n"
        f"build_run(json.load(open({str(job)!r})))\n"
        "sys.exit(any(m in sys.modules for m in ('trl', 'transformers', 'datasets')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_largest_equal_passes_are_taken(small_run):
    given = {"minibatches": 2, "inner_epochs": 3}
    # 48 rollouts, 24 in each minibatch.
    for most, size in [(None, 24), (50, 24), (24, 24), (11, 8), (5, 4), (1, 1)]:
        run = small_run("trl", backend={**given, "device_batch": most})
        assert isinstance(run.backend, TrlBackend)
        layout = run.backend.layout_of(run)
        assert (layout.device_batch, layout.passes) == (size, 24 // size)
        assert layout.updates == 6
    # 12 of each minibatch in each process.
    layout = run.backend.layout_of(run, 2)
    assert (layout.device_batch, layout.passes, layout.all_passes) == (1, 12, 24)


def test_stored_runs_of_one_process_keep_their_identity(small_config):
    config = small_config("trl")
    for processes in (None, 1):
        stored = small_config("trl", backend={"processes": processes, "accelerate": None})
        assert build_run(stored).identity == build_run(config).identity


@pytest.mark.parametrize(
    ("gpus", "processes", "given", "message"),
    [
        (4, None, None, "expected 1 GPU in sight, got 4; .*gpus=4 and backend.processes=4"),
        (4, None, "2", "expected 2 GPUs in sight, got 4"),
        (4, 3, None, "expected 3 GPUs in sight, got 4"),
        (0, None, "2", "expected 2 GPUs in sight, got none that torch can use"),
    ],
)
def test_other_gpus_in_sight_than_those_of_the_run(
    small_run, train, monkeypatch, tmp_path, gpus, processes, given, message
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    if given:
        monkeypatch.setenv("ADVSWEEP_GPUS", given)
    run = small_run("trl", backend={"processes": processes})
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path)


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        (2, {"backend": {"processes": 3}}, "processes: expected null or resources.gpus = 2, .*, g"),
        (0.5, {"backend": {"processes": 2}}, r"resources.gpus = 1, a process for each GPU, got 2$"),
        (5, {}, r"minibatches = 2 times 5 processes, got 8 x 6 = 48 rollouts$"),
        (2, {"generation": {"name": "vllm"}}, "generation: expected transformers with several GPU"),
        (1, {}, None),
        (4, {}, None),
    ],
)
def test_gpus_that_a_run_cannot_use(small_run, monkeypatch, gpus, changes, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    run = small_run("trl", **changes)
    executor = DebugExecutor()
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        executor.prepare(Resources(cpus=4, gpus=gpus), [run])


def test_each_process_needs_a_core(small_run):
    run = small_run("trl", backend={"processes": 2, "threads": 2})
    with pytest.raises(ConfigError, match=r"resources\.cpus: expected at least 4, .* got 1"):
        DebugExecutor().prepare(Resources(), [run])


def model(folder, vocabulary):
    content = {
        "added_tokens": [{"content": "<eos>"}],
        "model": {"vocab": {word: i for i, word in enumerate([*vocabulary, "<eos>"])}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return HfModel(path=str(folder))


def task(*texts):
    problems = [SimpleNamespace(text=text) for text in texts]
    return SimpleNamespace(problems=lambda split: problems, can_train=False)


def test_a_loss_in_prompts_has_counts_an_example_and_a_remedy(tmp_path):
    small = model(tmp_path, "+0123456789")
    problems = task("1+2", "3+4?", "so\x1b[2J", "5+6")
    [text] = describe_lost_characters(small, problems)
    assert f"tokenizer of {tmp_path}, which has only + 0 1 2 3 4 5 6 7 8 9, leaves out" in text
    assert "of 2 of 4 sampled prompts, which the model does not see: ? s o \\x1b [ J; take" in text
    assert describe_lost_characters(small, task("1+2")) == []


def test_what_cannot_be_checked_is_not_judged(tmp_path):
    problems = task("Où est le kun 🎉")
    assert describe_lost_characters(HfModel(path="owner/name"), problems) == []
    assert describe_lost_characters(HfModel(path=str(tmp_path)), problems) == []
    assert describe_lost_characters(model(tmp_path, ["a", "piece"]), problems) == []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert describe_lost_characters(HfModel(path=str(tmp_path)), problems) == []
