"""Records of evaluations: what goes into the store and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from advsweep.names import ANSWER_ENTROPY, TOKEN_ENTROPY

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int


COUNTS = ("n", "c", "distinct", "unscorable")
# The numbers of a problem: fields of the records below and columns of the table.
IN_NATS = ("answer_entropy", "token_entropy", "right_entropy", "kl_base")

# Maximum number of answers that an evaluation keeps.
MAX_SAMPLES = 8

# Maximum length of a text of a kept answer; a longer one loses its middle.
MAX_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class ProblemCounts:
    """Counts over n samples of one problem.

    Attributes:
        problem_id: stable name of the problem within its task.
        n: scored samples; fewer than were drawn if the verifier failed.
        c: correct samples.
        distinct: different answers among the samples; 0 if the answers are unknown.
        unscorable: the other samples: the verifier failed or could not read the reference answer.
        answer_entropy: entropy of the answers' empirical distribution, in nats; NaN if they are
            unknown.
        token_entropy: mean entropy per generated token, in nats; None if unknown.
        right_entropy: entropy of the right answers' empirical distribution, in nats; None if no
            answer was right, or if it is unknown.
        kl_base: KL of an answer from the base model, in nats; None if not measured.
        right_counts: how often each distinct right answer came, the most frequent first; None if
            unknown.
    """

    problem_id: str
    prompt: str
    level: int
    n: int
    c: int
    distinct: int = 0
    unscorable: int = 0
    answer_entropy: float = math.nan
    token_entropy: float | None = None
    right_entropy: float | None = None
    kl_base: float | None = None
    right_counts: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """An evaluation to add.

    Attributes:
        identity: sha256, in hex, of the weights, the problems and the sampling.
        subject: names the weights, such as `RUN_IDENTITY@STEP`, `base:KEY` or `model:KEY`.
        run_id: the run to link it to; None for no run, or one that `Evaluations.link` adds later.
        step: number of training steps of the weights; 0 is the base model.
        task: the task's name.
        settings: how it is sampled, such as `{"n": 128, "temperature": 1.0, "seed": 0}`.
    """

    identity: str
    subject: str
    run_id: int | None
    step: int
    task: str
    settings: Mapping[str, Any]
    problems: Sequence[ProblemCounts]


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


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """An evaluation of a run's weights after `step` steps, or of a model without a run.

    An evaluation that several runs share, such as that of their base model, has a record for each.

    Attributes:
        run_id: None for an evaluation of a model without a run.
        problem_ids, prompts, levels: the problems; the arrays below are in their order.
        n, c: samples and correct samples. Both are 0 for a problem without scored samples,
            usually because its reference answer is unreadable; such a problem has no scores.
        unscorable: samples that the verifier failed on; they count as not correct.
        answer_entropy, token_entropy, right_entropy, kl_base: in nats; all but the first are NaN
            if unknown, and `right_entropy` for a problem without a right answer.
        right_counts: how often each distinct right answer came, problem after problem; those of a
            problem add up to its `c`. None if unknown.
    """

    run_id: int | None
    step: int
    identity: str
    subject: str
    task: str
    settings: dict[str, Any]
    created: datetime
    problem_ids: tuple[str, ...]
    prompts: tuple[str, ...]
    levels: Int[np.ndarray, " problems"]
    n: Int[np.ndarray, " problems"]
    c: Int[np.ndarray, " problems"]
    distinct: Int[np.ndarray, " problems"]
    unscorable: Int[np.ndarray, " problems"]
    answer_entropy: Float[np.ndarray, " problems"]
    token_entropy: Float[np.ndarray, " problems"]
    right_entropy: Float[np.ndarray, " problems"]
    kl_base: Float[np.ndarray, " problems"]
    right_counts: Int[np.ndarray, " answers"] | None

    @property
    def columns(self) -> dict[str, Int[np.ndarray, " problems"] | Float[np.ndarray, " problems"]]:
        """The numbers of each problem, as columns of a table."""
        numbers = {name: getattr(self, name) for name in (*COUNTS, *IN_NATS)}
        return {"level": self.levels, **numbers, "right_rarefied": self.rarefied()}

    def rarefied(self, m: int | None = None) -> Float[np.ndarray, " problems"]:
        """Return the entropy of m right answers to each problem, as `rarefied_entropy` does.

        Args:
            m: by default `RAREFIED`.
        """
        import numpy as np

        from advsweep.statistics.pass_at_k import RAREFIED, rarefied_entropy

        if self.right_counts is None:
            return np.full(len(self.c), np.nan)
        return rarefied_entropy(self.right_counts, self.c, m or RAREFIED)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The ids of problems without scored samples."""
        return tuple(self.problem_ids[i] for i in (self.n == 0).nonzero()[0])

    def scores(self, ks: Sequence[int] | None = None) -> dict[str, float]:
        """Return pass@k, entropies and KL to the base by name, as means over problems.

        The KL only where it is known. If the verifier failed on samples, also their share as
        `evaluation/unscorable`.

        Args:
            ks: the k of pass@k; by default those of the evaluation's own settings. Runs with
                other k share the evaluation of their base model.
        """
        # Imported here, because it loads scipy, which opening a store must not.
        from advsweep.statistics import mean_over_problems, pass_at_k

        ks = self.settings["k"] if ks is None else ks
        kl = float(mean_over_problems(self.kl_base))
        return {
            **{f"pass@{k}": float(mean_over_problems(pass_at_k(self.n, self.c, k))) for k in ks},
            ANSWER_ENTROPY: float(self.answer_entropy.mean()),
            TOKEN_ENTROPY: float(self.token_entropy.mean()),
            **({} if math.isnan(kl) else {"kl/base": kl}),
            **({"evaluation/unscorable": share} if (share := unscorable_share([self])) else {}),
        }


def unscorable_share(evaluations: Sequence[EvaluationRecord]) -> float:
    """Return the share of samples that the verifier failed on, over problems with scores."""
    drawn = sum(int(e.n.sum()) for e in evaluations)
    failed = sum(int(e.unscorable[e.n > 0].sum()) for e in evaluations)
    return failed / drawn if drawn else 0.0


def shorten(text: str) -> str:
    """Return a text of at most `MAX_CHARACTERS` that every database stores.

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
