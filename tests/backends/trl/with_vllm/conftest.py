"""What the tests of vLLM share: a base model whose heads are as wide as its CPU kernels need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.backends.base import Run

pytest.importorskip("vllm", minversion="0.22")


@pytest.fixture
def wide_base(small_run: Callable[..., Run], tmp_path: Path) -> Path:
    """A folder that transformers and vLLM load; its `lm_head` is tied to its embeddings."""
    run = small_run("tiny", model={"width": 64})
    folder = tmp_path / "base"
    folder.mkdir()
    run.backend.export(run, folder, 0, folder)
    return folder


@pytest.fixture
def base_model(wide_base: Path) -> Path:
    return wide_base


@pytest.fixture
def vllm_run(parity_run: Callable[..., Run], wide_base: Path) -> Callable[..., Run]:
    """Builds a run of which vLLM samples the rollouts and whose groups are mixed."""

    def build(**changes: Any) -> Run:
        generation = {"name": "vllm", **changes.pop("generation", {})}
        return parity_run(
            **{"model": {"path": str(wide_base)}, "generation": generation, "steps": 4, **changes}
        )

    return build
