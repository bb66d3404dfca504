"""Objectives on the command line: describe them, and find a token's weight over the ratio."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from advsweep.cli.estimators import print_parameters
from advsweep.cli.output import echo, print_listing, show_number
from advsweep.components import parameters
from advsweep.objectives.base import LossInputs, Objective

# Of a sampled token, under the weights that sampled it. Objectives with bounds on probabilities
# depend on it.
PROBABILITY = 0.05
# Of the printed tables; none is a usual bound, where rounding would decide.
RATIOS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.1, 1.35, 1.75, 2.5, 4.5, 9.0)
# Of figures and files.
CURVE = tuple(10 ** (power / 100) for power in range(-100, 101))


# Beside a token, for a loss that treats a few apart: advantage and probability of two tokens of
# larger covariance between the two than any token of `RATIOS` and `CURVE` has.
_COMPANIONS = ((100.0, 0.9), (-100.0, 1e-4))


def token_weights(
    objectives: Mapping[str, Objective], ratios: Sequence[float]
) -> list[dict[str, float]]:
    """Return a record per advantage, 1 and -1, and ratio, with the weight by each objective.

    The weight is -N ∂loss/∂log π of a token: what multiplies ∇log π in the update. Each token is
    a minibatch, N = 1, of one rollout; the reference and the sampler are the old policy. A loss
    that treats a few tokens apart (`kl_cov`) gets others beside it that are those few: the weight
    is that of most tokens.
    """
    records = []
    for advantage in (1.0, -1.0):
        columns = [_weights(objective, advantage, ratios) for objective in objectives.values()]
        for ratio, *weights in zip(ratios, *columns, strict=True):
            by_objective = dict(zip(objectives, weights, strict=True))
            records.append({"advantage": advantage, "ratio": ratio, **by_objective})
    return records


def _weights(objective: Objective, advantage: float, ratios: Sequence[float]) -> list[float]:
    """Return the weight of a token at each ratio."""
    companions = _COMPANIONS if objective.treats_few_apart else ()
    advantages = torch.tensor([advantage, *(a for a, _ in companions)], dtype=torch.float64)
    probabilities = torch.tensor([PROBABILITY, *(p for _, p in companions)], dtype=torch.float64)
    rollouts = len(advantages)
    shape = (len(ratios), rollouts, 1)
    old = probabilities.log()[:, None].expand(shape)
    log_ratios = torch.zeros(shape, dtype=torch.float64)
    log_ratios[:, 0, 0] = torch.tensor(ratios, dtype=torch.float64).log()
    log_probs = (old + log_ratios).requires_grad_()
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=old,
        completion_mask=torch.ones(shape, dtype=torch.bool),
        advantages=advantages.expand(shape[:2]),
        rollouts=rollouts,
        tokens=rollouts,
        reference_log_probs=old,
        sampler_log_probs=old,
        entropies=torch.full(shape, 0.3, dtype=torch.float64),
    )
    loss = objective.for_completions(1).loss(inputs).loss
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    scale = rollouts if objective.averages else 1
    weights = 0.0 - scale * gradient[:, 0, 0]
    return [float(weight) for weight in weights]


def describe_objective(
    label: str, objective: Objective, preset: Mapping[str, Any], *, comment: str
) -> dict[str, Any]:
    """Return everything about an objective that `describe` prints, in JSON types.

    Args:
        preset: what the objective's own file sets, in place of defaults.
        comment: what that file says of itself.
    """
    weights = token_weights({"weight": objective}, RATIOS)
    both = zip(weights[: len(RATIOS)], weights[len(RATIOS) :], strict=True)
    return {
        "name": label,
        "preset": comment,
        "description": _description(objective),
        "source": objective.source or "not named",
        "departures": objective.departures,
        "parameters": parameters(type(objective), preset),
        "options": objective.plain(),
        "weights": [
            {"ratio": up["ratio"], "A = 1": up["weight"], "A = -1": down["weight"]}
            for up, down in both
        ],
    }


def _description(objective: Objective) -> str:
    """Return summary, formula, use and the rest of the docstring, in paragraphs."""
    summary, _, rest = (inspect.getdoc(type(objective)) or "").partition("\n\n")
    paragraphs = [summary]
    if objective.formula:
        paragraphs.append(textwrap.indent(objective.formula, "    "))
    if objective.when_to_use:
        paragraphs.append(textwrap.fill(f"When to use it: {objective.when_to_use}", 95))
    if rest:
        paragraphs.append(rest)
    return "\n\n".join(paragraphs)


def print_objective(record: Mapping[str, Any]) -> None:
    """Print what `describe_objective` returns."""
    name = record["options"]["name"]
    of = f" ({name})" if record["name"] != name else ""
    echo(f"{record['name']}{of}\n")
    if record["preset"]:
        echo(textwrap.fill(record["preset"], 96) + "\n")
    echo(f"{record['description']}\n")
    echo(textwrap.fill(f"source: {record['source']}", 96) + "\n")
    echo(textwrap.fill(f"departures from the source: {record['departures']}", 96) + "\n")
    print_parameters(record["parameters"])
    echo(
        "\nweight of a token, -N ∂loss/∂log π, by its advantage and its ratio π/π₀; "
        f"π₀ = {PROBABILITY:g}"
    )
    print_weights(record["weights"])


def print_weights(records: Sequence[Mapping[str, float]]) -> None:
    """Print what `token_weights` returns as a table."""
    print_listing([{k: show_number(v) for k, v in record.items()} for record in records], "table")
