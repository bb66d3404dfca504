"""What a training with turns records of them."""

import pytest


@pytest.mark.slow
def test_a_training_with_turns_records_them(small_run, train, tmp_path):
    policy = {"name": "vine", "rollouts": 2, "episodes": 2, "every": 2}
    run = small_run("tiny", task="walks", estimator="gigpo", rollout=policy, steps=2, group_size=6)
    unmeasured, measured = train(run, tmp_path).points.values()
    for values in (unmeasured, measured):
        assert 1 <= values["turns/mean"] <= run.task.max_turns
        # The first turns of a prompt have one state.
        assert values["turns/company"] == pytest.approx(values["estimator/company"])
        assert values["turns/company"] > 0
        assert 0 <= values["turns/collapsed"] <= 1
    assert not [name for name in unmeasured if name.startswith("credit/")]
    # Two episodes of six, whose lengths differ.
    assert 0.1 < measured["credit/share"] < 0.7
    assert measured["credit/error"] > 0
    assert -1 <= measured["credit/correlation"] <= 1
