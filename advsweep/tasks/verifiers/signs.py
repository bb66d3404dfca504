r"""Characters of Unicode and commands of LaTeX that several readers of answers replace.

Each reader replaces them in its own way: `math_notation` for math-verify, `number_notation` by
ASCII, `choice` to find letters.
"""

from __future__ import annotations

FULL_WIDTH = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
"""The full-width forms of Unicode, each with the ASCII character that it is a form of."""

# Readers of numbers and formulas list the full-width hyphen among their minus signs.
FULL_WIDTH_BUT_MINUS = {wide: plain for wide, plain in FULL_WIDTH.items() if plain != "-"}

THIN_SPACES = "\u00a0\u2007\u2008\u2009\u200a\u202f"
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"

# Parts of regular expressions.
DEGREE_SIGN = r"\^\s*\{?\s*\\circ\s*\}?"
WIDE_SPACE = r"\\q?quad(?![a-z])"
