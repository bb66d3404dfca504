"""Tokenizers and chat templates that do not fit to a model or to a task."""

from __future__ import annotations

import copy
import json
import shutil
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from advsweep.backends.trl.config import HfModel, Prompt
from advsweep.backends.trl.prompt_checks import Checkpoint
from advsweep.backends.trl.tokenizer_file import describe_special_tokens
from advsweep.errors import ConfigError
from advsweep.tasks.base import Problem

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHAT_ML = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}1"


def byte_tokenizer(template=None, special=("<|im_start|>", "<|im_end|>")):
    """A tokenizer of all bytes, with an end mark, padding and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(alphabet)}
    tokens = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<end>", pad_token="<pad>", padding_side="left"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def loaded(random_model):
    """Random models by their kind."""
    cached = {}

    def load(kind):
        if kind not in cached:
            cached[kind] = AutoModelForCausalLM.from_pretrained(random_model(kind))
        return cached[kind]

    return load


@pytest.fixture
def check(loaded):
    """Checks a tokenizer with prompts of some lengths."""

    def run(tokenizer, *texts, tokens=4, stop=(), marks=(), kind="llama", **settings):
        model = copy.deepcopy(loaded(kind))
        config = {"vocab_size": 1000, "max_position_embeddings": 100, **settings.pop("config", {})}
        for name, value in config.items():
            setattr(model.config, name, value)
        problems = [Problem(id=text, prompt=text, level=0, **settings) for text in texts]
        task = SimpleNamespace(problems=lambda split: problems, can_train=False)
        all_marks = [tokenizer.eos_token_id, *marks]
        checkpoint = Checkpoint(HfModel(path="org/name"), tokenizer, model, all_marks)
        return checkpoint.check(task, tokens, stop)

    return run


def test_what_fits_is_not_mentioned(check):
    plain = byte_tokenizer()
    assert check(plain, "1+1", "2+20") == []
    chat = byte_tokenizer(CHAT_ML)
    assert check(chat, "1+1", marks=chat.convert_tokens_to_ids(["<|im_end|>"])) == []
    # Nothing is written behind an answer.
    assert check(byte_tokenizer("{{ messages[-1].content }}", special=()), "1") == []


def test_an_end_of_the_template_that_ends_nothing(check):
    tokenizer = byte_tokenizer(CHAT_ML)
    [line] = check(tokenizer, "1+1")
    assert "ends an answer with <|im_end|>, which ends none here (end marks: <end>)" in line
    assert "set \"generation.stop=['<|im_end|>']\"" in line
    assert check(tokenizer, "1+1", stop=("<|im_end|>",)) == []


def test_marks_of_a_template_that_are_no_tokens(check):
    lines = check(byte_tokenizer(CHAT_ML, special=()), "1+1")
    assert any("writes <|im_start|> (12 tokens), <|im_end|> (10 tokens)" in line for line in lines)


def test_words_of_a_template_that_the_tokenizer_lacks_are_refused(check, random_model):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(random_model("llama"))
    tokenizer.chat_template = "Question: {{ messages[-1].content }}"
    with pytest.raises(ConfigError, match=r"got 'Question: 1', of which the model would see ':1'"):
        check(tokenizer, "1")
    words = Tokenizer(models.WordLevel({"1": 0, "[UNK]": 1, "</s>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    known = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", eos_token="</s>", pad_token="</s>"
    )
    known.chat_template = "{{ messages[-1].content }} ?"
    with pytest.raises(ConfigError, match=r"model\.prompt: .*tokenizer of org/name.*prompt=plain"):
        check(known, "1")


@pytest.mark.parametrize("template", [REFUSING, "{{ messages[0].no.such }}", "{% if %}"])
def test_a_template_that_fails_is_refused(check, template):
    with pytest.raises(ConfigError, match=r"takes this task's messages, got that of org/name: "):
        check(byte_tokenizer(template), "1", system="Be brief.")


@pytest.mark.parametrize(
    ("kind", "prompt", "tokens", "outcome"),
    [
        ("llama", 90, 10, None),
        ("llama", 91, 10, "behind the last position its answers are poor"),
        ("llama", 100, 1, "refused"),
        # Its positions have weights, and there are no further ones.
        ("gpt2", 90, 10, None),
        ("gpt2", 91, 10, "refused"),
        ("bloom", 300, 10, None),
    ],
)
def test_prompts_and_answers_fit_into_the_positions(check, kind, prompt, tokens, outcome):
    positions = {"max_position_embeddings": None} if kind == "bloom" else {}
    arguments = ("1", "1" * prompt)
    settings = {"tokens": tokens, "kind": kind, "config": positions}
    if outcome == "refused":
        message = f"at most 100 tokens, as org/name has 100 positions; a prompt has {prompt} tokens"
        with pytest.raises(ConfigError, match=message):
            check(byte_tokenizer(), *arguments, **settings)
        return
    lines = check(byte_tokenizer(), *arguments, **settings)
    assert len(lines) == (outcome is not None)
    assert all(outcome in line for line in lines)


def test_tokens_that_the_model_lacks_are_refused(check):
    message = r"of the 20 tokens that the model knows, got token \d+ \('z'\) of its tokenizer"
    with pytest.raises(ConfigError, match=message):
        check(byte_tokenizer(), "1z", config={"vocab_size": 20})


def test_a_training_and_an_evaluation_say_it(small_run, train, random_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(random_model("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 12}))
    run = small_run("trl", model={"path": str(folder)}, steps=1)
    reported = train(run, tmp_path / "run")
    assert any("has 12 positions, and a prompt has" in line for line in reported.lines)
    with pytest.warns(UserWarning, match="has 12 positions, and a prompt has"):
        run.backend.model_sampler(run.model, run.generation, run.task, run.evaluation)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["chat_template"] = "Question: {{ messages[-1].content }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    refused = small_run("trl", model={"path": str(folder)}, steps=1)
    assert refused.model.prompt is Prompt.AUTO
    with pytest.raises(ConfigError, match=r"^model\.prompt: expected a chat template whose words"):
        train(refused, tmp_path / "refused")


def test_a_plan_names_special_tokens_that_rewards_look_for(small_run, tmp_path):
    content = {
        "added_tokens": [
            {"content": "</think>", "special": True},
            {"content": "<tool>", "special": False},
        ]
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    model = HfModel(path=str(tmp_path))
    wanted = {"task.reward": ("\n</think>\n", "<tool>"), "generation.stop": ("stop",)}
    [line] = describe_special_tokens(model, wanted)
    assert line.startswith(f"task.reward: </think> is a special token of {tmp_path}, which answers")
    assert describe_special_tokens(model, {"generation.stop": ("<tool>",)}) == []
    assert describe_special_tokens(HfModel(path="owner/name"), wanted) == []


def test_a_plan_looks_for_the_delimiters_of_a_reward(small_run):
    folder = small_run("trl").model.folder
    mark = json.loads((folder / "tokenizer.json").read_text())["added_tokens"][0]["content"]
    parts = {"accuracy": 1.0, "format": {"weight": 1.0, "delimiter": f"a{mark}"}}
    run = small_run("trl", task={"reward": parts}, optimizer={"lr": 1e-6})
    assert run.task.delimiters == (f"a{mark}",)
    [caution] = run.backend.cautions(run)
    assert caution.startswith(f"task.reward: {mark} is a special token of {folder}")
