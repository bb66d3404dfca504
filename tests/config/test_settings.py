"""The settings that every run has."""

import math
from dataclasses import fields

import pytest

from advsweep.config.settings import AdamW, EvaluationSettings, Generation
from advsweep.errors import ConfigError
from advsweep.estimators import ESTIMATORS


def test_defaults_are_what_the_documentation_says():
    assert EvaluationSettings().plain() == {
        "name": "standard",
        "n": 128,
        "k": [1, 8, 64, 128],
        "every": 50,
        "at": [],
        "n_between": None,
        "train_problems": 0,
        "select_on": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }
    # Runs from before it was there keep their evaluations.
    assert "select_on" not in EvaluationSettings().identity()
    assert AdamW().lr == 3e-4
    assert Generation().temperature == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 64}, r"evaluation.k: .* at most n=64, got 128"),
        ({"k": []}, r"evaluation.k: expected at least one k"),
        ({"k": [0]}, r"evaluation.k: expected >= 1, got 0"),
        ({"every": -1}, r"evaluation.every: expected >= 0, got -1"),
        ({"at": [2, -1]}, r"evaluation.at: expected >= 0, got -1"),
        ({"at": 8}, r"evaluation.at: expected a list, each an integer, got 8"),
        ({"select_on": 0.5}, r"evaluation.select_on: expected a mapping or null, got 0.5"),
        ({"select_on": {"n": 4}}, r"select_on.share: expected either share or task, got neither"),
        ({"select_on": {"share": 0.5, "task": {}}}, r"either share or task, got both"),
        ({"select_on": {"share": 1}}, r"select_on.share: expected > 0 and < 1, got 1"),
        ({"select_on": {"share": 0.5, "n": 0}}, r"select_on.n: expected >= 1, got 0"),
        ({"select_on": {"shre": 0.5}}, r"select_on.shre: validation has no parameter 'shre'"),
        ({"temprature": 1}, r"no parameter 'temprature'; did you mean 'temperature'"),
    ],
)
def test_evaluation_refuses(values, message):
    with pytest.raises(ConfigError, match=message):
        EvaluationSettings.build(values, where="evaluation")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"match": "max_advantages"},
            r"optimizer.match: expected one of none, max_advantage, mass, step, got .*"
            r"did you mean 'max_advantage'",
        ),
        ({"match_reference": "ngrpo"}, r"optimizer.match_reference: 'ngrpo' cannot be built: "),
        (
            {"match_reference": {"name": "grpo", "stt": "sample"}},
            r"optimizer.match_reference.stt: grpo has no parameter 'stt'; did you mean 'std'",
        ),
        ({"match_reference": {"std": "sample"}}, r"optimizer.match_reference: expected a name or"),
    ],
)
def test_matching_refuses(values, message):
    with pytest.raises(ConfigError, match=message):
        AdamW.build(values, where="optimizer")


def test_a_cosine_falls_from_the_end_of_the_warm_up():
    settings = AdamW(warmup_steps=10, schedule="cosine", final_share=0.1)
    shares = [settings.share(step, 110) for step in range(1, 111)]
    assert shares[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    # (1 + cos π (s - 11)/100)/2 from 1 to 0.1, as transformers counts its steps.
    assert [shares[10], shares[60]] == pytest.approx([1, 0.55])
    assert shares[-1] == pytest.approx(0.1 + 0.9 * (1 + math.cos(0.99 * math.pi)) / 2)
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert settings.identity()["schedule"] == "cosine"


def test_without_matching_an_optimizer_is_what_it_was_before_there_was_any():
    plain = AdamW(lr=0.01)
    later = {
        "reset_every",
        "match",
        "match_reference",
        "match_steps",
        "calibrates",
        "schedule",
        "final_share",
    }
    names = {f.name for f in fields(AdamW)} - later
    values = {name: getattr(plain, name) for name in names}
    assert plain.identity() == {"name": "adamw", "revision": 1, **values}
    assert AdamW(lr=0.01, match_reference="grpo", match_steps=5).identity() == plain.identity()


def test_a_matched_optimizer_is_known_by_the_reference_that_was_built(monkeypatch):
    def identity(**values):
        return AdamW(**{"match": "mass", **values}).identity()

    assert identity()["match_reference"] == {"name": "dr_grpo", "revision": 1}
    assert identity(match_reference="mean_grpo") == identity()
    assert "match_steps" not in identity(match="step")
    others = [
        identity(match="max_advantage"),
        identity(match="step"),
        identity(match="step", match_steps=5),
        identity(match="step", calibrates=200),
        identity(match_reference="grpo"),
        identity(match_reference={"name": "grpo", "std": "sample"}),
    ]
    monkeypatch.setattr(ESTIMATORS.get("dr_grpo"), "revision", 2)
    others += [identity(), AdamW().identity()]
    assert all(a != b for i, a in enumerate(others) for b in others[:i])
