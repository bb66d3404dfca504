"""Characters of a task that a model's tokenizer leaves out."""

import json
from types import SimpleNamespace

from advsweep.backends.trl.backend import describe_lost_characters
from advsweep.backends.trl.config import HfModel


def model(folder, vocabulary):
    content = {
        "added_tokens": [{"content": "<eos>"}],
        "model": {"vocab": {word: i for i, word in enumerate([*vocabulary, "<eos>"])}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return HfModel(path=str(folder))


def task(*texts):
    problems = [SimpleNamespace(text=text) for text in texts]
    return SimpleNamespace(problems=lambda split: problems, can_train=False)


def test_a_loss_in_prompts_has_counts_an_example_and_a_remedy(tmp_path):
    small = model(tmp_path, "+0123456789")
    problems = task("1+2", "3+4?", "so\x1b[2J", "5+6")
    [text] = describe_lost_characters(small, problems)
    assert f"tokenizer of {tmp_path}, which has only + 0 1 2 3 4 5 6 7 8 9, leaves out" in text
    assert "of 2 of 4 sampled prompts, which the model does not see: ? s o \\x1b [ J; take" in text
    assert describe_lost_characters(small, task("1+2")) == []


def test_what_cannot_be_checked_is_not_judged(tmp_path):
    problems = task("Où est le kun 🎉")
    assert describe_lost_characters(HfModel(path="owner/name"), problems) == []
    assert describe_lost_characters(HfModel(path=str(tmp_path)), problems) == []
    assert describe_lost_characters(model(tmp_path, ["a", "piece"]), problems) == []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert describe_lost_characters(HfModel(path=str(tmp_path)), problems) == []
