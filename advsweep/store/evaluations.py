"""Evaluations with some of their answers, and analyses of weights: results beside the runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, or_, select

from advsweep.errors import NotFoundError
from advsweep.store.base import StorePart, chunks, insert_or_ignore
from advsweep.store.evaluation_records import (
    COUNTS,
    IN_NATS,
    AnswerSample,
    EvaluationRecord,
    NewEvaluation,
    shorten,
)
from advsweep.store.records import AnalysisRecord, NewAnalysis
from advsweep.store.tables import (
    ANALYSES,
    EVALUATION_SAMPLES,
    EVALUATIONS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
)

if TYPE_CHECKING:
    pass

MODEL_SUBJECT = "model:"
"""The prefix of the subject of an evaluation without a run."""

HELD_OUT = "held_out"
"""The part of a task's problems that evaluations are on unless their settings say otherwise."""


class Evaluations(StorePart):
    """Evaluations, and the runs whose weights they evaluated.

    An evaluation is identified by its weights, problems and sampling. It is stored once and
    linked to every run that shares these, such as the runs of one base model. It never changes.
    """

    def add(self, evaluation: NewEvaluation, samples: Sequence[AnswerSample] = ()) -> int:
        """Add an evaluation and link it to its run; return its id.

        An evaluation of the same identity stays as it is and is only linked.

        Args:
            samples: some answers to its problems, to be read by people.
        """
        import numpy as np  # takes as long to import as all else that `ls` needs

        problems = evaluation.problems
        known = [p.right_counts for p in problems if p.right_counts is not None]
        row = {
            "identity": evaluation.identity,
            "subject": evaluation.subject,
            "task": evaluation.task,
            "settings": dict(evaluation.settings),
            "created": self._now(),
            # The dtype makes NaN of None.
            **{name: np.array([getattr(p, name) for p in problems], float) for name in IN_NATS},
            **{name: np.array([getattr(p, name) for p in problems]) for name in COUNTS},
            "right_counts": [*chain.from_iterable(known)] if len(known) == len(problems) else None,
        }
        answers = [_stored_answer(sample) for sample in samples]
        listed = [[p.problem_id, p.prompt, p.level] for p in problems]
        digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        with self._database.write() as connection:
            evaluation_id = insert_evaluation(connection, row, digest, listed, answers)
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
        """Return whether an evaluation of this identity exists."""
        with self._database.read() as connection:
            query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == identity)
            return connection.execute(query).scalar() is not None

    def link(self, run_id: int, identity: str, step: int) -> None:
        """Link an evaluation to a run; a link that exists stays as it is."""
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            evaluation_id = self._require_id(connection, identity)
            link_evaluation(connection, run_id, evaluation_id, step)

    def identities(self, run_id: int) -> set[str]:
        """Return the identities of the evaluations of a run."""
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
        """Return the evaluations of some runs, by run, step and age.

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
            split = None
        links = links.order_by(*links.selected_columns)
        with self._database.read() as connection:
            linked = [
                link
                for ids in chunks(sorted(run_ids))
                for link in connection.execute(links.where(RUN_EVALUATIONS.c.run_id.in_(ids)))
            ]
            # Shared evaluations are read once.
            parts = _read_fields(connection, {link.evaluation_id for link in linked})
        return [
            EvaluationRecord(run_id=run_id, step=step, **parts[evaluation_id])
            for run_id, step, evaluation_id in linked
            if split in (None, parts[evaluation_id]["settings"].get("split", HELD_OUT))
        ]

    def of_models(self) -> list[EvaluationRecord]:
        """Return the evaluations of models without a run, by age."""
        query = (
            select(EVALUATIONS.c.id)
            .where(EVALUATIONS.c.subject.startswith(MODEL_SUBJECT))
            .order_by(EVALUATIONS.c.created, EVALUATIONS.c.id)
        )
        with self._database.read() as connection:
            ids = list(connection.execute(query).scalars())
            parts = _read_fields(connection, set(ids))
        return [EvaluationRecord(run_id=None, step=0, **parts[e]) for e in ids]

    def find(self, identity: str) -> EvaluationRecord:
        """Return an evaluation, without the runs that it is linked to."""
        with self._database.read() as connection:
            found = self._require_id(connection, identity)
            parts = _read_fields(connection, {found})
        return EvaluationRecord(run_id=None, step=0, **parts[found])

    def remove_of_models(self, identities: Sequence[str]) -> None:
        """Remove evaluations of models without a run; `runs.remove` removes those of runs."""
        with self._database.write() as connection:
            for some in chunks(identities):
                of_models = EVALUATIONS.c.subject.startswith(MODEL_SUBJECT)
                connection.execute(
                    delete(EVALUATIONS).where(EVALUATIONS.c.identity.in_(some), of_models)
                )
            remove_unused_problems(connection)


def insert_evaluation(
    connection: Connection,
    row: Mapping[str, Any],
    digest: str,
    problems: list[Any],
    answers: list[dict[str, Any]] | None = None,
) -> int:
    """Insert an evaluation, its problem set and its answers unless they exist; return its id.

    Args:
        row: the columns of `evaluations`, without `id` and `problem_set_id`.
        digest: sha256 of the problems as JSON.
        problems: a list of [id, prompt, level].
        answers: kept answers as `evaluation_samples` has them.
    """
    # Evaluations of the same problems share one set, prompts included.
    problem_set = {"digest": digest, "problems": problems}
    connection.execute(insert_or_ignore(connection, PROBLEM_SETS, "digest"), problem_set)
    query = select(PROBLEM_SETS.c.id).where(PROBLEM_SETS.c.digest == digest)
    values = {**row, "problem_set_id": connection.execute(query).scalar_one()}
    connection.execute(insert_or_ignore(connection, EVALUATIONS, "identity"), values)
    query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == row["identity"])
    evaluation_id = int(connection.execute(query).scalar_one())
    if answers:
        insert = insert_or_ignore(connection, EVALUATION_SAMPLES, "evaluation_id")
        connection.execute(insert, {"evaluation_id": evaluation_id, "answers": answers})
    return evaluation_id


def link_evaluation(connection: Connection, run_id: int, evaluation_id: int, step: int) -> None:
    """Link an evaluation to the weights of a run after `step` steps."""
    values = {"run_id": run_id, "evaluation_id": evaluation_id, "step": step}
    insert = insert_or_ignore(connection, RUN_EVALUATIONS, "run_id", "evaluation_id")
    connection.execute(insert, values)


def remove_unused_problems(connection: Connection) -> None:
    """Remove problem sets that no evaluation uses."""
    used = select(EVALUATIONS.c.problem_set_id)
    connection.execute(delete(PROBLEM_SETS).where(PROBLEM_SETS.c.id.not_in(used)))


def _read_fields(connection: Connection, ids: set[int]) -> dict[int, dict[str, Any]]:
    """Return the fields of evaluations' records, without `run_id` and `step`, by id."""
    import numpy as np

    rows = [
        row
        for some in chunks(ids)
        for row in connection.execute(select(EVALUATIONS).where(EVALUATIONS.c.id.in_(some)))
    ]
    sets: dict[int, tuple[Any, ...]] = {}
    for some in chunks({row.problem_set_id for row in rows}):
        query = select(PROBLEM_SETS.c.id, PROBLEM_SETS.c.problems)
        for set_id, problems in connection.execute(query.where(PROBLEM_SETS.c.id.in_(some))):
            names, prompts, levels = zip(*problems, strict=True) if problems else ((), (), ())
            sets[set_id] = (names, prompts, np.array(levels, np.int64))
    fields = {}
    for row in rows:
        names, prompts, levels = sets[row.problem_set_id]
        counts = {name: getattr(row, name).astype(np.int64) for name in COUNTS}
        # Samples that the verifier failed on count as not correct, unless no sample was scored.
        counts["n"] = np.where(counts["n"] > 0, counts["n"] + counts["unscorable"], 0)
        # Evaluations by older versions lack some.
        in_nats = {name: getattr(row, name) for name in IN_NATS}
        unknown = np.full(len(levels), np.nan)
        fields[row.id] = {
            "identity": row.identity,
            "subject": row.subject,
            "task": row.task,
            "settings": row.settings,
            "created": row.created,
            "problem_ids": names,
            "prompts": prompts,
            "levels": levels,
            **counts,
            **{name: unknown if known is None else known for name, known in in_nats.items()},
            "right_counts": None if (r := row.right_counts) is None else r.astype(np.int64),
        }
    return fields


class Samples(StorePart):
    """Some answers of each evaluation, as a person reads them: a bounded sample."""

    def select(self, identities: Sequence[str]) -> dict[str, list[AnswerSample]]:
        """Return the kept answers by the identity of their evaluation.

        Evaluations that older versions, or other programs, made have none.
        """
        query = (
            select(EVALUATIONS.c.identity, EVALUATION_SAMPLES.c.answers, PROBLEM_SETS.c.problems)
            .join(EVALUATION_SAMPLES, EVALUATION_SAMPLES.c.evaluation_id == EVALUATIONS.c.id)
            .join(PROBLEM_SETS, PROBLEM_SETS.c.id == EVALUATIONS.c.problem_set_id)
        )
        found: dict[str, list[AnswerSample]] = {}
        with self._database.read() as connection:
            for some in chunks(identities):
                rows = connection.execute(query.where(EVALUATIONS.c.identity.in_(some)))
                for identity, answers, problems in rows:
                    known = {name: (prompt, level) for name, prompt, level in problems}
                    found[identity] = [
                        AnswerSample(
                            problem_id=answer["problem"],
                            prompt=known[answer["problem"]][0],
                            level=known[answer["problem"]][1],
                            **{key: answer[key] for key in ("answer", "length", "read", "reward")},
                        )
                        for answer in answers
                    ]
        return found


def _stored_answer(sample: AnswerSample) -> dict[str, Any]:
    # The problem set has the prompt and the level.
    return {
        "problem": sample.problem_id,
        "answer": shorten(sample.answer),
        "length": sample.length,
        "read": None if sample.read is None else shorten(sample.read),
        "reward": sample.reward,
    }


class Analyses(StorePart):
    """Analyses of weights and hidden states: records beside the runs, which stay as they are."""

    def add(self, run_id: int, analysis: NewAnalysis) -> None:
        """Add an analysis; one of the same identity stays as it is."""
        row = {
            "run_id": run_id,
            "identity": analysis.identity,
            "kind": analysis.kind,
            "step": analysis.step,
            "settings": dict(analysis.settings),
            "created": self._now(),
            "result": _finite(analysis.result),
            "directions": analysis.directions,
        }
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            connection.execute(insert_or_ignore(connection, ANALYSES, "run_id", "identity"), row)

    def select(self, run_ids: Sequence[int], kind: str | None = None) -> list[AnalysisRecord]:
        """Return the analyses of some runs by run, step and age; of all kinds by default."""
        query = select(ANALYSES)
        if kind is not None:
            query = query.where(ANALYSES.c.kind == kind)
        query = query.order_by(
            ANALYSES.c.run_id, ANALYSES.c.step, ANALYSES.c.created, ANALYSES.c.identity
        )
        with self._database.read() as connection:
            return [
                AnalysisRecord(**row._mapping)
                for ids in chunks(sorted(run_ids))
                for row in connection.execute(query.where(ANALYSES.c.run_id.in_(ids)))
            ]


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
