"""Options that backends have in common.

The options of a backend are a class apart from it, so that what trains reads them without knowing
the backend that starts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from advsweep.components import Component, option
from advsweep.errors import ConfigError


@dataclass(kw_only=True)
class StepOptions(Component):
    """How a step trains on its rollouts, on the backends bandit, tiny and trl."""

    minibatches: int = option(1, ge=1, help="updates per inner epoch; groups are not split")
    inner_epochs: int = option(1, ge=1, help="how often a step trains on its rollouts")
    entropy_change: bool = option(
        False,
        identity=False,
        help="measure what each step does to the entropies at its own rollouts, as entropy/change",
    )

    def check_minibatches(self, prompts_per_step: int) -> None:
        """Refuse fewer groups than minibatches.

        Raises:
            ConfigError: a step has fewer groups.
        """
        if prompts_per_step < self.minibatches:
            raise ConfigError(
                f"backend.minibatches: expected at most prompts_per_step = {prompts_per_step}, "
                f"got {self.minibatches}"
            )
