"""What a training with turns records of them."""

import pytest


def test_a_training_with_turns_records_them(small_run, train, tmp_path):
    run = small_run("tiny", task="walks", estimator="gigpo", steps=2)
    for values in train(run, tmp_path).points.values():
        assert 1 <= values["turns/mean"] <= run.task.max_turns
        # The first turns of a prompt have one state.
        assert values["turns/company"] == pytest.approx(values["estimator/company"])
        assert values["turns/company"] > 0
        assert 0 <= values["turns/collapsed"] <= 1
        # Nobody has measured values.
        assert not [name for name in values if name.startswith("credit/")]
