"""One number for each run and column, from the store's points and evaluations."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advsweep.errors import ReportError
from advsweep.report.columns import Column
from advsweep.statistics import mean_over_problems, pass_at_k
from advsweep.store import EvaluationRecord, RunRecord, Store

# What an evaluation was asked for, but no part of how its samples came to be.
_NO_PROTOCOL = frozenset({"name", "k", "every", "model"})
# What settings say of samples that are drawn from the whole distribution, if anything.
_WHOLE = ("top_p", 1.0)


@dataclass(frozen=True)
class Evaluated:
    """The evaluations that a table stands on, all made in the same way.

    Attributes:
        protocol: task, problems and sampling; None if no run was evaluated.
        final: of each run that has one, after its last step.
        base: of each run that has one, before its first step.
        models: of models that were evaluated so without a run.
    """

    protocol: Mapping[str, Any] | None
    final: Mapping[int, EvaluationRecord]
    base: Mapping[int, EvaluationRecord]
    models: Sequence[EvaluationRecord]

    @property
    def unscorable(self) -> float:
        """The share of the final evaluations' samples that the verifier could not judge."""
        unscorable = sum(int(record.unscorable.sum()) for record in self.final.values())
        scored = sum(int(record.n.sum()) for record in self.final.values())
        return unscorable / max(unscorable + scored, 1)


def choose_evaluations(store: Store, runs: Sequence[RunRecord]) -> Evaluated:
    """The last evaluation of each run, by a protocol that they have in common.

    Where there are several such, the one that was used last counts.

    Raises:
        ReportError: there is none; the message names the keys that differ.
    """
    steps = {run.id: run.steps for run in runs}
    records = store.evaluations(list(steps), ends_only=True)
    finals: dict[int, dict[str, EvaluationRecord]] = {}
    protocols: dict[str, dict[str, Any]] = {}
    # Every one of them is of a run.
    keyed = [(_protocol_key(e, protocols), e.run_id, e) for e in records if e.run_id is not None]
    for key, run_id, record in keyed:
        if record.step == steps[run_id]:
            finals.setdefault(run_id, {})[key] = record
    if not finals:
        return Evaluated(None, {}, {}, [])
    common = set.intersection(*(set(found) for found in finals.values()))
    if not common:
        raise ReportError(_differing(finals, protocols))
    chosen = max(common, key=lambda key: max(found[key].created for found in finals.values()))
    return Evaluated(
        protocol=protocols[chosen],
        final={run_id: found[chosen] for run_id, found in finals.items()},
        base={i: record for key, i, record in keyed if record.step == 0 and key == chosen},
        models=[e for e in store.model_evaluations() if _protocol_key(e, protocols) == chosen],
    )


def _protocol_key(record: EvaluationRecord, protocols: dict[str, dict[str, Any]]) -> str:
    settings = {k: v for k, v in record.settings.items() if k not in _NO_PROTOCOL}
    settings = {k: v for k, v in settings.items() if (k, v) != _WHOLE}
    protocol = {"task": record.task, **settings, "problems": len(record.problem_ids)}
    problems = hashlib.sha256("\n".join(record.problem_ids).encode()).hexdigest()
    key = json.dumps([protocol, problems], sort_keys=True)
    protocols[key] = protocol
    return key


def _differing(
    finals: Mapping[int, Mapping[str, EvaluationRecord]],
    protocols: Mapping[str, Mapping[str, Any]],
) -> str:
    keys = sorted({key for found in finals.values() for key in found})
    names = [name for name in protocols[keys[0]] if name != "problems"]
    parts = []
    for name in [*names, "problems"]:
        counts = Counter(str(protocols[key].get(name)) for f in finals.values() for key in f)
        if len(counts) > 1:
            shown = name if name in ("task", "problems") else f"evaluation.{name}"
            some = " and ".join(f"{v} ({n} runs)" for v, n in sorted(counts.items()))
            parts.append(f"{shown}: {some}")
    differences = "; ".join(parts) or "the problems themselves"
    return (
        f"these runs were not evaluated alike, so one table cannot hold them: {differences}; "
        "report them apart, or start their sweep again with the same evaluation settings, which "
        "evaluates without training again"
    )


def measure(
    store: Store, runs: Sequence[RunRecord], evaluated: Evaluated, columns: Sequence[Column]
) -> dict[str, dict[int, float]]:
    """The value of each column for each run that has one."""
    ids = [run.id for run in runs]
    scored = score(list(evaluated.final.values()), columns)
    return {
        column.name: dict(zip(evaluated.final, scored[column.name], strict=True))
        if column.metric is None
        else store.means(ids, column.metric, first=column.first, last=column.last)
        for column in columns
    }


def score(
    evaluations: Sequence[EvaluationRecord], columns: Sequence[Column]
) -> dict[str, list[float]]:
    """The value of each column of evaluations in each of some evaluations alike.

    It is the mean over the problems that have one: pass@k is undefined for a problem with less
    than k samples that could be scored. NaN where none has.
    """
    own = [column for column in columns if column.metric is None]
    if not evaluations:
        return {column.name: [] for column in own}
    n = np.stack([evaluation.n for evaluation in evaluations])
    c = np.stack([evaluation.c for evaluation in evaluations])
    # Few pairs of counts occur, however many runs and problems there are.
    pairs, which = np.unique(n * (n.max() + 1) + c, return_inverse=True)
    pair_n, pair_c = np.divmod(pairs, n.max() + 1)
    values: dict[str, list[float]] = {}
    for column in own:
        if column.k is not None:
            by_problem = pass_at_k(pair_n, pair_c, column.k)[which].reshape(n.shape)
        else:
            by_problem = np.stack([evaluation.answer_entropy for evaluation in evaluations])
        values[column.name] = mean_over_problems(by_problem).tolist()
    return values
