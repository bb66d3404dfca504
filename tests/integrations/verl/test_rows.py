"""Rows of verl as groups: sessions of several outputs, tools, padding, any order and size."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from advsweep.integrations.rows import Origin, TokenRows

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
    assert rows.present is not None
    assert rows.present.tolist() == [[True, True], [True, False]]
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
