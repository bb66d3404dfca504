"""Evaluations with some of their answers, and analyses of weights: results beside the runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Connection, delete, or_, select

from advsweep.errors import NotFoundError
from advsweep.store.analysis_records import AnalysisRecord, NewAnalysis
from advsweep.store.base import StorePart, chunks, put, rows_among
from advsweep.store.evaluation_records import (
    COUNTS,
    IN_NATS,
    AnswerSample,
    EvaluationRecord,
    NewEvaluation,
    shorten,
)
from advsweep.store.tables import (
    ANALYSES,
    EVALUATION_SAMPLES,
    EVALUATIONS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
)
from advsweep.writing import plain_value

# The prefix of the subject of an evaluation without a run.
MODEL_SUBJECT = "model:"

# The part of a task's problems that evaluations are on unless their settings say otherwise.
HELD_OUT = "held_out"

_OF_MODELS = EVALUATIONS.c.subject.startswith(MODEL_SUBJECT)


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
        with self._database.write() as connection:
            if evaluation.run_id is not None:
                self._require_run(connection, evaluation.run_id)
            return add_evaluation(connection, evaluation, self._now(), samples)

    def has(self, identity: str) -> bool:
        """Return whether an evaluation of this identity exists."""
        query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == identity)
        return len(self._read(query)) > 0

    def link(self, run_id: int, identity: str, step: int) -> None:
        """Link an evaluation to a run; a link that exists stays as it is."""
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            evaluation_id = self._require_id(connection, identity)
            link_evaluation(connection, run_id, evaluation_id, step)

    def _require_id(self, connection: Connection, identity: str) -> int:
        query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == identity)
        evaluation_id: int | None = connection.execute(query).scalar()
        if evaluation_id is None:
            raise NotFoundError(f"no evaluation {identity} in {self._database.location.name}")
        return evaluation_id

    def identities(self, run_id: int) -> set[str]:
        """Return the identities of the evaluations of a run."""
        query = select(EVALUATIONS.c.identity).join(RUN_EVALUATIONS)
        return {r.identity for r in self._read(query.where(RUN_EVALUATIONS.c.run_id == run_id))}

    def select(
        self,
        run_ids: Sequence[int],
        *,
        ends_only: bool = False,
        split: str | None = HELD_OUT,
    ) -> list[EvaluationRecord]:
        """Return the evaluations of some runs, by run, step and age.

        Args:
            ends_only: only those of the base model and those after the last training step.
            split: only those on these problems: `held_out`, `train` or `validation`; None for
                all.
        """
        columns = RUN_EVALUATIONS.c.run_id, RUN_EVALUATIONS.c.step, RUN_EVALUATIONS.c.evaluation_id
        links = select(*columns).order_by(*columns)
        if ends_only:
            links = links.join(RUNS).where(
                or_(RUN_EVALUATIONS.c.step == 0, RUN_EVALUATIONS.c.step == RUNS.c.steps)
            )
        with self._database.read() as connection:
            linked = list(rows_among(connection, links, columns[0], sorted(run_ids)))
            # Shared evaluations are read once.
            parts = _read_fields(connection, {link.evaluation_id for link in linked})
        return [
            EvaluationRecord(run_id=run_id, step=step, **parts[evaluation_id])
            for run_id, step, evaluation_id in linked
            if split in (None, parts[evaluation_id]["settings"].get("split", HELD_OUT))
        ]

    def of_models(self) -> list[EvaluationRecord]:
        """Return the evaluations of models without a run, by age."""
        query = select(EVALUATIONS.c.id).where(_OF_MODELS)
        query = query.order_by(EVALUATIONS.c.created, EVALUATIONS.c.id)
        with self._database.read() as connection:
            ids = connection.execute(query).scalars().all()
            parts = _read_fields(connection, ids)
        return [EvaluationRecord(run_id=None, step=0, **parts[e]) for e in ids]

    def find(self, identity: str, *, run_id: int | None = None, step: int = 0) -> EvaluationRecord:
        """Return an evaluation, as one of the weights of this run after `step` steps."""
        with self._database.read() as connection:
            evaluation_id = self._require_id(connection, identity)
            parts = _read_fields(connection, [evaluation_id])
        return EvaluationRecord(run_id=run_id, step=step, **parts[evaluation_id])

    def remove_of_models(self, identities: Sequence[str]) -> None:
        """Remove evaluations of models without a run; `runs.remove` removes those of runs."""
        with self._database.write() as connection:
            for some in chunks(identities):
                chosen = (EVALUATIONS.c.identity.in_(some), _OF_MODELS)
                connection.execute(delete(EVALUATIONS).where(*chosen))
            remove_unused_problems(connection)

    def samples(self, identities: Sequence[str]) -> dict[str, list[AnswerSample]]:
        """Return the kept answers by the identity of their evaluation: a bounded sample.

        Evaluations that older versions, or other programs, made have none.
        """
        query = select(EVALUATIONS.c.identity, EVALUATION_SAMPLES.c.answers)
        query = query.add_columns(PROBLEM_SETS.c.problems)
        query = query.join(EVALUATION_SAMPLES).join(PROBLEM_SETS)
        samples = {}
        for row in self._read_among(query, EVALUATIONS.c.identity, identities):
            texts = {name: (prompt, level) for name, prompt, level in row.problems}
            samples[row.identity] = [
                AnswerSample(
                    problem_id=answer["problem"],
                    prompt=texts[answer["problem"]][0],
                    level=texts[answer["problem"]][1],
                    **{key: answer[key] for key in ("answer", "length", "read", "reward")},
                )
                for answer in row.answers
            ]
        return samples


def add_evaluation(
    connection: Connection,
    evaluation: NewEvaluation,
    created: datetime,
    samples: Sequence[AnswerSample] = (),
) -> int:
    """Add an evaluation unless it exists, and link it to its run; return its id."""
    import numpy as np  # takes as long to import as all else that `ls` needs

    problems = evaluation.problems
    right_counts = [p.right_counts for p in problems if p.right_counts is not None]
    has_all = len(right_counts) == len(problems)
    row = {
        "identity": evaluation.identity,
        "subject": evaluation.subject,
        "task": evaluation.task,
        "settings": dict(evaluation.settings),
        "created": created,
        # The dtype makes NaN of None.
        **{name: np.array([getattr(p, name) for p in problems], float) for name in IN_NATS},
        **{name: np.array([getattr(p, name) for p in problems]) for name in COUNTS},
        "right_counts": [*chain.from_iterable(right_counts)] if has_all else None,
    }
    # The problem set has the prompt and the level.
    answers = [
        {
            "problem": sample.problem_id,
            "answer": shorten(sample.answer),
            "length": sample.length,
            "read": None if sample.read is None else shorten(sample.read),
            "reward": sample.reward,
        }
        for sample in samples
    ]
    listed = [[p.problem_id, p.prompt, p.level] for p in problems]
    evaluation_id = insert_evaluation(connection, row, listed, answers)
    if evaluation.run_id is not None:
        link_evaluation(connection, evaluation.run_id, evaluation_id, evaluation.step)
    return evaluation_id


def problems_digest(problems: list[Any]) -> str:
    """Return the sha256, in hex, of a list of [id, prompt, level]."""
    return hashlib.sha256(json.dumps(problems).encode()).hexdigest()


def insert_evaluation(
    connection: Connection,
    row: Mapping[str, Any],
    problems: list[Any],
    answers: list[dict[str, Any]] | None = None,
) -> int:
    """Insert an evaluation, its problem set and its answers unless they exist; return its id.

    Args:
        row: the columns of `evaluations`, without `id` and `problem_set_id`.
        problems: a list of [id, prompt, level].
        answers: kept answers as `evaluation_samples` has them.
    """
    # Evaluations of the same problems share one set, prompts included.
    digest = problems_digest(problems)
    put(connection, PROBLEM_SETS, {"digest": digest, "problems": problems})
    # Asked for, and not returned by the insert: another process may have added it.
    query = select(PROBLEM_SETS.c.id).where(PROBLEM_SETS.c.digest == digest)
    problem_set_id = connection.execute(query).scalar_one()
    put(connection, EVALUATIONS, {**row, "problem_set_id": problem_set_id})
    query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.identity == row["identity"])
    evaluation_id = int(connection.execute(query).scalar_one())
    if answers:
        put(connection, EVALUATION_SAMPLES, {"evaluation_id": evaluation_id, "answers": answers})
    return evaluation_id


def link_evaluation(connection: Connection, run_id: int, evaluation_id: int, step: int) -> None:
    """Link an evaluation to the weights of a run after `step` steps."""
    row = {"run_id": run_id, "evaluation_id": evaluation_id, "step": step}
    put(connection, RUN_EVALUATIONS, row)


def remove_unused_problems(connection: Connection) -> None:
    """Remove problem sets that no evaluation uses."""
    used = select(EVALUATIONS.c.problem_set_id)
    connection.execute(delete(PROBLEM_SETS).where(PROBLEM_SETS.c.id.not_in(used)))


def _read_fields(connection: Connection, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the fields of evaluations' records, without `run_id` and `step`, by id."""
    import numpy as np

    rows = list(rows_among(connection, select(EVALUATIONS), EVALUATIONS.c.id, ids))
    # Each set of problems is read once: thousands of evaluations may share one.
    sets: dict[int, dict[str, Any]] = {}
    used = {row.problem_set_id for row in rows}
    for problem_set in rows_among(connection, select(PROBLEM_SETS), PROBLEM_SETS.c.id, used):
        names, prompts, levels = (), (), ()
        if problem_set.problems:
            names, prompts, levels = zip(*problem_set.problems, strict=True)
        sets[problem_set.id] = {
            "problem_ids": names,
            "prompts": prompts,
            "levels": np.array(levels, np.int64),
        }
    fields = {}
    for row in rows:
        kept = dict(row._mapping)
        evaluation_id, problems = kept.pop("id"), sets[kept.pop("problem_set_id")]
        for name in COUNTS:
            kept[name] = kept[name].astype(np.int64)
        # Samples that the verifier failed on count as not correct, unless no sample was scored.
        kept["n"] = np.where(kept["n"] > 0, kept["n"] + kept["unscorable"], 0)
        for name in IN_NATS:
            # Evaluations by older versions lack some.
            if kept[name] is None:
                kept[name] = np.full(len(problems["levels"]), np.nan)
        if kept["right_counts"] is not None:
            kept["right_counts"] = kept["right_counts"].astype(np.int64)
        fields[evaluation_id] = {**kept, **problems}
    return fields


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
            "result": plain_value(analysis.result),
            "directions": analysis.directions,
        }
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            put(connection, ANALYSES, row)

    def select(self, run_ids: Sequence[int], kind: str | None = None) -> list[AnalysisRecord]:
        """Return the analyses of some runs by run, step and age; of all kinds by default."""
        query = select(ANALYSES)
        if kind is not None:
            query = query.where(ANALYSES.c.kind == kind)
        query = query.order_by(
            ANALYSES.c.run_id, ANALYSES.c.step, ANALYSES.c.created, ANALYSES.c.identity
        )
        rows = self._read_among(query, ANALYSES.c.run_id, sorted(run_ids))
        columns = [field.name for field in fields(AnalysisRecord)]
        return [AnalysisRecord(**{name: getattr(row, name) for name in columns}) for row in rows]
