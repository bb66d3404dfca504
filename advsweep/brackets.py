"""Lists in texts that users write, whose items may have brackets with separators in them."""

from __future__ import annotations


def split_outside_brackets(text: str, separators: str = ",") -> list[str]:
    """Split a text at separators, except for those in brackets; spaces stay.

    >>> split_outside_brackets("pass@1[gsm8k,level=3], seed")
    ['pass@1[gsm8k,level=3]', ' seed']
    """
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
