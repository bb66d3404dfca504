"""Exact checks of AVSPO, A-GRAE, AAPO and the two-stage view: advantages and updates of logits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from exact import (
    Finding,
    advantages,
    build,
    chances,
    check,
    compare,
    every_group,
    expected_update,
    groups_by_count,
    logit_gradient,
    mean_advantage,
    random_policies,
    scores,
)
from torch import Tensor

from advsweep.diagnostics.group_statistics import StackedRollouts, collapsed_groups
from advsweep.estimators import GroupBatch
from advsweep.statistics import pass_at_k

Findings = Iterator[Finding]
SIZES = (2, 4, 8, 16)
PROMPTS = 8


def collapse_rate(rewards: Tensor) -> float:
    runs = StackedRollouts(rewards)
    return float(collapsed_groups(runs.spread(runs.numbers(rewards))).mean())


@check("AV10", "the collapse rate, enumerated and of random groups, for 5 rates and 4 group sizes")
def uniform_groups() -> Findings:
    generator = torch.Generator().manual_seed(0)
    drawn, enumerated, expected = [], [], []
    for size in SIZES:
        kinds = groups_by_count(size)
        uniform = torch.tensor([collapse_rate(kind[None]) for kind in kinds], dtype=torch.float64)
        for rate in (0.05, 0.25, 0.5, 0.75, 0.95):
            random = torch.rand(20_000, size, generator=generator, dtype=torch.float64)
            drawn.append(collapse_rate((random < rate).double()))
            enumerated.append(float(chances(size, rate) @ uniform))
            expected.append(rate**size + (1 - rate) ** size)
    yield compare("ACR, enumerated over all groups", enumerated, "=", expected, 1e-12)
    errors = [3 * math.sqrt(share * (1 - share) / 20_000) for share in expected]
    quantity = "ACR of 20,000 random groups, within 3 standard errors"
    yield compare(quantity, drawn, "=", expected, errors)


@check("AV26", "GRPO's advantages on 600 random groups whose σ falls to 1e-7")
def squared_advantages() -> Findings:
    generator = torch.Generator().manual_seed(1)
    for eps in (1e-8, 1e-4, 0.1):
        rewards = torch.rand(200, 8, generator=generator, dtype=torch.float64)
        # From ordinary groups to nearly uniform ones.
        rewards *= torch.logspace(0, -6, 200, dtype=torch.float64)[:, None]
        squares = advantages("grpo", rewards, eps=eps).square().sum(dim=1)
        sigma = rewards.std(dim=1, correction=0)
        expected = 8 * sigma**2 / (sigma + eps) ** 2
        yield compare(f"Σ A² of random groups at ε = {eps:g}", squares, "=", expected)


def collapsed_batch(collapsed: int, size: int) -> Tensor:
    """Return rewards of 8 groups; `collapsed` of them are all wrong and all right in turn."""
    rewards = torch.zeros(PROMPTS, size, dtype=torch.float64)
    rewards[:, : size // 2] = 1
    for i in range(collapsed):
        rewards[i] = float(i % 2)
    return rewards


def augmented(rewards: Tensor) -> tuple[Tensor, float]:
    """Return AVSPO's advantages, and the bound √(K/G) of those of uniform groups."""
    # A threshold of 0 triggers in every step with a collapsed group.
    out = build("avspo", fixed_tau=0.0).compute(GroupBatch(rewards=rewards))
    return out.values, math.sqrt(out.info["virtual"] / rewards.shape[1])


@check("AV27", "AVSPO's advantages for 2 to 8 uniform groups out of 8, G = 2, 4 and 8")
def uniform_advantages() -> Findings:
    spreads, wrong, right, shares = [], [], [], []
    for size in (2, 4, 8):
        for collapsed in range(2, PROMPTS + 1):
            values, bound = augmented(collapsed_batch(collapsed, size))
            values = values[:collapsed]
            spreads.append(float((values - values[:, :1]).abs().max()))
            wrong.append(float(values[0::2].max()))
            right.append(float(values[1::2].min()))
            shares.append(float(values.abs().max()) / bound)
    yield compare("|A| over √(K/G)", shares, "≤", 1.0)
    yield compare("largest A of all-wrong groups", wrong, "≤", -1e-3)
    yield compare("smallest A of all-right groups", right, "≥", 1e-3)
    yield compare("spread of A within a uniform group", spreads, "=", 0.0)


@check(
    "AV28",
    "gradients of 8 softmax policies with 0 to 8 uniform groups",
    "The bound is in proportion to ACR at a fixed K; K itself rises with ACR.",
)
def bias() -> Findings:
    size = 8
    policies = random_policies(PROMPTS, 6, seed=2)
    generator = torch.Generator().manual_seed(3)
    # Behaviours 0 to 2 are right, 3 to 5 are wrong.
    places = torch.randint(3, (PROMPTS, size), generator=generator)
    largest = max(float(scores(policy).norm(dim=1).max()) for policy in policies)
    norms, bounds = [], []
    for collapsed in range(PROMPTS + 1):
        rewards = collapsed_batch(collapsed, size)
        drawn = places + 3 * (rewards == 0)
        values, bound = augmented(rewards)
        change = values - advantages("grpo", rewards, eps=1e-8)
        steps = [scores(policies[b])[drawn[b]].T @ change[b] for b in range(PROMPTS)]
        norms.append(float(torch.stack(steps).norm()) / (PROMPTS * size))
        bounds.append(collapsed / PROMPTS * largest * bound)
    yield compare("difference of gradients, no uniform group", norms[0], "=", 0.0, 1e-12)
    shares = torch.tensor(norms[1:]) / torch.tensor(bounds[1:])
    yield compare("difference over its bound", shares, "≤", 1.0)
    growth = torch.tensor(norms, dtype=torch.float64).diff()
    yield compare("growth with a further uniform group", growth, "≥", 0.0, 1e-12)


@check("AG01", "Σ|A| of both sides for every number of right answers, G = 2 to 16")
def equal_sides() -> Findings:
    for size in SIZES:
        rewards = groups_by_count(size)
        weights = advantages("grpo", rewards).abs()
        up, down = (weights * rewards).sum(dim=1), (weights * (1 - rewards)).sum(dim=1)
        yield compare(f"Σ|A| of right answers, G = {size}", up, "=", down)


def unsampled(estimator: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of logits that were not drawn, and -Cπ of them.

    Policies are over 12 behaviours, 8 of which are drawn once each.
    """
    generator = torch.Generator().manual_seed(5)
    gradients, expected = [], []
    for policy in random_policies(50, 12, seed=6):
        drawn = torch.randperm(12, generator=generator)[:8]
        rewards = torch.zeros(8, dtype=torch.float64)
        rewards[: int(torch.randint(1, 8, (), generator=generator))] = 1
        weights = advantages(estimator, rewards[None])[0]
        others = torch.ones_like(policy, dtype=torch.bool)
        others[drawn] = False
        gradients.append(logit_gradient(policy, drawn, weights)[others])
        expected.append(-weights.sum() * policy[others])
    return torch.cat(gradients), torch.cat(expected)


@check("AG02", "autograd through the clipped objective, 50 policies over 12 behaviours, 8 drawn")
def still() -> Findings:
    yield compare("gradient of a logit that was not drawn", unsampled("grpo")[0], "=", 0.0, 1e-12)


@check("AG03", "the same policies and groups")
def lifted() -> Findings:
    gradients, expected = unsampled("negative_dominant")
    yield compare("gradient of a logit that was not drawn", gradients, "=", expected)
    yield compare("the least of them", gradients.min(), "≥", 0.0, 1e-12)


@check(
    "AG04",
    "autograd for a group of 8 different answers, 5 of them wrong",
    "It takes a group that draws an answer of π = .97 once. In the mean over groups the wrong "
    "answer falls, as the last finding says.",
)
def reinforced() -> Findings:
    # Behaviour 0 is wrong and has π = .97; 1 to 4 are wrong too, 5 to 7 are right.
    policy = torch.full((8,), 0.03 / 7, dtype=torch.float64)
    policy[0] = 0.97
    rewards, drawn = (torch.arange(8) > 4).double(), torch.arange(8)
    weights = advantages("negative_dominant", rewards[None])[0]
    own = logit_gradient(policy, drawn, weights)[0]
    plain = logit_gradient(policy, drawn, advantages("grpo", rewards[None])[0])[0]
    few = torch.tensor([0.97, 0.02, 0.01], dtype=torch.float64)
    solved = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    mean = expected_update(build("negative_dominant"), few, solved, 8)[0]
    quantity = "gradient of a wrong answer's logit at π = .97, negative-dominant"
    yield compare(quantity, own, "≥", 0.0, 1e-12)
    yield compare("the same by A - Cπ", own, "=", weights[0] - weights.sum() * 0.97)
    yield compare("the same logit's gradient, GRPO", plain, "≤", 0.0, 1e-12)
    quantity = "its mean over all groups of 8 at π = (.97, .02, .01), the last right"
    yield compare(quantity, mean, "≤", 0.0, 1e-12)


def peaks(estimator: str, power: tuple[float, float], factor: float = 1.0) -> Findings:
    """Compare Σ|A| with a multiple of G p^a (1-p)^b, for every mixed group."""
    for size in SIZES:
        rewards = groups_by_count(size)[1:-1]
        rate = rewards.mean(dim=1)
        expected = factor * size * rate ** power[0] * (1 - rate) ** power[1]
        sums = advantages(estimator, rewards).abs().sum(dim=1)
        yield compare(f"Σ|A| of {estimator}, G = {size}", sums, "=", expected)


@check("AG05", "GRPO's advantages for every number of right answers, G = 2 to 16")
def symmetric_focus() -> Findings:
    yield from peaks("grpo", (0.5, 0.5), factor=2)


@check("AG06", "advantages of both rules with γ = 1/2 for every number of right answers")
def one_sided_focus() -> Findings:
    yield from peaks("hard_focused", (0, 0.5))
    yield from peaks("easy_focused", (0.5, 0))


@check("AG22", "Σ A for every number of right answers and for 200 groups of graded rewards")
def zero_sums() -> Findings:
    generator = torch.Generator().manual_seed(4)
    for name in ("grpo", "dr_grpo", "dapo"):
        graded = torch.rand(200, 8, generator=generator, dtype=torch.float64)
        sums = advantages(name, torch.cat((groups_by_count(8), graded))).sum(dim=1)
        yield compare(f"Σ A of a group, {name}", sums, "=", 0.0)


LIMIT = 0.28
"""AAPO's bound of a margin above 0."""


def aapo(rewards: Tensor, references: Tensor) -> Tensor:
    return build("aapo")(GroupBatch(rewards=rewards, ref_rewards=references))


@check("AA12", "AAPO's advantages of uniform groups of 8 against every number of right references")
def near_the_optimum() -> Findings:
    references = groups_by_count(8)
    for name, outcome in (("all-right", 1.0), ("all-wrong", 0.0)):
        values = aapo(torch.full_like(references, outcome), references)
        yield compare(f"|A| of an {name} group", values.abs(), "≤", LIMIT, 1e-12)
    reached = aapo(torch.ones_like(references), references).max()
    yield compare("the largest of them", reached, "=", LIMIT, 1e-12)


@check("AA13", "AAPO's and GRPO's advantages of solved groups of 8")
def solved_groups() -> Findings:
    references = groups_by_count(8)
    solved = torch.ones_like(references)
    expected = LIMIT * (1 - references)
    yield compare("A of right answers, all G right", aapo(solved, references), "=", expected, 1e-12)
    yield compare("the same by GRPO", advantages("grpo", solved), "=", 0.0, 1e-12)


@check(
    "AA14",
    "all groups of 4 over 3 answers, 60 random policies, right and wrong references",
    "The printed B divides by the smallest σ, which the paper lets be 0; the check takes the "
    "smallest σ of a mixed group, and the sharp bound. The floor is that of the expected loss; the "
    "loss of a single group has none.",
)
def bounded() -> Findings:
    size, behaviours = 4, 3
    sharp = math.sqrt(size - 1) + LIMIT
    # The smallest σ of a mixed group of binary rewards.
    printed = 1 / (math.sqrt(size - 1) / size) + LIMIT
    groups = every_group(behaviours, size)
    largest, steps, losses = [], [], []
    for i, policy in enumerate(random_policies(60, behaviours, seed=7)):
        rewards = torch.tensor([1.0, 0.0, float(i % 2)], dtype=torch.float64)
        references = torch.full((len(groups), size), float(i % 3 == 0), dtype=torch.float64)
        values = aapo(rewards[groups], references)
        score = scores(policy)
        gradients = torch.einsum("gi,giv->gv", values, score[groups]) / size
        largest.append(float(values.abs().max()))
        steps.append(float(gradients.norm(dim=1).max() / score.norm(dim=1).max()))
        loss = -(policy.log()[groups] * values).mean(dim=1)
        losses.append(float(policy[groups].prod(dim=1) @ loss))
    yield compare(f"|A|, G = {size}, printed B = {printed:.4g}", largest, "≤", printed)
    yield compare("|A| by the sharp bound √(G-1) + .28", largest, "≤", sharp)
    yield compare("norm of a step over ηM", steps, "≤", sharp)
    yield compare("expected loss", losses, "≥", -sharp * math.log(behaviours))


@check("TS01", "autograd through the clipped objective, and finite differences, for 50 policies")
def one_draw() -> Findings:
    own, others, finite = [], [], []
    for i, policy in enumerate(random_policies(50, 6, seed=8)):
        drawn, weight = i % 6, 0.3 + 0.01 * i
        gradient = logit_gradient(
            policy, torch.tensor([drawn]), torch.tensor([weight], dtype=torch.float64)
        )
        own.append(gradient[drawn] - weight * (1 - policy[drawn]))
        rest = torch.arange(6) != drawn
        others.append((gradient + weight * policy)[rest])
        # Central differences of A log π(drawn) by the logits.
        shifts = 1e-6 * torch.eye(6, dtype=policy.dtype)
        above = torch.log_softmax(policy.log() + shifts, dim=1)[:, drawn]
        below = torch.log_softmax(policy.log() - shifts, dim=1)[:, drawn]
        finite.append(gradient - weight * (above - below) / 2e-6)
    yield compare("own logit's gradient less A(1-π)", torch.stack(own), "=", 0.0, 1e-12)
    yield compare("other logits' gradients less -Aπ", torch.stack(others), "=", 0.0, 1e-12)
    quantity = "gradients less finite differences of A log π"
    yield compare(quantity, torch.stack(finite), "=", 0.0, 1e-8)


def cases() -> list[tuple[Tensor, Tensor]]:
    """Return policies over 3 actions with random rewards of 0 to 1, all different."""
    generator = torch.Generator().manual_seed(9)
    rewards = torch.rand(12, 3, generator=generator, dtype=torch.float64)
    return list(zip(random_policies(12, 3, seed=10), rewards, strict=True))


@check(
    "TS02",
    "all groups of 2, 4 and 6 draws from 12 policies over 3 actions",
    "Â(v) is the mean advantage of draws of v. With r(v) - E[r] in its place the formula is too "
    "large by the factor G/(G-1), since a sample is part of its own baseline.",
)
def expected_logits() -> Findings:
    for name in ("dr_grpo", "grpo"):
        for size in (2, 4, 6):
            got, printed = [], []
            for policy, rewards in cases():
                means = mean_advantage(build(name), policy, rewards, size)
                got.append(expected_update(build(name), policy, rewards, size))
                printed.append(policy * (means - policy @ means))
            quantity = f"expected change of logits, {name}, G = {size}"
            yield compare(quantity, torch.stack(got), "=", torch.stack(printed), 1e-12)
    for size in (2, 4, 6):
        ratios = [
            expected_update(build("dr_grpo"), policy, rewards, size)
            / (policy * (rewards - policy @ rewards))
            for policy, rewards in cases()
        ]
        quantity = f"the same over the formula with Â = r - E[r], G = {size}"
        yield compare(quantity, torch.stack(ratios), "=", 1 - 1 / size)


@check("TS06", "the same groups and policies, with and without the division by σ")
def best_and_worst() -> Findings:
    for name in ("dr_grpo", "grpo"):
        best, worst = [], []
        for policy, rewards in cases():
            for size in (2, 4, 6):
                change = expected_update(build(name), policy, rewards, size)
                best.append(float(change[rewards.argmax()]))
                worst.append(float(change[rewards.argmin()]))
        yield compare(f"best action's change, {name}", best, "≥", 0.0, 1e-15)
        yield compare(f"worst action's change, {name}", worst, "≤", 0.0, 1e-15)


@check(
    "TS17",
    "the unbiased estimate of pass@k in the mean over 2k samples, k = 2 to 128",
    "1/k suffices and is not necessary: a smaller k needs less than 1/k.",
)
def pass_boundary() -> Findings:
    ks = (2, 4, 8, 16, 32, 64, 128)
    got = []
    for k in ks:
        # The estimate from 2k samples, in the mean over their number of right answers.
        counts = torch.arange(2 * k + 1).numpy()
        got.append(float(chances(2 * k, 1 / k) @ torch.from_numpy(pass_at_k(2 * k, counts, k))))
    yield compare("pass@k of an answer of π = 1/k", got, "≥", 1 - 1 / math.e)
    formula = [1 - (1 - 1 / k) ** k for k in ks]
    yield compare("the same by 1 - (1 - 1/k)^k", got, "=", formula)
