"""A whole judge on the bandit: tuning, race, A/A, verdict, and what is said of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from advsweep.errors import AdvsweepError, ReportError
from advsweep.judging import session
from advsweep.judging.leaderboard import read_leaderboard
from advsweep.judging.plans import Setting, has_room, own_setting, range_setting
from advsweep.judging.sentences import WIDTH, Judged, describe_place, describe_verdict
from advsweep.judging.verdict import EarlyEnd, Measured, OutcomeRow, Verdict, VerdictKind, _decide
from advsweep.store import Status, open_store
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.writing import write
from tests.cli.json_contract import check_document

SWEEP = """
steps: 30
task: {name: bandit, seed: seed}
evaluation: {n: 32, k: [1, 8]}
sweep:
  seeds: [0, 1, 2, 3, 4, 5, 6]
  tune: {values: [0.5, 1.0], seeds: 2, extend: 0, key: optimizer.lr}
  race: {margin: 0.02, alpha: 0.01, most: 7, give_up: false}
  common: {backend: bandit, executor: debug}
  blocks: [{estimator: [rloo, psr]}]
"""


@pytest.fixture
def setting(tmp_path):
    path = tmp_path / "bandit.yaml"
    path.write_text(SWEEP, "utf-8")
    return Setting(name="bandit", overrides=[str(path)], baseline_rate=1.0, is_listed=False)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "judge.db")) as opened:
        yield opened


class StoppedError(Exception):
    pass


def trained_in(store, candidate, *, stages=99):
    """Train an idea; what is raised after some stages is like a kill between two runs."""
    plans = session.plans_in(candidate, store)
    texts: list[str] = []
    done = []

    def train_stage(stage):
        if len(done) == stages:
            raise StoppedError
        done.append(stage)
        # A run that fails here would fail again, after a pause.
        return execute(stage.plan, store, policy=Policy(retries=0))

    trained = session.train(plans, store, 1, train_stage, texts.append)
    return session.judge_trained(candidate, plans, store, trained), texts


@pytest.mark.slow
def test_a_judge_from_the_tuning_to_the_page(store, setting):
    candidate = session.consider("psr", [], setting)
    judgement, texts = trained_in(store, candidate)
    assert [text.partition(",")[0] for text in texts if text.startswith("stage")] == [
        "stage 1 of 3",
        "stage 2 of 3",
        "stage 3 of 3",
    ]
    verdict = judgement.verdict
    assert verdict.rate in (0.5, 1.0)
    assert verdict.is_at_edge
    first = verdict.outcomes[0]
    assert first.column == "pass@1"
    assert first.to_baseline.n == verdict.seeds == first.repetition.n
    assert first.idea - first.baseline == pytest.approx(first.to_baseline.difference)
    # The report of the sweep has the same interval.
    (difference,) = [
        d
        for d in judgement.report.differences
        if d.column.name == "pass@1" and judgement.report.rows[d.row].group["estimator"] == "psr"
    ]
    assert difference.comparison.low == first.to_baseline.low
    assert all(len(line) <= WIDTH for line in judgement.lines)
    assert "Among the leaderboard" not in " ".join(judgement.sentences)
    plain = judgement.plain()
    assert plain["verdict"]["kind"] == verdict.kind.value
    check_document("judge", json.loads(write(plain, "json")))
    assert plain["sweep"] == "judge-psr-bandit"
    assert store.sweeps.find("judge-psr-bandit").note == "advsweep judge psr"

    # The same judge trains nothing more, and comes to the same.
    runs = len(store.runs.select())
    again, _ = trained_in(store, candidate)
    assert len(store.runs.select()) == runs
    assert again.lines == judgement.lines

    # Another idea shares RLOO's runs, its A/A included.
    other = session.consider("dr_grpo", [], setting)
    trained_in(store, other)
    names = [run.config["estimator"]["name"] for run in store.runs.select()]
    assert names.count("rloo") == 2 * len(
        {r.seed for r in store.runs.select(sweep="judge-psr-bandit")}
    )


@pytest.mark.slow
@pytest.mark.parametrize("stages", [0, 1, 2])
def test_an_interrupted_judge_goes_on_where_it_was(store, setting, stages):
    candidate = session.consider("psr", [], setting)
    with pytest.raises(StoppedError):
        trained_in(store, candidate, stages=stages)
    finished = {run.id for run in store.runs.select(status=Status.DONE)}
    judgement, _ = trained_in(store, candidate)
    assert judgement.judged.sweep == "judge-psr-bandit"
    # Nothing is trained twice.
    assert all(run.attempt == 1 for run in store.runs.select())
    assert finished <= {run.id for run in store.runs.select(status=Status.DONE)}


@pytest.fixture
def at_rate(tmp_path):
    """Makes a setting of a sweep file without a tuning, at a learning rate."""
    path = tmp_path / "own.yaml"
    path.write_text(SWEEP.replace("  tune:", "  # tune:").replace("  race:", "  # race:"), "utf-8")
    return lambda rate: own_setting(str(path), [f"optimizer.lr={rate}"])


@pytest.mark.slow
def test_in_a_setting_of_ones_own_both_have_its_rate(store, at_rate):
    judgement, texts = trained_in(store, session.consider("power_alpha", [], at_rate(1.0)))
    assert judgement.judged.sweep == "judge-power_alpha-own"
    assert [text[:12] for text in texts if text.startswith("stage")] == [
        "stage 2 of 3",
        "stage 3 of 3",
    ]
    assert {run.config["optimizer"]["lr"] for run in store.runs.select()} == {1.0}
    assert judgement.verdict.rate is None
    assert "nothing was tuned" in " ".join(judgement.sentences)


@pytest.mark.slow
def test_a_setting_in_which_rloo_fails_is_refused_after_its_race(store, at_rate):
    # So large a step makes the bandit's table overflow, whatever the advantages are.
    candidate = session.consider("psr", [], at_rate(1e308))
    expected = "in which rloo trains; all 5 runs of it failed: step 2: .* smaller optimizer.lr"
    with pytest.raises(ReportError, match=expected):
        trained_in(store, candidate)
    # Five seeds of both arms, which the race looks at first; the A/A is not begun.
    assert len(store.runs.select()) == 10


@pytest.mark.slow
def test_an_idea_that_fails_needs_no_repetition_of_rloo(store, at_rate, tmp_path):
    path = tmp_path / "huge.py"
    path.write_text("def huge(rewards):\n    return 1e37 * (rewards - 0.5)\n", "utf-8")
    judgement, texts = trained_in(store, session.consider(str(path), [], at_rate(10.0)))
    assert judgement.verdict.kind is VerdictKind.FAILED
    assert "All 5 runs failed" in " ".join(judgement.sentences)
    assert not [text for text in texts if text.startswith("stage 3")]
    assert len(store.runs.select()) == 10


def test_an_idea_that_is_rloo_needs_no_training():
    candidate = session.consider("rloo", [], range_setting("middle"))
    assert candidate.is_settled
    judgement = session.settle(candidate)
    assert judgement.verdict.kind is VerdictKind.SAME
    assert "rloo by construction" in judgement.sentences[0]
    # In no setting is there anything to compare RLOO with.
    assert session.consider("rloo", [], range_setting("middle", ["steps=50"])).is_settled
    assert session.consider("rloo", [], own_setting("missing.yaml")).is_settled
    # In a setting of its own a difference may come from what the setting has else.
    assert not session.consider("dr_grpo", [], range_setting("middle")).is_settled


def test_an_idea_with_another_text_has_another_sweep(store, setting):
    candidate = session.consider("psr", [], setting)
    plans = session.plans_in(candidate, store)
    assert plans.name == "judge-psr-bandit"
    first = plans.tuning.plan(plans.tuning.grid[:1])
    with pytest.raises(StoppedError):
        trained_in(store, candidate, stages=0)
    execute(first, store)
    assert session.plans_in(candidate, store).name == "judge-psr-bandit"
    assert not has_room(store, "judge-psr-bandit", "another")
    steps = replace(setting, overrides=[*setting.overrides, "steps=10"])
    assert session.plans_in(session.consider("psr", [], steps), store).name == "judge-psr-bandit-2"


def measured(difference, half, *, p=0.5, is_equivalent=False):
    return Measured(
        difference=difference,
        low=difference - half,
        high=difference + half,
        n=12,
        p_adjusted=p,
        is_equivalent=is_equivalent,
    )


def outcome(to_baseline):
    return OutcomeRow(
        column="pass@1",
        header="p@1",
        idea=0.6,
        baseline=0.6,
        to_baseline=to_baseline,
        repetition=None,
    )


@pytest.mark.parametrize(
    ("to_baseline", "kind"),
    [
        (measured(0.001, 0.03), VerdictKind.OPEN),
        (measured(0.05, 0.02, p=0.01), VerdictKind.BETTER),
        (measured(-0.05, 0.02, p=0.01), VerdictKind.WORSE),
        (measured(0.001, 0.01, is_equivalent=True), VerdictKind.EQUIVALENT),
        # A difference that is sure and too small to matter is no better estimator.
        (measured(0.009, 0.004, p=0.01, is_equivalent=True), VerdictKind.EQUIVALENT),
        # An interval without 0 is not enough: p is that of the family.
        (measured(0.05, 0.045, p=0.06), VerdictKind.OPEN),
    ],
)
def test_the_first_outcome_decides(to_baseline, kind):
    assert _decide([outcome(to_baseline)], None) is kind


EARLY = EarlyEnd(
    verdict="below", difference=-0.3, low=-0.4, high=-0.2, level=0.99, seeds=5, most=12
)


def test_an_early_end_of_the_race_decides():
    assert _decide([outcome(measured(0.001, 0.03))], EARLY) is VerdictKind.WORSE


@pytest.mark.parametrize(
    ("early", "without_signal", "is_said"),
    [(EARLY, (), True), (None, (), False), (EARLY, ("no run learned",), False)],
)
def test_a_race_that_ended_early_is_said_of_the_other_intervals(early, without_signal, is_said):
    """The page has the sentences and no table of the judge, so that a sentence says it."""
    candidate = session.consider("psr", [], range_setting("middle"))
    verdict = Verdict(
        kind=VerdictKind.OPEN if without_signal else VerdictKind.WORSE,
        outcomes=[outcome(measured(-0.3, 0.05, p=0.01))],
        early=early,
        without_signal=without_signal,
        seeds=5,
    )
    judged = Judged(
        idea=candidate.idea,
        setting=candidate.setting,
        examination=candidate.examination,
        verdict=verdict,
        sweep="judge-psr-middle",
    )
    first, *others = describe_verdict(judged)
    assert ("the interval holds at every look" in first) is is_said
    assert ("a little too narrow" in " ".join(others)) is is_said


def test_differences_without_spread_have_no_margin():
    """Where nothing is learned all differences are 0, and no margin can be computed."""
    candidate = session.consider("psr", [], range_setting("middle"))
    to_baseline = measured(0.0, 0.0)
    assert math.isnan(to_baseline.equal_within)
    judged = Judged(
        idea=candidate.idea,
        setting=candidate.setting,
        examination=candidate.examination,
        verdict=Verdict(kind=VerdictKind.OPEN, outcomes=[outcome(to_baseline)], seeds=5),
        sweep="judge-psr-middle",
    )
    assert "nan" not in describe_verdict(judged)[0]


def test_the_place_among_the_arms_of_the_leaderboard():
    """On middle prompts PSR is first by .024; FADE and Dr. GRPO are next, by .001."""
    arms = read_leaderboard("middle")
    best = describe_place(outcome(measured(0.05, 0.01)), arms)
    assert "place 1, above psr (+.024)" in best
    between = describe_place(outcome(measured(0.012, 0.002)), arms)
    assert "place 2, below psr (+.024) and above dr_grpo (+.001)" in between
    assert between.endswith("; none of them is within its interval.")
    one = describe_place(outcome(measured(0.024, 0.002)), arms)
    assert one.endswith("; one of them is within its interval, and cannot be told from it so.")
    last = describe_place(outcome(measured(-0.5, 0.1)), arms)
    assert "place 17, below grpo_n (-.152)" in last


def test_a_sweep_file_without_rates_is_refused(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text(SWEEP.replace("tune:", "# tune:"), "utf-8")
    setting = Setting(name="plain", overrides=[str(path)], baseline_rate=1.0, is_listed=False)
    with pytest.raises(AdvsweepError, match="expected a sweep file with `tune`"):
        session.consider("psr", [], setting)
