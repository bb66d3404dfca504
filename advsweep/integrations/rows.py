"""What the integrations share: rollouts in rows as groups, estimators for them, their memory.

Trainers hand rollouts over as rows, in any order. The memory of an estimator is a file of the
trainer's checkpoints.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import BatchError, CheckpointError, ConfigError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.estimators.turns import number_turns
from advsweep.local_files import open_regular, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Bool, Float, Int

    from advsweep.estimators import Advantages, Estimator

    Spec = Estimator | Mapping[str, Any] | str
    PerRow = Float[Tensor, " rows"]


# The file of a trainer's checkpoint that holds the memory of an estimator.
MEMORY_FILE = "estimator.json"

_LARGEST_MEMORY = 1 << 30  # dcpo holds three numbers for every prompt.


class Origin(NamedTuple):
    """Where a row comes from.

    Attributes:
        prompt: the prompt, the same for all rows of a group.
        session: the rollout of that prompt; several rows if an agent gave several outputs.
        output: the place of the row among the outputs of its session.
        padding: the trainer added the row to fill up a batch.
    """

    prompt: Hashable
    session: Hashable
    output: int = 0
    padding: bool = False


class Rows:
    """The rows of a batch, grouped: a group for each prompt, a rollout for each session.

    Rows come in any order, groups in any size. A session counts as one rollout, however many
    rows it has. Padding belongs to no group.

    Attributes:
        sessions: the rows of each rollout, in the order of their outputs.
        owner: the rollout of each row; -1 for padding.
        shape: of tables: the number of groups, and the most rollouts of one.
        final: the row of the last output of each rollout.
    """

    def __init__(self, origins: Sequence[Origin], device: torch.device | str = "cpu") -> None:
        groups: dict[Hashable, dict[Hashable, list[int]]] = {}
        for row, origin in enumerate(origins):
            if not origin.padding:
                groups.setdefault(origin.prompt, {}).setdefault(origin.session, []).append(row)

        self.sessions: list[list[int]] = []
        owner = [-1] * len(origins)
        cells: list[tuple[int, int]] = []
        for group, sessions in enumerate(groups.values()):
            # By their numbers, if they have some: trainers move rows about.
            numbers = [key for key in sessions if isinstance(key, int)]
            ordered = sorted(numbers) if len(numbers) == len(sessions) else list(sessions)
            for number, session in enumerate(ordered):
                rows = sorted(sessions[session], key=lambda row: origins[row].output)
                for row in rows:
                    owner[row] = len(self.sessions)
                self.sessions.append(rows)
                cells.append((group, number))
        self.owner = torch.tensor(owner, dtype=torch.long, device=device)
        self.final = torch.tensor([rows[-1] for rows in self.sessions], device=device)
        # The group of each rollout, and its number in it.
        self._cells = torch.tensor(cells, device=device).view(-1, 2).unbind(dim=1)
        self._first = []
        for sessions in groups.values():
            rows_of_session = next(iter(sessions.values()))
            self._first.append(rows_of_session[0])
        self.shape = (len(groups), max(map(len, groups.values()), default=0))

    def table(self, values: Tensor) -> Tensor:
        """Return one value per rollout as a table [groups, rollouts], 0 where there is none."""
        table = values.new_zeros(self.shape)
        table[self._cells] = values
        return table

    def untable(self, table: Tensor) -> Tensor:
        """Return the values of a table, one per rollout."""
        return table[self._cells]

    def per_group(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return one value per group, for values of rows that are the same in a group."""
        return tuple(values[row] for row in self._first)

    def totals(self, values: Float[Tensor, " rows"]) -> Float[Tensor, " sessions"]:
        """Return the sum over the rows of each rollout."""
        real = self.owner >= 0
        total = values.new_zeros(len(self.sessions))
        return total.index_add_(0, self.owner[real], values[real])


class TokenRows(Rows):
    """Rows with a mask of the tokens that the policy generated.

    The tokens of a rollout are those of all its outputs, in their order; its reward is that of
    the last output.
    """

    def __init__(self, origins: Sequence[Origin], response_mask: Tensor) -> None:
        super().__init__(origins, response_mask.device)
        self._mask = response_mask.bool()
        lengths = self._mask.sum(dim=1).tolist()
        before = [0] * len(origins)
        for rows in self.sessions:
            for earlier, row in itertools.pairwise(rows):
                before[row] = before[earlier] + lengths[earlier]
        self._before = torch.tensor(before, device=response_mask.device)

    def lengths(self) -> Float[Tensor, " sessions"]:
        """Return the generated tokens of each rollout."""
        return self.totals(self._mask.sum(dim=1).float())

    def token_sums(self, values: Float[Tensor, "rows tokens"]) -> Float[Tensor, " sessions"]:
        """Return the sum over the generated tokens of each rollout."""
        return self.totals(torch.where(self._mask, values, 0.0).sum(dim=1))

    def token_table(
        self, values: Float[Tensor, "rows tokens"]
    ) -> Float[Tensor, "groups rollouts tokens"]:
        """Return one value per generated token, left-aligned, 0 past the end."""
        return self._token_table(values, fill=0)

    def turn_table(self) -> Int[Tensor, "groups rollouts tokens"] | None:
        """Return the turn of each generated token, left-aligned, -1 past the end.

        A turn begins at each run of generated tokens, and with each output of a rollout. None if
        every rollout has one turn.
        """
        turns = number_turns(self._mask)
        counts = (turns.amax(dim=1) + 1).tolist()
        earlier = torch.zeros(len(counts), dtype=torch.long)
        for rows in self.sessions:
            for before, row in itertools.pairwise(rows):
                earlier[row] = earlier[before] + counts[before]
        turns = turns + earlier.to(turns.device)[:, None]
        table = self._token_table(turns, fill=-1)
        return table if (table > 0).any() else None

    def _token_table(self, values: Tensor, *, fill: int) -> Tensor:
        row, column, group, rollout, token = self._tokens()
        longest = int(token.max()) + 1 if len(token) else 1
        table = values.new_full((*self.shape, longest), fill)
        table[group, rollout, token] = values[row, column]
        return table

    def spread(self, table: Tensor) -> Float[Tensor, "rows tokens"]:
        """Return the rows of verl for a table of one value per rollout, or per token.

        Tokens that the policy did not generate, and padding, get 0.
        """
        rows = table.new_zeros(self._mask.shape)
        row, column, group, rollout, token = self._tokens()
        if table.ndim == 3:
            rows[row, column] = table[group, rollout, token]
        else:
            rows[row, column] = table[group, rollout]
        return rows

    def _tokens(self) -> tuple[Int[Tensor, " tokens"], ...]:
        """Return the row and column, and the group, rollout and number, of all generated tokens."""
        mask = self._mask & (self.owner >= 0)[:, None]
        row, column = mask.nonzero(as_tuple=True)
        group, rollout = (of_rollouts[self.owner[row]] for of_rollouts in self._cells)
        token = self._before[row] + (mask.cumsum(dim=1) - 1)[row, column]
        return row, column, group, rollout, token


class RowEstimator:
    """An estimator for rollouts in any order, of groups of any size: one row per rollout.

    Args:
        estimator: an estimator, its name, or a mapping as `build_estimator` takes it.
        fields: fields of the estimator, if it is named.

    Attributes:
        provides: the inputs that the framework hands over, in addition to rewards.
        framework: name for messages.
        metrics: `advsweep.diagnostics.rollout_metrics` of the last call; a success is a reward
            of 1.

    Raises:
        ConfigError: the estimator needs an input that the framework does not hand over, or gives
            tokens advantages of their own.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    framework: ClassVar[str]

    def __init__(self, estimator: Spec, **fields: Any) -> None:
        if isinstance(estimator, str | Mapping):
            estimator = build_estimator(estimator, **fields)
        self.estimator = estimator
        self.metrics: dict[str, float] = {}
        missing = sorted(estimator.needs - self.provides)
        if missing:
            raise ConfigError(
                f"estimator '{estimator.name}' needs {', '.join(missing)}, which {self.framework} "
                f"does not hand over; expected one that needs no more than "
                f"{', '.join(sorted(self.provides)) or 'rewards'}"
            )
        if estimator.per_token:
            raise ConfigError(
                f"estimator '{estimator.name}' gives tokens or turns advantages of their own, and "
                f"{self.framework} takes one per rollout; expected another estimator"
            )

    def advantages(
        self,
        rewards: PerRow,
        groups: Sequence[Hashable],
        *,
        sessions: Sequence[Hashable] | None = None,
        scorable: Bool[Tensor, " rows"] | None = None,
        lengths: PerRow | None = None,
        surprisal: PerRow | None = None,
        prompts: Sequence[str] | None = None,
    ) -> PerRow:
        """Return the advantage of each row, on the device of the rewards.

        Rollouts that the estimator drops, and those that cannot be scored, get 0.

        Args:
            groups: the group of each row.
            sessions: the rollout of each row, if one rollout may have several rows. It counts
                once, with the reward of its last row and the tokens of all; its rows get the
                same advantage.
            scorable: false for rows without a reward or that only pad; by default all true.
            lengths: generated tokens of each row; a rollout without any, which the framework has
                rejected, enters no statistic.
            surprisal: sum of -log π over these tokens, in nats.
            prompts: name of each row's prompt, the same in every step.
        """
        device = rewards.device
        names = range(len(groups)) if sessions is None else sessions
        origins = []
        for row, (group, session) in enumerate(zip(groups, names, strict=True)):
            origins.append(Origin(group, session, output=row))
        rows = Rows(origins)
        scored = torch.ones(len(rows.sessions), dtype=torch.bool)
        if scorable is not None:
            scored = scorable.cpu()[rows.final]
        tokens = None if lengths is None else rows.totals(lengths.float().cpu())
        if tokens is not None:
            scored = scored & (tokens > 0)
        present = rows.table(scored)
        entropy = None
        if surprisal is not None and tokens is not None:
            entropy = rows.table(rows.totals(surprisal.float().cpu()) / tokens.clamp(min=1))
        batch = GroupBatch(
            rewards=rows.table(rewards.detach().float().cpu()[rows.final]),
            mask=None if present.all() else present,
            lengths=None if tokens is None else rows.table(tokens),
            token_entropy=entropy,
            prompt_ids=None if prompts is None else rows.per_group(prompts),
        )
        computed = self.estimator.compute(batch)
        remedy = f"sample several per prompt in {self.framework}"
        refuse_single_rollouts(rows, batch, computed, self.estimator.name, remedy)
        self.metrics = rollout_metrics(batch, computed, verifier_free=self.estimator.verifier_free)
        kept = torch.where(computed.keep, computed.values, 0.0)
        return rows.untable(kept)[rows.owner].to(device)


def refuse_single_rollouts(
    rows: Rows, batch: GroupBatch, advantages: Advantages, name: str, remedy: str
) -> None:
    """Refuse a batch of different rewards, one per prompt, that all get an advantage of 0.

    Args:
        name: of the estimator.
        remedy: the setting that gives several rollouts per prompt.

    Raises:
        BatchError: the estimator compares the rollouts of a prompt, and each has one.
    """
    groups, rollouts = rows.shape
    rewards = batch.rewards if batch.mask is None else batch.rewards[batch.mask]
    if rollouts > 1 or groups < 2 or (rewards == rewards.flatten()[:1]).all():
        return
    if not advantages.values.any():
        raise BatchError(
            f"estimator '{name}' compares the rollouts of a prompt: expected several, got one for "
            f"each of {groups} prompts, so that every advantage is 0; {remedy}"
        )


def prompt_name(prompt: Any) -> str:
    """Name a prompt by a digest; texts themselves would be part of an estimator's memory.

    Images and the like count by their type alone: their text is another in every process.
    """
    text = prompt
    if not isinstance(prompt, str):
        text = json.dumps(prompt, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save_memory(path: Path, estimator: Estimator) -> None:
    """Write the memory of an estimator to a file of a checkpoint."""
    # Replaced as a whole: with half a file the checkpoint could not be resumed from.
    state = {"estimator": estimator.plain(), "state": estimator.state_dict()}
    replace_file(path, json.dumps(state))


def load_memory(path: Path, estimator: Estimator) -> None:
    """Restore the memory of an estimator.

    Raises:
        CheckpointError: the file cannot be read, or is of another estimator.
    """
    try:
        with open_regular(path) as file:
            saved = json.loads(file.read(_LARGEST_MEMORY))
        name = str(saved["estimator"]["name"])
        state = dict(saved["state"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected the memory of estimator '{estimator.name}', got "
            f"{type(error).__name__}: {error}; resume from another checkpoint"
        ) from error
    if name != estimator.name:
        raise CheckpointError(
            f"{path}: expected the memory of estimator '{estimator.name}', got that of "
            f"{name[:80]!r}; resume with that estimator or from another checkpoint"
        )
    estimator.load_state_dict(state)
