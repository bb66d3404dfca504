"""Tasks of several turns: the policy and an environment write in turn, into one text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from advsweep.tasks.base import SymbolTask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# In place of a reply: the policy's turn is not over.
GOES_ON = -1


class Reply(NamedTuple):
    """What an environment answers to symbols of the policy, one of each episode.

    Attributes:
        symbols: ids of its symbols, which follow in the texts; `GOES_ON` where the policy goes on
            with its turn. Not read where the episode has ended.
        ended: whether the episode has ended.
        cut_off: whether it has ended because it may have no further turn.
    """

    symbols: Int[np.ndarray, " rows"]
    ended: Bool[np.ndarray, " rows"]
    cut_off: Bool[np.ndarray, " rows"]


class Episodes(Protocol):
    """Many episodes that run side by side; they draw nothing at random."""

    def take(self, rows: Int[np.ndarray, " rows"], symbols: Int[np.ndarray, " rows"]) -> Reply:
        """Go on with some episodes, none of which has ended.

        Args:
            rows: their numbers, in any order.
            symbols: ids of the policy's next symbols. One that is not in the alphabet, such as
                the end mark, ends its episode.
        """


@dataclass(frozen=True)
class Transcript:
    """What the environment says of whole episodes, on an axis of turns.

    Attributes:
        turns: the turns of each episode.
        states: a name of what stands before each turn; 0 past the last turn. Episodes of one
            problem that come to equal names have come to the same state.
        rewards: the reward of each turn, without that of the verdict; 0 past the last turn.
    """

    turns: Int[np.ndarray, " episodes"]
    states: Int[np.ndarray, "episodes turns"]
    rewards: Float[np.ndarray, "episodes turns"]


class EpisodeTask(SymbolTask):
    """A task over a small alphabet whose completions are episodes.

    A completion is the whole episode after the prompt: the policy's symbols and those of the
    environment in turn, as they were sampled. So verdicts, states and rewards of turns follow from
    prompts and completions alone.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"turn_of_token", "turn_states"})

    environment_symbols: ClassVar[str]
    """The symbols of the alphabet with which the environment answers, and the policy does not."""

    @property
    def environment_ids(self) -> list[int]:
        """The ids of `environment_symbols`."""
        return [self.alphabet.index(symbol) for symbol in self.environment_symbols]

    @property
    @abstractmethod
    def max_turns(self) -> int:
        """The most turns of an episode."""

    @abstractmethod
    def begin(self, texts: Sequence[str]) -> Episodes:
        """Start an episode after each text: a prompt, and turns that were already made."""

    @abstractmethod
    def follow(self, prompts: Sequence[str], completions: Sequence[str]) -> Transcript:
        """Return the turns of episodes, of which each is what `begin` makes of its symbols."""
