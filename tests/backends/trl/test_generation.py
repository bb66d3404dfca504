"""How rollouts are sampled: what is refused before vLLM is asked, and what is read off a pass."""

import importlib.util

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.trl.config import VllmGeneration
from advsweep.errors import ConfigError

FOUND = importlib.util.find_spec


def without(package):
    return lambda name: None if name == package else FOUND(name)


def test_vllm_that_is_not_installed_is_named(small_config, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without("vllm"))
    config = small_config("trl", generation={"name": "vllm"})
    with pytest.raises(ConfigError, match=r"needs vllm, .*docs/vllm.md"):
        build_run(config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert build_run(config).generation == VllmGeneration()


def test_vllm_has_one_engine_in_the_process_that_trains():
    stored = {"mode": "colocate", "server_url": "http://localhost:8000", "tensor_parallel": 1}
    assert VllmGeneration.build(stored) == VllmGeneration()
    for changed in ({"mode": "server"}, {"tensor_parallel": 2}):
        with pytest.raises(ConfigError, match=f"vllm has no parameter '{min(changed)}'"):
            VllmGeneration.build({**stored, **changed})
