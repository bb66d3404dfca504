"""Exports, as transformers sees them."""

import pytest
import torch

from advsweep.backends.tiny.tokens import encode
from advsweep.backends.tiny.weights import export_folder
from advsweep.errors import ConfigError
from advsweep.tasks.base import Split

transformers = pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path, any_model, make_weights, task):
    export_folder(tmp_path / "hf", make_weights(any_model), any_model, task, temperature=0.7)
    return tmp_path / "hf"


def load(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return tokenizer, model.eval()


@pytest.mark.slow
def test_logits_are_equal_for_padded_batches(
    folder, any_model, make_weights, task, problems, plain_logits
):
    tokenizer, model = load(folder)
    weights = make_weights(any_model)
    texts = [problem.prompt + "3+4*" for problem in problems]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert (batch["attention_mask"][:, 0] == 0).any()
    with torch.no_grad():
        theirs = model(**batch, position_ids=(batch["attention_mask"].cumsum(1) - 1).clamp(min=0))
    encoded = encode(texts, task)
    for row, length in enumerate(encoded.lengths):
        tokens = torch.from_numpy(encoded.tokens[row, :length])
        ours = plain_logits(weights, any_model, tokens)
        torch.testing.assert_close(theirs.logits[row, -length:], ours, atol=1e-4, rtol=0)


def test_the_tokenizer_goes_there_and_back(folder, task):
    tokenizer, _ = load(folder)
    texts = [problem.prompt for problem in task.problems(Split.HELD_OUT)]
    encoded = encode(texts, task)
    batch = tokenizer(texts, padding=True, return_tensors="np")
    width = batch["input_ids"].shape[1]
    for row, length in enumerate(encoded.lengths):
        ids = batch["input_ids"][row].tolist()
        assert ids == [task.pad_id] * (width - length) + encoded.tokens[row, :length].tolist()
        assert batch["attention_mask"][row].sum() == length
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == texts
    assert tokenizer.padding_side == "left"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (task.eos_id, task.pad_id)
    assert len(tokenizer) == task.vocabulary_size


def test_a_place_that_cannot_be_written(tmp_path, model, make_weights, task):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"expected a folder that can be written"):
            export_folder(target, make_weights(model), model, task, temperature=1.0)
