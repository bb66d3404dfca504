"""Names, aliases, and what listing them costs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import advsweep.estimators
from advsweep.components import Component
from advsweep.errors import AdvsweepWarning, UnknownNameError
from advsweep.estimators import CATALOGUE, ESTIMATORS, Estimator, build_estimator, estimator_names

# Names that the papers' texts have, without what their advantage needs.
UNDEFINED = {
    *("aem", "edge_grpo", "f_grpo", "gae", "ngrpo", "ppo", "prorl"),
    *("scaf_grpo", "simko"),
}


def subclasses(cls: type[Component]) -> set[type[Component]]:
    return {cls}.union(*(subclasses(c) for c in cls.__subclasses__()))


def test_every_estimator_of_the_package_is_registered() -> None:
    for module in pkgutil.iter_modules(advsweep.estimators.__path__):
        importlib.import_module(f"advsweep.estimators.{module.name}")
    declared = {
        cls.name
        for cls in subclasses(Estimator)
        if "name" in vars(cls) and cls.__module__.startswith("advsweep.")
    }
    assert declared == set(estimator_names())


def test_listing_names_imports_no_torch() -> None:
    code = (
        "import sys; from advsweep.estimators import estimator_names; "
        "assert 'grpo' in estimator_names(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("mean_grpo", "dr_grpo"),
        ("gspo", "grpo"),
        ("gspo_n", "grpo_n"),
        ("dapo", "grpo"),
        ("asym_rl", "asym_re"),
        ("lme", "log_mean_exp"),
        ("median", "mc_grpo"),
        ("pass_at_k_chen", "passk_analytic"),
        ("pass_at_k_tang", "passk_loo"),
        ("reinforce_plus_plus", "reinforce_pp"),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
        ("rloo_vectorized", "rloo"),
        ("tir_optimal_token_baseline", "optimal_token_baseline"),
    ],
)
def test_aliases_leave_no_trace_in_the_identity(alias: str, name: str) -> None:
    assert alias not in estimator_names()
    assert build_estimator(alias).plain() == build_estimator(name).plain()
    assert build_estimator(alias).identity() == build_estimator(name).identity()


def test_an_alias_that_is_a_guess_warns() -> None:
    with pytest.warns(AdvsweepWarning, match="'asym_norm' is taken for 'asym_re': FADE gives it"):
        estimator = build_estimator("asym_norm", delta=0.2)
    assert estimator == build_estimator("asym_re", delta=0.2)
    with pytest.warns(AdvsweepWarning, match="'grpo_passk' .* unless told .* scale=std"):
        assert build_estimator("grpo_passk") == build_estimator("passk_loo")


@pytest.mark.parametrize("name", sorted(UNDEFINED))
def test_names_without_a_definition_say_what_is_missing(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"'{name}' cannot be built: the papers"):
        build_estimator(name)


def test_the_catalogue_says_the_same_of_each_estimator() -> None:
    keys = {"module", "family", "formula", "paper", "equation", "defaults", "departures"}
    for name, row in CATALOGUE["estimators"].items():
        assert keys <= row.keys() <= keys | {"released", "released_code", "aliases"}, name
    assert CATALOGUE["caveats"].keys() <= ESTIMATORS.aliases.keys()
    assert set(CATALOGUE["unavailable"]) == UNDEFINED
