"""Models whose log-probabilities differ between sampling and loss, in the importable trainer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.errors import AdvsweepWarning, ConfigError

trl = pytest.importorskip("trl", minversion="1.12")
from advsweep.integrations import trl_log_probs  # noqa: E402
from advsweep.integrations.trl import EstimatorGRPOTrainer  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

Trainers = Callable[..., Any]
PROMPTS = {"prompt": ["a", "a b c d e f"]}
SETTINGS = {"num_generations": 4, "max_steps": 2, "learning_rate": 0.01}
OLD_NAMES = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "initializer_range": 0.4}
KINDS = {
    "gpt2": {**OLD_NAMES, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "rwkv": {"hidden_size": 16, "num_hidden_layers": 2},
}


def letters(completions: list[str], **_: Any) -> list[float]:
    return [float(any(x in c for x in "abcd")) for c in completions]


@pytest.fixture
def model_of(policy_folder: Path, tmp_path: Path) -> Callable[[str], str]:
    """Makes a folder of a random model of a kind, with the tokenizer of the policy."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    def make(kind: str) -> str:
        marks = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        config = AutoConfig.for_model(kind, vocab_size=15, **marks, **KINDS[kind])
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / kind)
        AutoTokenizer.from_pretrained(policy_folder).save_pretrained(tmp_path / kind)
        return str(tmp_path / kind)

    return make


@pytest.fixture
def trained(make_trainer: Trainers) -> Trainers:
    """Trains two steps on prompts of two lengths, and returns the trainer."""

    def train(cls: type = EstimatorGRPOTrainer, settings: Any = None, **arguments: Any) -> Any:
        if cls is EstimatorGRPOTrainer:
            arguments = {"estimator": {"name": "grpo", "preset": "trl"}, **arguments}
        trainer = make_trainer(
            cls, [letters], PROMPTS, arguments, **{**SETTINGS, **(settings or {})}
        )
        trainer.train()
        return trainer

    return train


@pytest.fixture
def gaps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The gaps that are measured."""
    measured: list[Any] = []
    measure = trl_log_probs.measure_gap

    def record(*arguments: Any) -> Any:
        measured.append(measure(*arguments))
        return measured[-1]

    monkeypatch.setattr(trl_log_probs, "measure_gap", record)
    return measured


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
def test_the_first_rollouts_are_compared_and_nothing_is_drawn(
    trained: Trainers, gaps: list[Any], adapted: bool
) -> None:
    from peft import LoraConfig

    arguments = {"peft_config": LoraConfig(r=2)} if adapted else {}
    settings = {"temperature": 0.7, "top_k": 5, "mask_truncated_completions": True}
    ours = trained(settings=settings, **arguments)
    [gap] = gaps
    assert 0 < gap.largest < 1e-5
    assert gap.tokens >= 4
    theirs = trained(trl.GRPOTrainer, settings, **arguments)
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weight), name


def test_a_model_that_embeds_positions_gets_them(
    trained: Trainers, model_of: Callable[[str], str], gaps: list[Any], monkeypatch: Any
) -> None:
    trained(model=model_of("gpt2"))
    assert gaps[0].largest < 1e-5
    monkeypatch.setattr("advsweep.integrations.trl.needs_positions", lambda model: False)
    with pytest.raises(
        ConfigError, match=r"at most 0\.01 .* with GPT2LMHeadModel .*implementation"
    ):
        trained(model=model_of("gpt2"))


def test_a_model_that_reads_padding_is_refused(
    trained: Trainers, model_of: Callable[[str], str]
) -> None:
    with pytest.raises(ConfigError, match=r"with RwkvForCausalLM .*log_prob_bound sets the bound"):
        trained(model=model_of("rwkv"))
    trained(model=model_of("rwkv"), log_prob_bound=100.0)


def test_dropout_leaves_nothing_to_compare(
    trained: Trainers, model_of: Callable[[str], str], gaps: list[Any]
) -> None:
    folder = Path(model_of("gpt2"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attn_pdrop": 0.1}))
    trained(model=str(folder))
    assert gaps == []
    trained(settings={"disable_dropout": True}, model=str(folder))
    assert len(gaps) == 1


def test_settings_that_the_model_brings_get_a_warning(
    make_trainer: Trainers, policy_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(policy_folder, folder)
    path = folder / "generation_config.json"
    # TRL's own temperature replaces the model's, but neither of the others.
    leaking = {"no_repeat_ngram_size": 2, "min_p": 0.5, "do_sample": True, "temperature": 0.2}
    path.write_text(json.dumps({**json.loads(path.read_text()), **leaking}))

    def make(**settings: Any) -> None:
        arguments = {"estimator": "grpo", "model": str(folder)}
        make_trainer(EstimatorGRPOTrainer, [letters], PROMPTS, arguments, **SETTINGS, **settings)

    with pytest.warns(
        AdvsweepWarning, match=r"samples with min_p=0\.5, no_repeat_ngram_size=2, from"
    ):
        make()
    with pytest.warns(AdvsweepWarning, match=r"samples with no_repeat_ngram_size=2, from"):
        make(min_p=0.1)
