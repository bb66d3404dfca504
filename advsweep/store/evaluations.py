"""Evaluations: the counts of correct answers per problem, behind every pass@k."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, delete, or_, select

from advsweep.errors import NotFoundError
from advsweep.store.base import StorePart, chunks, insert_or_ignore
from advsweep.store.records import EvaluationRecord, NewEvaluation, ProblemCounts
from advsweep.store.samples import AnswerSample, insert_samples, to_row
from advsweep.store.tables import Evaluation, ProblemSet, Run, RunEvaluation

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

MODEL_SUBJECT = "model:"
"""The prefix of the subject of an evaluation without a run."""

HELD_OUT = "held_out"
"""The part of a task's problems that evaluations are on unless their settings say otherwise."""

Problems = tuple[tuple[str, ...], tuple[str, ...], np.ndarray[Any, Any]]
"""The ids, prompts and levels of a set of problems."""


class Evaluations(StorePart):
    """Evaluations, and the runs whose weights they evaluated.

    An evaluation is identified by its weights, problems and sampling. It is stored once and
    linked to every run that shares these, such as the runs of one base model. It never changes.
    """

    def add(self, evaluation: NewEvaluation, samples: Sequence[AnswerSample] = ()) -> int:
        """Adds an evaluation and links it to its run; returns its id.

        An evaluation of the same identity stays as it is and is only linked.

        Args:
            samples: some answers to its problems, to be read by people.
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
            # The dtype makes NaN of None.
            "token_entropy": np.array([p.token_entropy for p in problems], dtype=np.float64),
            "right_entropy": np.array([p.right_entropy for p in problems], dtype=np.float64),
        }
        listed = [[p.problem_id, p.prompt, p.level] for p in problems]
        digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        with self._database.write() as connection:
            evaluation_id = insert_evaluation(connection, row, digest, listed)
            insert_samples(connection, evaluation_id, [to_row(sample) for sample in samples])
            if evaluation.run_id is not None:
                self._require_run(connection, evaluation.run_id)
                link_evaluation(connection, evaluation.run_id, evaluation_id, evaluation.step)
        return evaluation_id

    def _require_id(self, connection: Connection, identity: str) -> int:
        query = select(Evaluation.id).where(Evaluation.identity == identity)
        found = connection.execute(query).scalar()
        if found is None:
            raise NotFoundError(f"no evaluation {identity} in {self._database.location.name}")
        return found

    def has(self, identity: str) -> bool:
        """Returns whether an evaluation of this identity exists."""
        with self._database.read() as connection:
            query = select(Evaluation.id).where(Evaluation.identity == identity)
            return connection.execute(query).scalar() is not None

    def link(self, run_id: int, identity: str, step: int) -> None:
        """Links an evaluation to a run; a link that exists stays as it is."""
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            evaluation_id = self._require_id(connection, identity)
            link_evaluation(connection, run_id, evaluation_id, step)

    def identities(self, run_id: int) -> set[str]:
        """Returns the identities of the evaluations of a run."""
        query = (
            select(Evaluation.identity).join(RunEvaluation).where(RunEvaluation.run_id == run_id)
        )
        with self._database.read() as connection:
            return set(connection.execute(query).scalars())

    def select(
        self,
        run_ids: Sequence[int],
        *,
        ends_only: bool = False,
        identity: str | None = None,
        split: str | None = HELD_OUT,
    ) -> list[EvaluationRecord]:
        """Returns the evaluations of some runs, by run, step and age.

        Args:
            ends_only: only those of the base model and those after the last training step.
            identity: only this evaluation.
            split: only those on this part of a task's problems, `held_out` or `train`; None for
                both. `identity` overrides it.
        """
        links = select(RunEvaluation.run_id, RunEvaluation.step, RunEvaluation.evaluation_id)
        if ends_only:
            links = links.join(Run, Run.id == RunEvaluation.run_id).where(
                or_(RunEvaluation.step == 0, RunEvaluation.step == Run.steps)
            )
        if identity is not None:
            links = links.join(Evaluation).where(Evaluation.identity == identity)
        links = links.order_by(*links.selected_columns)
        with self._database.read() as connection:
            linked = [
                link
                for ids in chunks(sorted(run_ids))
                for link in connection.execute(links.where(RunEvaluation.run_id.in_(ids)))
            ]
            # Shared evaluations are read once.
            parts = _read_parts(connection, {link.evaluation_id for link in linked})
        if identity is None and split is not None:
            linked = [link for link in linked if _split(parts[link.evaluation_id]) == split]
        return [EvaluationRecord(run_id=r, step=s, **parts[e]) for r, s, e in linked]

    def of_models(self) -> list[EvaluationRecord]:
        """Returns the evaluations of models without a run, by age."""
        query = (
            select(Evaluation.id)
            .where(Evaluation.subject.startswith(MODEL_SUBJECT))
            .order_by(Evaluation.created, Evaluation.id)
        )
        with self._database.read() as connection:
            ids = list(connection.execute(query).scalars())
            parts = _read_parts(connection, set(ids))
        return [EvaluationRecord(run_id=None, step=0, **parts[e]) for e in ids]

    def find(self, identity: str) -> EvaluationRecord:
        """Returns an evaluation, without the runs that it is linked to."""
        with self._database.read() as connection:
            found = self._require_id(connection, identity)
            parts = _read_parts(connection, {found})
        return EvaluationRecord(run_id=None, step=0, **parts[found])

    def remove_of_models(self, identities: Sequence[str]) -> None:
        """Removes evaluations of models without a run; `runs.remove` removes those of runs."""
        with self._database.write() as connection:
            for some in chunks(identities):
                of_models = Evaluation.subject.startswith(MODEL_SUBJECT)
                connection.execute(
                    delete(Evaluation).where(Evaluation.identity.in_(some), of_models)
                )
            remove_unused_problems(connection)


def insert_evaluation(
    connection: Connection, row: Mapping[str, Any], digest: str, problems: list[Any]
) -> int:
    """Inserts an evaluation and its problem set unless they exist; returns its id.

    Args:
        row: the columns of `evaluations`, without `id` and `problem_set_id`.
        digest: sha256 of the problems as JSON.
        problems: a list of [id, prompt, level].
    """
    # Evaluations of the same problems share one set, prompts included.
    problem_set = {"digest": digest, "problems": problems}
    connection.execute(insert_or_ignore(connection, ProblemSet, "digest"), problem_set)
    query = select(ProblemSet.id).where(ProblemSet.digest == digest)
    values = {**row, "problem_set_id": connection.execute(query).scalar_one()}
    connection.execute(insert_or_ignore(connection, Evaluation, "identity"), values)
    query = select(Evaluation.id).where(Evaluation.identity == row["identity"])
    return connection.execute(query).scalar_one()


def link_evaluation(connection: Connection, run_id: int, evaluation_id: int, step: int) -> None:
    """Links an evaluation to the weights of a run after `step` steps."""
    values = {"run_id": run_id, "evaluation_id": evaluation_id, "step": step}
    insert = insert_or_ignore(connection, RunEvaluation, "run_id", "evaluation_id")
    connection.execute(insert, values)


def remove_unused_problems(connection: Connection) -> None:
    """Removes problem sets that no evaluation uses."""
    used = select(Evaluation.problem_set_id)
    connection.execute(delete(ProblemSet).where(ProblemSet.id.not_in(used)))


def _split(parts: Mapping[str, Any]) -> str:
    split: str = parts["settings"].get("split", HELD_OUT)
    return split


def _column(problems: Sequence[ProblemCounts], name: str) -> np.ndarray[Any, Any]:
    return np.array([getattr(problem, name) for problem in problems])


def _read_parts(connection: Connection, ids: set[int]) -> dict[int, dict[str, Any]]:
    """Returns what evaluations have beside their links, by id, as fields of their records."""
    rows: dict[int, AnyRow] = {}
    for some in chunks(ids):
        query = select(Evaluation.__table__).where(Evaluation.id.in_(some))
        rows.update((row.id, row) for row in connection.execute(query))
    sets: dict[int, Problems] = {}
    for some in chunks({row.problem_set_id for row in rows.values()}):
        query = select(ProblemSet.id, ProblemSet.problems).where(ProblemSet.id.in_(some))
        for set_id, problems in connection.execute(query):
            names, prompts, levels = zip(*problems, strict=True) if problems else ((), (), ())
            sets[set_id] = (names, prompts, np.array(levels, dtype=np.int64))
    return {i: _parts(row, sets[row.problem_set_id]) for i, row in rows.items()}


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
        # Samples that the verifier failed on count as not correct, unless no sample was scored.
        "n": np.where(scored > 0, scored + unscorable, 0),
        "c": row.c.astype(np.int64),
        "distinct": row.distinct.astype(np.int64),
        "unscorable": unscorable,
        "answer_entropy": row.answer_entropy,
        "token_entropy": row.token_entropy,
        "right_entropy": (
            np.full(len(names), np.nan) if row.right_entropy is None else row.right_entropy
        ),
    }
