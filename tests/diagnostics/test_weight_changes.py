"""What a training changed: shares, parts, what is left out, and how directions align."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from advsweep.diagnostics import weight_changes as module
from advsweep.diagnostics.weight_changes import Values, align, weight_changes
from advsweep.diagnostics.weight_files import HeldWeights
from advsweep.errors import CheckpointError, ConfigError


def held(tensors: dict[str, Tensor], *, tied: bool | None = None, title: str = "a model"):
    found = HeldWeights(title, tensors, bool(tied))
    found.tied = tied
    return found


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
    found = weight_changes(held(base), held(tuned))
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
    assert found.vectors == 3
    assert (found.tied, found.left_out) == (False, {})


def test_ten_layers_stand_in_the_order_of_their_numbers():
    base = model(layers=11)
    found = weight_changes(held(base), held(changed(base, lm_head=[(0, 0, 1.0)])))
    layers = [p.part for p in found.parts if p.part.startswith("layer ")]
    assert layers == [f"layer {number}" for number in range(11)]


@pytest.mark.parametrize("tied", [True, None])
def test_tied_the_embedding_is_the_head(tied):
    base = model(head=False)
    tuned = changed(base, embed=[(0, 0, 1.0)])
    found = weight_changes(held(base, tied=tied), held(tuned, tied=tied))
    assert found.tied
    assert {m.name: m.part for m in found.matrices}["model.embed_tokens.weight"] == "head"


def test_a_tied_head_that_one_of_both_writes_again_counts_once():
    base, tuned = model(head=False), changed(model(head=True), embed=[(0, 0, 1.0)])
    found = weight_changes(held(base, tied=True), held(tuned, tied=True))
    assert [m.name for m in found.matrices if m.part == "head"] == ["model.embed_tokens.weight"]
    assert found.left_out == {}


def test_what_only_one_has_or_has_otherwise_is_left_out_with_the_reason():
    base, tuned = model(layers=1), model(layers=2)
    tuned["lm_head.weight"] = torch.zeros(8, 3)
    base["experts"] = tuned["experts"] = torch.zeros(2, 3, 3)
    found = weight_changes(held(base, title="one"), held(tuned, title="other"))
    assert found.left_out == {
        "experts": "of 3 dimensions",
        "lm_head.weight": "of shape 6 x 3 in the base, 8 x 3 in the other",
        "model.layers.1.q_proj.weight": "in other alone",
        "model.layers.1.up_proj.weight": "in other alone",
    }
    assert not any(matrix.part == "head" for matrix in found.matrices)


def test_models_with_nothing_in_common_are_refused():
    other = {"transformer.h.0.weight": torch.zeros(2, 2)}
    with pytest.raises(ConfigError, match=r"got one and other: model\.embed_tokens"):
        weight_changes(held(model(), title="one"), held(other, title="other"))
    with pytest.raises(ConfigError, match="they have none"):
        weight_changes(held({}), held({}))


def test_weights_that_are_not_finite_are_refused():
    base = model()
    tuned = changed(base, lm_head=[(2, 2, math.nan)])
    with pytest.raises(CheckpointError, match=r"expected finite weights.* lm_head.weight"):
        weight_changes(held(base), held(tuned))


@pytest.mark.parametrize(
    ("values", "whole"),
    [(Values.ALL, "head wide narrow"), (Values.AUTO, "head narrow"), (Values.LEADING, "")],
)
def test_all_values_are_computed_of_what_is_small_and_of_the_head(values, whole, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_UP_TO", 20)
    shapes = {"layers.0.wide": (60, 40), "layers.0.narrow": (60, 18), "lm_head.weight": (60, 40)}
    generator = torch.Generator().manual_seed(0)
    tuned = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    base = {name: torch.zeros(shape) for name, shape in shapes.items()}
    found = weight_changes(held(base), held(tuned), values=values)
    exact = {m.name for m in found.matrices if m.s1_error == m.s2_error == 0}
    assert exact == {name for name in shapes if any(word in name for word in whole.split())}
    for matrix in found.matrices:
        assert matrix.srank == matrix.srank_most or matrix.name not in exact
        s = torch.linalg.svdvals(tuned[matrix.name].double())
        assert abs(matrix.s1 - s[0].item()) <= matrix.s1_error + 1e-5


def test_progress_is_told_before_each_matrix():
    told = []
    base = model(layers=1)
    weight_changes(held(base), held(base), on_matrix=lambda *each: told.append(each))
    assert [each[:2] for each in told] == [(number, 4) for number in range(4)]


def test_alignment_by_head_and_thirds():
    # In each of 6 layers two matrices; directions of a and b are e₀ and, from layer 2 on, e₁.
    base = model(layers=6)
    everything = {
        f"model.layers.{layer}.{part}.weight": (layer, part)
        for layer in range(6)
        for part in ("q_proj", "up_proj")
    }

    def tuned(turned_from: int) -> dict[str, Tensor]:
        found = {name: tensor.clone() for name, tensor in base.items()}
        for name, (layer, _) in everything.items():
            found[name][1 if layer >= turned_from else 0, 0] = 1.0
        found["lm_head.weight"][0, 0], found["lm_head.weight"][1, 0] = 3.0, 4.0
        return found

    a = weight_changes(held(base), held(tuned(6)))
    b = weight_changes(held(base), held(tuned(2)))
    found = align(a.matrices, a.left, b.left)
    assert found.matrices == 12
    assert found.head == pytest.approx(1)
    thirds = (found.early, found.middle, found.late)
    assert thirds == pytest.approx((1, 0, 0), abs=1e-6)
    assert found.layers == pytest.approx(1 / 3)


def test_alignment_with_no_change_is_nothing():
    base = model()
    a = weight_changes(held(base), held(base))
    found = align(a.matrices, a.left, a.left)
    assert found.matrices == 0
    numbers = dataclasses.asdict(found)
    assert all(math.isnan(value) for name, value in numbers.items() if name != "matrices")
