"""`advsweep replay`: what it prints and draws, and which mistakes it refuses."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from advsweep.cli.commands.replay import NAMES
from advsweep.estimators import ESTIMATORS
from advsweep.store import open_store

ROWS = {1: [[1, 0, 0, 1], [0, 0, 0, 1]], 2: [[1, 1, 1, 1], [0, 1, 1, 1]], 5: [[1, 0, 0, 0]]}


@pytest.fixture
def dump(tmp_path, monkeypatch):
    """Rollouts of three steps, and a line that is cut, in the working folder."""
    lines = [
        json.dumps({"step": step, "prompt": f"p{i}", "rewards": row})
        for step, rows in ROWS.items()
        for i, row in enumerate(rows)
    ]
    (tmp_path / "rollouts.jsonl").write_text("\n".join([*lines, '{"step": 6, "pro']))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(succeeds, dump):
    """`advsweep replay rollouts.jsonl ARGUMENTS`: stdout and stderr of a success."""
    return lambda *arguments: succeeds("replay", "rollouts.jsonl", *arguments)


def test_every_estimator_is_replayed_or_listed_with_what_it_lacks(run):
    out, err = run()
    assert out.startswith(
        "3 steps, 5 groups, 20 rollouts; mean reward 0.55, solve rate 0.55; 20.0 % of the groups "
        "have equal rewards\n"
    )
    assert err == "advsweep: left out: lines that are cut or damaged (1)\n"
    replayed, missing = out.split("\nnot replayed")
    # Those like GRPO come first.
    rows = [line.split() for line in replayed.splitlines()[3:]]
    cosines = [-9 if row[-2] == "-" else float(row[-2]) for row in rows]
    assert cosines == sorted(cosines, reverse=True)
    assert re.search(r"^fade +needs token_entropy$", missing, re.MULTILINE)
    assert re.search(r"^t2t +needs lengths$", missing, re.MULTILINE)
    listed = {row[0] for row in rows} | {line.split()[0] for line in missing.splitlines()[1:]}
    assert listed == {cls.name for cls in ESTIMATORS.classes()}


def test_json_has_the_numbers_and_what_was_left_out(run):
    found = json.loads(run("-e", "grpo,fade", "--format", "json")[0])
    (record,) = found.pop("estimators")
    assert found == {
        "steps": [1, 2, 5],
        "groups": 5,
        "rollouts": 20,
        "mean_reward": pytest.approx(0.55),
        "solve_rate": pytest.approx(0.55),
        "equal_rewards": pytest.approx(0.2),
        "by": None,
        "lacking": {"fade": ["token_entropy"]},
        "refused": {},
        "left_out": {"lines that are cut or damaged": 1},
        "remarks": [],
    }
    assert list(record) == ["estimator", *NAMES]
    assert record["no_gradient"] == pytest.approx(0.2)
    assert record["cosine_grpo"] == pytest.approx(1)


def test_numbers_by_step_and_by_solve_rate(run):
    def table(by: str) -> list[dict[str, str]]:
        out, _ = run("-e", "grpo", "--by", by, "--format", "csv")
        return list(csv.DictReader(io.StringIO(out)))

    rows = table("step")
    assert [(row["step"], row["groups"]) for row in rows] == [("1", "2"), ("2", "2"), ("5", "1")]
    assert [float(row["no_gradient"]) for row in rows] == [0, 0.5, 0]
    rows = table("solve_rate")
    assert [(float(row["solve_rate"]), row["groups"]) for row in rows] == [
        (0.25, "2"),
        (0.5, "1"),
        (0.75, "1"),
        (1, "1"),
    ]
    # GRPO's masses are √(pq).
    assert [float(row["m_S"]) for row in rows] == pytest.approx([0.1875**0.5, 0.5, 0.1875**0.5, 0])


@pytest.mark.parametrize("by", [pytest.param("step", marks=pytest.mark.slow), "solve_rate"])
def test_figures_are_drawn(run, dump, by):
    out, err = run("-e", "grpo,maxrl,passk_loo", "--by", by, "-o", "figure.svg")
    assert (out, err.splitlines()[-1]) == ("figure.svg\n", "Wrote figure.svg.")
    assert b"maxrl" in (dump / "figure.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), ("expected a file or a folder of logs", "nowhere")),
        (("rollouts.jsonl", "--steps", "7:9"), ("--steps 7:9", "1 to 5")),
        (("rollouts.jsonl", "--steps", "a:b"), ("expected A:B", "'a:b'")),
        (("rollouts.jsonl", "-e", "grop"), ("did you mean 'grpo'",)),
        (("rollouts.jsonl", "-e", ","), ("expected at least one estimator",)),
        (("rollouts.jsonl", "--reward", "x=y"), ("expected NAME or NAME=WEIGHT", "'x=y'")),
        (("rollouts.jsonl", "--reward", "acc"), ("got none", "lines without a reward")),
        (("rollouts.jsonl", "-e", "fade", "-o", "f.png"), ("no estimator can be replayed",)),
        (("rollouts.jsonl", "-o", "figure.gif"), (".png, .svg, .pdf",)),
        (("graded.jsonl", "--by", "solve_rate"), ("--success-at",)),
    ],
)
def test_mistakes_are_refused(called, dump, arguments, words):
    row = {"step": 1, "prompt": "a", "rewards": [0, 0.5, 1]}
    (dump / "graded.jsonl").write_text(json.dumps(row))
    code, out, err = called("replay", *arguments)
    assert (code, out) == (2, "")
    assert all(word in err.splitlines()[-1] for word in words)


def test_a_run_of_our_own_has_the_numbers_that_it_recorded(in_process):
    # The first run is GRPO's.
    words = ("replay", "1", "-e", "grpo,dcpo", "--by", "step", "--format", "json")
    code, out, err = in_process(*words)
    assert code == 0, err
    assert err == (
        "advsweep: groups are rebuilt from solved/K: verdicts without prompts, in no order within "
        "a group\n"
    )
    found = json.loads(out)
    assert found["lacking"] == {"dcpo": ["prompt_ids"]}
    with open_store(None, create=False) as store:
        points = store.metrics.points(1, None)
    recorded = [dict(zip(("name", "step", "value"), point, strict=True)) for point in points]
    for metric, name in [
        ("collapse/acr_after", "no_gradient"),
        ("mass/success", "m_S"),
        ("mass/failure", "m_F"),
        ("mass/sign_ratio", "sign_ratio"),
        ("weight/effective_prompts", "effective_prompts"),
        ("weight/variance", "weight_variance"),
    ]:
        points = {p["step"]: p["value"] for p in recorded if p["name"] == metric}
        own = {r["step"]: r[name] for r in found["estimators"] if r[name] is not None}
        assert points
        assert own == pytest.approx(points), metric


def test_turns_have_numbers_of_their_own(succeeds, called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"step": 1, "prompt": "p", "rewards": [1, 0], "turns": [2, 1]}]
    (tmp_path / "episodes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ("replay", "episodes.jsonl", "-e", "grpo,turn_return", "--by", "turn")
    out, _ = succeeds(*arguments, "--format", "json")
    records = json.loads(out)["estimators"]
    assert [(r["estimator"], r["turn"], r["rollouts"]) for r in records] == [
        ("grpo", 1, 2),
        ("grpo", 2, 1),
        ("turn_return", 1, 2),
        ("turn_return", 2, 1),
    ]
    # Only one rollout has a second turn: no group can be compared there.
    assert [r["mean"] for r in records] == [0, 1, 0, 0]
    assert [r["no_gradient"] for r in records] == [0, None, 0, None]
    succeeds(*arguments, "-o", "turns.svg")
    (tmp_path / "plain.jsonl").write_text(json.dumps({"prompt": "p", "rewards": [1, 0]}))
    code, out, err = called("replay", "plain.jsonl", "--by", "turn")
    assert (code, out) == (2, "")
    assert "expected rollouts of several turns" in err
