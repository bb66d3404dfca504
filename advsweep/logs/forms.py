"""Dumps of rollouts by prime-rl, NeMo-RL and open-instruct: where files are, what a line says.

    advsweep replay RUN
    advsweep import rollouts RUNS

Each line becomes rows of the fields that `advsweep.logs.rollouts` reads. The shapes are those of

- prime-rl 559b44772, `monitors/file.py`, with verifiers a60a606ec to 0.4.0 (`Episode.to_record`):
  an episode per line of `rollouts/step_N/{train,eval}/all/traces.jsonl`, with the traces of its
  agents. Its step is that at which its group was dispatched: groups end in several files. Beside
  `all`, `effective` lacks the groups whose advantages are all 0.
- NeMo-RL 7ea279abf, `utils/logger.py`, `algorithms/grpo.py`: a rollout per line of
  `{train,val}_data_stepN.jsonl`, each value in a list of one.
- open-instruct e6c3044aa, `rl_utils.py`: a rollout per line of `RUN_rollouts_NNNNNN.jsonl`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import mul
from pathlib import Path
from typing import Any

from advsweep.logs.base import whole_step
from advsweep.logs.json_lines import DAMAGED
from advsweep.logs.names import value_at

Fields = dict[str, Any]

# The name of prime-rl's files.
TRACES = "traces.jsonl"

_FILES = (
    re.compile(
        r"(?P<run>.*?)/(?:rollouts/)?step_(?P<step>\d+)/(?P<kind>train|eval)/all/traces\.jsonl"
    ),
    re.compile(r"(?P<run>.*)/(?P<kind>train|val)_data_step(?P<step>\d+)\.jsonl"),
    re.compile(r"(?P<run>.*)_rollouts_\d{6,}\.jsonl"),
)


@dataclass
class DumpedRun:
    """The files of one run, in the order of their steps.

    Attributes:
        home: the folder of the run, or the beginning of its files' names.
    """

    home: Path
    training: list[Path] = field(default_factory=list)
    validation: list[Path] = field(default_factory=list)


def find_dumps(source: Path) -> list[DumpedRun]:
    """Return the runs whose dumps are in a folder, in the order of their names."""
    runs: dict[str, DumpedRun] = {}
    files = source.resolve().rglob("*.jsonl")
    for file in sorted(files, key=lambda file: (step_of(file) or 0, file)):
        if (parts := _parts_of(file)) and file.is_file():
            run = runs.setdefault(parts["run"], DumpedRun(Path(parts["run"])))
            is_training = parts.get("kind", "train") == "train"
            (run.training if is_training else run.validation).append(file)
    return [runs[home] for home in sorted(runs)]


def step_of(file: Path) -> int | None:
    """Return the step in the name of a file of a dump; None without one."""
    parts = _parts_of(file.absolute())
    text = parts.get("step", "") if parts else file.stem
    return whole_step(text) if text.isdecimal() else None


def _parts_of(file: Path) -> dict[str, str]:
    """Return what the path of a file says: `run`, `kind` and `step`; empty for other files."""
    matches = (pattern.fullmatch(file.as_posix()) for pattern in _FILES)
    return next((match.groupdict() for match in matches if match), {})


def rows_of(line: Fields, left_out: Counter[str]) -> list[Fields]:
    """Return the rollouts of a line; the line itself if it is of none of these frameworks."""
    for marks, rows in _ROWS:
        if marks <= line.keys():
            try:
                return list(rows(line))
            except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
                # Any value may be of any type.
                left_out[DAMAGED] += 1
                return []
    return [line]


def _of_prime_rl(line: Fields) -> Iterator[Fields]:
    problem = value_at(line, "task.key") or value_at(line, "task.hash")
    for trace in line["traces"]:
        agent = trace["agent"]
        if agent.get("trainable") is False:
            continue
        nodes = trace["nodes"]
        advantages = [number for node in nodes for number in node.get("advantages") or ()]
        yield {
            **_rewards_of_prime_rl(trace),
            "step": value_at(line, "run.work.step"),
            "group": f"{line['group']['id']} {agent.get('name')}",
            "prompt": problem or line["task"]["data"],
            "task": value_at(line, "env.name") or value_at(line, "env.id"),
            "length": sum(sum(node.get("mask") or ()) for node in nodes),
            "advantage": _mean(advantages),
            "turns": sum(any(node.get("mask") or ()) for node in nodes) or None,
        }


def _rewards_of_prime_rl(trace: Mapping[str, Any]) -> Fields:
    """Return the score of each function, and the weighted sum as `reward`.

    A trace that failed takes no part in the training: all of its rewards are None.
    """
    # As floats: a text times a whole number would be as long as the file says.
    parts = {name: part for name, part in trace["rewards"].items() if part}
    scores = {name: float(part["score"]) for name, part in parts.items()}
    weights = [float(part.get("weight", 1.0)) for part in parts.values()]
    reward = sum(map(mul, scores.values(), weights))
    if trace.get("ok") is not True:
        return dict.fromkeys([*trace["rewards"], "reward"])
    rewards: Fields = {name: scores.get(name) for name in trace["rewards"]}
    return rewards | {"reward": reward}


def _of_nemo_rl(line: Fields) -> Iterator[Fields]:
    values = {name: value for name, value in line.items() if name != "idx"}
    if not all(isinstance(value, list) and len(value) == 1 for value in values.values()):
        yield line  # Of another program.
        return
    own = {name: value[0] for name, value in values.items()}
    mask, content = own.get("token_loss_mask"), own.get("content") or []
    # With dynamic sampling, `rewards` are those of another, larger batch.
    row: Fields = {"reward": own.get("filtered_rewards", own["rewards"]), "prompt": content[:-1]}
    if mask is None:
        row["prompt"] = list(takewhile(lambda message: message["role"] != "assistant", content))
    else:
        # Texts of training do not say whose they are; tokens before the first sampled one do.
        if "token_ids" in own:
            row["prompt"] = own["token_ids"][: mask.index(1) if 1 in mask else None]
        row["length"] = sum(mask)
        row["advantage"] = _mean([a for a, m in zip(own["advantages"], mask, strict=True) if m])
    yield row


def _of_open_instruct(line: Fields) -> Iterator[Fields]:
    # Not by `prompt_idx`: it counts rows, of which truncated ones may have been dropped before.
    yield {
        **{name: line[name] for name in ("step", "reward", "advantage")},
        "prompt": line["prompt_tokens"],
        "length": len(line["response_tokens"]),
    }


def _mean(advantages: list[float]) -> float | None:
    """Return the advantage of a rollout whose tokens share it; tokens without credit have 0."""
    credited = [value for value in advantages if value]
    return sum(credited) / len(credited) if credited else (0.0 if advantages else None)


# By the fields that all lines of a form have, what makes rows of a line.
_ROWS: tuple[tuple[set[str], Callable[[Fields], Iterator[Fields]]], ...] = (
    ({"traces", "task", "env"}, _of_prime_rl),
    ({"idx", "rewards", "token_loss_mask"}, _of_nemo_rl),
    ({"idx", "rewards", "content"}, _of_nemo_rl),
    ({"sample_idx", "prompt_idx", "prompt_tokens", "response_tokens"}, _of_open_instruct),
)
