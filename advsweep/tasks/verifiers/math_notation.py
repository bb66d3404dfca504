r"""Answers of mathematics in the notation that math-verify reads.

math-verify reads LaTeX. Models also write Unicode, words, units and names in front of an answer,
which it drops, half reads or takes for products of variables. `latex_of` writes an answer as
LaTeX, or refuses it: an answer of which a part would be dropped is not read.
"""

from __future__ import annotations

import re
from fractions import Fraction

from advsweep.tasks.verifiers.signs import (
    DEGREE_SIGN,
    FULL_WIDTH_BUT_MINUS,
    INVISIBLE,
    THIN_SPACES,
    WIDE_SPACE,
)

_UNICODE = {
    "−": "-",
    "–": "-",
    "—": "-",
    "‐": "-",
    "‑": "-",
    "－": "-",
    "×": "\\times ",
    "·": "\\cdot ",
    "⋅": "\\cdot ",
    "∗": "*",
    "÷": "/",
    "⁄": "/",
    "∕": "/",
    "π": "\\pi ",
    "∞": "\\infty ",
    "≤": "\\le ",
    "≥": "\\ge ",
    "⩽": "\\le ",
    "⩾": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "±": "\\pm ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∈": "\\in ",
    "∅": "\\emptyset ",
    "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}",
    "ℕ": "\\mathbb{N}",
    "θ": "\\theta ",
    "α": "\\alpha ",
    "β": "\\beta ",
    "γ": "\\gamma ",
    "λ": "\\lambda ",
    "φ": "\\phi ",
    "ω": "\\omega ",
    "°": "^\\circ ",
    "…": "\\ldots ",
    "½": "\\frac{1}{2}",
    "⅓": "\\frac{1}{3}",
    "⅔": "\\frac{2}{3}",
    "¼": "\\frac{1}{4}",
    "¾": "\\frac{3}{4}",
    "“": '"',
    "”": '"',
    "’": "'",
    "′": "'",
    **dict.fromkeys(f"{THIN_SPACES}\u3000", " "),
    **dict.fromkeys(INVISIBLE, ""),
    **FULL_WIDTH_BUT_MINUS,
}
_CHARACTERS = str.maketrans(_UNICODE)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_ROOT_SIGN = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")

_STYLES = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|rm|bf)"
_TEXT = re.compile(rf"{_STYLES}\s*\{{([^{{}}]*)\}}")
_CONSTANT = re.compile(rf"{_STYLES}\s*\{{\s*([A-Za-z]|[-0-9.,\s]+)\s*\}}")
_SUBSCRIPT_TEXT = re.compile(rf"_\s*\{{\s*{_STYLES}\s*\{{\s*([A-Za-z0-9 ]+?)\s*\}}\s*\}}")
_OPERATORS = ("sin", "cos", "tan", "log", "ln", "exp", "arcsin", "arccos", "arctan", "cot", "sec")
_AND_OR = re.compile(rf"(?:,|;)?\s*{_STYLES}\s*\{{[\s,]*(?:and|or|und|oder)[\s,]*\}}")
_BEHIND_NUMBER = re.compile(
    rf"(?<=[0-9}}])(?:\s|\\[,;:! ]|~)*{_STYLES}\s*\{{(?P<unit>[A-Za-z\s./°'-]*)\}}"
    r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?"
)
_LAST_UNIT = re.compile(
    rf"(?:\s|\\[,;:! ]|~){{0,10}}{_STYLES}\s*\{{(?P<unit>[A-Za-z\s./°'-]*)\}}"
    r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?\s*\Z"
)
_NO_UNIT = re.compile(r"\b(?:and|or|if|when|for|where|not|mod|than)\b")
_PRE_LABEL = re.compile(
    r"\s*(?:\\(?:text|mathrm|textbf)\s*\{)?\s*(?:the\s+)?(?:final\s+)?(?:answer|solution|result)"
    r"(?:\s+is)?\s*[:=]?\s*\}?\s*(?::|=)?\s*",
    re.IGNORECASE,
)
_LABEL_MARK = re.compile(r"[:=]|\bis\b")
_BARE_FUNCTIONS = re.compile(
    r"(?<![\\A-Za-z])(sqrt|pi|infty|infinity|exp|ln|log|sin|cos|tan|cdot|times)(?![A-Za-z])"
)
_INFINITY = re.compile(rf"{_STYLES}\s*\{{\s*(?:infinity|infty|inf)\s*\}}")
_NAMES = {"infinity": "\\infty"}
_ROOT_IN_PARENTHESES = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_STARS = re.compile(r"\*\*")
_SCIENTIFIC = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]*)?)[eE]([+-]?[0-9]{1,4})(?![\w.])")
_SPACING = re.compile(WIDE_SPACE)
_SPACING_BETWEEN = re.compile(rf"(?<=[0-9A-Za-z}})\]])\s*{WIDE_SPACE}\s*(?=[-0-9A-Za-z(\[\\])")
_REPEATING = re.compile(
    r"(?P<whole>[0-9]+)\.(?P<fixed>[0-9]*)\\(?:overline|bar|dot)\s*\{(?P<period>[0-9]{1,20})\}"
)
_DEGREES_OF_FUNCTION = re.compile(
    r"\\(sin|cos|tan|cot|sec|csc)\s*[({]?\s*([0-9]+(?:\.[0-9]+)?)\s*"
    rf"{DEGREE_SIGN}\s*[)}}]?"
)
_NUMBERS_SIDE_BY_SIDE = re.compile(r"(?<![_^0-9])(?<!frac)(?<!frac )[0-9]\s+[0-9]")
_DOTS = re.compile(r"\\(?:ldots|dots|cdots|dotsc|dotsb)(?![a-z])|\.\.\.")
_ONE_LINE = re.compile(
    r"\\begin\{(aligned|align\*?|gathered|split|equation\*?)\}"
    r"((?:[^\\]|\\(?!\\|begin|end)){0,1000})\\end\{\1\}"
)
_SIZE = re.compile(r"\\(?:large|Large|LARGE|huge|Huge|small)(?![a-z])\s*")
_SET_BUILDER = re.compile(
    r"\A(?:\\left\s*)?\\\{\s*[A-Za-z]\s*(?:\\in\s*\\(?:mathbb|mathbf)\s*\{?\s*R\s*\}?\s*)?"
    r"(?:\\mid|\\middle\s?\||\||:)(?![a-z])(?P<condition>[^{}]{1,200}?)(?:\\right\s*)?\\\}\Z"
)
_PLAIN_TEXT = re.compile(rf"\A{_STYLES}\s*\{{\s*([(\[][-+0-9.,;\s/]{{1,100}}[)\]])\s*\}}\Z")
_HALF_OPEN = re.compile(r"\A\s*(?:\\left\s*)?([\[\]])([^\[\]]{1,200}?)(?:\\right\s*)?([\[\]])\s*\Z")
_PLUS_MINUS = re.compile(r"\\pm(?![a-z])")
_BRACKETS = (("{", "}"), ("(", ")"), ("[", "]"))
_DOLLAR = re.compile(r"(?<!\\)\$")
_LIMIT = 4000


def latex_of(text: str) -> str | None:
    """Return an answer as LaTeX for math-verify; None if it would drop a part of it."""
    if len(text) > _LIMIT:
        return None
    if has_open_dollar(text):
        return None
    text = _from_unicode(text).strip()
    text = _SET_BUILDER.sub(r"\1", text)
    text = _PLAIN_TEXT.sub(r"\1", text)
    text = _HALF_OPEN.sub(_with_round_brackets, text)
    text = _ONE_LINE.sub(lambda match: match[2].replace("&", ""), text)
    text = _SIZE.sub("", text)
    text = _without_label(text)
    text = text.strip().rstrip(".") if not text.endswith("..") else text
    text = _SUBSCRIPT_TEXT.sub(r"_{\1}", text)
    text = _CONSTANT.sub(r"\1", text)
    text = _named(text)
    text = _REPEATING.sub(_repeating_fraction, text)
    text = _AND_OR.sub(", ", text)
    text = _without_units(text)
    text = _both_signs(text)
    text = _without_wide_spaces(text)
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text)
    text = text.replace("\\varnothing", "\\emptyset")
    text = text.replace("\\langle", "(").replace("\\rangle", ")")
    text = _DEGREES_OF_FUNCTION.sub(r"\\\1(\\frac{\2 \\pi}{180})", text)
    if _DOTS.search(text) or _has_inner_text(text) or _NUMBERS_SIDE_BY_SIDE.search(text):
        return None
    return text.strip()


def _with_round_brackets(match: re.Match[str]) -> str:
    """Return an interval such as `[2, 5[` with a round bracket where it is open."""
    first = "(" if match[1] == "]" else "["
    last = ")" if match[3] == "[" else "]"
    return f"{first}{match[2]}{last}"


def _both_signs(text: str) -> str:
    r"""Return a formula with `\pm` in a fraction or a bracket as two, which is how it is read."""
    parts = _PLUS_MINUS.split(text)
    if len(parts) != 2 or "," in text or "\\mp" in text:
        return text
    before, after = parts
    depth = sum(before.count(opening) - before.count(closing) for opening, closing in _BRACKETS)
    if depth == 0:
        return text
    name, equals, before = before.rpartition("=")
    if "=" in name or "=" in after:
        return text
    return f"{name}{equals}{before}+{after}, {name}{equals}{before}-{after}"


def has_open_dollar(text: str) -> bool:
    """Return whether a dollar sign closes a formula that did not begin in the text."""
    signs = [match.start() for match in _DOLLAR.finditer(text)]
    return len(signs) % 2 == 1 and text.rstrip().endswith("$")


def _from_unicode(text: str) -> str:
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match[0].translate(_RAISED)}}}", text)
    text = _SUBSCRIPT.sub(lambda match: f"_{{{match[0].translate(_LOWERED)}}}", text)
    text = _ROOT_SIGN.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text)
    return text.translate(_CHARACTERS)


def _without_label(text: str) -> str:
    label = _PRE_LABEL.match(text)
    if label is None or not _LABEL_MARK.search(label[0]):
        return text
    rest = text[label.end() :]
    # The brace of \text{Answer: 34} closes behind the answer.
    if label[0].count("{") > label[0].count("}") and rest.endswith("}"):
        rest = rest[:-1]
    return rest or text


def _named(text: str) -> str:
    """Return the text with functions and constants as LaTeX commands."""
    text = re.sub(rf"{_STYLES}\s*\{{\s*({'|'.join(_OPERATORS)})\s*\}}", r"\\\1 ", text)
    text = _INFINITY.sub(r"\\infty ", text)
    text = _BARE_FUNCTIONS.sub(lambda match: _NAMES.get(match[1], f"\\{match[1]}") + " ", text)
    text = text.replace("\\sqrt (", "\\sqrt(").replace("\\exp (", "\\exp(")
    text = _ROOT_IN_PARENTHESES.sub(r"\\sqrt{\1}", text)
    return _STARS.sub("^", text)


def _repeating_fraction(match: re.Match[str]) -> str:
    r"""Return `0.1\overline{6}` as a fraction."""
    fixed = match["fixed"]
    period = match["period"]
    scale = 10 ** len(fixed)
    value = Fraction(int(match["whole"] + fixed), scale)
    value += Fraction(int(period), scale * (10 ** len(period) - 1))
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _without_units(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        return match[0] if _NO_UNIT.search(match["unit"]) else " "

    text = _BEHIND_NUMBER.sub(replace, text)
    last = _LAST_UNIT.search(text)
    if last is None or _NO_UNIT.search(last["unit"]) or not text[: last.start()].strip():
        return text
    return text[: last.start()]


def _without_wide_spaces(text: str) -> str:
    """Return the text with a comma for a wide space between two answers, else with a space."""
    if "quad" not in text:
        return text
    text = _SPACING_BETWEEN.sub(", ", text)
    return _SPACING.sub(" ", text)


def _has_inner_text(text: str) -> bool:
    """Return whether words stand between formulas; math-verify drops all that follows them."""
    if "\\text" not in text and "\\mathrm" not in text and "\\mbox" not in text:
        return False
    return _TEXT.fullmatch(text) is None
