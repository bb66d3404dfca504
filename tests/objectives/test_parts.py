"""No loss depends on the number of parts in which its minibatch is computed.

Every objective is tried with every option: a new one needs no line here.
"""

from __future__ import annotations

import contextlib
import math
import typing
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from advsweep.components import option_of
from advsweep.errors import ConfigError
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs, Objective
from advsweep.objectives.corrections import PRESETS
from advsweep.objectives.parts import OF_ROLLOUTS, choose_for_parts
from advsweep.objectives.tokenwise import quantile

# Numbers with which an option changes something; for others, half of the default or 0.3.
NUMBERS: dict[str, Any] = {
    "off_policy_mask_threshold": 0.05,
    "top_entropy_quantile": 0.4,
    "fraction": 0.2,
    "threshold": 0.05,
    "cov_low": -0.1,
    "max_tokens": 7,
    "renew_every": 2,
    "correction_reject": {"seq_mean_k3": 0.05},
    "correction_low": 0.8,
    "correction_high": 1.1,
}
# What an option needs beside it.
BESIDE: dict[str, dict[str, Any]] = {
    "kl_estimator": {"kl_coef": 0.1},
    "kl_gradient": {"kl_coef": 0.1},
    "renew_every": {"kl_coef": 0.1},
    "max_tokens": {"aggregation": "constant"},
    **{
        f"correction_{name}": {"correction": "token_truncate"}
        for name in ("mode", "weight", "low", "high", "outside", "reject")
    },
}


def values_of(cls: type[Objective], name: str, hint: Any) -> list[Any]:
    """Values of an option that are not the default."""
    (field,) = [field for field in fields(cls) if field.name == name]
    chosen = [arg for part in (hint, *typing.get_args(hint)) for arg in typing.get_args(part)]
    texts = [value for value in chosen if isinstance(value, str)]
    if name == "correction":
        return [*PRESETS]
    if texts:
        return [text for text in texts if text != field.default]
    if name in NUMBERS:
        return [NUMBERS[name]]
    assert isinstance(field.default, float), f"NUMBERS needs a value for the option {name}"
    half = 0.3 if field.default in (0.0, math.inf) else field.default / 2
    admitted = [value for value in (half, 1 + half, 2 * half + 1) if option_of(field).admits(value)]
    return admitted[:1]


def specs() -> Iterator[dict[str, Any]]:
    for objective in OBJECTIVES.names():
        cls = OBJECTIVES.get(objective)
        yield {"name": objective}
        for option, hint in typing.get_type_hints(cls).items():
            if option not in {field.name for field in fields(cls)}:
                continue
            for value in values_of(cls, option, hint):
                spec = {"name": objective, **BESIDE.get(option, {}), option: value}
                if spec.get("aggregation") == "constant":
                    spec["max_tokens"] = 7
                # Some aggregations and corrections do not fit to some objectives.
                with contextlib.suppress(ConfigError):
                    OBJECTIVES.build(spec)
                    yield spec


# Three options that choose tokens, at once, with tokens that the correction has left out.
COMBINED = {
    "top_entropy_quantile": 0.5,
    "entropy_coef": 0.1,
    "correction": "decoupled_token_icepop",
}
SPECS = [*specs(), *({"name": name, **COMBINED} for name in OBJECTIVES.names())]


def rows_of(inputs: LossInputs, rows: slice, parts: int) -> LossInputs:
    """A part with its equal share of the minibatch's rollouts and tokens."""
    values = {name: getattr(inputs, name) for name in OF_ROLLOUTS}
    chosen = {name: value[rows] for name, value in values.items() if value is not None}
    return replace(
        inputs,
        **chosen,
        rollouts=inputs.rollouts / parts,
        tokens=inputs.tokens / parts,
        parts=parts,
    )


def outcome(objective: Objective, inputs: LossInputs, sizes: list[int]) -> dict[str, Tensor]:
    """The mean of the losses and metrics of parts of these sizes, and its gradients."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    parts = [rows_of(inputs, rows, len(sizes)) for rows in slices]
    outputs = []
    for part, choice in zip(parts, choose_for_parts(objective, parts), strict=True):
        outputs.append(objective.loss(replace(part, choice=choice)))
    loss = torch.stack([output.loss for output in outputs]).mean()
    leaves = [inputs.log_probs, inputs.entropies]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    result = {"loss": loss, "by log π": gradients[0], "by entropy": gradients[1]}
    for name in outputs[0].metrics:
        # Those of the mismatch are means over the tokens with an advantage of each part.
        if not name.startswith("sampler/"):
            result[name] = torch.stack([output.metrics[name] for output in outputs]).mean()
    return result


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "-".join(map(str, spec.values())))
def test_parts_of_any_size_have_the_gradient_of_the_minibatch(
    spec: dict[str, Any], random_inputs: Any
) -> None:
    """One and several parts, of one and of many rollouts, and one without any."""
    objective = OBJECTIVES.build(spec)
    inputs = random_inputs(4, rows=12)
    whole = outcome(objective, inputs, [12])
    alone = objective.loss(inputs)
    assert torch.equal(whole["loss"], alone.loss)
    for sizes in ([6, 6], [5, 0, 7], [1] * 12):
        torch.testing.assert_close(outcome(objective, inputs, sizes), whole)


def test_every_option_of_every_objective_is_tried() -> None:
    for objective in OBJECTIVES.names():
        tried = {option for spec in SPECS if spec["name"] == objective for option in spec}
        cls = OBJECTIVES.get(objective)
        options = {field.name for field in fields(cls)}
        if "constant" not in cls.aggregations:
            options.discard("max_tokens")
        assert options <= tried, f"{objective}: NUMBERS or BESIDE needs {options - tried}"


def test_parts_of_a_minibatch_do_not_choose_by_themselves(random_inputs: Any) -> None:
    """Without the choice of the minibatch its parts would have other gradients."""
    inputs = random_inputs(7, rows=12)
    # The first rollouts are further from the sampler, and less certain.
    factor = torch.linspace(2.0, 0.2, 12, dtype=torch.float64)[:, None]
    old = inputs.old_log_probs
    inputs = replace(
        inputs,
        log_probs=(old + factor * (inputs.log_probs - old)).detach().requires_grad_(),
        advantages=inputs.advantages * factor[:, 0],
        entropies=(inputs.entropies * factor).detach().requires_grad_(),
    )
    for spec in (
        {"name": "cross_entropy", "top_entropy_quantile": 0.4},
        {"name": "clip_cov", "cov_low": -0.1, "fraction": 0.2},
        {"name": "kl_cov", "fraction": 0.2},
        {"name": "m2po", "threshold": 0.05},
        {"name": "m2po", "threshold": 0.05, "rule": "released"},
    ):
        objective = OBJECTIVES.build(spec)
        assert objective.chooses
        losses = []
        for rows in (slice(0, 3), slice(3, 12)):
            losses.append(objective.loss(rows_of(inputs, rows, 2)).loss)
        apart = torch.autograd.grad(torch.stack(losses).mean(), inputs.log_probs)[0]
        assert not torch.allclose(apart, outcome(objective, inputs, [3, 9])["by log π"]), spec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_have_the_bits_of_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 999, generator=generator, dtype=dtype)
    values[torch.rand(5, 999, generator=generator) < 0.3] = torch.nan
    values[1] = torch.nan
    values[2, 1:] = torch.nan
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        theirs = values.nanquantile(share, dim=-1)
        assert torch.equal(quantile(values, share).nan_to_num(9.0), theirs.nan_to_num(9.0))
