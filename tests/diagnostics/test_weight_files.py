"""Weights in folders: one file and several, every kind of float, adapters, and bad ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from advsweep.diagnostics import weight_files
from advsweep.diagnostics.weight_files import Adapter, StoredWeights, open_tuned
from advsweep.errors import CheckpointError, ConfigError


def write(folder: Path, tensors: Mapping[str, Tensor], shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    file_of = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / file)
        file_of |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_adapter(folder: Path, tensors: Mapping[str, Tensor], **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    known = {"peft_type": "LORA", "r": 2, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(known | config))
    return folder


HALVES = {
    "base_model.model.model.layers.0.q_proj.lora_A.weight": torch.tensor([[1.0, 0], [0, 2]]),
    "base_model.model.model.layers.0.q_proj.lora_B.weight": torch.tensor(
        [[1.0, 1], [0, 1], [2, 0]]
    ),
}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_as_they_were_written(tmp_path, shards, dtype):
    tensors = {name: torch.arange(12.0).view(4, 3).to(dtype) + i for i, name in enumerate("abcd")}
    found = StoredWeights(write(tmp_path, tensors, shards))
    assert found.shapes == dict.fromkeys("abcd", (4, 3))
    assert found.rows("c", 1, 3).tolist() == tensors["c"][1:3].tolist()


def test_a_file_is_open_only_while_a_strip_is_read(tmp_path, monkeypatch):
    """So that nothing of a large file stays in memory."""
    still_open = []
    real = weight_files.safe_open

    class Watched:
        def __init__(self, *arguments, **options):
            self._opened = real(*arguments, **options)

        def __enter__(self):
            still_open.append(self)
            return self._opened.__enter__()

        def __exit__(self, *error):
            still_open.remove(self)
            return self._opened.__exit__(*error)

    monkeypatch.setattr(weight_files, "safe_open", Watched)
    found = StoredWeights(write(tmp_path, {"a": torch.ones(4, 3), "b": torch.ones(2)}))
    assert found.rows("a", 0, 2).shape == (2, 3)
    assert still_open == []


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({}, None),
        (None, None),
    ],
)
def test_the_config_says_whether_the_head_is_the_embedding(tmp_path, config, tied):
    write(tmp_path, {"a": torch.ones(1, 1)})
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert StoredWeights(tmp_path).tied is tied


def test_an_adapter_is_what_it_adds(tmp_path):
    found = open_tuned(write_adapter(tmp_path, HALVES))
    assert isinstance(found, Adapter)
    assert found.shapes == {"model.layers.0.q_proj.weight": (3, 2)}
    # α/r = 4 times B A = [[1, 1], [0, 1], [2, 0]] [[1, 0], [0, 2]] = [[1, 2], [0, 2], [2, 0]]
    assert found.rows("model.layers.0.q_proj.weight", 1, 3).tolist() == [[0, 8], [8, 0]]
    # α/√r = 8/√4 with rank 4; the shapes of the halves are not asked.
    write_adapter(tmp_path, HALVES, r=4, use_rslora=True)
    assert Adapter(tmp_path).rows("model.layers.0.q_proj.weight", 0, 1).tolist() == [[4, 8]]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "got IA3"),
        ({"use_dora": True}, "LORA with use_dora"),
        ({"rank_pattern": {"q_proj": 3}}, "LORA with rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "LORA with modules_to_save"),
    ],
)
def test_adapters_that_add_something_else_are_refused(tmp_path, config, words):
    with pytest.raises(ConfigError, match=words):
        Adapter(write_adapter(tmp_path, HALVES, **config))


def test_an_adapter_with_other_tensors_is_refused(tmp_path):
    tensors = {"base_model.model.embed.lora_embedding_A": torch.ones(2, 2)}
    with pytest.raises(ConfigError, match="lora_embedding_A; merge the adapter"):
        Adapter(write_adapter(tmp_path, tensors))


def test_a_base_that_is_an_adapter_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected a whole model, got an adapter"):
        StoredWeights(write_adapter(tmp_path, HALVES))


def test_a_folder_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="which is not a folder"):
        StoredWeights(tmp_path / "none")
    with pytest.raises(ConfigError, match="got neither"):
        StoredWeights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="PyTorch's own format"):
        StoredWeights(tmp_path)


def test_quantised_weights_are_refused(tmp_path):
    tensors = {"a": torch.ones(2, 2), "b": torch.ones(2, 2, dtype=torch.int8)}
    with pytest.raises(ConfigError, match="got b in I8; quantised"):
        StoredWeights(write(tmp_path, tensors))


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path, {"a": torch.ones(1, 1), "b": torch.ones(1, 1)}, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected the 2 files.* model-00002-of-00002"):
        StoredWeights(tmp_path)


def test_a_file_without_what_the_index_expects_is_named(tmp_path):
    write(tmp_path, {"a": torch.ones(1, 1), "b": torch.ones(1, 1)}, shards=2)
    save_file({"c": torch.ones(1, 1)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"00002.safetensors: expected the tensor b"):
        StoredWeights(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_damaged_file_is_named(tmp_path, name):
    write(tmp_path, {"a": torch.ones(1, 1)})
    (tmp_path / name).write_bytes(b"{damaged")
    with pytest.raises(CheckpointError, match=f"{name}: expected"):
        StoredWeights(tmp_path)


def test_a_file_that_goes_while_it_is_read_is_named(tmp_path):
    found = StoredWeights(write(tmp_path, {"a": torch.ones(1, 1)}))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="a cannot be read"):
        found.rows("a", 0, 1)
