"""The models that the backend refuses and those that it trains."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.trl.config import HfModel, fingerprint
from advsweep.errors import ConfigError, NoMemoryError
from advsweep.objectives.clipped import Clipped


@pytest.fixture
def folder(exported_base, tmp_path):
    """A copy of the small base model, to be spoilt."""
    return shutil.copytree(exported_base(), tmp_path / "model")


def edit(file, **changes):
    """Sets entries of a JSON file; None takes one out."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


# When the model is loaded


@pytest.mark.parametrize(
    ("file", "changes", "model", "message"),
    [
        (
            "config.json",
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            {},
            "expected a causal language model, got .*: BertForMaskedLM; expected BertLMHeadModel",
        ),
        ("config.json", {"model_type": None}, {}, "expected a model that transformers loads"),
        (
            "tokenizer_config.json",
            {"pad_token": None},
            {},
            r"""model\.pad_token: .* "model\.pad_token='<eos>'"$""",
        ),
        ("config.json", {}, {"pad_token": "zz"}, r"model\.pad_token: .* got 'zz'"),
        ("config.json", {}, {"prompt": "chat"}, r"model\.prompt: expected auto or plain"),
    ],
    ids=["not causal", "no model", "no pad token", "no such pad token", "no chat template"],
)
def test_models_that_cannot_be_trained(
    small_run, train, folder, tmp_path, file, changes, model, message
):
    edit(folder / file, **changes)
    if file.startswith("tokenizer"):
        (folder / "special_tokens_map.json").unlink()
    run = small_run("trl", model={"path": str(folder), **model})
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path / "run")


def test_a_name_on_a_hub_that_cannot_be_reached(small_run, train, tmp_path, monkeypatch):
    monkeypatch.setattr("advsweep.backends.trl.loading.hub_unreachable", lambda: "no network")
    run = small_run("trl", model={"path": "nobody/nothing"})
    with pytest.raises(ConfigError, match=r"no folder 'nobody/nothing' here, .* hub: no network"):
        train(run, tmp_path)


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("model.safetensors", False, "model: .* got .*/model: .*model.safetensors"),
        ("model.safetensors", True, "model: expected one that transformers can load, got .*/model"),
        ("tokenizer.json", False, r"model\.path: expected a model with a tokenizer, .* no words"),
    ],
    ids=["no weights", "cut weights", "no tokenizer"],
)
def test_files_of_a_model_that_are_missing_or_damaged(
    small_run, train, folder, tmp_path, name, cut, message
):
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if cut:
        (folder / name).write_bytes(content[: len(content) // 2])
    run = small_run("trl", model={"path": str(folder)})
    with pytest.raises(ConfigError, match=message):
        train(run, tmp_path / "run")
    with pytest.raises(ConfigError, match=message):
        run.backend.sampler(run, tmp_path / "run", 0)


def test_a_folder_that_has_changed_since_the_plan(small_run, train, folder, tmp_path):
    run = small_run("trl", model={"path": str(folder)})
    edit(folder / "generation_config.json", temperature=0.5)
    with pytest.raises(ConfigError, match="as it was when the run was planned"):
        train(run, tmp_path / "run")
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="which does not exist"):
        train(run, tmp_path / "run")
    # What was planned can still be read.
    assert HfModel.build(run.model.plain()).identity() == run.model.identity()


def test_a_folder_counts_by_its_content(folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    first, second = HfModel(path=str(folder)), HfModel(path=str(moved))
    assert first.identity() == second.identity()
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    assert fingerprint(moved) != fingerprint(folder)
    assert HfModel(path=str(moved)).identity() != first.identity()
    assert HfModel(path="org/model").identity() != HfModel(path="org/other").identity()
    assert HfModel(path="org/model", lora_alpha=9.0).identity() == (
        HfModel(path="org/model").identity()
    )
    assert HfModel(path="org/model", lora_rank=4, lora_alpha=9.0).identity() != (
        HfModel(path="org/model", lora_rank=4).identity()
    )


# What it trains


@pytest.mark.slow
def test_lora(small_run, train, ask, tmp_path):
    """An adapter alone is trained and kept; an export has it merged into the weights."""
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model = {"lora_rank": 4, "lora_targets": ["q_proj", "v_proj"]}
    run = small_run("trl", model=model, optimizer={"lr": 0.05}, objective={"kl_coef": 0.01})
    whole = train(run, tmp_path / "whole")
    train(run, tmp_path / "parts", stop_after=3)
    rest = train(run, tmp_path / "parts")
    assert rest.lasting == {s: v for s, v in whole.lasting.items() if s > 3}
    files = Checkpoints(tmp_path / "whole", run.identity).load(5).files
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    run.backend.export(run, tmp_path / "whole", 5, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    base = AutoModelForCausalLM.from_pretrained(run.model.path).state_dict()
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert changed == {f"model.layers.0.self_attn.{part}_proj.weight" for part in ("q", "v")}
    # In training the base is the model without its adapter; later it is loaded.
    assert np.nanmax(whole.evaluations[0].kl_base) == 0
    later = ask(run.backend.sampler(run, tmp_path / "whole", 5), run.task)
    assert np.nanmean(later.kl_base) > 1e-3
    np.testing.assert_allclose(whole.evaluations[5].kl_base, later.kl_base, rtol=1e-2)


@pytest.mark.slow
def test_a_step_without_groups_leaves_the_weights_alone(small_run, train, tmp_path):
    """Moments and all: a gradient of 0 would let them move the weights on."""
    run = small_run(
        "trl",
        rollout={"name": "filter_drop", "eps_acr": 0.9},
        steps=2,
        optimizer={"weight_decay": 0.1},
    )
    points = train(run, tmp_path).points
    assert all(values["cost/utilisation"] == 0 for values in points.values())
    assert "optim/grad_norm" not in points[1]
    files = Checkpoints(tmp_path, run.identity).load(2).files
    base = Path(run.model.path) / "model.safetensors"
    import safetensors.torch

    before, after = (
        safetensors.torch.load_file(base),
        safetensors.torch.load(files["model.safetensors"]),
    )
    assert all(torch.equal(before[name], after[name]) for name in after)


@dataclass(kw_only=True)
class Exhausting(Clipped):
    """Finds no memory."""

    name: ClassVar[str] = "exhausting"

    def loss(self, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize(("size", "parts"), [(None, [18]), (7, [7, 7, 4])])
def test_rollouts_are_generated_in_parts(small_run, train, tmp_path, monkeypatch, size, parts):
    generated = []
    generate = GRPOTrainer._generate_single_turn

    def listened(trainer, prompts, *arguments):
        generated.append(len(prompts))
        return generate(trainer, prompts, *arguments)

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", listened)
    whole = {"steps": 1, "prompts_per_step": 3, "group_size": 6}
    run = small_run("trl", backend={"rollout_batch": size}, **whole)
    assert run.identity == small_run("trl", **whole).identity
    recorded = train(run, tmp_path)
    assert generated == parts
    assert np.isfinite(recorded.points[1]["entropy/token"])


def test_no_memory_left_while_training(small_run, train, tmp_path):
    run = replace(small_run("trl"), objective=Exhausting())
    with pytest.raises(NoMemoryError, match=r"CUDA out of memory.*backend\.device_batch"):
        train(run, tmp_path)


def test_a_high_learning_rate_is_a_warning(small_run):
    def cautions(**changes):
        run = small_run("trl", **changes)
        return run.backend.cautions(run)

    [caution] = cautions(optimizer={"lr": 3e-4})
    assert "optimizer.lr: 0.0003 is high" in caution
    assert "optimizer.lr=1e-6" in caution
    assert cautions(optimizer={"lr": 1e-5}) == []
    assert cautions(optimizer={"lr": 3e-4}, model={"lora_rank": 4}) == []
