"""Write logs as other trainers do, for the blocks of pages about them: FORMAT FOLDER.

Two estimators with three seeds (tensorboard, lm-eval), or one run (verl, trl, jsonl). Rewards rise
from step to step and are drawn with a fixed seed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

STEPS, PROMPTS, GROUP = 20, 8, 4
RUNS = [(estimator, seed) for estimator in ("grpo", "rloo") for seed in (0, 1, 2)]


def lines(path: Path, rows: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def groups(step: int) -> Iterator[list[int]]:
    """The rewards of a step's groups."""
    draw = random.Random(step)
    for _ in range(PROMPTS):
        yield [int(draw.random() < 0.2 + 0.5 * step / STEPS) for _ in range(GROUP)]


def tensorboard(folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for estimator, seed in RUNS:
        draw = random.Random(f"{estimator}{seed}")
        writer = EventFileWriter(str(folder / f"{estimator}-s{seed}"))
        for step in range(1, STEPS + 1):
            values = {
                "train/reward": 0.2 + step / 40 + (estimator == "rloo") / 10 + draw.gauss(0, 0.01),
                "train/entropy": 2 - step / 20,
                "train/frac_reward_zero_std": 0.25 + step / 80,
                "train/num_tokens": 1000.0 * step,
                "train/sampling/ratio": float("nan") if step == 1 else 1.0,
            }
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.add_event(Event(step=step, wall_time=1.0, summary=Summary(value=scalars)))
        writer.close()


def verl(folder: Path) -> None:
    scores = {step: list(groups(step)) for step in range(1, STEPS + 1)}
    mean = {step: sum(map(sum, rows)) / (PROMPTS * GROUP) for step, rows in scores.items()}
    logged = [
        {"step": step, "data": {"critic/score/mean": mean[step], "actor/entropy": 1 - step / 40}}
        for step in scores
    ]
    lines(folder / "log.jsonl", logged)
    for step, rows in scores.items():
        dumped = [
            {"input": f"p{p}", "output": "o", "gts": "1", "score": float(r), "step": step}
            | {"uid": f"u{step}{p}_{s}_0"}
            for p, row in enumerate(rows)
            for s, r in enumerate(row)
        ]
        lines(folder / "rollouts" / f"{step}.jsonl", dumped)


def trl(folder: Path) -> None:
    import pandas as pd

    history: list[dict[str, Any]] = []
    (folder / "completions").mkdir(parents=True)
    for step in range(1, STEPS + 1):
        rows = [
            (step, f"p{step}.{p}", "o", float(r)) for p, row in enumerate(groups(step)) for r in row
        ]
        rewards = [row[-1] for row in rows]
        history.append({"step": step, "reward": sum(rewards) / len(rewards), "loss": 0.1})
        table = pd.DataFrame(rows, columns=["step", "prompt", "completion", "right"])
        table.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
    state = {"global_step": STEPS, "max_steps": STEPS, "logging_steps": 1, "log_history": history}
    lines(folder / f"checkpoint-{STEPS}" / "trainer_state.json", [state])


def jsonl(file: Path) -> None:
    lines(
        file,
        (
            {"step": step, "prompt": f"p{p}", "rewards": row}
            for step in range(1, STEPS + 1)
            for p, row in enumerate(groups(step))
        ),
    )


def lm_eval(folder: Path) -> None:
    for number, (estimator, seed) in enumerate(RUNS):
        model = f"out/{estimator}-s{seed}/checkpoint-200"
        date = f"2026-01-0{number + 1}T00-00-00.000000"
        place = folder / f"{estimator}-s{seed}"
        draw = random.Random(model)
        rows = [
            {
                "doc_id": n,
                "doc": {"question": "q"},
                "target": "1",
                "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": {}}},
                "resps": [["a"]],
                "filtered_resps": ["a"],
                "filter": "none",
                "metrics": ["exact_match"],
                "doc_hash": f"{n:064x}",
                "exact_match": float(draw.random() < 0.5 + (estimator == "rloo") / 5),
            }
            for n in range(40)
        ]
        lines(place / f"samples_gsm8k_{date}.jsonl", rows)
        config = {"model": "hf", "model_args": f"pretrained={model}"}
        lines(place / f"results_{date}.json", [{"config": config, "model_name": model}])


WRITERS: dict[str, Callable[[Path], None]] = {
    "tensorboard": tensorboard,
    "verl": verl,
    "trl": trl,
    "jsonl": jsonl,
    "lm-eval": lm_eval,
}

if __name__ == "__main__":
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
