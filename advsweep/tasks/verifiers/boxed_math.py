"""Boxed answers, compared as mathematics by math-verify."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.packages import extra_command
from advsweep.tasks.verifiers.base import (
    UNREADABLE_REFERENCE,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
    verdict,
)
from advsweep.tasks.verifiers.extraction import last_boxed, plain_number, spell

_SCIENTIFIC = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?)[eE]([+-]?[0-9]+)")
_EXACT_DIGITS = 15
_CACHED_REFERENCES = 4096


@dataclass(kw_only=True)
class BoxedMath(Verifier):
    r"""Correct if the last `\boxed{...}` equals the reference as mathematics; no box is wrong.

    AVSPO (Advantage Collapse in GRPO), Eq. 39; A-GRAE and AAPO the same. Equality is
    math-verify's: reference first, as it is not symmetric. A boxed answer that cannot be read is
    wrong, a reference answer that cannot be read makes the completion unscorable, and so does an
    error in the comparison. Whole numbers are compared here, with the same result.

    Departures: of several boxes the last one counts, where math-verify may take them for a
    set; `4.5e33` is read as 4.5 · 10³³, where math-verify reads 4.5 · e · 33.
    """

    name: ClassVar[str] = "boxed_math"
    distribution: ClassVar[str | None] = "math-verify"

    def check(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "verifier: 'boxed_math' needs math-verify, which is not installed; "
                f"install it with `{extra_command('math')}`, or take verifier=numeric for plain "
                "numbers"
            )

    def prepare(self) -> None:
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)
        _parse("\\frac{1}{2}")  # builds the grammar, which takes most of the first answer's time

    def reads(self, reference: ReferenceAnswer) -> bool:
        return bool(_parse_reference(str(reference["answer"])))

    def reads_quickly(self, reference: ReferenceAnswer) -> bool | None:
        return True if plain_number(str(reference["answer"])) is not None else None

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        from math_verify import verify

        expected = _parse_reference(str(reference["answer"]))
        boxed = last_boxed(completion)
        found = [] if boxed is None else _parse(boxed)
        answer = None if boxed is None else _spell(boxed, found)
        if not expected:
            return Verdict(Outcome.UNSCORABLE, answer, UNREADABLE_REFERENCE)
        if not found:
            return verdict(False, answer)
        right = verify(expected, found, timeout_seconds=None, raise_on_error=True)
        return verdict(right, answer)

    def judge_quickly(self, reference: ReferenceAnswer, completion: str) -> Verdict | None:
        text = str(reference["answer"])
        expected = plain_number(text)
        if expected is None:
            return None
        boxed = last_boxed(completion)
        if boxed is None:
            return verdict(False, None)
        found = plain_number(boxed)
        # math-verify rounds if the reference answer has decimals, and both must fit into a float.
        if found is None or "." in text or max(len(text), len(boxed)) > _EXACT_DIGITS:
            return None
        return verdict(found == expected, spell(found))

    def solution(self, reference: ReferenceAnswer) -> str:
        return f"\\boxed{{{reference['answer']}}}"


@functools.lru_cache(_CACHED_REFERENCES)
def _parse_reference(text: str) -> list[Any]:
    return _parse(text)


def _spell(text: str, parsed: list[Any]) -> str:
    """Return an answer in a spelling that is the same for most ways to write it."""
    value = plain_number(text)
    if value is not None:
        return spell(value)
    return str(parsed[0]) if parsed else "".join(text.split())


def _parse(text: str) -> list[Any]:
    """Return an answer as sympy objects, usually one; empty if it cannot be read."""
    from math_verify import parse

    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text) if _SCIENTIFIC.fullmatch(text) else text
    # Some answers can be read in one of the forms only: percentages, lists, several lines.
    for form in (f"\\boxed{{{text}}}", f"${text.replace('$', '')}$"):
        found: list[Any] = parse(form, fallback_mode="no_fallback", parsing_timeout=None)
        if found:
            return found
    return []
