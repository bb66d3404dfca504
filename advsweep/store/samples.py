"""Some answers of each evaluation, as a person reads them: a bounded sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from advsweep.store.base import StorePart, chunks, insert_or_ignore
from advsweep.store.tables import EVALUATION_SAMPLES, EVALUATIONS, PROBLEM_SETS

MAX_SAMPLES = 8
"""Maximum number of answers that an evaluation keeps."""

MAX_CHARACTERS = 2000
"""Maximum length of a text of a kept answer; a longer one loses its middle."""


@dataclass(frozen=True, kw_only=True)
class AnswerSample:
    """One sampled answer.

    Attributes:
        problem_id, prompt, level: the problem.
        answer: what the model wrote, at most `MAX_CHARACTERS` characters of it.
        length: characters of the whole answer.
        read: the answer that the verifier read in it; None if it read none.
        reward: 1 for a correct answer; None if the verifier failed.
    """

    problem_id: str
    prompt: str
    level: int
    answer: str
    length: int
    read: str | None
    reward: float | None

    @property
    def verdict(self) -> str:
        """`correct`, `wrong` or `unscorable`."""
        if self.reward is None:
            return "unscorable"
        return "correct" if self.reward == 1.0 else "wrong"


class Samples(StorePart):
    """Some answers of each evaluation."""

    def select(self, identities: Sequence[str]) -> dict[str, list[AnswerSample]]:
        """Returns the kept answers by the identity of their evaluation.

        Evaluations that older versions, or other programs, made have none.
        """
        query = (
            select(EVALUATIONS.c.identity, EVALUATION_SAMPLES.c.answers, PROBLEM_SETS.c.problems)
            .join(EVALUATION_SAMPLES, EVALUATION_SAMPLES.c.evaluation_id == EVALUATIONS.c.id)
            .join(PROBLEM_SETS, PROBLEM_SETS.c.id == EVALUATIONS.c.problem_set_id)
        )
        found = {}
        with self._database.read() as connection:
            for some in chunks(identities):
                rows = connection.execute(query.where(EVALUATIONS.c.identity.in_(some)))
                for identity, answers, problems in rows:
                    known = {name: (prompt, level) for name, prompt, level in problems}
                    found[identity] = [_to_sample(answer, known) for answer in answers]
        return found


def insert_samples(
    connection: Connection, evaluation_id: int, answers: Sequence[Mapping[str, Any]]
) -> None:
    """Inserts the kept answers of an evaluation, unless it has some."""
    if answers:
        insert = insert_or_ignore(connection, EVALUATION_SAMPLES, "evaluation_id")
        connection.execute(
            insert, {"evaluation_id": evaluation_id, "answers": [dict(a) for a in answers]}
        )


def to_row(sample: AnswerSample) -> dict[str, Any]:
    """Returns an answer as the store keeps it; the problem set has its prompt and level."""
    return {
        "problem": sample.problem_id,
        "answer": shorten(sample.answer),
        "length": sample.length,
        "read": None if sample.read is None else shorten(sample.read),
        "reward": sample.reward,
    }


def _to_sample(row: Mapping[str, Any], known: Mapping[str, tuple[str, int]]) -> AnswerSample:
    prompt, level = known[row["problem"]]
    return AnswerSample(
        problem_id=row["problem"],
        prompt=prompt,
        level=level,
        answer=row["answer"],
        length=row["length"],
        read=row["read"],
        reward=row["reward"],
    )


def shorten(text: str) -> str:
    """Returns a text of at most `MAX_CHARACTERS` that every database stores.

    A long text loses its middle: its end has the answer.
    """
    # PostgreSQL stores no NUL.
    text = text.replace("\0", "\ufffd")
    if len(text) <= MAX_CHARACTERS:
        return text
    mark = f"\n[... {len(text) - MAX_CHARACTERS} characters left out ...]\n"
    kept = MAX_CHARACTERS - len(mark)
    head = kept // 2
    return text[:head] + mark + text[len(text) - (kept - head) :]
