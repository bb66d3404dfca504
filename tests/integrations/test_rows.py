"""Rows of trainers as groups: sessions of several outputs, padding, any order and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import BatchError, CheckpointError, ConfigError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.integrations.adapters import SkyrlAdvantages, SlimeRewards, SwiftAdvantages
from advsweep.integrations.rows import Origin, TokenRows, load_memory, prompt_name, save_memory


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    name=st.sampled_from(["grpo", "dr_grpo", "rloo", "t2t", "passk_loo", "maxrl"]),
)
def test_each_group_gets_what_it_gets_alone(sizes: list[int], seed: int, name: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    rewards = (torch.rand(count, generator=generator) < 0.5).float()
    lengths = torch.randint(1, 9, (count,), generator=generator).float()
    groups = [f"group {number}" for number, size in enumerate(sizes) for _ in range(size)]
    order = torch.randperm(count, generator=generator).tolist()
    rows = SlimeRewards(name)
    if rows.estimator.minimum_group > max(sizes):
        return
    values = rows.advantages(rewards[order], [groups[row] for row in order], lengths=lengths[order])
    for group in set(groups):
        own = [row for row in order if groups[row] == group]
        if len(own) < rows.estimator.minimum_group:
            continue
        alone = GroupBatch(rewards=rewards[own][None], lengths=lengths[own][None])
        found = values[[place for place, row in enumerate(order) if groups[row] == group]]
        assert torch.allclose(found, rows.estimator(alone)[0], atol=1e-6)


def test_rows_of_one_rollout_count_once() -> None:
    # A success in three rows, and three failures: p = 1/4, not 3/6. Dr. GRPO: r - 1/4.
    rows = SlimeRewards("dr_grpo")
    values = rows.advantages(
        torch.tensor([1.0, 0, 1, 0, 1, 0]),
        ["prompt"] * 6,
        sessions=["right", 1, "right", 2, "right", 3],
        lengths=torch.tensor([1.0, 5, 2, 5, 3, 5]),
    )
    assert values.tolist() == [0.75, -0.25, 0.75, -0.25, 0.75, -0.25]
    assert rows.metrics["reward/mean"] == 0.25
    # 1 + 2 + 3 tokens of the success, and three times 5.
    assert rows.metrics["cost/tokens"] == 21
    # The last row of a rollout has its reward.
    values = rows.advantages(torch.tensor([0.0, 1, 0]), [0, 0, 0], sessions=["a", "a", "b"])
    assert values.tolist() == [0.5, 0.5, -0.5]


def test_turns_of_a_rollout_are_the_runs_of_its_mask_in_all_of_its_outputs() -> None:
    # A rollout of one output with two turns, and one of two outputs with one and two.
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 0, 1], [1, 0, 0, 0, 0]])
    origins = [Origin("p", 0), Origin("p", 1, output=1), Origin("p", 1, output=0)]
    rows = TokenRows(origins, mask)
    turns = rows.turn_table()
    assert turns is not None
    assert turns.tolist() == [[[0, 0, 1, -1], [0, 1, 1, 2]]]
    # An advantage per turn comes back to the tokens of that turn.
    per_token = torch.tensor([10.0, 11, 12, 0])[turns]
    assert rows.spread(per_token).tolist() == [
        [10, 10, 0, 11, 0],
        [0, 11, 11, 0, 12],
        [10, 0, 0, 0, 0],
    ]
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0]]), lengths=rows.table(rows.lengths()), turn_of_token=turns
    )
    assert build_estimator("grpo").compute(batch).values.tolist() == [[1, -1]]


def test_rollouts_of_one_turn_each_have_no_table_of_turns() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    assert TokenRows([Origin("p", 0), Origin("p", 1)], mask).turn_table() is None


def test_surprisal_becomes_the_entropy_that_fade_reads() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 1]])
    lengths = torch.tensor([[2.0, 4, 1, 5], [3, 3, 2, 6]])
    entropy = torch.tensor([[0.5, 1, 2, 0.25], [1, 0.5, 0.75, 1]])
    rows = SlimeRewards("fade", h_star=0.5)
    direct = build_estimator("fade", h_star=0.5)
    for _ in range(2):
        values = rows.advantages(
            rewards.flatten(),
            [0] * 4 + [1] * 4,
            lengths=lengths.flatten(),
            surprisal=(entropy * lengths).flatten(),
        )
        batch = GroupBatch(rewards=rewards, lengths=lengths, token_entropy=entropy)
        assert torch.allclose(values.view(2, 4), direct(batch), atol=1e-6)
    assert rows.estimator.state_dict() == pytest.approx(direct.state_dict())
    with pytest.raises(BatchError, match="needs token_entropy, which the batch lacks"):
        rows.advantages(rewards.flatten(), [0] * 4 + [1] * 4, lengths=lengths.flatten())


def test_prompts_are_known_again() -> None:
    rows = SlimeRewards("dcpo")
    first, second = torch.tensor([1.0, 0, 1, 1]), torch.tensor([1.0, 1, 1, 0])
    rows.advantages(first, ["x", "x", "y", "y"], prompts=["one", "one", "two", "two"])
    assert rows.metrics["estimator/visits"] == 1
    # The group is named anew at each step; its prompt is the same.
    rows.advantages(second, ["u", "v", "u", "v"], prompts=["two", "one", "two", "one"])
    assert rows.metrics["estimator/visits"] == 2
    assert set(rows.estimator.state_dict()["visits"]) == {"one", "two"}


def test_inputs_that_are_not_given_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="needs token_entropies, which SkyRL does not hand over"):
        SkyrlAdvantages("entropy_shaped")
    with pytest.raises(ConfigError, match="expected one that needs no more than rewards"):
        SwiftAdvantages("t2t")


@pytest.mark.parametrize("spec", ["turn_return", {"name": "reinforce_pp", "gamma": 0.9}])
def test_advantages_of_tokens_and_turns_are_refused_at_once(spec: Any) -> None:
    # Their axis could fit that of groups or rollouts, and rows would get those of others.
    with pytest.raises(ConfigError, match="SkyRL takes one per rollout"):
        SkyrlAdvantages(spec)


def test_names_of_prompts_do_not_depend_on_the_order_of_keys() -> None:
    one = [{"role": "user", "content": "2 + 2"}]
    other = [{"content": "2 + 2", "role": "user"}]
    assert prompt_name(one) == prompt_name(other) != prompt_name("2 + 2")
    assert len(prompt_name("2 + 2" * 1000)) == 16


DAMAGED = [
    ("", "JSONDecodeError"),
    ("[" * 100_000, "RecursionError"),
    ('{"estimator": 3}', "TypeError"),
    ('{"state": {}}', "KeyError"),
    ('{"estimator": {"name": "fade"}, "state": [1]}', "got TypeError"),
    ('{"estimator": {"name": "fade"}, "state": {"p": 1}}', "saved by another estimator or version"),
    ('{"estimator": {"name": "\\u001b[31m"}, "state": {}}', r"got that of '\\x1b\[31m'"),
    ('{"estimator": {"name": "ha_dw"}, "state": {}}', "'fade', got that of 'ha_dw'; resume with"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED, ids=[case[1][:20] for case in DAMAGED])
def test_a_damaged_memory_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "estimator.json"
    estimator = build_estimator("fade")
    save_memory(path, estimator)
    load_memory(path, estimator)
    path.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_memory(path, estimator)


# Two outputs of session 1 of prompt a, one of session 0, padding, and the only one of prompt b.
ORIGINS = [
    Origin("a", 1, 1),
    Origin("pad", 0, 0, padding=True),
    Origin("b", 0, 0),
    Origin("a", 1, 0),
    Origin("a", 0, 0),
]
# A tool wrote the second token of the first row and the first of the fourth.
MASK = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])


def test_sessions_are_rollouts_ordered_by_their_numbers() -> None:
    rows = TokenRows(ORIGINS, MASK)
    # Rows of the last outputs: of a's sessions 0 and 1, and of b's only one.
    assert rows.final.tolist() == [4, 0, 2]
    assert rows.shape == (2, 2)
    assert rows.table(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2], [3, 0]]
    assert rows.per_group(["r0", "r1", "r2", "r3", "r4"]) == ("r0", "r2")


def test_lengths_count_generated_tokens_of_all_outputs() -> None:
    rows = TokenRows(ORIGINS, MASK)
    assert rows.lengths().tolist() == [2, 3, 1]
    values = torch.arange(15.0).view(5, 3)
    # Session 0: 12 + 13; session 1: 10 of its first output, 0 and 2 of its second; b: 6.
    assert rows.token_sums(values).tolist() == [25, 12, 6]


@given(st.data())
def test_what_is_grouped_comes_back(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1))
    origins = [
        Origin(f"prompt{prompt}", session, output)
        for prompt, sessions in enumerate(sizes)
        for session, outputs in enumerate(sessions)
        for output in range(outputs)
    ]
    origins = data.draw(st.permutations(origins))
    bits = st.lists(st.integers(0, 1), min_size=5, max_size=5)
    mask = torch.tensor([data.draw(bits) for _ in origins])
    rows = TokenRows(origins, mask)

    # A number of each session's own reaches its rows, where the policy generated tokens.
    sessions = [(int(o.prompt[6:]), o.session) for o in origins]  # type: ignore[index]
    numbers = {session: place + 1.0 for place, session in enumerate(sorted(set(sessions)))}
    values = torch.tensor([numbers[sessions[row]] for row in rows.final.tolist()])
    expected = torch.tensor([numbers[session] for session in sessions])[:, None] * mask
    assert torch.equal(rows.spread(rows.table(values)), expected)

    # Each token's own number comes back, and no row of the table has a hole.
    tokens = torch.arange(1.0, mask.numel() + 1).view(mask.shape)
    table = rows.token_table(tokens)
    assert torch.equal(rows.spread(table), tokens * mask)
    lengths = rows.table(rows.lengths())
    assert torch.equal((table != 0).sum(-1), lengths.long())
    assert torch.equal(table != 0, torch.arange(table.shape[2]) < lengths[..., None])


@pytest.mark.parametrize("name", ["grpo", "rloo", "avspo"])
def test_a_rollout_whose_tokens_are_all_masked_enters_no_statistic(name: str) -> None:
    """A framework rejects rollouts so, and leaves their reward in the batch."""
    rewards = torch.tensor([1.0, 0, 7, 1, 0, 1])
    lengths = torch.tensor([2.0, 1, 0, 3, 1, 1])
    kept = lengths > 0
    estimator = SkyrlAdvantages(name)
    advantages = estimator.advantages(rewards, [*"aaabbb"], lengths=lengths)
    expected = SkyrlAdvantages(name).advantages(rewards[kept], [*"aabbb"], lengths=lengths[kept])
    assert torch.allclose(advantages[kept], expected)
    assert advantages[2] == 0
    assert estimator.metrics["reward/mean"] == pytest.approx(0.6)


def test_one_rollout_per_prompt_is_refused_where_they_are_compared() -> None:
    rewards = torch.tensor([1.0, 0, 1])
    with pytest.raises(BatchError, match=r"'grpo' compares the rollouts .* each of 3 prompts"):
        SkyrlAdvantages("grpo").advantages(rewards, [*"abc"])
    assert SkyrlAdvantages("psr").advantages(rewards, [*"abc"]).any()
    # Equal rewards have no difference to lose, and one group says nothing of the others.
    assert not SkyrlAdvantages("grpo").advantages(torch.ones(3), [*"abc"]).any()
    assert not SkyrlAdvantages("grpo").advantages(rewards[:1], ["a"]).any()
