"""The task routes: its verifier against plain Python, its parts, its corpus."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.tasks.base import Problem, Split
from advsweep.tasks.generated import Part, belongs
from advsweep.tasks.route_maps import Links, Prompts, prompts_of_levels, route_map
from advsweep.tasks.routes import NODE_SYMBOLS, Routes


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


def is_readable(text: str) -> bool:
    return 1 <= len(text) <= 8 and all(symbol in NODE_SYMBOLS for symbol in text)


def agrees(task: Routes, problems: list[Problem], texts: list[str]) -> None:
    scores = task.score(problems, texts)
    assert scores.dtype == np.float64
    links = route_map().open
    assert scores.tolist() == [
        float(solves(problem.prompt, text, links))
        for problem, text in zip(problems, texts, strict=True)
    ]
    answers = task.answers(problems, texts)
    assert answers == [text if is_readable(text) else None for text in texts]


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
    assert scores.tolist() == [1.0] * len(right) + [0.0] * len(wrong)


def test_answers_have_at_most_eight_nodes(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line A-B-...-Z, I is eight links away from A, and J nine."""
    line = dict(itertools.pairwise("ABCDEFGHIJ"))
    monkeypatch.setattr("advsweep.tasks.routes._linked", lambda map_seed: line)
    problems = [problem_of("AI:"), problem_of("AJ:"), problem_of("AI:")]
    texts = ["BCDEFGHI", "BCDEFGHIJ", "BCDEFGHIJ"]
    assert routes.score(problems, texts).tolist() == [1.0, 0.0, 0.0]
    assert routes.answers(problems, texts) == ["BCDEFGHI", None, None]


@given(
    st.integers(0, 2**32),
    st.lists(st.text(st.sampled_from(NODE_SYMBOLS + ": é"), max_size=10), max_size=20),
)
def test_verifier_agrees_with_python_on_noise(routes: Routes, seed: int, texts: list[str]) -> None:
    agrees(routes, routes.draw(len(texts), np.random.default_rng(seed)), texts)


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
