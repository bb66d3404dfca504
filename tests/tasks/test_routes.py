"""The task routes: its hidden map, walks, floors, verifier, parts and corpus."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from advsweep.tasks import route_maps as exact
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.generated import Part, belongs
from advsweep.tasks.route_maps import (
    MAX_NODES,
    NO_STOP,
    NODES,
    Links,
    Prompts,
    RouteMap,
    prompts_of_levels,
    route_map,
    walk,
    write,
)
from advsweep.tasks.routes import NODE_SYMBOLS, Routes


@pytest.fixture(scope="session")
def routes() -> Routes:
    return Routes()


def links_of(*pairs: tuple[int, int]) -> Links:
    adjacent = np.zeros((NODES, NODES), dtype=bool)
    for a, b in pairs:
        adjacent[a, b] = adjacent[b, a] = True
    return Links(adjacent)


RING = links_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (3, 5))


def sha256(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(a.astype("<i8").tobytes() for a in arrays)).hexdigest()[:16]


def test_distances_of_a_small_map() -> None:
    """A ring of five nodes with a tail: 0-1-2-3-4-0 and 3-5."""
    links = RING
    assert links.distances[:6, :6].tolist() == [
        [0, 1, 2, 2, 1, 3],
        [1, 0, 1, 2, 2, 3],
        [2, 1, 0, 1, 2, 2],
        [2, 2, 1, 0, 1, 1],
        [1, 2, 2, 1, 0, 2],
        [3, 3, 2, 1, 2, 0],
    ]
    assert links.distances[0, 6] == 99
    assert links.neighbours[[0, 3, 5, 6]].tolist() == [
        [1, 4, NODES],
        [2, 4, 5],
        [3, NODES, NODES],
        [NODES, NODES, NODES],
    ]
    # From node 3 to the target 0: its neighbours 2 and 4 are 2 and 1 links away, 5 is 3.
    np.testing.assert_allclose(links.pull[[2, 4, 5, NODES], 0], [*np.exp([-3, -1.5, -4.5]), 0])


def test_the_map_never_changes() -> None:
    """Base models that were trained before know this map."""
    assert sha256(np.argwhere(route_map().open.adjacent)) == "324c69cb05c3de15"
    assert sha256(np.argwhere(route_map().old.adjacent)) == "64b81308ab337a2a"


def prompts(start: int, stop: int, goal: int, count: int) -> Prompts:
    return Prompts(*(np.full(count, node) for node in (start, stop, goal)))


def counts(nodes: np.ndarray, arrived: np.ndarray) -> dict[str, int]:
    texts, number = np.unique(write(nodes[arrived]), return_counts=True)
    return dict(zip(texts.tolist(), number.tolist(), strict=True))


def test_walks_prefer_near_nodes() -> None:
    """From 0 to 3 on a ring: over 4, one link away, or over 1, two links away."""
    uniform = np.random.default_rng(0).random((20_000, MAX_NODES))
    found = counts(*walk(RING, prompts(0, NO_STOP, 3, 20_000), uniform))
    # e^-1.5 against e^-3: 0 -> 4 with probability 1 / (1 + e^-1.5) = .8176, then only 3 is left.
    # Over 1, the only way is 2 and 3. No walk reaches 5 before 3.
    assert found.keys() == {"ED", "BCD"}
    assert found["ED"] == pytest.approx(0.8176 * 20_000, abs=4 * 55)


def test_walks_pass_the_stop_first_and_may_fail() -> None:
    """From 0 over 5 to 4: 5 is a dead end, so no walk arrives; from 0 over 2 to 4 all do."""
    uniform = np.random.default_rng(1).random((500, MAX_NODES))
    assert not walk(RING, prompts(0, 5, 4, 500), uniform)[1].any()
    nodes, arrived = walk(RING, prompts(0, 2, 4, 500), uniform)
    # The goal 4 is not entered before the stop, so the walk must take 1, 2, 3; at 3 it goes to
    # 4 (distance 0) or to the dead end 5 (distance 2): 1 / (1 + e^-3) = .9526 arrive.
    assert set(write(nodes[arrived])) == {"BCDE"}
    assert arrived.mean() == pytest.approx(0.9526, abs=4 * 0.0095)


def test_tables_of_a_small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways from 0 to 3: over 4 with two links, over 1 and 2 with three."""
    monkeypatch.setattr(exact, "route_map", lambda seed: RouteMap(RING, RING))
    tables = exact.path_tables.__wrapped__()
    guess, walker = tables["guess"], tables["walker"]
    # One of 62 sequences with one node before the goal, one of 62 x 61 with two; lengths 1/8.
    assert guess[0, NO_STOP, 3] == pytest.approx((1 / 62 + 1 / (62 * 61)) / 8)
    assert guess[0, 4, 3] == pytest.approx(1 / (62 * 8))
    assert guess[0, 1, 3] == pytest.approx(1 / (62 * 61 * 8))
    assert guess[0, 5, 3] == guess[0, NO_STOP, 6] == guess[0, NO_STOP, 0] == 0
    # 0 -> 1 or 4 with 1/2; from there one way is left up to 3.
    assert walker[0, NO_STOP, 3] == pytest.approx(1)
    assert walker[0, 1, 3] == pytest.approx(0.5)
    # To 5 over 3, where the other neighbour is not visited: 1/2 of either way.
    assert walker[0, NO_STOP, 5] == pytest.approx(0.5)
    assert walker[0, 4, 5] == pytest.approx(0.25)


def solves(prompt: str, text: str, links: Links) -> bool:
    """Plain Python's verdict on an answer."""
    start, *stop, goal = prompt.removesuffix(":")
    if not 1 <= len(text) <= 8 or any(symbol not in NODE_SYMBOLS for symbol in text):
        return False
    way = start + text
    steps = zip(map(NODE_SYMBOLS.index, way), map(NODE_SYMBOLS.index, text), strict=False)
    return (
        len(set(way)) == len(way)
        and way.endswith(goal)
        and all(symbol in text for symbol in stop)
        and all(links.adjacent[a, b] for a, b in steps)
    )


def problem_of(prompt: str) -> Problem:
    start, *stop, goal = (NODE_SYMBOLS.index(symbol) for symbol in prompt.removesuffix(":"))
    key = Prompts(*(np.array([x]) for x in (start, stop[0] if stop else 64, goal))).keys.item()
    return Problem(prompt, prompt, 0, {"key": key})


@pytest.fixture
def small_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring A-B-C-D-E-A with the tail D-F."""
    linked = {"A": "BE", "B": "AC", "C": "BD", "D": "CEF", "E": "DA", "F": "D"}
    monkeypatch.setattr("advsweep.tasks.routes._linked", lambda map_seed: linked)


@pytest.mark.usefixtures("small_map")
@pytest.mark.parametrize(
    ("prompt", "right", "wrong"),
    [
        # No stop: both ways around the ring.
        ("AD:", ["ED", "BCD"], ["D", "EDF", "BCDED", "BD", "BCDE", "", "AED", "FD", "ED:", "DE"]),
        # Over B, the one way is B, C, D; over F there is none, as D would come twice.
        ("ABD:", ["BCD"], ["ED", "BAED", "CD"]),
        ("AFE:", [], ["BCDFDE", "EDF", "E", "DFE"]),
        ("EAF:", ["ABCDF"], ["DF", "AF", "ABCDFF", "ABCDF ", "ABCDF\0", "\0ABCDF", "ÄBCDF"]),
    ],
)
def test_known_answers(routes: Routes, prompt: str, right: list[str], wrong: list[str]) -> None:
    texts = right + wrong
    scores = routes.score([problem_of(prompt)] * len(texts), texts)
    assert scores.dtype == np.float64
    assert scores.tolist() == [1.0] * len(right) + [0.0] * len(wrong)


def test_answers_have_at_most_eight_nodes(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line A-B-...-Z, I is eight links away from A, and J nine."""
    line = dict(itertools.pairwise("ABCDEFGHIJ"))
    monkeypatch.setattr("advsweep.tasks.routes._linked", lambda map_seed: line)
    problems = [problem_of(prompt) for prompt in ("AI:", "AJ:", "AI:", "AI:")]
    texts = ["BCDEFGHI", "BCDEFGHIJ", "BCDEFGHIJ", "B:"]
    assert routes.score(problems, texts).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert routes.answers(problems, texts) == ["BCDEFGHI", None, None, None]


def test_problems_have_solutions_and_fitting_prompts(routes: Routes) -> None:
    for split in Split:
        problems = routes.problems(split)
        assert routes.score(problems, [p.reference["solution"] for p in problems]).all()
        assert len({p.id for p in problems}) == len(problems)
        assert all(p.id == f"{p.level}/{p.prompt[:-1]}" for p in problems)
        assert {len(p.prompt) for p in problems} == {3, routes.max_prompt_length}
        assert all((p.level == 0) == (len(p.prompt) == 3) for p in problems)
    held_out = Counter(p.level for p in routes.problems(Split.HELD_OUT))
    assert held_out == dict.fromkeys(range(7), 30)
    train = Counter(p.level for p in routes.problems(Split.TRAIN))
    assert all(train[level] == 4000 for level in range(2, 7))
    assert train[0] < train[1] < 4000
    few = Counter(p.level for p in Routes(train_per_level=100).problems(Split.TRAIN))
    assert few == dict.fromkeys(range(7), 100)


def test_pretraining_training_and_held_out_prompts_are_disjoint(routes: Routes) -> None:
    """Whatever the seeds: start, stop and goal alone decide."""
    parts = {part: set() for part in Part}
    for seed in range(3):
        task = replace(routes, seed=seed, train_per_level=1000)
        parts[Part.TRAIN] |= {p.prompt for p in task.problems(Split.TRAIN)}
        parts[Part.HELD_OUT] |= {p.prompt for p in task.problems(Split.HELD_OUT)}
        parts[Part.PRETRAINING] |= {*task.pretraining_pairs(5000, np.random.default_rng(seed))[0]}
    assert min(map(len, parts.values())) > 400
    assert sum(map(len, parts.values())) == len(set.union(*parts.values()))
    keys = np.concatenate([prompts.keys for prompts in prompts_of_levels()])
    shares = {part: belongs(keys, part).mean() for part in Part}
    # Of 236,766 prompts: standard deviation .001.
    assert shares[Part.PRETRAINING] == pytest.approx(0.40, abs=0.004)
    assert shares[Part.TRAIN] == pytest.approx(0.35, abs=0.004)
    assert shares[Part.HELD_OUT] == pytest.approx(0.25, abs=0.004)


def test_problems_never_change(routes: Routes) -> None:
    """The same with every version of numpy, so that stored results stay comparable."""
    digests = {
        split: hashlib.sha256(
            "\n".join(f"{p.id} {p.reference['solution']}" for p in routes.problems(split)).encode()
        ).hexdigest()[:16]
        for split in Split
    }
    assert digests == {Split.TRAIN: "bef7e79ee1f56aad", Split.HELD_OUT: "2f7d9b1e6d12b7a4"}
    floors = {name: np.mean([*floor.rates.values()]) for name, floor in routes.floors().items()}
    assert floors == pytest.approx(
        {"guess": 8.64774131567742e-05, "walker": 0.029060850370869213}, rel=1e-9
    )


def test_draw_is_uniform_over_the_trained_levels(routes: Routes) -> None:
    task = replace(routes, train_levels=(5, 2), train_per_level=50)
    assert task.train_levels == (2, 5)
    problems = task.draw(4000, np.random.default_rng(3))
    counts = Counter(p.level for p in problems)
    assert counts.keys() == {2, 5}
    # Binomial(4000, 1/2): standard deviation 32.
    assert abs(counts[2] - 2000) < 160
    assert {p.level for p in task.problems(Split.TRAIN)} == {2, 5}
    assert task.problems(Split.HELD_OUT) == routes.problems(Split.HELD_OUT)
    assert (
        task.problems(Split.TRAIN)[:50]
        == [p for p in routes.problems(Split.TRAIN) if p.level == 2][:50]
    )


def test_only_what_changes_the_corpus_is_in_its_identity(routes: Routes) -> None:
    same = Routes(levels=(0, 4), train_levels=(4,), train_per_level=7, held_out_per_level=2, seed=9)
    assert same.corpus_identity() == routes.corpus_identity()
    assert same.identity() != routes.identity()
    assert Routes(train_levels=tuple(range(7))).identity() == routes.identity()
    first, again = (t.pretraining_pairs(200, np.random.default_rng(7)) for t in (same, routes))
    assert first == again


def test_the_corpus_has_its_shares_and_all_levels(routes: Routes) -> None:
    prompts, texts = routes.pretraining_pairs(14_000, np.random.default_rng(5))
    known = route_map()
    opened, old = (
        np.array([solves(p, t, links) for p, t in zip(prompts, texts, strict=True)])
        for links in (known.open, known.old)
    )
    # Random targets are right by chance about never; standard deviation .0018.
    assert 1 - old.mean() == pytest.approx(0.05, abs=0.009)
    # Some walks on the old map use no closed link.
    assert 0.10 < (old & ~opened).mean() < 0.25
    assert opened[~old].sum() == 0
    starts = [NODE_SYMBOLS.index(p[0]) for p in prompts]
    keys = np.array([problem_of(p).reference["key"] for p in prompts])
    assert len(set(starts)) == 64
    counts = [np.isin(keys, level.keys).sum() for level in prompts_of_levels()]
    assert sum(counts) == 14_000
    # The longer the way, the fewer walks arrive.
    assert counts == sorted(counts, reverse=True)
    assert counts[0] < 4 * counts[6]
