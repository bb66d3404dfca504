"""What the tests of vLLM share: a base model whose heads are as wide as its CPU kernels need."""

import gc

import pytest

pytest.importorskip("vllm", minversion="0.22")


@pytest.fixture(autouse=True)
def _free_engines():
    """Free the engine of a test, a gigabyte that a cycle of objects keeps, before the next one."""
    yield
    gc.collect()


@pytest.fixture
def wide_base(small_run, tmp_path):
    """A folder that transformers and vLLM load; its `lm_head` is tied to its embeddings."""
    run = small_run("tiny", model={"width": 64})
    folder = tmp_path / "base"
    folder.mkdir()
    run.backend.export(run, folder, 0, folder)
    return folder


@pytest.fixture
def base_model(wide_base):
    return wide_base


@pytest.fixture
def vllm_run(parity_run, wide_base):
    """Builds a run of which vLLM samples the rollouts and whose groups are mixed."""

    def build(**changes):
        generation = {"name": "vllm", **changes.pop("generation", {})}
        return parity_run(
            **{"model": {"path": str(wide_base)}, "generation": generation, "steps": 4, **changes}
        )

    return build
