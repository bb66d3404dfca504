"""Walks over the map in turns: the policy names a node, the environment says if a link is open."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.episodes import Reply
from advsweep.tasks.route_maps import (
    KEPT_MAPS,
    NO_STOP,
    NODE_SYMBOLS,
    NODES,
    Links,
    Prompts,
    choose,
    route_map,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    Rows = Int[np.ndarray, " rows"]
    Flags = Bool[np.ndarray, " rows"]
    _Nodes = Int[np.ndarray, "*shape"]

# What the environment answers: the link is open and the walker has moved, or it has not.
MOVED = "="
CLOSED = "!"
SYMBOLS = NODE_SYMBOLS + ":" + MOVED + CLOSED
_MOVED_ID = SYMBOLS.index(MOVED)
_CLOSED_ID = SYMBOLS.index(CLOSED)

_CODES = np.array([ord(symbol) for symbol in SYMBOLS], dtype=np.uint32)

# Ids by the code of a character; -1 for characters that are no symbol.
_IDS = np.full(128, -1)
_IDS[[ord(symbol) for symbol in SYMBOLS]] = range(len(SYMBOLS))


class Walkers:
    """Walkers on the map, one of each episode.

    An episode ends at the goal, after its last turn, or with a symbol that is not in the alphabet.

    Attributes:
        here: where each walker stands.
        passed: whether it has been at its stop, or has none.
        turns: its turns so far.
        max_turns: the most turns of an episode.
        ended: whether its episode has ended.
    """

    def __init__(self, links: Links, prompts: Prompts, max_turns: int) -> None:
        self._adjacent = links.adjacent
        self._prompts = prompts
        self.max_turns = max_turns
        self.here = prompts.starts.copy()
        self.passed = prompts.stops == NO_STOP
        self.turns = np.zeros(len(prompts), dtype=np.int64)
        self.ended = np.zeros(len(prompts), dtype=bool)

    @property
    def solved(self) -> Flags:
        """Whether each walker has come to its goal past its stop."""
        solved: Flags = self.passed & (self.here == self._prompts.goals)
        return solved

    @property
    def states(self) -> Rows:
        """A name of the state of each walker: its problem, whether it has passed, and its place."""
        states: Rows = (self._prompts.keys * 2 + self.passed) * NODES + self.here
        return states

    def take(self, rows: Rows, symbols: Rows) -> Reply:
        """Let some walkers try to move; see `episodes.Episodes`."""
        # A symbol that is no node leads nowhere; the first node only fills its place.
        is_node = (symbols >= 0) & (symbols < NODES)
        moved = is_node & self._adjacent[self.here[rows], np.where(is_node, symbols, 0)]
        self.here[rows[moved]] = symbols[moved]
        self.passed[rows] |= self.here[rows] == self._prompts.stops[rows]
        self.turns[rows] += 1
        arrived = self.here[rows] == self._prompts.goals[rows]
        given_up = (symbols < 0) | (symbols >= len(SYMBOLS))
        cut_off = ~arrived & ~given_up & (self.turns[rows] == self.max_turns)
        ended = arrived | given_up | cut_off
        self.ended[rows] = ended
        return Reply(np.where(moved, _MOVED_ID, _CLOSED_ID), ended, cut_off)


def parse_prompts(texts: Sequence[str]) -> tuple[Prompts, list[str]]:
    """Return the prompts `avb:` or `ab:` that texts begin with, and what follows them."""
    heads = []
    rest = []
    for text in texts:
        head, _, after = text.partition(":")
        heads.append(head if len(head) == 3 else f"{head[0]} {head[1]}")
        rest.append(after)
    # The blank of a prompt without a stop has no id; its place is filled below.
    points = np.array(heads, dtype="U3").view(np.uint32).reshape(-1, 3)
    starts, stops, goals = _IDS[points].T
    return Prompts(starts, np.where(stops < 0, NO_STOP, stops), goals), rest


def _symbols(texts: Sequence[str], width: int) -> Int[np.ndarray, "rows places"]:
    """Return the ids of the first characters; -1 past the end, and for those that are no symbol."""
    points = np.array(texts, dtype=f"U{width}").view(np.uint32).reshape(len(texts), width)
    return np.where(points < len(_IDS), _IDS[np.minimum(points, len(_IDS) - 1)], -1)


@dataclass(frozen=True)
class Walk:
    """What walkers do who follow episodes that were written down.

    Attributes:
        walkers: at the ends of their episodes.
        is_true: whether the environment would have written what stands in its place, and the
            episode does not go on after its end.
        states: the state before each turn; 0 past the last turn.
        stop_turn: the turn, from 0, in which the stop was passed; -1 if it was not, or there is
            none.
    """

    walkers: Walkers
    is_true: Flags
    states: Int[np.ndarray, "episodes turns"]
    stop_turn: Rows


def follow(walkers: Walkers, completions: Sequence[str]) -> Walk:
    """Let walkers take the turns that are written down, up to the first that is not true."""
    count = len(completions)
    max_turns = walkers.max_turns
    symbols = _symbols(completions, 2 * max_turns)
    lengths = np.fromiter(map(len, completions), np.int64, count)
    is_true = np.ones(count, dtype=bool)
    states = np.zeros((count, max_turns), dtype=np.int64)
    stop_turn = np.full(count, -1)
    for turn in range(max_turns):
        place = 2 * turn
        rows = np.flatnonzero((lengths > place) & ~walkers.ended & is_true)
        if not len(rows):
            break
        states[rows, turn] = walkers.states[rows]
        had_passed = walkers.passed[rows]
        reply = walkers.take(rows, symbols[rows, place])
        stop_turn[rows[walkers.passed[rows] & ~had_passed]] = turn
        is_last = lengths[rows] == place + 1
        is_answered = symbols[rows, place + 1] == reply.symbols
        # Nothing follows the end of an episode; before it, the environment's answer does.
        is_true[rows] = np.where(reply.ended, is_last, is_last | is_answered)
    return Walk(walkers=walkers, is_true=is_true, states=states, stop_turn=stop_turn)


class Scripts:
    """Episodes that are written down while walkers take their turns."""

    def __init__(self, count: int, max_turns: int) -> None:
        # The environment answers each turn but the last.
        self._points = np.zeros((count, 2 * max_turns - 1), dtype=np.uint32)

    def write(self, turn: int, rows: Rows, symbols: Rows, reply: Reply) -> None:
        """Write what some walkers said in a turn, and the answers where their episodes go on."""
        self._points[rows, 2 * turn] = _CODES[symbols]
        goes_on = ~reply.ended
        if goes_on.any():
            self._points[rows[goes_on], 2 * turn + 1] = _CODES[reply.symbols[goes_on]]

    def texts(self) -> list[str]:
        """Return the episodes."""
        texts: list[str] = self._points.view(f"U{self._points.shape[1]}").ravel().tolist()
        return texts


# Corpus


# How strongly walkers prefer nodes that are nearer to their target. Twice that of `routes`: the
# corpus has whole episodes, right or not, and a model learns too little of less certain ones.
BIAS = 3.0

# How much less a node is wanted that was visited already.
_VISITED = 0.05


def demonstrate(
    walkers: Walkers, known: Links, targets: Prompts, uniform: Float[np.ndarray, "rows turns"]
) -> list[str]:
    """Write episodes of walkers who go to targets by the map that they know.

    The next node is one of the neighbours that a walker knows, with probability proportional to
    exp(-3 x distance to the next target), and to 1/20 where he was already; never one that was
    found to be closed, nor the goal before the stop.

    Args:
        walkers: at their starts.
        known: the links that they believe to be open.
        targets: where they go, which may be other nodes than those of their prompts.
        uniform: one number in [0, 1) per turn.
    """
    rows, max_turns = uniform.shape
    pull = np.vstack([np.exp(-BIAS * known.distances), np.zeros(NODES)])
    wanted = np.ones((rows, NODES + 1))
    wanted[np.arange(rows), walkers.here] = _VISITED
    # The link that was found to be closed in each turn, as a number; -1 where none was.
    closed = np.full((rows, max_turns), -1)
    to_stop = targets.stops != NO_STOP
    scripts = Scripts(rows, max_turns)
    for turn in range(max_turns):
        active = np.flatnonzero(~walkers.ended)
        if not len(active):
            break
        here = walkers.here[active]
        to_stop[active] &= here != targets.stops[active]
        aim = np.where(to_stop[active], targets.stops[active], targets.goals[active])
        choices = known.neighbours[here]
        weights = pull[choices, aim[:, None]] * wanted[active[:, None], choices]
        links = _number_links(here[:, None], choices)
        weights[(links[..., None] == closed[active, None]).any(axis=-1)] = 0.0
        weights[to_stop[active, None] & (choices == targets.goals[active, None])] = 0.0
        # Nobody gives up: where all known links are closed, the first is tried again.
        weights[weights.sum(axis=1) == 0, 0] = 1.0
        chosen = choose(choices, weights, uniform[active, turn])
        reply = walkers.take(active, chosen)
        wanted[active, chosen] = _VISITED
        closed[active, turn] = np.where(
            reply.symbols == _CLOSED_ID, _number_links(here, chosen), -1
        )
        scripts.write(turn, active, chosen, reply)
    return scripts.texts()


def _number_links(here: _Nodes, there: _Nodes) -> _Nodes:
    """Return a number for the link from each node to another."""
    numbers: _Nodes = here * (NODES + 1) + there
    return numbers


def other_targets(prompts: Prompts, rows: Rows, rng: np.random.Generator) -> Prompts:
    """Return the prompts with random stops and goals in some rows, and with the others' own."""
    places = rng.random((len(rows), NODES))
    places[np.arange(len(rows)), prompts.starts[rows]] = 2.0
    chosen = np.argpartition(places, 1, axis=1)
    stops = prompts.stops.copy()
    goals = prompts.goals.copy()
    goals[rows] = chosen[:, 0]
    stops[rows] = np.where(stops[rows] == NO_STOP, NO_STOP, chosen[:, 1])
    return Prompts(prompts.starts, stops, goals)


# Floors


@functools.lru_cache(KEPT_MAPS)
def _moves(map_seed: int) -> dict[str, Float[np.ndarray, "nodes nodes"]]:
    """Return the chances to come from a node to another in a turn, by walkers without skill."""
    adjacent = route_map(map_seed).open.adjacent.astype(np.float64)
    degrees = adjacent.sum(axis=1)
    guess = adjacent / NODES
    guess[np.arange(NODES), np.arange(NODES)] = 1 - degrees / NODES
    return {"guess": guess, "walker": adjacent / degrees[:, None]}


def solve_rates(
    map_seed: int, prompts: Prompts, max_turns: int
) -> dict[str, Float[np.ndarray, " rows"]]:
    """Return the exact chance to come to the goal past the stop, by walkers without skill.

    `guess` names any of the 64 nodes each turn, `walker` any neighbour by an open link.
    """
    rows = np.arange(len(prompts))
    rates = {}
    for name, moves in _moves(map_seed).items():
        # Chances of the places of a walker that has not passed its stop, and of one that has.
        before = np.zeros((len(prompts), NODES))
        after = np.zeros((len(prompts), NODES))
        has_stop = prompts.stops != NO_STOP
        before[rows[has_stop], prompts.starts[has_stop]] = 1
        after[rows[~has_stop], prompts.starts[~has_stop]] = 1
        rate = np.zeros(len(prompts))
        stops = np.where(has_stop, prompts.stops, 0)
        for _ in range(max_turns):
            before = before @ moves
            after = after @ moves
            reached = np.where(has_stop, before[rows, stops], 0.0)
            after[rows, stops] += reached
            before[rows[has_stop], stops[has_stop]] = 0
            rate += after[rows, prompts.goals]
            after[rows, prompts.goals] = 0
            before[rows, prompts.goals] = 0
        rates[name] = rate
    return rates
