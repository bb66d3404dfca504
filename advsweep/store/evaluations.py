"""Evaluations: the counts of correct answers per problem, behind every pass@k."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, LargeBinary, Select, delete, or_, select, type_coerce

from advsweep.errors import NotFoundError
from advsweep.store.base import StorePart, chunks, insert_or_ignore
from advsweep.store.evaluation_records import EvaluationOutline, EvaluationRecord, NewEvaluation
from advsweep.store.samples import AnswerSample, insert_samples, to_row
from advsweep.store.tables import EVALUATIONS, PROBLEM_SETS, RUN_EVALUATIONS, RUNS

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

MODEL_SUBJECT = "model:"
"""The prefix of the subject of an evaluation without a run."""

HELD_OUT = "held_out"
"""The part of a task's problems that evaluations are on unless their settings say otherwise."""

Problems = tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]
"""The ids, prompts and levels of a set of problems."""

_OUTLINED = {
    **dict.fromkeys(("n", "c", "unscorable"), "I"),
    **dict.fromkeys(("answer_entropy", "token_entropy", "kl_base"), "d"),
}
"""The packed columns of an `EvaluationOutline`, with their types as `struct` calls them."""


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
        from advsweep.store.arrays import evaluation_columns

        problems = evaluation.problems
        row = {
            "identity": evaluation.identity,
            "subject": evaluation.subject,
            "task": evaluation.task,
            "settings": dict(evaluation.settings),
            "created": self._now(),
            **evaluation_columns(problems),
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
        query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == identity)
        found: int | None = connection.execute(query).scalar()
        if found is None:
            raise NotFoundError(f"no evaluation {identity} in {self._database.location.name}")
        return found

    def has(self, identity: str) -> bool:
        """Returns whether an evaluation of this identity exists."""
        with self._database.read() as connection:
            query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == identity)
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
            select(EVALUATIONS.c.identity)
            .join(RUN_EVALUATIONS)
            .where(RUN_EVALUATIONS.c.run_id == run_id)
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
            split: only those on these problems: `held_out`, `train` or `validation`; None for
                all. `identity` overrides it.
        """
        links = select(
            RUN_EVALUATIONS.c.run_id, RUN_EVALUATIONS.c.step, RUN_EVALUATIONS.c.evaluation_id
        )
        if ends_only:
            links = links.join(RUNS, RUNS.c.id == RUN_EVALUATIONS.c.run_id).where(
                or_(RUN_EVALUATIONS.c.step == 0, RUN_EVALUATIONS.c.step == RUNS.c.steps)
            )
        if identity is not None:
            links = links.join(EVALUATIONS).where(EVALUATIONS.c.identity == identity)
        links = links.order_by(*links.selected_columns)
        with self._database.read() as connection:
            linked = [
                link
                for ids in chunks(sorted(run_ids))
                for link in connection.execute(links.where(RUN_EVALUATIONS.c.run_id.in_(ids)))
            ]
            # Shared evaluations are read once.
            parts = _read_parts(connection, {link.evaluation_id for link in linked})
        if identity is None and split is not None:
            of_split = {e for e, fields in parts.items() if _split(fields["settings"]) == split}
            linked = [link for link in linked if link.evaluation_id in of_split]
        return [EvaluationRecord(run_id=r, step=s, **parts[e]) for r, s, e in linked]

    def outlines(self, run_id: int) -> list[EvaluationOutline]:
        """Returns the evaluations of a run on held-out problems, by step and age."""
        query = (
            select(RUN_EVALUATIONS.c.step, RUN_EVALUATIONS.c.evaluation_id)
            .where(RUN_EVALUATIONS.c.run_id == run_id)
            .order_by(RUN_EVALUATIONS.c.step, RUN_EVALUATIONS.c.evaluation_id)
        )
        with self._database.read() as connection:
            linked = connection.execute(query).all()
            parts = _read_outlines(connection, {link.evaluation_id for link in linked})
        found = [EvaluationOutline(step=step, **parts[e]) for step, e in linked]
        return [outline for outline in found if _split(outline.settings) == HELD_OUT]

    def of_models(self) -> list[EvaluationRecord]:
        """Returns the evaluations of models without a run, by age."""
        query = (
            select(EVALUATIONS.c.id)
            .where(EVALUATIONS.c.subject.startswith(MODEL_SUBJECT))
            .order_by(EVALUATIONS.c.created, EVALUATIONS.c.id)
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
                of_models = EVALUATIONS.c.subject.startswith(MODEL_SUBJECT)
                connection.execute(
                    delete(EVALUATIONS).where(EVALUATIONS.c.identity.in_(some), of_models)
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
    connection.execute(insert_or_ignore(connection, PROBLEM_SETS, "digest"), problem_set)
    query = select(PROBLEM_SETS.c.id).where(PROBLEM_SETS.c.digest == digest)
    values = {**row, "problem_set_id": connection.execute(query).scalar_one()}
    connection.execute(insert_or_ignore(connection, EVALUATIONS, "identity"), values)
    query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == row["identity"])
    return int(connection.execute(query).scalar_one())


def link_evaluation(connection: Connection, run_id: int, evaluation_id: int, step: int) -> None:
    """Links an evaluation to the weights of a run after `step` steps."""
    values = {"run_id": run_id, "evaluation_id": evaluation_id, "step": step}
    insert = insert_or_ignore(connection, RUN_EVALUATIONS, "run_id", "evaluation_id")
    connection.execute(insert, values)


def remove_unused_problems(connection: Connection) -> None:
    """Removes problem sets that no evaluation uses."""
    used = select(EVALUATIONS.c.problem_set_id)
    connection.execute(delete(PROBLEM_SETS).where(PROBLEM_SETS.c.id.not_in(used)))


def _split(settings: Mapping[str, Any]) -> str:
    split: str = settings.get("split", HELD_OUT)
    return split


def _read_parts(connection: Connection, ids: set[int]) -> dict[int, dict[str, Any]]:
    """Returns what evaluations have beside their links, by id, as fields of their records."""
    from advsweep.store.arrays import evaluation_arrays

    parts: dict[int, dict[str, Any]] = {}
    for row, (names, prompts, levels) in _read_rows(connection, select(EVALUATIONS), ids):
        parts[row.id] = {
            "identity": row.identity,
            "subject": row.subject,
            "task": row.task,
            "settings": row.settings,
            "created": row.created,
            "problem_ids": names,
            "prompts": prompts,
            **evaluation_arrays(row, levels),
        }
    return parts


def _read_outlines(connection: Connection, ids: set[int]) -> dict[int, dict[str, Any]]:
    """Returns the fields of evaluations' outlines by id."""
    columns = (EVALUATIONS.c.id, EVALUATIONS.c.problem_set_id, EVALUATIONS.c.task)
    packed = [type_coerce(EVALUATIONS.c[name], LargeBinary).label(name) for name in _OUTLINED]
    query = select(*columns, EVALUATIONS.c.settings, *packed)
    outlines: dict[int, dict[str, Any]] = {}
    for row, (_, _, levels) in _read_rows(connection, query, ids):
        # Older evaluations have no KL.
        packed_or_none = {name: getattr(row, name) for name in _OUTLINED}
        numbers = {n: _numbers(data or b"", _OUTLINED[n]) for n, data in packed_or_none.items()}
        # As in `arrays.evaluation_arrays`.
        counts = zip(numbers["n"], numbers["unscorable"], strict=True)
        drawn = tuple(n and n + unscorable for n, unscorable in counts)
        fields = {"task": row.task, "settings": row.settings, "levels": levels}
        outlines[row.id] = fields | numbers | {"n": drawn}
    return outlines


def _numbers(data: bytes, kind: str) -> tuple[float, ...]:
    """Returns the numbers of a packed array, without numpy."""
    return struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)


def _read_rows(
    connection: Connection, query: Select[Any], ids: set[int]
) -> list[tuple[AnyRow, Problems]]:
    """Returns the rows of some evaluations, each with its problems."""
    rows = [
        row
        for some in chunks(ids)
        for row in connection.execute(query.where(EVALUATIONS.c.id.in_(some)))
    ]
    sets: dict[int, Problems] = {}
    for some in chunks({row.problem_set_id for row in rows}):
        of_sets = select(PROBLEM_SETS.c.id, PROBLEM_SETS.c.problems)
        for set_id, problems in connection.execute(of_sets.where(PROBLEM_SETS.c.id.in_(some))):
            names, prompts, levels = zip(*problems, strict=True) if problems else ((), (), ())
            sets[set_id] = (names, prompts, levels)
    return [(row, sets[row.problem_set_id]) for row in rows]
