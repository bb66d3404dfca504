"""Mutated command lines, sweep files, lists of claims, conditions and data files.

Each either works or ends with a message of ours: no traceback, no hang, no write elsewhere.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

LINES = [
    "report two --rows estimator --columns pass@1,collapse/acr@end --sort pass@1 --baseline grpo",
    "report two --where seed>=1 --at tokens=1000 --format csv",
    "ls --status done --limit 3 --format csv",
    "export 1 --to csv --table metrics",
    "status two --format json",
    "describe asym_grpo --rewards 1,0,0,1;0,0,0,1 --set delta=0.5",
    "run method=gspo objective.clip_high=0.3 --dry-run",
    "sweep --dry-run backend=fake seed=range(3) optimizer.lr=choice(1e-4,3e-4) --name mine",
    "describe file --set data=data.jsonl --set held_out=2 --set verifier=numeric",
]

CLAIMS = """title: What the demo is to show
common: {sweep: two, seeds: 2}
claims:
  - id: trade
    says: GRPO raises pass@1 and lowers pass@8
    statement: ['pass@1[grpo] > pass@1[base]', 'pass@8[grpo] < pass@8[base]']
    where: estimator=grpo,fade
  - id: fade-acr
    says: FADE collapses less than GRPO
    metric: collapse/acr@first5
    of: fade
    than: grpo
    direction: lower
    at: tokens=1000
  - id: early-acr
    says: Runs that collapse early end lower
    trend: {of: pass@1, over: collapse/acr@first5, direction: falls, within: [estimator]}
"""

SWEEP = """# @package _global_
defaults:
  - override /backend: fake
steps: 12
evaluation: {n: 16, k: [1, 8], every: 6}
sweep:
  name: mine
  seeds: 2
  common: {group_size: [4, 8]}
  blocks:
    - {estimator: grpo}
    - {estimator: fade, zip: {estimator.h_star: [0.3, 0.5], optimizer.lr: [1e-4, 3e-4]}}
    - estimator: power_alpha
      estimator.alpha: [1, 2, 3]
      when: [{if: {group_size: 8}, optimizer.lr: [1e-4, 3e-4]}]
      exclude: [{estimator.alpha: 3, group_size: 4}]
"""

CONDITIONS = [
    ("--where", "estimator=fade,grpo group_size>=8 seed<3"),
    ("--where", "estimator!=grpo and seed<2"),
    ("--assert", "pass@1[fade] >= pass@1[grpo] - 0.02"),
    ("--assert", "pass@8[estimator=fade seed=1] > 2 * pass@1[base] + 0.1"),
]

ROWS = "".join(
    json.dumps({"question": f"What is {i} + {i}?", "answer": str(2 * i), "level": f"Level {i}"})
    + "\n"
    for i in range(6)
)

ODD = [
    *("", " ", "\t", "\n", "\x1b[31m", "\u202e", "é", "\ud800", "a" * 3000, "'", '"', "[[[1]]]"),
    *("{", "}", "[", "]", "(", ",", "=", ":", "${", "${x}", "???", "@", "~", "--", "*", "&a", "|"),
    *("nan", "-inf", "1e999", "-1", "99999999999999999999999", "9" * 5000, "true", "null", "-0.0"),
    *("choice(1,2)", "range(0,1e9)", "!!python/object:os.system", "..", "folder", "missing"),
]


def mutated(text: str, rng: random.Random) -> str:
    """The text with one to three characters or words deleted, repeated, swapped or replaced."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.randrange(1, 6))
        words = list(re.finditer(r"[\w.]+", text))
        match rng.randrange(5):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                text = text[:start] + rng.choice(ODD) + text[start:]
            case 3 if words:
                word = rng.choice(words)
                text = text[: word.start()] + rng.choice(ODD) + text[word.end() :]
            case _:
                lines = text.split("\n")
                place = rng.randrange(len(lines))
                lines[place] = rng.choice([" ", "\t", "- "]) + lines[place]
                text = "\n".join(lines)
    return text


def command_line(rng: random.Random) -> list[str]:
    arguments = rng.choice(LINES).split()
    place = rng.randrange(1, len(arguments))
    match rng.randrange(4):
        case 0:
            del arguments[place]
        case 1:
            arguments.insert(place, rng.choice([*ODD, *arguments]))
        case _:
            arguments[place] = mutated(arguments[place], rng)
    return arguments


def sweep_file(rng: random.Random) -> list[str]:
    write("conf/experiment/mine.yaml", mutated(SWEEP, rng))
    return ["sweep", "--dry-run", "+experiment=mine", "--config-dir", "conf"]


def claims(rng: random.Random) -> list[str]:
    write("list.yaml", mutated(CLAIMS, rng))
    return ["claims", "list.yaml"]


def condition(rng: random.Random) -> list[str]:
    option, text = rng.choice(CONDITIONS)
    return ["report", "two", option, mutated(text, rng)]


def data_file(rng: random.Random) -> list[str]:
    write("data.jsonl", mutated(ROWS, rng))
    options = ["task.data=data.jsonl", "task.held_out=2", "task.verifier=numeric"]
    options += [rng.choice(["task.level_column=level", "task.id_column=question", "task.train=3"])]
    return ["run", "backend=fake", "task=file", *options, "--dry-run"]


def write(name: str, text: str) -> None:
    Path(name).write_bytes(text.encode("utf-8", "surrogatepass"))


JARGON = re.compile(
    r"Traceback|Value error|Input should|<block end>|while scanning|while parsing|EOF|codec can't"
    r"|mismatched input|token recognition|no viable|extraneous|invalid literal|has no attribute"
    r"|NoneType|not supported between|<class '|\[Errno"
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [command_line, sweep_file, claims, condition, data_file])
def test_mutated_input_works_or_is_refused_in_our_words(
    make, seed, fake_folder, tmp_path, monkeypatch, called
):
    inside = tmp_path / "inside"
    (inside / "conf" / "experiment").mkdir(parents=True)
    (inside / "folder").mkdir()
    shutil.copy(fake_folder / "advsweep.db", inside)
    monkeypatch.chdir(inside)
    write("data.jsonl", ROWS)
    # A process's arguments hold no null character, and are what the file system can encode.
    arguments = [a.replace("\0", "") for a in make(random.Random(f"{make.__name__} {seed}"))]
    code, _, err = called(*arguments)
    # 1: an assertion that the runs do not bear out.
    assert code in ((0, 1, 2) if "--assert" in arguments else (0, 2)), err
    assert code != 2 or re.search("^advsweep: |^Error: ", err, re.MULTILINE)
    assert not JARGON.search(err), err
    assert not CONTROL.search(err), ascii(err)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
