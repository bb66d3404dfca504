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


# Refuses to import whatever is installed, except torch with what it requires, and advsweep.
TORCH_ALONE = """
import importlib.metadata, re, sys

needed, wanted = set(), ['torch', 'advsweep']
while wanted:
    name = wanted.pop()
    if name not in needed:
        needed.add(name)
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name != 'advsweep':
            wanted += [re.match(r'[\\w.-]+', r)[0] for r in requirements if 'extra ==' not in r]
normal = lambda name: re.sub(r'[-_.]+', '-', name).lower()
needed = {normal(name) for name in needed}
refused = {
    module
    for module, owners in importlib.metadata.packages_distributions().items()
    if not {normal(owner) for owner in owners} & needed
}
assert {'numpy', 'hydra', 'omegaconf', 'sqlalchemy', 'pytest', 'jaxtyping'} <= refused

class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition('.')[0] in refused:
            raise ModuleNotFoundError(f'refused: {name}', name=name)

sys.meta_path.insert(0, Refuse)

import torch
from advsweep.estimators import GroupBatch, build_estimator, estimator_names

some = torch.rand(4, 8)
batch = GroupBatch(
    rewards=(some < 0.5).float(), lengths=1 + some, ref_rewards=some, token_entropy=some,
    token_entropy_exact=some, token_entropies=torch.stack([some, 0 * some], -1),
    self_certainty=some, step=1, total_steps=2,
    prompt_ids=("a", "b", "c", "d"),
)
for name in estimator_names():
    assert build_estimator(name)(batch).isfinite().all(), name
assert not refused & {name.partition('.')[0] for name in sys.modules}
"""


@pytest.mark.slow
def test_torch_alone_is_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TORCH_ALONE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("alias", "name"), [("mean_grpo", "dr_grpo"), ("gspo", "grpo"), ("gspo_n", "grpo_n")]
)
def test_aliases_leave_no_trace_in_the_identity(alias: str, name: str) -> None:
    assert alias not in estimator_names()
    assert build_estimator(alias).plain() == build_estimator(name).plain()
    assert build_estimator(alias).identity() == build_estimator(name).identity()


def test_an_alias_that_is_a_guess_warns() -> None:
    with pytest.warns(AdvsweepWarning, match="'asym_norm' is taken for 'asym_re': FADE gives it"):
        estimator = build_estimator("asym_norm", delta=0.2)
    assert estimator == build_estimator("asym_re", delta=0.2)


@pytest.mark.parametrize("name", CATALOGUE["unavailable"])
def test_names_without_a_definition_say_what_is_missing(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"'{name}' cannot be built: the papers"):
        build_estimator(name)


def test_the_catalogue_says_the_same_of_each_estimator() -> None:
    keys = {"module", "family", "formula", "paper", "equation", "defaults"}
    for name, row in CATALOGUE["estimators"].items():
        assert keys <= row.keys() <= keys | {"released", "aliases"}, name
    assert CATALOGUE["caveats"].keys() <= ESTIMATORS.aliases().keys()
