"""Reinforcement learning with verifiable rewards, from top to bottom in one file.

    python examples/grpo_in_one_file.py                     # GRPO, a minute on one core
    python examples/grpo_in_one_file.py --estimator fade    # or any other of the package

A transformer of 100,000 parameters is asked for two numbers with a given sum ("137=" may be
answered "60+77" or "99+38"). It is pretrained on answers of which half are wrong, and then trained
on its own: sample a group of answers to each problem, verify them, turn the rewards into
advantages, make likely what has a positive one.

Only the advantages come from the package; every other step stands below. Left out, and in the
package: key-value caches and prompts that are computed once (`advsweep.backends.tiny` samples ten
times faster); other losses, KL penalties and rollout policies such as dynamic sampling; scheduled
learning rates; checkpoints and resuming; stores, sweeps and statistics over seeds. One seed decides
nothing: `advsweep sweep` runs several and says what they can tell.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advsweep.estimators import GroupBatch, build_estimator

# ------------------------------------------------------------------------------ the task

ALPHABET = "0123456789+="
END, PADDING = len(ALPHABET), len(ALPHABET) + 1
TOKENS = len(ALPHABET) + 2
LONGEST_PROMPT, LONGEST_ANSWER = 4, 6  # "137=", and "60+77" with its end

SUMS = random.Random(0).sample(range(199), 199)
TRAINING, HELD_OUT = SUMS[:150], SUMS[150:]
RIGHT_IN_PRETRAINING = 0.5


def verify(problem: int, answer: str) -> float:
    """Return 1 for two numbers below 100 whose sum is the problem's, and 0 for all else."""
    parts = answer.split("+")
    right = (
        len(parts) == 2
        and all(part.isdigit() and len(part) <= 2 for part in parts)
        and sum(map(int, parts)) == problem
    )
    return float(right)


def pretraining_answer(problem: int, rng: random.Random) -> str:
    """Return an answer that is right in half of the cases, and else off in its second number."""
    first = rng.randint(max(0, problem - 99), min(99, problem))
    second = problem - first
    if rng.random() >= RIGHT_IN_PRETRAINING:
        second = rng.randint(0, 99)
    return f"{first}+{second}"


def encode(texts: list[str], width: int, *, end: bool) -> Tensor:
    """Return token ids [texts, width], padded on the right."""
    rows = [[ALPHABET.index(c) for c in text] + [END] * end for text in texts]
    return torch.tensor([row + [PADDING] * (width - len(row)) for row in rows])


def encode_prompts(problems: list[int]) -> Tensor:
    """Return token ids [problems, 4]; leading zeros give all prompts one length."""
    return encode([f"{problem:03d}=" for problem in problems], LONGEST_PROMPT, end=False)


def decode(tokens: Tensor) -> list[str]:
    """Return the characters of each row before its end."""
    return [
        "".join(ALPHABET[t] for t in row[: row.index(END) if END in row else None] if t < END)
        for row in tokens.tolist()
    ]


# ----------------------------------------------------------------------------- the model


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.silu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """A causal transformer over single characters: token ids [rows, length] in, logits out."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LONGEST_PROMPT + LONGEST_ANSWER, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        # Padding is never sampled.
        return logits.index_fill(-1, torch.tensor([PADDING]), -math.inf)


def answer_log_probs(model: Transformer, prompts: Tensor, answers: Tensor) -> Tensor:
    """Return log π of every next token [rows, answer tokens, TOKENS], given those before it."""
    inputs = torch.cat((prompts, answers[:, :-1]), dim=1)
    return F.log_softmax(model(inputs)[:, LONGEST_PROMPT - 1 :], dim=-1)


def pretrain(model: Transformer, steps: int, rng: random.Random) -> None:
    """Train a model to imitate the answers of the corpus."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0)
    for step in range(steps):
        problems = [rng.choice(TRAINING) for _ in range(128)]
        texts = [pretraining_answer(problem, rng) for problem in problems]
        answers = encode(texts, LONGEST_ANSWER, end=True)
        log_p = answer_log_probs(model, encode_prompts(problems), answers)
        loss = F.nll_loss(log_p.flatten(0, 1), answers.flatten(), ignore_index=PADDING)
        optimizer.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def sample(model: Transformer, prompts: Tensor) -> Tensor:
    """Return an answer to each prompt at temperature 1, [rows, answer tokens], padded."""
    tokens = prompts
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(LONGEST_ANSWER):
        chosen = torch.multinomial(model(tokens)[:, -1].softmax(dim=-1), 1)[:, 0]
        chosen = chosen.where(~done, PADDING)
        tokens = torch.cat((tokens, chosen[:, None]), dim=1)
        done |= chosen == END
    return tokens[:, LONGEST_PROMPT:]


# -------------------------------------------------------------------------- the training


def rewards_of(problems: list[int], answers: Tensor) -> Tensor:
    """Return the reward of each answer, [problems, group]."""
    group = len(answers) // len(problems)
    texts = decode(answers)
    rewards = [verify(problems[i // group], text) for i, text in enumerate(texts)]
    return torch.tensor(rewards).view(len(problems), group)


@torch.no_grad()
def make_batch(
    model: Transformer, base: Transformer, problems: list[int], group: int, step: int, steps: int
) -> tuple[GroupBatch, Tensor, Tensor]:
    """Sample and verify a group of answers to each problem.

    Returns:
        What an estimator may read; the answers and their log π, [rows, answer tokens].
    """
    prompts = encode_prompts(problems).repeat_interleave(group, dim=0)
    answers = sample(model, prompts)
    log_p = answer_log_probs(model, prompts, answers)
    chosen = log_p.gather(-1, answers[..., None])[..., 0]
    used = answers != PADDING
    lengths = used.sum(dim=1)
    surprise = chosen.masked_fill(~used, 0).neg().sum(dim=1) / lengths
    plogp = (log_p.exp() * log_p).nan_to_num(0)  # padding has probability 0
    entropies = plogp.sum(dim=-1).neg() * used
    # KL(uniform ‖ π) over the tokens that can be sampled.
    certainty = (-log_p[..., :PADDING].mean(dim=-1) - math.log(PADDING)) * used
    rewards = rewards_of(problems, answers)
    shape = rewards.shape
    batch = GroupBatch(
        rewards=rewards,
        lengths=lengths.float().view(shape),
        ref_rewards=rewards_of(problems, sample(base, prompts)),
        token_entropy=surprise.view(shape),
        token_entropy_exact=(entropies.sum(dim=1) / lengths).view(shape),
        token_entropies=entropies.view(*shape, -1),
        solve_rates=rewards.mean(dim=1),
        self_certainty=(certainty.sum(dim=1) / lengths).view(shape),
        answered=(answers == END).any(dim=1).view(shape),
        prompt_ids=tuple(map(str, problems)),
        step=step,
        total_steps=steps,
    )
    return batch, answers, chosen


def clipped_loss(log_p: Tensor, old_log_p: Tensor, advantages: Tensor, used: Tensor) -> Tensor:
    """Return PPO's clipped surrogate: the mean over answers of the mean over their tokens."""
    ratio = (log_p - old_log_p).masked_fill(~used, 0).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -((gain * used).sum(dim=1) / used.sum(dim=1)).mean()


def evaluate(model: Transformer, samples: int = 64) -> str:
    """Return pass@1, pass@16 and the entropy of correct answers over the held-out problems.

    pass@k is 1 - C(n-c, k) / C(n, k) for c right answers of n (Chen et al. 2021,
    arXiv:2107.03374). The entropy, in nats, is of the right answers to problems that have one.
    """
    answers = sample(model, encode_prompts(HELD_OUT).repeat_interleave(samples, dim=0))
    rewards, texts = rewards_of(HELD_OUT, answers), decode(answers)
    right = rewards.sum(dim=1).int().tolist()

    def pass_at(k: int) -> float:
        failures = [math.comb(samples - c, k) / math.comb(samples, k) for c in right]
        return 1 - sum(failures) / len(failures)

    entropies = []
    for i, count in enumerate(right):
        own = texts[i * samples : (i + 1) * samples]
        shares = [n / count for t, n in Counter(own).items() if verify(HELD_OUT[i], t)]
        if shares:
            entropies.append(-sum(p * math.log(p) for p in shares))
    entropy = sum(entropies) / len(entropies) if entropies else math.nan
    return f"pass@1 {pass_at(1):.3f}  pass@16 {pass_at(16):.3f}  entropy {entropy:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimator", default="grpo", help="default: grpo")
    parser.add_argument("--steps", type=int, default=60, help="default: 60")
    parser.add_argument("--pretraining-steps", type=int, default=1200, help="default: 1200")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    estimator = build_estimator(options.estimator)

    model = Transformer()
    pretrain(model, options.pretraining_steps, rng)
    base = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0)
    print(f"base      {evaluate(model)}")
    for step in range(1, options.steps + 1):
        problems, group = rng.sample(TRAINING, 32), 16
        batch, answers, old_log_p = make_batch(model, base, problems, group, step, options.steps)
        result = estimator.compute(batch)
        # One advantage per answer is that of each of its tokens.
        advantages = result.values if result.values.ndim == 3 else result.values[..., None]
        advantages = advantages.flatten(0, 1)
        kept = result.keep.flatten()
        prompts, used = encode_prompts(problems).repeat_interleave(group, dim=0), answers != PADDING
        for _ in range(4):
            log_p = answer_log_probs(model, prompts, answers).gather(-1, answers[..., None])[..., 0]
            loss = clipped_loss(log_p[kept], old_log_p[kept], advantages[kept], used[kept])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % 20 == 0:
            alike = (batch.rewards == batch.rewards[:, :1]).all(dim=1).float().mean()
            reward = batch.rewards.mean()
            print(f"step {step:3}  {evaluate(model)}  reward {reward:.3f}  ACR {alike:.3f}")


if __name__ == "__main__":
    main()
