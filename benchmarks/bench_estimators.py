"""Benchmark one call of each estimator on one thread.

python benchmarks/bench_estimators.py
"""

from __future__ import annotations

import statistics
import time

import torch

from advsweep.estimators import ESTIMATORS, Estimator, GroupBatch, build_estimator

CALLS = 400
SMALL, LARGE = (64, 8), (4096, 16)
TARGET_US = {False: 150, True: 300}
LARGE_TARGET_US = 5000
# Time AVSPO with its virtual rewards, which the default threshold may not trigger.
OPTIONS = {"avspo": {"fixed_tau": 0.0}}


def batch(prompts: int, group_size: int) -> GroupBatch:
    """Returns rewards with solve rates over [0, 1], so that some groups collapse."""
    generator = torch.Generator().manual_seed(0)
    solve_rates = torch.rand(prompts, 1, generator=generator)
    rewards = (torch.rand(prompts, group_size, generator=generator) < solve_rates).float()
    per_token = (*rewards.shape, 10)
    return GroupBatch(
        rewards=rewards,
        reward_parts=torch.stack((rewards, rewards.flip(1)), dim=2),
        greedy_rewards=rewards[:, 0],
        frequencies=torch.rand(prompts, generator=generator),
        prompt_ids=tuple(map(str, range(prompts))),
        answered=torch.ones(rewards.shape, dtype=torch.bool),
        token_entropies=torch.rand(per_token, generator=generator),
        token_kl=torch.rand(per_token, generator=generator),
        token_grad_norms=torch.rand(per_token, generator=generator),
        lengths=torch.randint(5, 10, rewards.shape, generator=generator).float(),
        ref_rewards=rewards.flip(1),
        token_entropy=torch.rand(rewards.shape, generator=generator),
        token_entropy_exact=torch.rand(rewards.shape, generator=generator),
        self_certainty=torch.rand(rewards.shape, generator=generator),
        step=1,
        total_steps=100,
    )


def median_us(estimator: Estimator, inputs: GroupBatch, calls: int) -> float:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        estimator.compute(inputs)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    small, large = batch(*SMALL), batch(*LARGE)
    print(f"{'median µs per call':<22}{'64 x 8':>9}{'target':>8}{'4096 x 16':>11}{'target':>8}")
    for name in ESTIMATORS:
        estimator = build_estimator(name, **OPTIONS.get(name, {}))
        quick = median_us(estimator, small, CALLS)
        slow = median_us(estimator, large, CALLS // 10)
        target = TARGET_US[estimator.stateful]
        print(f"{name:<22}{quick:>9.0f}{target:>8}{slow:>11.0f}{LARGE_TARGET_US:>8}")


if __name__ == "__main__":
    main()
