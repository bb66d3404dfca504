"""What the backend refuses when a run is built, and how it divides rollouts; loads no TRL."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.trl.backend import TrlBackend
from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.tokenizer_file import describe_lost_characters
from advsweep.errors import ConfigError


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
        ({"backend": {"processes": 2}}, "processes: trl has no parameter"),
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


def test_stored_runs_of_one_process_keep_their_identity(small_config):
    config = small_config("trl")
    stored = small_config("trl", backend={"processes": None, "accelerate": None})
    assert build_run(stored).identity == build_run(config).identity


def test_several_gpus_are_refused(small_run, train, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"resources\.gpus=1.* got 2 GPUs"):
        train(small_run("trl"), tmp_path)


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
