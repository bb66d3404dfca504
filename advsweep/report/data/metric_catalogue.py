"""Every metric and column that advsweep records or computes: unit, direction and meaning.

The names are patterns. Words in capitals stand for numbers or names: `solved/K`, `pass@K`,
`mass/success/turn_T`. A test compares the catalogue with what runs of the backends record.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from advsweep.report.data.columns import MetricDirection, parse_column

_PLACEHOLDERS = {"K": r"\d+", "L": r"-?\d+", "T": r"\d+", "I": r"\d+", "COST": r"[a-z]+"}
_PLACEHOLDERS |= {"LAW": r"[a-z_]+", "PART": r"[a-z_0-9]+", "NAME": r".+"}


@dataclass(frozen=True)
class Metric:
    """A metric of training steps, or a column of an evaluation, an analysis or a whole run.

    Attributes:
        name: its name; words in capitals stand for numbers or names.
        unit: `share` is between 0 and 1; empty for a number without a unit.
        meaning: what it is.
        source: the paper that defines it; empty if there is none.
    """

    name: str
    unit: str
    meaning: str
    source: str = ""

    @property
    def direction(self) -> MetricDirection:
        """Which values are better, as reports mark them."""
        column = parse_column(re.sub(r"\b[KLTI]\b", "1", self.name))
        return MetricDirection.NEITHER if column is None else column.direction

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The names that the metric stands for."""
        parts = re.split(r"(?<![A-Za-z])([A-Z]+)(?![a-z])", self.name)
        return re.compile("".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


def find_metric(name: str) -> Metric | None:
    """Return the entry of a metric that a run recorded, or None if there is none."""
    return next((m for ms in METRICS.values() for m in ms if m.pattern.fullmatch(name)), None)


METRICS: dict[str, tuple[Metric, ...]] = {
    "Rewards and collapse, per step": (
        Metric("reward/mean", "reward", "mean reward of the drawn rollouts"),
        Metric("reward/std", "reward", "mean over groups of the standard deviation in a group"),
        Metric("reward/unscorable", "share", "rollouts without a verdict"),
        Metric(
            "control/rate",
            "share",
            "verdicts of a placebo that are correct: the solve rate of its base, as estimated",
        ),
        Metric(
            "collapse/acr",
            "share",
            "groups whose verdicts are all equal (rewards with `rollout.on=reward`)",
            "AVSPO, Eq. 6",
        ),
        Metric("collapse/all_wrong", "share", "groups without a success", "AVSPO, Eq. 6"),
        Metric("collapse/all_correct", "share", "groups without a failure", "AVSPO, Eq. 6"),
        Metric(
            "collapse/acr_after",
            "share",
            "groups whose advantages are all 0, after the estimator's own treatment",
            "AVSPO, Eq. 11",
        ),
        Metric("collapse/acr/level_L", "share", "`collapse/acr` of the problems of level L"),
        Metric(
            "collapse/detected",
            "0 or 1",
            "whether the policy collapsed in this training; at the last step",
            "A-GRAE, D.3",
        ),
        Metric("collapse/onset", "steps", "step after which it collapsed", "A-GRAE, D.3"),
        Metric(
            "solved/K",
            "share",
            "groups with K successes; above 16 rollouts, that solved K/16 to the nearest",
            "A-GRAE, FADE",
        ),
        Metric("prompts/fully_unsolved", "prompts", "prompts without a success", "A-GRAE, D.3"),
        Metric("retry/reached/turn_T", "share", "prompts that reach turn T of `rollout=retry`"),
    ),
    "Advantages, masses and weights, per step": (
        Metric(
            "advantage/zero_fraction", "share", "rollouts with an advantage of 0", "AAPO, Fig. 1"
        ),
        Metric("advantage/abs_mean", "advantage", "mean of |A|", "AAPO, Fig. 1"),
        Metric(
            "advantage/behaviour_I",
            "advantage",
            "mean advantage of the rollouts that chose behaviour I; backend `bandit`",
        ),
        Metric(
            "mass/success", "advantage", "m_S: advantage of successes per rollout", "FADE, Eq. 3"
        ),
        Metric("mass/failure", "advantage", "m_F: minus that of failures", "FADE, Eq. 3"),
        Metric(
            "mass/success/turn_T", "advantage", "m_S of turn T of `rollout=retry`", "FADE, Eq. 16"
        ),
        Metric(
            "mass/failure/turn_T", "advantage", "m_F of turn T of `rollout=retry`", "FADE, Eq. 16"
        ),
        Metric(
            "mass/sign_ratio",
            "",
            "ρ = m_S p / (m_F q) at the batch's solve rate p; p/q for weights in balance",
            "FADE, 11.3",
        ),
        Metric(
            "weight/effective_prompts",
            "prompts",
            "Kish's effective sample size of the groups' weights w = mean |A|: (Σ w)² / Σ w²",
            "FADE, Eq. 10",
        ),
        Metric(
            "weight/variance",
            "",
            "Var(w(p̂)) / E[w]²: the part of a group's weight that is chance",
            "FADE, Eq. 9, 31",
        ),
        Metric(
            "update/quality",
            "",
            "Q(w): squared signal-to-noise ratio of the step, if every prompt has a signal of 1",
            "FADE, Eq. 10, 14",
        ),
        Metric("estimator/NAME", "", "a number that the estimator logs: alpha, delta, tau, ..."),
    ),
    "Entropy, per step": (
        Metric(
            "entropy/token", "nats", "exact entropy per token; of an evaluation: of its samples"
        ),
        Metric("entropy/token_sampled", "nats", "mean of -log π of the sampled tokens"),
        Metric(
            "entropy/drift", "nats", "(m_S - m_F) H, per unit of the step length", "FADE, Eq. 7"
        ),
        Metric("entropy/covariance", "nats", "Cov(A, log π), per unit of it", "FADE, Eq. 7"),
        Metric(
            "entropy/change",
            "nats",
            "change of the exact entropies in the step, at its own rollouts; with "
            "`backend.entropy_change=true`",
        ),
    ),
    "Loss and optimizer, per step": (
        Metric("loss/policy", "", "the objective without its KL and entropy terms"),
        Metric("loss/kl", "nats", "estimate of the KL term, where `objective.kl_coef` is not 0"),
        Metric("loss/clip_fraction", "share", "tokens that the clip leaves without a gradient"),
        Metric(
            "loss/variance", "", "variance of `loss/policy` over the step's updates", "AAPO, Fig. 1"
        ),
        Metric("optim/grad_norm", "", "norm of the gradient before clipping"),
        Metric("optim/lr", "", "learning rate, after matching"),
        Metric("optim/match_factor", "", "factor on `optimizer.lr` by `optimizer.match`"),
        Metric("optim/match_error", "share", "of a calibration: how far its change is off"),
        Metric("optim/change_norm", "", "‖w_t - w_0‖: change of the weights since the base model"),
        Metric("optim/step_norm", "", "‖w_t - w_{t-1}‖: change of the weights in the step"),
        Metric("optim/update_cosine", "", "cosine between this step's change and the previous one"),
        Metric("policy/kl_step", "nats", "KL(old ‖ new) of the step, per token, at its rollouts"),
        Metric("calibration/factor", "", "of a calibration: the factor that a trial used"),
        Metric("calibration/change_norm", "", "of a calibration: the change that a trial made"),
    ),
    "Costs": (
        Metric("cost/rollouts", "", "generated rollouts, per rollout of the target"),
        Metric("cost/utilisation", "share", "rollouts that take part in the update"),
        Metric("cost/tokens", "tokens", "generated tokens of the step"),
        Metric("total/COST", "", "sum over the training: steps, rollouts, tokens or seconds"),
        Metric("memory/peak_mb", "MiB", "largest resident memory of the process so far"),
        Metric("memory/peak_gpu_mb", "MiB", "largest memory of torch on its GPU so far"),
        Metric("memory/peak", "bytes", "largest resident memory of the whole run"),
        Metric("time/rollout", "seconds", "sampling"),
        Metric("time/reward", "seconds", "verifying"),
        Metric("time/estimator", "seconds", "advantages"),
        Metric("time/update", "seconds", "loss and optimizer"),
        Metric("time/run", "seconds", "the whole run, over all its processes"),
    ),
    "Evaluations": (
        Metric(
            "pass@K",
            "share",
            "chance that one of K answers to a held-out problem is right: unbiased estimate, "
            "mean over problems",
        ),
        Metric("entropy/answer", "nats", "entropy of the distribution of answers to a problem"),
        Metric("entropy/right", "nats", "the same of the right answers alone"),
        Metric(
            "entropy/right_rarefied",
            "nats",
            "the same of 8 right answers, drawn from those to a problem: their mean entropy over "
            "all choices, a mean over the problems with at least 8; of others by `[m=16]`",
        ),
        Metric("entropy/right_rarefied_share", "share", "problems with so many right answers"),
        Metric(
            "kl/base",
            "nats",
            "KL(policy ‖ base model) of an answer to a held-out problem: the exact KL of each "
            "token, summed over the tokens of sampled answers",
        ),
        Metric("validation/pass@1", "share", "pass@1 on the problems of `evaluation.select_on`"),
        Metric("selected/step", "", "the first step with the best `validation/pass@1`"),
        Metric("reached@NAME", "share", "runs that come to a value, as `reached@pass@1=0.5`"),
        Metric("law/a", "", "scale of the law exp(-a (k+c)^-b) of pass@k over k"),
        Metric("law/b", "", "its exponent"),
        Metric("law/c", "", "its shift"),
        Metric("law/mse/LAW", "", "mean squared residual of a law of pass@k"),
        Metric("law/aic/LAW", "", "AICc of a law minus that of exp(-a (k+c)^-b)"),
    ),
    "Exact numbers of the bandit, per step": (
        Metric("exact/pass@K", "share", "mean of 1 - (1 - p)^K after the step"),
        Metric("exact/pass@1_change", "share", "change of pass@1 in the step"),
        Metric("exact/entropy", "nats", "mean entropy of the policies"),
        Metric("exact/entropy_change", "nats", "its change in the step"),
        Metric("exact/entropy_predicted", "nats", "that change to first order in the logits"),
        Metric("exact/correct_modes", "behaviours", "effective number of correct behaviours"),
        Metric("exact/probability_I", "share", "mean probability of behaviour I"),
    ),
}
"""The entries by subject."""
