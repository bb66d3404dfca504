"""One notation for numbers: LaTeX, Markdown and Unicode become ASCII."""

from __future__ import annotations

import math
import re

from advsweep.tasks.verifiers.signs import (
    DEGREE_SIGN,
    FULL_WIDTH_BUT_MINUS,
    INVISIBLE,
    THIN_SPACES,
    WIDE_SPACE,
)

_MINUS_SIGNS = "\u2212\u2012\u2013\u2014\u2010\u2011\ufe63\uff0d"
_THIN = "\u2009"  # stands for every space that may separate thousands
_CURRENCIES = "€£¥₹₩₽₺₫₱฿"
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_VULGAR = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅖": "2/5",
    "⅗": "3/5",
    "⅘": "4/5",
    "⅙": "1/6",
    "⅚": "5/6",
    "⅛": "1/8",
    "⅜": "3/8",
    "⅝": "5/8",
    "⅞": "7/8",
}
_DIGITS_OF_OTHER_SCRIPTS = "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९০১২৩৪৫৬৭৮৯"
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys(_MINUS_SIGNS, "-"),
        **dict.fromkeys(THIN_SPACES, _THIN),
        **dict.fromkeys(f"{INVISIBLE}\u00ad", None),
        **dict.fromkeys(_CURRENCIES, "$"),
        **FULL_WIDTH_BUT_MINUS,
        **{character: f" {fraction} " for character, fraction in _VULGAR.items()},
        **{digit: str(place % 10) for place, digit in enumerate(_DIGITS_OF_OTHER_SCRIPTS)},
        **{character: f"^{digit}" for digit, character in enumerate(_SUPERSCRIPTS)},
        "⁻": "^-",
        "⁄": "/",
        "∕": "/",
        "÷": "/",
        "×": "*",
        "✕": "*",
        "·": "*",
        "⋅": "*",
        "∗": "*",
        "\u3000": " ",
        "≃": "≈",
        "≅": "≈",
        "°": " degrees ",
        "º": " degrees ",
        "¢": " cents ",
        "٪": "%",
        "’": "'",
        "“": '"',
        "”": '"',
    }
)
UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters, for a class of a regular expression, of scripts without spaces around numbers."""

_UNSPACED_NUMBER = re.compile(rf"(?<=[{UNSPACED}])(?=[-$.0-9])")
# After the table above 10⁻¹² is 10^-^1^2.
_SUPERSCRIPT = re.compile(r"\^-?\^?[0-9](?:\^[0-9])*")


def _join_superscript(match: re.Match[str]) -> str:
    return "^" + match[0].replace("^", "")


_STYLES = (
    r"text|textbf|textit|textrm|textnormal|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt"
    r"|mathnormal|mbox|hbox|bf|rm|bm|boldsymbol|operatorname|displaystyle|emph|underline|boxed"
)
_STYLED = re.compile(rf"\\(?:{_STYLES})\*?\s*\{{([^{{}}]*)\}}")
_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|bf|rm|it|left|right|limits|large|Large|LARGE|huge|Huge|small|phantom\{\})(?![a-z])"
)
_COLOR = re.compile(r"\\(?:text)?color\s*\{[a-zA-Z]{1,20}\}")
_DELIMITERS = re.compile(r"\\[()\[\]]")
_NOTHING = re.compile(r"\\!|\\/|\{\}")
_THIN_COMMANDS = re.compile(rf"\\[,;: >]|{WIDE_SPACE}|\\(?:thinspace|enspace|space)(?![a-z])|~")
_DEGREES = re.compile(rf"{DEGREE_SIGN}|\\degree(?![a-z])|\\textdegree(?![a-z])")
_TIMES = re.compile(r"\\(?:times|cdot|ast)(?![a-z])")
_ABOUT = re.compile(r"\\(?:approx|approxeq|simeq|sim|cong|doteq)(?![a-z])")
_MONEY = re.compile(r"\\?\$|\\(?:pounds|euro|yen|texteuro)(?![a-z])")
_FRACTION = re.compile(
    r"\\[dtcs]?frac\s*"
    r"(?:\{\s*(-?\s?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\}|\s?([0-9]))\s*"
    r"(?:\{\s*(-?\s?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\}|([0-9]))"
)
_THIN_THOUSANDS = re.compile(rf"(?<![0-9.,])([0-9]{{1,3}})((?:,?{_THIN}[0-9]{{3}})+)(?![0-9])")
_ROOT = re.compile(r"\\sqrt\s*(?:\{\s*)?([0-9]{1,20})(?:\s*\})?(?![0-9])")
_ORDINAL = re.compile(r"\^\s*\{?\s*(?:\\(?:text|mathrm)\s*\{\s*)?(st|nd|rd|th)\s*\}{0,2}(?![a-z])")
_MARKDOWN = re.compile(r"(?<![0-9])\*\*|\*\*(?![0-9])|__|`")
_UNIT_FRACTION = re.compile(
    r"\\[dt]?frac\s*\{\s*([A-Za-z][A-Za-z ^0-9]{0,39})\}\s*\{\s*([A-Za-z][A-Za-z ^0-9]{0,39})\}"
)
_GROUP = re.compile(r"(?<![\w^_\\}\]])\{([^{}]*)\}")
_EXPONENT_BRACES = re.compile(r"\^\s*\{\s*([+-]?[0-9]{1,4})\s*\}")


def plain_notation(text: str) -> str:
    r"""Return a text with LaTeX, Markdown and Unicode of numbers written in ASCII.

    Fractions become `a/b`, powers `a^b`, products `a * b`, currency signs `$`. What is no notation
    of numbers stays as it is, so that a reader can refuse it.

    >>> plain_notation(r"\\dfrac{3}{4}\\,\\text{ cm}"), plain_notation("−1½")
    ('3/4  cm', '-1 1/2')
    """
    if not text.isascii():
        text = text.translate(_CHARACTERS)
        text = _SUPERSCRIPT.sub(_join_superscript, text) if "^" in text else text
        text = _UNSPACED_NUMBER.sub(" ", text)
    if "\\" in text or "{" in text or "~" in text:
        text = _without_latex(text)
    text = _MARKDOWN.sub("", text)
    if _THIN in text:
        text = _THIN_THOUSANDS.sub(_join_thousands, text).replace(_THIN, " ")
    return text.strip()


def _without_latex(text: str) -> str:
    text = text.replace("{,}", ",").replace("\\%", "%").replace("\\_", "_").replace("\\#", "#")
    text = _MONEY.sub("$", text)
    text = _EXPONENT_BRACES.sub(r"^\1", text)
    text = _DEGREES.sub(" degrees ", text)
    text = _ORDINAL.sub(r"\1", text)
    for _ in range(3):  # styles within styles
        unstyled = _STYLED.sub(r" \1 ", text)
        if unstyled == text:
            break
        text = unstyled
    text = _COLOR.sub(" ", text)
    text = _STYLE.sub(" ", text)
    text = _DELIMITERS.sub(" ", text)
    text = _NOTHING.sub("", text)
    text = _TIMES.sub(" * ", text)
    text = _ABOUT.sub("≈", text)
    text = _THIN_COMMANDS.sub(_THIN, text)
    text = _ROOT.sub(_whole_root, text)
    text = _FRACTION.sub(_slash, text)
    text = _UNIT_FRACTION.sub(_unit_slash, text)
    return _GROUP.sub(r" \1 ", text)


def _whole_root(match: re.Match[str]) -> str:
    """Return the root of a square number; the text itself for another one."""
    root = math.isqrt(int(match[1]))
    return f" {root} " if root * root == int(match[1]) else match[0]


def _slash(match: re.Match[str]) -> str:
    above = (match[1] or match[2]).replace(" ", "")
    below = (match[3] or match[4]).replace(" ", "")
    return f" {above}/{below} "


def _unit_slash(match: re.Match[str]) -> str:
    r"""Return a quotient of units, `\frac{km}{h}`, with a slash."""
    return f" {match[1].strip()}/{match[2].strip()} "


def _join_thousands(match: re.Match[str]) -> str:
    return match[0].replace(_THIN, "").replace(",", "")
