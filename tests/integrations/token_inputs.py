"""Random token inputs on which a framework's own loss and ours are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from advsweep.objectives.base import LossInputs, Objective


def token_inputs(seed: int, dtype: torch.dtype, *, per_token: bool = False) -> LossInputs:
    """Eight rollouts of 24 to 40 tokens with log-ratios of about 0.3; some are far from the old.

    So long that the 1e-8 that verl adds to a number of tokens is below 1e-9 of it.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, width = 8, 40

    def noise(scale: float) -> Tensor:
        drawn = torch.randn(rows, width, generator=generator, dtype=torch.float64)
        return (scale * drawn).to(dtype)

    lengths = torch.randint(24, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    old = -noise(2.0).abs() - 0.01
    log_probs = -(old + noise(0.3) + noise(1.0) * (noise(1.0) > 1.5)).abs() - 1e-4
    advantages = noise(1.0)
    return LossInputs(
        log_probs=log_probs.requires_grad_(),
        old_log_probs=old,
        completion_mask=mask,
        advantages=advantages if per_token else advantages[:, 0],
        rollouts=rows,
        tokens=int(mask.sum()),
        reference_log_probs=old + noise(0.5),
        entropies=noise(1.0).exp().requires_grad_(),
    )


def differences(
    theirs: Callable[[LossInputs], tuple[Tensor, Mapping[str, float]]],
    objective: Objective,
    inputs: LossInputs,
) -> dict[str, float]:
    """Return the largest differences of loss, gradient and the metrics that `theirs` names.

    Those of loss and gradients are relative to the largest number of each.
    """

    def leaves() -> LossInputs:
        assert inputs.entropies is not None
        return replace(
            inputs,
            log_probs=inputs.log_probs.detach().clone().requires_grad_(),
            entropies=inputs.entropies.detach().clone().requires_grad_(),
        )

    ours, own = leaves(), leaves()
    output = objective.loss(ours)
    expected, shares = theirs(own)
    found = {"loss": _difference(output.loss.detach(), expected.detach())}
    for name in ("log_probs", "entropies"):
        pair = [
            torch.autograd.grad(loss, getattr(of, name), retain_graph=True, materialize_grads=True)[
                0
            ]
            for loss, of in ((output.loss, ours), (expected, own))
        ]
        found[f"gradient by {name}"] = _difference(*pair)
    for name, share in shares.items():
        found[name] = abs(output.metrics[name].item() - share)
    return found


def _difference(found: Tensor, expected: Tensor) -> float:
    assert found.isfinite().all()
    largest = expected.abs().max().clamp(min=1e-30)
    return float(((found - expected).abs().max() / largest).item())


def tolerance(what: str, dtype: torch.dtype) -> float:
    """Return the largest difference in which a framework agrees with us."""
    if what.startswith("loss/"):
        return 1e-7  # verl counts shares in float32
    if dtype == torch.float64:
        return 1e-9
    # Sums in another order, of which the loss may be a small difference.
    return 5e-5 if what == "loss" else 5e-6
