"""Benchmark the analysis of a change of weights against a dense SVD by torch.

    python benchmarks/bench_weights.py [--threads 1] [--wide]

The pair has the shapes of Qwen2.5-0.5B (24 layers, tied embeddings), or with `--wide` those of
embedding, head and two layers of Qwen2.5-7B; weights are random, in bfloat16, and a change is
of low rank plus rounding. It is analysed in a process of its own, whose peak memory is printed.
The peer is `torch.linalg.svdvals` of one MLP matrix in float32, times the number of such
matrices. Where two figures stand, the second is in seconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1"})

import torch
from figures import head, show
from safetensors.torch import save_file

from advsweep.diagnostics.weight_changes import weight_changes
from advsweep.diagnostics.weight_files import StoredWeights


@dataclass(frozen=True)
class Shapes:
    """The sizes of a model."""

    layers: int
    width: int
    mlp: int
    keys: int
    vocabulary: int
    tied: bool


SMALL = Shapes(layers=24, width=896, mlp=4864, keys=128, vocabulary=151936, tied=True)
LARGE = Shapes(layers=2, width=3584, mlp=18944, keys=512, vocabulary=152064, tied=False)


def matrices(shapes: Shapes) -> dict[str, tuple[int, int]]:
    width, mlp, keys = shapes.width, shapes.mlp, shapes.keys
    found = {"model.embed_tokens.weight": (shapes.vocabulary, width)}
    for layer in range(shapes.layers):
        prefix = f"model.layers.{layer}."
        found |= {
            f"{prefix}self_attn.q_proj.weight": (width, width),
            f"{prefix}self_attn.k_proj.weight": (keys, width),
            f"{prefix}self_attn.v_proj.weight": (keys, width),
            f"{prefix}self_attn.o_proj.weight": (width, width),
            f"{prefix}mlp.gate_proj.weight": (mlp, width),
            f"{prefix}mlp.up_proj.weight": (mlp, width),
            f"{prefix}mlp.down_proj.weight": (width, mlp),
        }
    return found | ({} if shapes.tied else {"lm_head.weight": (shapes.vocabulary, width)})


def write_pair(folder: Path, shapes: Shapes) -> int:
    """Writes two models; returns how many parameters they have."""
    generator = torch.Generator().manual_seed(0)
    bases, tuned = {}, {}
    for name, (rows, columns) in matrices(shapes).items():
        base = 0.02 * torch.randn(rows, columns, generator=generator)
        change = 2e-3 * torch.randn(rows, 4, generator=generator)
        change = change @ torch.randn(4, columns, generator=generator)
        bases[name] = base.bfloat16()
        tuned[name] = (base + change).bfloat16()
    for side, tensors in (("base", bases), ("tuned", tuned)):
        (folder / side).mkdir()
        save_file(tensors, folder / side / "model.safetensors")
        config = {"tie_word_embeddings": shapes.tied}
        (folder / side / "config.json").write_text(json.dumps(config))
    return sum(tensor.numel() for tensor in bases.values())


def analyse(folder: Path, threads: int) -> None:
    """Compares the pair; prints seconds and peak memory for the parent process."""
    torch.set_num_threads(threads)
    started, used = time.perf_counter(), time.process_time()
    change = weight_changes(StoredWeights(folder / "base"), StoredWeights(folder / "tuned"))
    figures = {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - used,
        "peak": peak_gib(),
        "error": max(matrix.r1_error for matrix in change.matrices),
    }
    print(json.dumps(figures))


def peak_gib() -> float:
    """Returns the peak memory of this process; `resource` would include its parent's."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 2**20


def in_own_process(folder: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--analyse", str(folder), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def dense_seconds(shapes: Shapes) -> tuple[float, float]:
    """Returns wall-clock and CPU seconds of torch's singular values of an MLP matrix."""
    dense = torch.randn(shapes.mlp, shapes.width)
    started, used = time.perf_counter(), time.process_time()
    torch.linalg.svdvals(dense)
    return time.perf_counter() - started, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description="What an analysis of weights costs.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wide", action="store_true", help="shapes of a model of 7B instead")
    parser.add_argument("--analyse", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.analyse:
        analyse(arguments.analyse, arguments.threads)
        return
    shapes = LARGE if arguments.wide else SMALL
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_pair(Path(folder), shapes)
        head(f"{arguments.threads} thread(s)")
        found = in_own_process(Path(folder), arguments.threads)
    size = f"{parameters / 1e9:.2f}B parameters"
    count = 3 * shapes.layers
    ours = f"{found['seconds']:.0f} ({found['cpu']:.0f})"
    theirs = "{:.0f} ({:.0f})".format(*(count * each for each in dense_seconds(shapes)))
    name = f"svdvals of the {count} MLP matrices alone"
    target = "" if arguments.wide else "180"
    show(f"analysis of a pair of {size}, s", ours, target, theirs, name)
    show("peak memory, GiB", f"{found['peak']:.2f}", "4")
    show("greatest bound on the error of r1", f"{found['error']:.1g}")


if __name__ == "__main__":
    main()
