r"""Signs of Unicode and commands of LaTeX that readers of numbers, formulas and letters know alike.

Each reader writes them in its own notation: `math_notation` for math-verify, `number_notation` in
ASCII.
"""

from __future__ import annotations

FULL_WIDTH = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
"""ASCII's signs by those of the same name that are as wide as Chinese characters."""

# A full-width hyphen is a minus sign.
FULL_WIDTH_BUT_MINUS = {wide: plain for wide, plain in FULL_WIDTH.items() if plain != "-"}

THIN_SPACES = "\u00a0\u2007\u2008\u2009\u200a\u202f"
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"

# Parts of regular expressions.
DEGREE_SIGN = r"\^\s*\{?\s*\\circ\s*\}?"
WIDE_SPACE = r"\\q?quad(?![a-z])"
