"""When a prompt is computed once for all of its completions: where that is exact, and pays.

`shared_prompts` has the passes themselves. Exact are models whose layers attend to all that comes
before, by a mask of each pair of tokens, and take positions as they are given; a few made-up rows
are computed both ways to see it. What pays is decided for each pass by its shape. A packed pass
has fewer tokens, and more pairs of tokens, since the mask hides completions from one another
without sparing the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from advsweep.backends.trl.padded_rows import PaddedRows
from advsweep.backends.trl.positions import positions_of
from advsweep.backends.trl.shared_prompts import PromptGroups, shared_pass
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.trl.padded_rows import Padded

# `backend.share_prompts`.
Setting = bool | Literal["auto"]

# The implementations of attention that take a mask of each pair of tokens.
_ATTENTIONS = ("sdpa", "eager")
# The estimated share of the cost below which a packed pass is taken. The estimate leaves out what
# packing and the mask cost, which measures up to a tenth of a pass.
_PAYS = 0.9
# Masks of this size are small beside everything else that a pass needs.
_FREE_MASK_BYTES = 64 << 20
# The largest difference of log π by rounding: weights in float32, and in 16 bits.
_ROUNDING = 1e-3
_ROUNDING_16_BITS = 0.1


class PromptSharing:
    """Decides whether passes and generations of a model share prompts.

    Args:
        setting: true: always; false: never; auto: where it is exact and pays.
        log: receives a line when a decision about an update is made for the first time.

    Raises:
        ConfigError: the setting is true, and the model cannot share prompts.
    """

    def __init__(
        self, setting: Setting, model: Any, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._setting = setting
        self._log = log
        self._logged: set[bool] = set()
        self._costs: Costs | None = None
        if setting is False:
            return
        obstacle = obstacle_to_sharing(model)
        if obstacle is None:
            self._costs = Costs.of_model(model)
        elif setting is True:
            raise ConfigError(
                f"backend.share_prompts: expected a model with full attention in all layers, by "
                f"{' or '.join(_ATTENTIONS)}, got {obstacle}; set backend.share_prompts=false"
            )
        else:
            log(f"backend.share_prompts=auto: off: this model has {obstacle}")

    def of_pass(self, padded: PaddedRows) -> PromptGroups | None:
        """Return the groups of a pass that shares prompts; None: the pass has separate rows."""
        if self._costs is None:
            return None
        groups = PromptGroups.of(padded)
        if self._setting is True:
            return groups
        share = self._costs.packed_share(groups)
        pays = share <= _PAYS and self._costs.fits(groups)
        self._log_decision(groups, share, pays=pays)
        return groups if pays else None

    def of_generation(self, prompts: Padded) -> bool:
        """Return whether a generation for these prompts computes equal ones once."""
        rows, width = prompts.shape
        if self._costs is None or width == 1:
            return False
        if self._setting is True:
            return True
        different = len(torch.unique(prompts, dim=0))
        # Behind the shared pass, `generate` begins with the last token of each row.
        return different * (width - 1) + 2 * rows <= _PAYS * rows * width

    def _log_decision(self, groups: PromptGroups, share: float, *, pays: bool) -> None:
        # Passes that only measure have shapes of their own: the log is about updates.
        if pays in self._logged or not torch.is_grad_enabled():
            return
        state = "on" if pays else "off"
        if self._logged:
            state += " from here on, wherever a pass has such a shape"
        self._logged.add(pays)
        self._log(
            f"backend.share_prompts=auto: {state}: {groups.rows} rows of {groups.prompts} prompts, "
            f"with {groups.prompt_width} + {groups.tokens} tokens, cost {share:.2f} times as much "
            f"if prompts are computed once"
        )


@dataclass(frozen=True)
class Costs:
    """What a model's pass costs, in multiplications and in bytes.

    Attributes:
        token: multiplications of a token with the weights of all layers.
        pair: multiplications for a pair of tokens of which one attends to the other.
        logits: multiplications for the logits of a token.
        activations: bytes that each token keeps for the backward pass, at the least.
        number: bytes of a number.
    """

    token: float
    pair: float
    logits: float
    activations: int
    number: int

    @classmethod
    def of_model(cls, model: Any) -> Costs:
        """Count the multiplications of a causal language model of transformers."""
        config = model.config.get_text_config()
        layers = config.num_hidden_layers
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        ends = {id(module.weight) for module in _embeddings(model)}
        weights = 0.0
        for name, weight in model.named_parameters():
            if id(weight) not in ends:
                weights += weight.numel() * _used_share(name, config)
        return cls(
            token=weights,
            # Queries with keys, and weights with values.
            pair=2 * layers * heads * head_size,
            logits=config.vocab_size * config.hidden_size,
            activations=layers * config.hidden_size * model.dtype.itemsize,
            number=model.dtype.itemsize,
        )

    def packed_share(self, groups: PromptGroups) -> float:
        """Return the cost of a packed pass as a share of the cost of separate rows."""
        width = groups.prompt_width + groups.tokens
        separate = self._cost(groups.rows, width, groups.tokens + 1)
        packed = self._cost(groups.prompts, groups.packed_width, groups.packed_behind)
        return packed / separate

    def fits(self, groups: PromptGroups) -> bool:
        """Return whether the packed pass needs no more memory than separate rows would."""
        mask = groups.prompts * groups.packed_width**2 * self.number
        separate_tokens = groups.rows * (groups.prompt_width + groups.tokens)
        spared = (separate_tokens - groups.prompts * groups.packed_width) * self.activations
        return mask <= max(_FREE_MASK_BYTES, spared)

    def _cost(self, rows: int, width: int, logits: int) -> float:
        return rows * (width * self.token + width**2 * self.pair + logits * self.logits)


def _embeddings(model: Any) -> list[Any]:
    """Return the layers of the vocabulary, of which the input's costs nothing."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return [layer for layer in layers if layer is not None]


def _used_share(name: str, config: Any) -> float:
    """Return the share of a weight that one token meets: of experts, those that it is sent to."""
    if ".experts." not in name:
        return 1.0
    counts = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((getattr(config, count) for count in counts if hasattr(config, count)), 1)
    return float(getattr(config, "num_experts_per_tok", experts) / experts)


def obstacle_to_sharing(model: Any) -> str | None:
    """Name what keeps a model from sharing prompts; None: its numbers are those of separate rows.

    What the config says is looked at first. Models whose attention depends on more than the mask
    and the positions (ALiBi's distances, a state that runs along) are told by their numbers.
    """
    config = model.config.get_text_config()
    if config._attn_implementation not in _ATTENTIONS:
        return str(config._attn_implementation)
    partial = _kinds_of_attention(config) - {"full_attention", "global"}
    if partial:
        return ", ".join(sorted(partial))
    difference = _largest_difference(model)
    if math.isinf(difference):
        return "attention that takes no mask of each pair of tokens"
    bound = _ROUNDING if model.dtype.itemsize >= 4 else _ROUNDING_16_BITS
    if difference <= bound:
        return None
    return f"log-probabilities of packed rows that differ by {difference:.2g}"


def _kinds_of_attention(config: Any) -> set[str]:
    """Return the kinds of attention of a model's layers; families name them differently."""
    kinds = {*(getattr(config, "layer_types", None) or ())}
    kinds |= {*(getattr(config, "attention_layers", None) or ())}
    if not kinds and getattr(config, "sliding_window", None):
        kinds.add("sliding_attention")
    return kinds


@torch.no_grad()
def _largest_difference(model: Any) -> float:
    """Compute log π of a few made-up rows in both ways, and return the largest difference.

    It is infinite if the model refuses to compute them.
    """
    rows = _made_up_rows(model)
    training = model.training
    model.eval()
    try:
        logits = model(
            input_ids=rows.ids,
            attention_mask=rows.mask,
            position_ids=positions_of(rows.mask),
            use_cache=False,
        ).logits
        of_tokens = logits[:, -rows.tokens - 1 : -1].float()
        completions = rows.ids[:, -rows.tokens :, None]
        separate = torch.log_softmax(of_tokens, dim=-1).gather(2, completions)[:, :, 0]
        groups = PromptGroups.of(rows)
        packed, _ = shared_pass(model, rows, groups, temperature=1.0, entropies=False)
    except (RuntimeError, TypeError, ValueError):
        # A family that takes no such mask or no positions says so in ways of its own.
        return math.inf
    finally:
        model.train(training)
    return float((separate - packed).abs().max())


def _made_up_rows(model: Any) -> PaddedRows:
    """Make two prompts of other lengths with two completions each, of any tokens."""
    prompt_tokens = 9
    tokens = 3
    width = prompt_tokens + tokens
    vocabulary = model.config.get_text_config().vocab_size
    ids = (torch.arange(4 * width, device=model.device) * 7 + 3) % vocabulary
    ids = ids.view(4, width)
    mask = torch.ones_like(ids)
    ids[1, :prompt_tokens] = ids[0, :prompt_tokens]
    ids[3, :prompt_tokens] = ids[2, :prompt_tokens]
    mask[2:, :4] = 0
    return PaddedRows(ids, mask, tokens)
