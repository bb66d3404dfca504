"""Evaluations: the counts per problem behind every pass@k."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, delete, or_, select

from advsweep.errors import NotFoundError
from advsweep.store.base import StorePart, chunks
from advsweep.store.records import EvaluationRecord, NewEvaluation, ProblemCounts
from advsweep.store.tables import Evaluation, ProblemSet, Run, RunEvaluation

if TYPE_CHECKING:
    from advsweep.store.base import AnyRow

MODEL_SUBJECT = "model:"
"""What the subject begins with of an evaluation that was asked for without a run."""

Problems = tuple[tuple[str, ...], tuple[str, ...], np.ndarray[Any, Any]]


class Evaluations(StorePart):
    """The part of a store that holds evaluations, and which runs they are of."""

    def add(self, evaluation: NewEvaluation) -> int:
        """Keeps an evaluation and links it to its run; returns its id.

        One that is there already stays as it is and is linked only.
        """
        problems = evaluation.problems
        row = {
            "identity": evaluation.identity,
            "subject": evaluation.subject,
            "task": evaluation.task,
            "settings": dict(evaluation.settings),
            "created": self._now(),
            "n": _column(problems, "n"),
            "c": _column(problems, "c"),
            "distinct": _column(problems, "distinct"),
            "unscorable": _column(problems, "unscorable"),
            "answer_entropy": _column(problems, "answer_entropy"),
            # numpy makes NaN of None.
            "token_entropy": np.array([p.token_entropy for p in problems], dtype=np.float64),
        }
        with self._write() as connection:
            row["problem_set_id"] = self._problem_set(connection, problems)
            connection.execute(self._insert_or_ignore(Evaluation, "identity"), row)
            evaluation_id = self._evaluation_id(connection, evaluation.identity)
            if evaluation.run_id is not None:
                self._link(connection, evaluation.run_id, evaluation_id, evaluation.step)
        return evaluation_id

    def _problem_set(self, connection: Connection, problems: Sequence[ProblemCounts]) -> int:
        listed = [[p.problem_id, p.prompt, p.level] for p in problems]
        digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        row = {"digest": digest, "problems": listed}
        connection.execute(self._insert_or_ignore(ProblemSet, "digest"), row)
        query = select(ProblemSet.id).where(ProblemSet.digest == digest)
        return connection.execute(query).scalar_one()

    def _evaluation_id(self, connection: Connection, identity: str) -> int:
        query = select(Evaluation.id).where(Evaluation.identity == identity)
        found = connection.execute(query).scalar()
        if found is None:
            raise NotFoundError(f"no evaluation {identity} in {self._engines.location.name}")
        return found

    def _link(self, connection: Connection, run_id: int, evaluation_id: int, step: int) -> None:
        self._require_run(connection, run_id)
        values = {"run_id": run_id, "evaluation_id": evaluation_id, "step": step}
        insert = self._insert_or_ignore(RunEvaluation, "run_id", "evaluation_id")
        connection.execute(insert, values)

    def has(self, identity: str) -> bool:
        """Whether an evaluation is there, of whichever run."""
        with self._read() as connection:
            query = select(Evaluation.id).where(Evaluation.identity == identity)
            return connection.execute(query).scalar() is not None

    def link(self, run_id: int, identity: str, step: int) -> None:
        """Says that an evaluation is of a run's weights too; again changes nothing.

        Raises:
            NotFoundError: there is no such run, or no such evaluation.
        """
        with self._write() as connection:
            self._link(connection, run_id, self._evaluation_id(connection, identity), step)

    def identities(self, run_id: int) -> set[str]:
        """The identities of a run's evaluations."""
        query = (
            select(Evaluation.identity).join(RunEvaluation).where(RunEvaluation.run_id == run_id)
        )
        with self._read() as connection:
            return set(connection.execute(query).scalars())

    def select(
        self, run_ids: Sequence[int], *, ends_only: bool = False, identity: str | None = None
    ) -> list[EvaluationRecord]:
        """The evaluations of some runs, by run, step and age.

        Args:
            ends_only: those of the base model and after the last training step alone.
            identity: this one alone.
        """
        links = select(RunEvaluation.run_id, RunEvaluation.step, RunEvaluation.evaluation_id)
        if ends_only:
            links = links.join(Run, Run.id == RunEvaluation.run_id).where(
                or_(RunEvaluation.step == 0, RunEvaluation.step == Run.steps)
            )
        if identity is not None:
            links = links.join(Evaluation).where(Evaluation.identity == identity)
        links = links.order_by(*links.selected_columns)
        with self._read() as connection:
            linked = [
                link
                for ids in chunks(sorted(run_ids))
                for link in connection.execute(links.where(RunEvaluation.run_id.in_(ids)))
            ]
            # Those that runs share are read once.
            parts = self._read_parts(connection, {link.evaluation_id for link in linked})
        return [EvaluationRecord(run_id=r, step=s, **parts[e]) for r, s, e in linked]

    def of_models(self) -> list[EvaluationRecord]:
        """The evaluations of models that were evaluated without a run, by age."""
        query = (
            select(Evaluation.id)
            .where(Evaluation.subject.startswith(MODEL_SUBJECT))
            .order_by(Evaluation.created, Evaluation.id)
        )
        with self._read() as connection:
            ids = list(connection.execute(query).scalars())
            parts = self._read_parts(connection, set(ids))
        return [EvaluationRecord(run_id=None, step=0, **parts[e]) for e in ids]

    def find(self, identity: str) -> EvaluationRecord:
        """One evaluation, of whatever.

        Raises:
            NotFoundError: there is none.
        """
        with self._read() as connection:
            found = self._evaluation_id(connection, identity)
            parts = self._read_parts(connection, {found})
        return EvaluationRecord(run_id=None, step=0, **parts[found])

    def remove_of_models(self, identities: Sequence[str]) -> None:
        """Removes evaluations of models without a run; those of runs go with their runs."""
        with self._write() as connection:
            for some in chunks(identities):
                of_models = Evaluation.subject.startswith(MODEL_SUBJECT)
                connection.execute(
                    delete(Evaluation).where(Evaluation.identity.in_(some), of_models)
                )
            remove_unused_problems(connection)

    def _read_parts(self, connection: Connection, ids: set[int]) -> dict[int, dict[str, Any]]:
        rows = self._rows(connection, ids)
        sets = self._problem_sets(connection, {row.problem_set_id for row in rows.values()})
        return {i: _parts(row, sets[row.problem_set_id]) for i, row in rows.items()}

    def _rows(self, connection: Connection, ids: set[int]) -> dict[int, AnyRow]:
        rows: dict[int, AnyRow] = {}
        for some in chunks(ids):
            query = select(Evaluation.__table__).where(Evaluation.id.in_(some))
            rows.update((row.id, row) for row in connection.execute(query))
        return rows

    def _problem_sets(self, connection: Connection, ids: set[int]) -> dict[int, Problems]:
        found: dict[int, Problems] = {}
        for some in chunks(ids):
            query = select(ProblemSet.id, ProblemSet.problems).where(ProblemSet.id.in_(some))
            for set_id, problems in connection.execute(query):
                names, prompts, levels = zip(*problems, strict=True) if problems else ((), (), ())
                found[set_id] = (names, prompts, np.array(levels, dtype=np.int64))
        return found


def remove_unused_problems(connection: Connection) -> None:
    """Removes sets of problems that no evaluation uses."""
    used = select(Evaluation.problem_set_id)
    connection.execute(delete(ProblemSet).where(ProblemSet.id.not_in(used)))


def _column(problems: Sequence[ProblemCounts], name: str) -> np.ndarray[Any, Any]:
    return np.array([getattr(problem, name) for problem in problems])


def _parts(row: AnyRow, problems: Problems) -> dict[str, Any]:
    names, prompts, levels = problems
    scored, unscorable = row.n.astype(np.int64), row.unscorable.astype(np.int64)
    return {
        "identity": row.identity,
        "subject": row.subject,
        "task": row.task,
        "settings": row.settings,
        "created": row.created,
        "problem_ids": names,
        "prompts": prompts,
        "levels": levels,
        # The verifier's failures count as not correct, but where there is nothing else.
        "n": np.where(scored > 0, scored + unscorable, 0),
        "c": row.c.astype(np.int64),
        "distinct": row.distinct.astype(np.int64),
        "unscorable": unscorable,
        "answer_entropy": row.answer_entropy,
        "token_entropy": row.token_entropy,
    }
