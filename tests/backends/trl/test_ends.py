"""Completions end at end marks, at texts of `generation.stop` or at the token limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from advsweep.backends.build import build_run
from advsweep.backends.trl.ends import Ends, StopTexts, until_stop
from advsweep.errors import ConfigError
from tests.backends.test_contract import Spy

PIECES = ["<end>", "a", "st", "opera", "o", "p", "\n"]


class Pieces:
    """A tokenizer whose tokens are these pieces."""

    def decode(self, tokens):
        return "".join(PIECES[token] for token in tokens)

    def batch_decode(self, rows):
        return [self.decode(row) for row in rows.tolist()]


ENDS = Ends(Pieces(), [0], ["stop", "\n\n"])


@pytest.mark.parametrize(
    ("tokens", "kept", "text", "truncated"),
    [
        ([1, 2, 0, 0], [1, 2, 0], "ast<end>", False),
        ([1, 2, 1, 1], [1, 2, 1, 1], "astaa", True),
        # The token that completes the text is kept whole, the text is not.
        ([1, 2, 3, 0, 0], [1, 2, 3], "astop", False),
        ([2, 4, 5, 1, 1], [2, 4, 5], "stop", False),
        ([1, 6, 6, 2, 3], [1, 6, 6], "a\n\n", False),
        # The last token completes it.
        ([1, 1, 2, 4, 5], [1, 1, 2, 4, 5], "aastop", False),
    ],
)
def test_a_completion_ends_where_its_end_is_complete(tokens, kept, text, truncated):
    assert ENDS.cut(tokens) == kept
    assert until_stop(Pieces().decode(kept), ENDS.stop) == text
    assert ENDS.is_truncated(kept) == truncated


def test_texts_that_begin_in_the_prompt_do_not_stop():
    criterion = StopTexts(Pieces(), ENDS.stop)
    rows = torch.tensor([[1, 2, 4, 5, 1], [1, 2, 2, 4, 5], [6, 6, 2, 3, 1]])
    # The prompts have two tokens: "ast", "ast", "\n\n"; "op", "stop" and "stopera" follow.
    found = [criterion(rows[:, :width], None).tolist() for width in (3, 4, 5)]
    assert found == [[False] * 3, [False, False, True], [False, True, True]]


def check_stops(run, train, folder, monkeypatch):
    """Train with the stop texts + and -, and check texts, lengths and flags of all rollouts."""
    spy, seen = Spy(), []
    score = type(run.task).score

    def record(task, problems, texts):
        seen.extend(texts)
        return score(task, problems, texts)

    monkeypatch.setattr(type(run.task), "score", record)
    recorder = train(replace(run, estimator=spy), folder)
    answers = [text for c in recorder.evaluations.values() for own in c.texts for text in own]
    for texts in (seen, answers):
        marks = [text.count("+") + text.count("-") for text in texts]
        assert set(marks) == {0, 1}
        assert all(text[-1] in "+-" for text, count in zip(texts, marks, strict=True) if count)
    lengths = torch.cat([batch.lengths.flatten() for batch in spy.batches]).tolist()
    truncated = torch.cat([batch.truncated.flatten() for batch in spy.batches]).tolist()
    for text, length, cut_off in zip(seen, lengths, truncated, strict=True):
        # An end mark has no text.
        stopped = text[-1:] in ("+", "-")
        assert length == len(text) + (not stopped and not cut_off)
        assert not cut_off or length == run.generation.max_tokens
    for step, values in recorder.points.items():
        cut_off = spy.batches[step - 1].truncated.float().mean().item()
        assert values["reward/truncated"] == pytest.approx(cut_off)


def test_stop_texts_end_rollouts_and_answers(parity_run, train, tmp_path, monkeypatch):
    generation = {"name": "transformers", "max_tokens": 6, "stop": ["+", "-"]}
    check_stops(parity_run(steps=2, generation=generation), train, tmp_path, monkeypatch)


def test_stop_texts_are_part_of_identities(small_config, small_run):
    plain = small_run("trl", generation={"name": "transformers"})
    assert "stop" not in plain.generation.identity()
    stopping = small_run("trl", generation={"name": "transformers", "stop": ["+"]})
    assert stopping.identity != plain.identity
    assert stopping.backend.base_key(stopping) != plain.backend.base_key(plain)
    limits = stopping.backend.answer_limits(stopping.generation, stopping.task)
    assert limits["stop"] == '["+"]'
    with pytest.raises(ConfigError, match=r"generation.stop: expected texts that are not empty"):
        build_run(small_config("trl", generation={"name": "transformers", "stop": [""]}))
    with pytest.raises(ConfigError, match=r"generation.stop: expected none, got \['\+'\], which"):
        build_run(small_config("tiny", generation={"name": "transformers", "stop": ["+"]}))
