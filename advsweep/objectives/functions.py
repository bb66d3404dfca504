"""Objectives that are plain functions in a file that the command line names.

    def loss(ratios, advantages, clip=0.2):      # objective=mine.py
        clipped = ratios.clamp(1 - clip, 1 + clip)
        return -torch.minimum(ratios * advantages, clipped * advantages)

The function returns the loss of each token. Aggregation, KL penalty, entropy bonus and corrections
are the options of `Tokenwise`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from advsweep.components import option
from advsweep.errors import AdvsweepError, ConfigError, PluginError
from advsweep.function_options import call_function, make_class, read_parameters, where_of
from advsweep.objectives.base import LossInputs, Objective
from advsweep.objectives.tokenwise import Aggregation, WithRatio, exp

if TYPE_CHECKING:
    from advsweep.named_code import NamedCode
    from advsweep.objectives.base import Metrics, PerTokenOrRollout

# Rollouts and tokens of the minibatch that an objective is tried with.
_ROLLOUTS = 4
_TOKENS = 5


@dataclass(kw_only=True)
class FunctionObjective(WithRatio):
    """A loss per token that a plain function computes.

    Its inputs have the shape [..., rollouts, tokens], with leading axes where several runs are
    trained at once, and are 0 outside of `mask`: `log_probs` of the weights being trained,
    `old_log_probs` of those that sampled, their `log_ratios` and `ratios`, `advantages`, and
    `mask`, true for generated tokens. A token's loss depends on its own rollout alone.

    Attributes:
        function: the function.
        given: which of these it takes.
        options: its other parameters.
    """

    inputs: ClassVar[tuple[str, ...]] = (
        "log_probs",
        "old_log_probs",
        "log_ratios",
        "ratios",
        "advantages",
        "mask",
    )
    source: ClassVar[str] = "a file of yours"
    departures: ClassVar[str] = "no source is stated"
    function: ClassVar[Callable[..., Any]]
    given: ClassVar[frozenset[str]]
    options: ClassVar[tuple[str, ...]]

    aggregation: Aggregation = option("token_mean", help="how token losses become one number")

    def __post_init__(self) -> None:
        super().__post_init__()
        # Rollouts without an advantage are left out only where they add nothing.
        vars(self)["reads_all"] = not self._is_zero_without_advantages()

    @property
    def moves_alone(self) -> bool:
        return super().moves_alone or self.reads_all

    def _token_losses(self, inputs: LossInputs, metrics: Metrics) -> PerTokenOrRollout:
        mask = inputs.completion_mask
        log_ratios = self._log_ratios(inputs)
        log_probs = inputs.log_probs.where(mask, 0.0)
        every = {
            "log_probs": log_probs,
            "old_log_probs": inputs.old_log_probs.where(mask, 0.0),
            "log_ratios": log_ratios,
            "ratios": exp(log_ratios),
            "advantages": inputs.token_advantages.expand_as(log_probs),
            "mask": mask,
        }
        losses = call_function(self, every)
        if not isinstance(losses, Tensor) or losses.shape != log_probs.shape:
            got = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise PluginError(
                f"{where_of(self)}: expected a loss per token, a tensor of the shape "
                f"{list(log_probs.shape)}, got {got}"
            )
        return losses

    def _is_zero_without_advantages(self) -> bool:
        inputs = _example()
        inputs = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
        try:
            # The check before a training shows what this hides.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                losses = self._token_losses(inputs, {})
                losses.sum().backward()  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            return False
        gradient = inputs.log_probs.grad
        return not losses.any() and (gradient is None or not gradient.any())


def _example() -> LossInputs:
    """Return a minibatch with every input, whose last rollouts are shorter than the first."""
    generator = torch.Generator().manual_seed(0)

    def numbers() -> Tensor:
        return -0.1 - torch.rand(_ROLLOUTS, _TOKENS, generator=generator)

    mask = torch.arange(_TOKENS) < torch.arange(_TOKENS, _TOKENS - _ROLLOUTS, -1)[:, None]
    return LossInputs(
        log_probs=numbers().requires_grad_(),
        old_log_probs=numbers(),
        completion_mask=mask,
        advantages=torch.linspace(-1, 1, _ROLLOUTS),
        rollouts=_ROLLOUTS,
        tokens=int(mask.sum()),
        reference_log_probs=numbers(),
        sampler_log_probs=numbers(),
        entropies=-numbers(),
    )


def check_named(objective: Objective) -> None:
    """Refuse named code that gives no usable loss; registered objectives pass.

    It computes the loss of a small minibatch twice: the loss and its gradient must be finite and
    the same both times, the inputs stay as they are, and a rollout has the loss that it has alone.

    Raises:
        ConfigError: it begins with the file and the line.
    """
    code = objective.named_code
    if code is None:
        return
    where = where_of(objective)
    objective = objective.for_completions(_TOKENS)
    inputs = _example()
    before = {name: v.detach().clone() for name, v in vars(inputs).items() if isinstance(v, Tensor)}
    try:
        first = objective.loss(inputs).loss
        second = objective.loss(inputs).loss
        if first.requires_grad:
            first.backward()  # type: ignore[no-untyped-call]
    except ConfigError:
        raise
    except AdvsweepError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # The user's code may raise anything.
        raise ConfigError(
            f"{code.line_of(error)}: it raised {type(error).__name__}: {error}"
        ) from error
    for name, value in before.items():
        if not torch.equal(value, getattr(inputs, name)):
            raise ConfigError(f"{where}: expected inputs that stay as they are, got another {name}")
    gradient = inputs.log_probs.grad
    if gradient is None or not gradient.any():
        raise ConfigError(
            f"{where}: expected a loss with a gradient, which flows through log_probs, log_ratios "
            "and ratios, got none"
        )
    if not first.isfinite() or not gradient.isfinite().all():
        raise ConfigError(
            f"{where}: expected a finite loss and gradient, got the loss {first.item():g}"
        )
    if not torch.equal(first, second):
        raise ConfigError(
            f"{where}: expected the same loss for the same inputs, got {first.item():g} and "
            f"{second.item():g}"
        )
    if isinstance(objective, FunctionObjective):
        _check_rows(objective, inputs, where)


def _check_rows(objective: FunctionObjective, inputs: LossInputs, where: str) -> None:
    """Refuse token losses that depend on other rollouts, of which a part may be elsewhere."""
    with torch.no_grad():
        together = objective._token_losses(inputs, {})
        for row in range(_ROLLOUTS):
            rows = slice(row, row + 1)
            alone = replace(
                inputs,
                log_probs=inputs.log_probs[rows],
                old_log_probs=inputs.old_log_probs[rows],
                completion_mask=inputs.completion_mask[rows],
                advantages=inputs.advantages[rows],
            )
            if not torch.allclose(objective._token_losses(alone, {}), together[rows], atol=1e-6):
                raise ConfigError(
                    f"{where}: expected losses of tokens that depend on their own rollout alone, "
                    "got others beside other rollouts; sum over the last axis only, dim=-1"
                )


def objective_class(function: Callable[..., Any], code: NamedCode) -> type[FunctionObjective]:
    """Make an objective's class of a function.

    Raises:
        ConfigError: a parameter is neither an input nor an option.
    """
    parameters = read_parameters(function, code, FunctionObjective.inputs, "ratios")
    taken = ", ".join([*sorted(parameters.given), *(name for name, *_ in parameters.options)])
    formula = f"loss of a token = {code.object}({taken})"
    return make_class(function, code, FunctionObjective, parameters, formula=formula)
