"""Pretrains a Qwen2-layout model on routes and countdown, from random weights.

    python experiments/gpu/pretrain.py FOLDER [--size full] [--seed 0]

Initial weights, layout, tokenizer and files of the folder are those of the tiny backend's
exports; transformers trains the model, in bfloat16 on a GPU. A batch is one half routes and one
half countdown. Training ends where the model solves TARGET of routes' training problems at the
first try, so that bases of every size start where the bases of the CPU studies do, or after the
most updates. FOLDER.json gets what was trained, and the solve rate on each task.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from advsweep.backends.models import TinyModel
from advsweep.backends.randomness import Stream, numpy_generator, torch_generator
from advsweep.backends.tiny.tokens import encode
from advsweep.backends.tiny.weights import export_folder, initial_weights, weight_shapes
from advsweep.backends.trl.config import HfModel, TransformersGeneration
from advsweep.backends.trl.ends import end_marks
from advsweep.backends.trl.loading import load_model, load_tokenizer
from advsweep.backends.trl.sampling import ModelSampler
from advsweep.tasks.base import SymbolTask
from advsweep.tasks.countdown import Countdown
from advsweep.tasks.routes import Routes

TARGET = 0.28  # pass@1 of the tiny backend's bases on all levels, docs/tasks.md
BETAS = (0.9, 0.95)
MAX_GRAD_NORM = 1.0
NO_LOSS = -100


@dataclass(frozen=True)
class Size:
    """A model and its pretraining.

    Attributes:
        batch: examples of an update.
        updates: the most updates; the solve rate is measured `every` so many.
        problems: training problems of each task that it is measured on, one answer each.
    """

    model: TinyModel
    batch: int
    lr: float
    updates: int
    every: int
    warmup: int = 100
    problems: int = 1024


SIZES = {
    "small": Size(  # 0.1 million weights, for a test of the scripts on a CPU
        TinyModel(heads=2, kv_heads=1),
        batch=64,
        lr=5e-3,
        updates=80,
        every=80,
        warmup=10,
        problems=64,
    ),
    "full": Size(  # 25 million
        TinyModel(layers=8, width=512, heads=8, kv_heads=4, mlp_width=1536),
        batch=512,
        lr=5e-4,
        updates=20_000,
        every=200,
    ),
    "large": Size(  # 83 million
        TinyModel(layers=12, width=768, heads=12, kv_heads=4, mlp_width=2304),
        batch=512,
        lr=3e-4,
        updates=20_000,
        every=200,
    ),
}
TASKS: tuple[SymbolTask, ...] = (Routes(), Countdown())


class Symbols:
    """The symbols of several tasks, in the place of one task, for `encode` and `export_folder`."""

    def __init__(self, tasks: Sequence[SymbolTask]) -> None:
        self.alphabet = "".join(dict.fromkeys("".join(task.alphabet for task in tasks)))
        self.eos_id = len(self.alphabet)
        self.pad_id = len(self.alphabet) + 1
        self.vocabulary_size = len(self.alphabet) + 2
        self.max_prompt_length = max(task.max_prompt_length for task in tasks)
        self.max_completion_length = max(task.max_completion_length for task in tasks)


SYMBOLS: Any = Symbols(TASKS)


def main(folder: Path, size: Size, seed: int) -> None:
    """Pretrains into a folder, which appears when all is done."""
    torch.set_num_threads(1)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    weights = initial_weights(
        size.model, SYMBOLS.vocabulary_size, torch_generator(seed, Stream.WEIGHTS)
    )
    count = sum(weight.numel() for weight in weights.values())
    export_folder(unfinished, weights, size.model, SYMBOLS, temperature=1.0)
    source = HfModel(path=str(unfinished))
    model, tokenizer = load_model(source), load_tokenizer(source)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.lr, betas=BETAS, weight_decay=0.0)
    started, update, rates = time.perf_counter(), 0, {"routes": 0.0}
    while update < size.updates and rates["routes"] < TARGET:
        examples = corpus(size.every * size.batch, seed, update)
        for rows in np.split(examples, size.every):
            update += 1
            for group in optimizer.param_groups:
                group["lr"] = size.lr * min(1.0, update / size.warmup)
            train(model, optimizer, torch.from_numpy(rows).to(model.device))
        rates = solve_rates(model, tokenizer, source, size.problems)
        print(f"{update} updates: {rates}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - started
    state = model.state_dict()
    names = weight_shapes(size.model, SYMBOLS.vocabulary_size)
    trained = {name: state[name].float().cpu() for name in names}
    export_folder(unfinished, trained, size.model, SYMBOLS, temperature=1.0)
    results = {
        "seed": seed,
        "weights": count,
        "updates": update,
        "seconds": round(seconds, 1),
        "device": device_name(),
        **{f"pass@1 {name}": rate for name, rate in rates.items()},
    }
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(results), encoding="utf-8")
    unfinished.rename(folder)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def corpus(count: int, seed: int, step: int) -> np.ndarray:
    """Returns prompts with their answers, `[count, 2, tokens]`: inputs, and labels."""
    rng = numpy_generator(seed, Stream.CORPUS, step)
    pairs: list[tuple[str, str]] = []
    for i, task in enumerate(TASKS):
        share = count // len(TASKS) + (i < count % len(TASKS))
        pairs += zip(*task.pretraining_pairs(share, rng), strict=True)
    texts = encode([prompt + answer for prompt, answer in pairs], SYMBOLS, end=True)
    starts = np.array([len(prompt) for prompt, _ in pairs])
    learned = texts.mask & (np.arange(texts.tokens.shape[1]) >= starts[:, None])
    # Attention is causal, so that padding on the right changes nothing before it.
    examples = np.stack([texts.tokens, np.where(learned, texts.tokens, NO_LOSS)], axis=1)
    return examples[rng.permutation(count)]


def train(model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    """Makes one update on the mean of -log p over the tokens of the answers."""
    # A CPU computes in the weights' own type, as in training with TRL.
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        loss = model(input_ids=rows[:, 0], labels=rows[:, 1]).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()


def solve_rates(
    model: Qwen2ForCausalLM, tokenizer: Any, source: HfModel, count: int
) -> dict[str, float]:
    """Returns the share of right answers to training problems of each task, one answer each."""
    rates = {}
    for task in TASKS:
        sampler = ModelSampler(
            opened=lambda: contextlib.nullcontext(model),
            tokenizer=tokenizer,
            model=source,
            generation=TransformersGeneration(),
            marks=end_marks(model.generation_config, tokenizer),
            tokens=task.max_completion_length,
            batch=count,
        )
        problems = task.draw(count, np.random.default_rng(0))
        answers = sampler.sample(problems, 1, temperature=1.0, seed=0).texts
        rates[task.name] = float(task.score(problems, [text for (text,) in answers]).mean())
    return rates


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.folder, SIZES[options.size], options.seed)
