"""Characters of a task that a model's tokenizer leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: E402
from tokenizers.processors import TemplateProcessing  # noqa: E402

from advsweep.backends.trl.config import HfModel  # noqa: E402
from advsweep.backends.trl.lost_characters import (  # noqa: E402
    describe_lost_characters,
    lost_characters,
    warn_of_lost_characters,
)
from advsweep.errors import AdvsweepWarning  # noqa: E402
from advsweep.tasks.base import Problem, Split  # noqa: E402

# Accents, compatibility forms, other scripts, an emoji, controls, odd spaces.
TEXT = "Où est le ﬁchier n° ½?\n\tΣ ≤ 9\u00a0\u200b你好 Straße İ 𝐀 🎉 x²\r\n"


def _bytes() -> Tokenizer:
    """Every text is bytes, as in GPT-2, Llama 3 and Qwen."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


def _fallback() -> Tokenizer:
    """Unknown characters become bytes, as in Llama 2, Mistral and Gemma."""
    words = ["<unk>", "▁", *"Ouestlfichr"]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def _pieces(text: str) -> Tokenizer:
    """Compatibility forms, accents and case are gone, as in SentencePiece's and BERT's."""
    made = Tokenizer(models.Unigram([("<unk>", 0.0), *((c, -1.0) for c in sorted(text))], unk_id=0))
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


def _letters(alphabet: str) -> Tokenizer:
    """One token per character, without a token for unknown ones: the tiny model's."""
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.decoder = decoders.Fuse()
    return made


def _words(*words: str) -> Tokenizer:
    made = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.mark.parametrize(
    "tokenizer", [_bytes(), _fallback(), _pieces("▁ouestlfichrna°1⁄2?σ≤9你好straße🎉x")]
)
def test_real_tokenizers_lose_nothing(tokenizer: Any) -> None:
    assert lost_characters(tokenizer, TEXT) == []


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (_letters("0123456789+"), "What is 3+4?", "Whatis?"),
        (_letters("0123456789+"), "3+4", ""),
        (_pieces("▁ouest"), "Où est le kun 🎉", "lkn🎉"),
        # The letters of the unknown mark are not text.
        (_words("is", "3"), "is UNK 3", "UNK"),
        (_words("is", "3"), "3 is 3", ""),
    ],
)
def test_unknown_characters_are_lost(tokenizer: Any, text: str, lost: str) -> None:
    assert lost_characters(tokenizer, text) == list(lost)


def _model(folder: Path, tokenizer: Any) -> HfModel:
    tokenizer.save(str(folder / "tokenizer.json"))
    return HfModel(path=str(folder))


@dataclass
class _Task:
    texts: tuple[str, ...]
    can_train: bool = True

    def problems(self, split: Split) -> list[Problem]:
        made = [Problem(text, text, 0) for text in self.texts]
        return made[::2] if split is Split.HELD_OUT else made[1::2]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        problems = self.problems(Split.TRAIN)
        return [problems[row] for row in rng.integers(len(problems), size=count)]


def _found(model: HfModel, task: _Task) -> list[str]:
    return describe_lost_characters(model, cast(Any, task))


def test_a_loss_in_prompts_has_counts_an_example_and_a_remedy(tmp_path: Path) -> None:
    model = _model(tmp_path, _letters("+0123456789"))
    task = _Task(("1+2", "3+4?", "so\x1b[2J", "5+6"))
    [text] = _found(model, task)
    assert f"tokenizer of {tmp_path} leaves out" in text
    assert "of 2 of 4 sampled prompts, which the model does not see: s o [ J ?; take" in text
    with pytest.warns(AdvsweepWarning, match="leaves out characters"):
        warn_of_lost_characters(model, cast(Any, task))


def test_what_cannot_be_checked_is_not_judged(tmp_path: Path) -> None:
    task = _Task(("a", "c"))
    assert _found(HfModel(path="owner/name"), task) == []
    assert _found(HfModel(path=str(tmp_path)), task) == []
    (tmp_path / "tokenizer.json").write_text("{}")
    assert _found(HfModel(path=str(tmp_path)), task) == []
    # Another tokenizer takes its place.
    assert _found(_model(tmp_path, _letters("xyz")), task) != []
