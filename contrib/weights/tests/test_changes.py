"""What a training changed: singular values, shares, parts, what is left out, and directions."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch
from advsweep_weights import changes
from advsweep_weights.changes import align, head_direction, spectrum, weight_changes
from advsweep_weights.model_files import StoredWeights
from safetensors.torch import save_file
from torch import Tensor

from advsweep.errors import CheckpointError, ConfigError


class Held:
    """Weights in memory, like `StoredWeights`."""

    def __init__(self, tensors, *, tied=None, title="a model"):
        self.title, self.tied, self.tensors = title, tied, tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def matrix(self, name):
        return self.tensors[name]


def test_a_diagonal_by_hand():
    # s = 4, 2, 1, 1: the squares sum to 16 + 4 + 1 + 1 = 22.
    found = spectrum(torch.diag(torch.tensor([1.0, 4.0, 1.0, 2.0])))
    assert found.norm == pytest.approx(math.sqrt(22))
    assert found.values.tolist() == pytest.approx([4, 2, 1, 1])
    # Of a sum of 8, 4 + 2 are 0.75, and 4 + 2 + 1 are 0.875.
    assert [found.srank(delta) for delta in (0.25, 0.2, 0.01)] == [2, 3, 4]
    assert found.left.abs().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("shape", [(300, 70), (70, 300), (90, 90), (1, 6), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_a_dense_svd_has_it(shape, dtype, monkeypatch):
    monkeypatch.setattr(changes, "_STRIP", 500)  # many strips, the last of them shorter
    generator = torch.Generator().manual_seed(0)
    dense = (torch.randn(shape, generator=generator) + 1).to(dtype)
    u, s, v = torch.linalg.svd(dense.double(), full_matrices=False)
    found = spectrum(dense)
    assert found.norm == pytest.approx(s.norm().item())
    assert found.values.tolist() == pytest.approx(s.tolist(), rel=1e-9)
    assert abs(found.left.double() @ u[:, 0]).item() == pytest.approx(1, abs=1e-6)
    assert abs(found.right.double() @ v[0]).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_no_change_has_neither_shape_nor_direction(shape):
    found = spectrum(torch.zeros(shape))
    assert (found.norm, found.srank(0.01)) == (0, 0)
    assert (found.left.tolist(), found.right.tolist()) == ([0] * shape[0], [0] * shape[1])


def model(layers: int = 2, *, head: bool = True) -> dict[str, Tensor]:
    tensors = {"model.embed_tokens.weight": torch.zeros(6, 3), "model.norm.weight": torch.ones(3)}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.q_proj.weight"] = torch.zeros(3, 3)
        tensors[f"model.layers.{layer}.q_proj.bias"] = torch.zeros(3)
        tensors[f"model.layers.{layer}.up_proj.weight"] = torch.zeros(5, 3)
    return tensors | ({"lm_head.weight": torch.zeros(6, 3)} if head else {})


def changed(tensors: dict[str, Tensor], **by_entries: list[tuple[int, int, float]]):
    """The tensors with entries added to those whose name has a part like the keyword."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    for part, entries in by_entries.items():
        [name] = [n for n in found if part.replace("__", ".") in n]
        for row, column, value in entries:
            found[name][row, column] += value
    return found


def test_shares_and_parts_by_hand():
    # Squares: head 16 + 4 = 20, layer 0 9 + 1 = 10 and 5·5 = 25, layer 1 nothing; in all 55.
    base = model()
    tuned = changed(
        base,
        lm_head=[(0, 0, 4.0), (1, 1, 2.0)],
        layers__0__q_proj__weight=[(0, 1, 3.0), (2, 2, 1.0)],
        layers__0__up=[(4, 0, 5.0)],
    )
    tuned["model.norm.weight"] += 100  # no matrix, and in no share
    found = weight_changes(Held(base), Held(tuned))
    assert [(m.name, m.part) for m in found.matrices] == [
        ("lm_head.weight", "head"),
        ("model.embed_tokens.weight", "embedding"),
        ("model.layers.0.q_proj.weight", "layer 0"),
        ("model.layers.0.up_proj.weight", "layer 0"),
        ("model.layers.1.q_proj.weight", "layer 1"),
        ("model.layers.1.up_proj.weight", "layer 1"),
    ]
    shares = [m.share for m in found.matrices]
    assert shares == pytest.approx([20 / 55, 0, 10 / 55, 25 / 55, 0, 0])
    assert found.matrices[3].s1_over_s2 == math.inf
    assert math.isnan(found.matrices[1].s1_over_s2)
    parts = {part.part: part for part in found.parts}
    assert list(parts) == ["all", "head", "embedding", "layers", "layer 0", "layer 1"]
    assert parts["all"].norm == pytest.approx(math.sqrt(55))
    # Σ s₁² = 16 + 9 + 25.
    assert parts["all"].r1 == pytest.approx(50 / 55)
    assert parts["head"].s1_over_s2 == pytest.approx(2)
    assert parts["layer 0"].share == pytest.approx(35 / 55)
    assert parts["layers"].r1 == pytest.approx(34 / 35)
    # Of the two matrices that changed one needs 2 values, one 1.
    assert parts["layers"].srank == pytest.approx(1.5)
    assert math.isnan(parts["layer 1"].r1)
    assert found.left_out == {}
    assert abs(head_direction(Held(base), Held(tuned))[0]) == pytest.approx(1)


def test_ten_layers_stand_in_the_order_of_their_numbers():
    base = model(layers=11)
    found = weight_changes(Held(base), Held(changed(base, lm_head=[(0, 0, 1.0)])))
    layers = [p.part for p in found.parts if p.part.startswith("layer ")]
    assert layers == [f"layer {number}" for number in range(11)]


@pytest.mark.parametrize("tied", [True, None])
@pytest.mark.parametrize("head", [False, True])
def test_tied_the_embedding_is_the_head(tied, head):
    """Also where one of the two writes the head a second time."""
    tuned = changed(model(head=head and bool(tied)), embed=[(0, 0, 1.0)])
    found = weight_changes(Held(model(head=False), tied=tied), Held(tuned, tied=tied))
    assert [m.name for m in found.matrices if m.part == "head"] == ["model.embed_tokens.weight"]
    assert found.left_out == {}


def test_what_only_one_has_or_has_otherwise_is_left_out_with_the_reason():
    base, tuned = model(layers=1), model(layers=2)
    tuned["lm_head.weight"] = torch.zeros(8, 3)
    base["experts"] = tuned["experts"] = torch.zeros(2, 3, 3)
    found = weight_changes(Held(base, title="one"), Held(tuned, title="other"))
    assert found.left_out == {
        "experts": "of 3 dimensions",
        "lm_head.weight": "of shape (6, 3) in the base, (8, 3) in the other",
        "model.layers.1.q_proj.weight": "in other alone",
        "model.layers.1.up_proj.weight": "in other alone",
    }
    with pytest.raises(ConfigError, match="expected two models with the same output head"):
        head_direction(Held(base), Held(tuned))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="got one and other, which share none"):
        weight_changes(Held(model(), title="one"), Held({}, title="other"))
    tuned = changed(model(), lm_head=[(2, 2, math.nan)])
    with pytest.raises(CheckpointError, match=r"expected finite weights.* lm_head.weight"):
        weight_changes(Held(model()), Held(tuned))


def test_alignment_by_head_and_thirds():
    # In each of 6 layers two matrices; directions of a and b are e₀ and, from layer 2 on, e₁.
    base = model(layers=6)

    def tuned(turned_from: int) -> dict[str, Tensor]:
        found = {name: tensor.clone() for name, tensor in base.items()}
        for layer in range(6):
            for part in ("q_proj", "up_proj"):
                name = f"model.layers.{layer}.{part}.weight"
                found[name][1 if layer >= turned_from else 0, 0] = 1.0
        found["lm_head.weight"][0, 0], found["lm_head.weight"][1, 0] = 3.0, 4.0
        return found

    a, b = (weight_changes(Held(base), Held(tuned(at))) for at in (6, 2))
    found = align(a, b)
    assert (found.matrices, found.head) == (12, pytest.approx(1))
    assert (found.early, found.middle, found.late) == pytest.approx((1, 0, 0), abs=1e-6)
    assert found.layers == pytest.approx(1 / 3)
    nothing = asdict(align(*[weight_changes(Held(base), Held(base))] * 2))
    assert nothing.pop("matrices") == 0
    assert all(math.isnan(value) for value in nothing.values())


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrices_of_a_folder_come_as_they_were_written(tmp_path, shards, dtype):
    tensors = {name: torch.arange(12.0).view(4, 3).to(dtype) + i for i, name in enumerate("abcd")}
    if shards == 1:
        save_file(tensors, tmp_path / "model.safetensors")
    else:
        file_of = {name: f"model-{i % shards}.safetensors" for i, name in enumerate("abcd")}
        for file in set(file_of.values()):
            save_file({n: t for n, t in tensors.items() if file_of[n] == file}, tmp_path / file)
        index = {"weight_map": file_of}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"text_config": {"tie_word_embeddings": true}}')
    found = StoredWeights(tmp_path)
    assert (found.shapes, found.tied) == (dict.fromkeys("abcd", (4, 3)), True)
    assert found.matrix("c").tolist() == tensors["c"].tolist()


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a folder with model.safetensors"):
        StoredWeights(tmp_path)
    file, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    save_file({"a": torch.ones(1, 1, dtype=torch.int8)}, file)
    with pytest.raises(ConfigError, match="quantised weights cannot be compared"):
        StoredWeights(tmp_path)
    file.write_bytes(b"{damaged")
    with pytest.raises(CheckpointError, match="expected a safetensors file"):
        StoredWeights(tmp_path)
    save_file({"a": torch.ones(1, 1)}, file)
    for content, words in (
        ("{", "expected a JSON file"),
        ("{}", "expected a weight_map"),
        ('{"weight_map": {"a": "x.safetensors"}}', "expected x.safetensors"),
        ('{"weight_map": {"b": "model.safetensors"}}', "expected the tensor b"),
        # A file is one of the folder, whatever the index says.
        ('{"weight_map": {"a": "../x.safetensors"}}', "expected x.safetensors"),
    ):
        index.write_text(content)
        with pytest.raises(CheckpointError, match=words):
            StoredWeights(tmp_path)
