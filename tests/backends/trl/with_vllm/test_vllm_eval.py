"""`advsweep eval` where vLLM is installed: models and checkpoints are sampled by it."""

import importlib

import pytest

from advsweep.backends.trl.config import TransformersGeneration, VllmGeneration
from advsweep.backends.trl.sampling import ModelSampler
from advsweep.backends.trl.vllm_engine import VllmSampler
from advsweep.tasks.base import Split

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TASK = [
    "--task",
    "countdown",
    "--set",
    "task.levels=[0,1]",
    "--set",
    "task.held_out_per_level=2",
    "-n",
    "4",
]
MODEL = ["eval", "--model", "MODEL", *TASK]


def test_vllm_samples_unless_transformers_is_asked_for(advsweep, monkeypatch):
    # `advsweep.evaluation.evaluate` is the function, which hides the module.
    module = importlib.import_module("advsweep.evaluation.evaluate")
    monkeypatch.setattr(module, "PIECE_SAMPLES", 8)  # two problems of four samples
    sample, calls = VllmSampler.sample, []

    def dying(self, *arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            self._engines[0].llm_engine.engine_core.get_output = _raise
        return sample(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(VllmSampler, "sample", dying)
        said = advsweep(*MODEL, code=2)
        assert "evaluation: vLLM failed: out of order; finished evaluations are stored" in said
        # It goes on with vLLM, after the first piece.
        [record] = advsweep(*MODEL, "--format", "json")
    assert len(calls) == 3
    assert record["settings"]["sampler"] == "vllm"
    assert [problem["n"] for problem in record["problems"]] == [4] * 4
    [other] = advsweep(*MODEL, "--set", "generation=transformers", "--format", "json")
    assert "sampler" not in other["settings"]
    assert other["identity"] != record["identity"]
    monkeypatch.setattr(VllmSampler, "sample", lambda *a, **k: pytest.fail("sampled again"))
    assert advsweep(*MODEL, "--format", "json") == [record]


def _raise():
    raise RuntimeError("out of order\nand more")


class TestOfHeadsThatNoKernelTakes:
    @pytest.fixture
    def base_model(self, exported_base):
        return exported_base()  # 16 features each

    def test_transformers_takes_them(self, advsweep):
        said = advsweep(*MODEL, "--set", "generation=vllm", code=2)
        assert "vLLM failed: Unsupported CPU attention configuration: head_dim=16" in said
        assert said.rstrip().endswith("generation=transformers may work instead")
        said = advsweep(*MODEL, code=0)
        assert "head_dim=16" in said
        [record] = advsweep(*MODEL, "--format", "json")
        assert "sampler" not in record["settings"]


@pytest.mark.parametrize("rank", [0, 2], ids=["whole", "adapter"])
def test_a_checkpoint_answers_as_with_transformers(parity_run, train, wide_base, tmp_path, rank):
    model = {"path": str(wide_base), "lora_rank": rank}
    # A rate at which the likeliest answers are others soon.
    run = parity_run(model=model, steps=2, optimizer={"lr": 0.1})
    train(run, tmp_path / "run")
    problems = run.task.problems(Split.HELD_OUT)

    def answers(step, generation, kind):
        sampler = run.backend.sampler_by(generation, run, tmp_path / "run", step, run.task)
        assert isinstance(sampler, kind)
        return sampler.sample(problems, 1, temperature=0.0, seed=0).texts

    trained = answers(2, VllmGeneration(), VllmSampler)
    assert trained == answers(2, TransformersGeneration(), ModelSampler)
    assert trained != answers(0, TransformersGeneration(), ModelSampler)
