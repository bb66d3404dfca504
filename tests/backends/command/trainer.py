"""A trainer that is no trainer of ours: it logs a walk by seed and estimator, and misbehaves."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("estimator", "output", "resume", "mode"):
    parser.add_argument(f"--{name}", default="")
for name in ("seed", "steps"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--delay", type=float, default=0.02)
options = parser.parse_args()
mode, output = options.mode, Path(options.output)
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

if mode == "exits":
    sys.exit(3)
if mode == "silent":
    time.sleep(600)
if mode == "nothing":
    sys.exit(0)
if mode == "memory":
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    sys.exit(1)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "background":
    # A daemon of a session of its own, which says where it is.
    child = subprocess.Popen(SLEEP, start_new_session=True)
    (output / "daemon").write_text(str(child.pid))
    sys.exit(0)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "hostile":
    print("\x1b]52;c;eA==\x07 \u202e and \x1b[2J")
    sys.stdout.buffer.write(b"\xff\xfe not UTF-8\nbar 1\rbar 2\rbar 3\n")
if mode == "loud":
    for number in range(50_000):
        print("line", number)
    sys.stdout.write("x" * 1_000_000)

value, start = 0.0, 0
if options.resume:
    saved = json.loads((Path(options.resume) / "state.json").read_text())
    start, value = saved["step"], saved["value"]
print("starting after", start)
log = (output / "metrics.jsonl").open("a")
for step in range(start + 1, options.steps + 1):
    time.sleep(options.delay)
    if mode == f"die at {step}":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == f"end at {step}":
        sys.exit(0)
    chance = random.Random(f"{options.seed} {step} {options.estimator}")
    value += chance.random()
    row = {"step": step, "reward": value, "frac_reward_zero_std": chance.random()}
    log.write(json.dumps(row) + "\n")
    log.flush()
    folder = output / f"checkpoint-{step}"
    if step % 2 == 0:
        folder.mkdir(exist_ok=True)
        (folder / "state.json").write_text(json.dumps({"step": step, "value": value}))
    with (output / "evaluations.jsonl").open("a") as file:
        for problem in ("a", "b"):
            line = {"step": step, "problem": problem, "n": 4, "correct": step % 5}
            file.write(json.dumps(line) + "\n")
