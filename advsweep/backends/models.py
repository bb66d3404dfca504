"""The models of our own backends: a tiny transformer, and tables of logits.

Imports no torch, so that listing models stays fast.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Component, option
from advsweep.errors import ConfigError
from advsweep.tasks.base import SymbolTask

if TYPE_CHECKING:
    from advsweep.tasks.base import Task


class PretrainingSeed(Enum):
    """A pretraining seed that depends on the run."""

    RUN = "seed"
    """The run's own seed: runs of one seed share a base model, and seeds replicate it."""


@dataclass(kw_only=True)
class TinyModel(Component):
    """A transformer with the layout of Qwen2, and the recipe of its base weights.

    The corpus has correct answers, answers with a systematic mistake and random answers, in
    shares that the task or the recipe chooses. The base model is then right sometimes and unsure
    often, as reinforcement learning needs.

    Source: Qwen2 Technical Report (arXiv:2407.10671), Sec. 2.2.
    """

    name: ClassVar[str] = "tiny"

    layers: int = option(2, ge=1, help="transformer blocks")
    width: int = option(64, ge=2, help="features of the residual stream")
    heads: int = option(4, ge=1, help="attention heads")
    kv_heads: int = option(2, ge=1, help="key and value heads; fewer than heads: grouped")
    mlp_width: int = option(192, ge=1, help="hidden features of the gated MLP")
    tied_embeddings: bool = option(True, help="the output layer is the embedding")
    rope_theta: float = option(10_000.0, gt=0, help="longest wavelength of the rotary positions")
    norm_eps: float = option(1e-6, gt=0, help="added to the mean square in RMSNorm")

    pretraining_steps: int = option(1000, ge=0, help="updates of the base model's pretraining")
    pretraining_batch: int = option(96, ge=1, help="corpus examples per update")
    pretraining_lr: float = option(5e-3, gt=0, help="peak learning rate; a cosine down to 0")
    pretraining_warmup: int = option(50, ge=0, help="updates over which the rate rises from 0")
    pretraining_seed: int | PretrainingSeed = option(
        PretrainingSeed.RUN,
        ge=0,
        help="seed of the initial weights and the corpus; seed: that of the run, so that each "
        "seed has a base model of its own",
    )
    random_share: float | None = option(
        None, ge=0, le=1, help="share of corpus examples whose target is random; null: the task's"
    )
    left_to_right_share: float | None = option(
        None,
        ge=0,
        le=1,
        help="share with the task's systematic mistake: countdown ignores precedence, routes uses "
        "closed links; null: the task's",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"width: expected a multiple of 2 x heads = {2 * self.heads}, got {self.width}"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads: expected a divisor of heads = {self.heads}, got {self.kv_heads}"
            )
        random = self.random_share or 0.0
        mistaken = self.left_to_right_share or 0.0
        if random + mistaken > 1:
            raise ConfigError(
                f"left_to_right_share: expected at most 1 - random_share = "
                f"{1 - random:g}, got {mistaken:g}"
            )

    def for_seed(self, seed: int) -> TinyModel:
        """Return the model of a run with this seed; its `pretraining_seed` is an integer."""
        if isinstance(self.pretraining_seed, int):
            return self
        return dataclasses.replace(self, pretraining_seed=seed)

    @property
    def base_seed(self) -> int:
        """The seed of the base weights.

        Raises:
            ConfigError: it is that of a run; `for_seed` returns a model of a run.
        """
        if isinstance(self.pretraining_seed, int):
            return self.pretraining_seed
        raise ConfigError(
            "pretraining_seed: expected an integer for a model without a run, got 'seed'; choose "
            "one, such as pretraining_seed=0"
        )

    def for_task(self, task: Task) -> TinyModel:
        """Return the recipe for a task, whose shares of mistaken answers fill in missing ones.

        Raises:
            ConfigError: the shares are more than 1 together.
        """
        random = self.random_share
        mistaken = self.left_to_right_share
        if not isinstance(task, SymbolTask) or None not in (random, mistaken):
            return self
        theirs = task.corpus_shares
        return dataclasses.replace(
            self,
            random_share=theirs.random if random is None else random,
            left_to_right_share=theirs.mistaken if mistaken is None else mistaken,
        )

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(kw_only=True)
class Table(Component):
    """Offsets that are added to the base policy's logits: a table, or a product of low rank.

    With rank 0 each prompt has its own offsets. With rank r the offsets are F W: the rows of F
    are fixed unit vectors, one per prompt, and W is trained. An update that raises a behaviour
    for one prompt then raises it for prompts with similar features, correct there or not, so
    solve rates and pass@k can fall.
    """

    name: ClassVar[str] = "table"

    rank: int = option(
        0, ge=0, help="r of the map that prompts share, 2 or more; 0: none is shared"
    )
    overlap: float = option(
        0.5, ge=0, le=1, help="mean cosine between the features of two prompts, of a shared map"
    )
    seed: int = option(0, ge=0, help="draws the features, of a shared map")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank == 1:
            raise ConfigError("rank: expected 0 or at least 2, got 1: all prompts would be one")
