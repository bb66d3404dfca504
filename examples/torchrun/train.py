"""A policy over ten answers per problem, trained in several processes with torchrun.

Each process samples its share of the prompts; gradients are averaged over the processes.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from advsweep.estimators import GroupBatch, build_estimator

parser = argparse.ArgumentParser()
for name in ("estimator", "output", "resume"):
    parser.add_argument(f"--{name}")
for name in ("group-size", "prompts", "steps", "seed", "save-every"):
    parser.add_argument(f"--{name}", type=int)
options = parser.parse_args()

PROBLEMS, ANSWERS = 32, 10

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
output = Path(options.output)
logits = torch.zeros(PROBLEMS, ANSWERS)
right = torch.arange(PROBLEMS) % ANSWERS
start = 0
if options.resume:
    saved = torch.load(options.resume, weights_only=True)
    start, logits = saved["step"], saved["logits"]
logits.requires_grad_()
optimizer = torch.optim.SGD([logits], lr=1.0)
estimator = build_estimator(json.loads(options.estimator))


def mean(values):
    """The means of some numbers over all processes."""
    total = torch.tensor(values)
    dist.all_reduce(total)
    return (total / world).tolist()


def write_row(file, row):
    is_new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def save(step):
    """Write the checkpoint under another name first, so that it is complete or not there."""
    partial = output / ".partial.pt"
    torch.save({"step": step, "logits": logits.detach()}, partial)
    os.replace(partial, output / f"checkpoint-{step}.pt")


for step in range(start + 1, options.steps + 1):
    generator = torch.Generator().manual_seed((options.seed * 1_000_003 + step) * world + rank)
    share = max(1, options.prompts // world)
    problems = torch.randint(PROBLEMS, (share,), generator=generator)
    log_probs = logits[problems].log_softmax(-1)
    answers = torch.multinomial(
        log_probs.exp(), options.group_size, replacement=True, generator=generator
    )
    rewards = (answers == right[problems][:, None]).float()
    advantages = estimator(GroupBatch(rewards=rewards))
    loss = -(advantages * log_probs.gather(1, answers)).mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(logits.grad)
    logits.grad /= world
    optimizer.step()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean().item()
    collapsed = (rewards.std(dim=1) == 0).float().mean().item()
    reward, acr, entropy = mean([rewards.mean().item(), collapsed, entropy])
    if rank == 0:
        row = {"step": step, "reward/mean": reward, "collapse/acr": acr, "entropy/token": entropy}
        if step % options.save_every == 0 or step == options.steps:
            save(step)
        write_row(output / "metrics.csv", row)
if rank == 0:
    samples = torch.multinomial(logits.softmax(-1), 64, replacement=True)
    counts = (samples == right[:, None]).sum(dim=1).tolist()
    lines = [
        {"step": options.steps, "problem": f"problem-{i}", "n": 64, "correct": c}
        for i, c in enumerate(counts)
    ]
    (output / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
dist.destroy_process_group()
