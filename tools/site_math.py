"""Formulas of the site: the Unicode equations of docstrings as LaTeX, which KaTeX typesets.

Equations of docstrings are short and have words in them: `Aᵢ = dᵢ/δ if dᵢ < 0`. Words outside
brackets stay text, where a line can break; what is between them becomes LaTeX. The page has the
Unicode too, for the search and for readers without JavaScript. KaTeX reads Greek letters, accents
and Unicode's subscripts and superscripts as they are.
"""

from __future__ import annotations

import html
import re

# A character of the private use area stands for a part that is LaTeX already, or a text in it.
_PART, _TEXT = "[\ue000-\uefff]", "[\uf000-\uf8ff]"
_SCRIPT = "[\u0302²³¹\u02b0-\u02b8\u1d2c-\u1dbf\u2070-\u209f\u2c7c]"
_BASE = rf"(?:\d+(?:\.\d+)?|(?!{_SCRIPT})[^\W\d_]|{_PART})"
_ATOM = rf"{_BASE}(?:{_SCRIPT}|[_^]{_BASE}|{_PART})*"
_ATOMS = rf"{_ATOM}(?: {_ATOM})*"
_BRACKETS = re.compile(r"\(([^(){}|]*)\)|\{([^(){}|]*)\}|\|([^(){}|]*)\|")
_NAME = r"(?:`[^`]+`|[A-Za-z]{2,}(?:['_-][A-Za-z0-9]+)*|[A-Za-z]\d\b|\ba(?= [A-Za-z]{2}))"
# Before a bracket every name is a function; these are without one, as in "min r" or "mean_t x".
_QUANTITY = r"(?:^|(?<=,  ))[A-Za-z]{2,}(?= =)|[A-Z]{2,}(?= [=<>≤≥])"
_FUNCTION = r"\b(?:exp|log|max|mean|med|min|sgn)(?=_\w\b| [^\W\d](?![A-Za-z])| exp\b|√)"
_SPACE = "\uf8ff"
_LATEX = str.maketrans(
    {"·": r"\cdot ", "½": r"\tfrac12 ", "‖": r"\,\Vert\,", "Σ": r"\sum ", ",": r",\allowbreak "}
)
_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "\\`*_{}[]<>()#+-.!|&\"'"}


def formula(text: str) -> str:
    """Return an equation as HTML without a character that has a meaning in Markdown."""
    equation = _Equation()
    flat = re.sub(
        _QUANTITY,
        lambda name: equation.keep(rf"\text{{{name[0]}}}", name[0]),
        equation.flatten(text),
    )
    made = ""
    for place, part in enumerate(re.split(rf"({_NAME}|[,;:.'])", flat)):
        source, shown = equation.source(part).translate(_ENTITIES), part.strip()
        if place % 2 or not shown:
            made += re.sub("&#96;(.+)&#96;", r"<code>\1</code>", source)
            continue
        # A last operator keeps its space if something is beside it.
        latex = equation.latex(shown) + "{}" * shown.endswith(("+", "-", "·"))
        before, after = part.split(shown)
        tex = latex.translate(_ENTITIES)
        made += f'{before}<span class="math" data-tex="{tex}">{source.strip()}</span>{after}'
    return made


def formulas(block: str) -> str:
    """Return the lines of a docstring's block of equations as HTML; columns stay columns."""
    rows = [re.split(r"(?<![,\s]) {2,}", line.strip()) for line in block.splitlines()]
    columns = max(map(len, rows))
    parts = [f'<div class="formulas" style="--columns: {columns}">']
    for row in rows:
        cells = [
            f"<code>{cell}</code>" if re.fullmatch(r"[a-z]\w+(=\w+)?", cell) else formula(cell)
            for cell in [*row, *[""] * (columns - len(row))]
        ]
        parts.append("<div>" + "".join(f"<span>{cell}</span>" for cell in cells) + "</div>")
    return "\n".join([*parts, "</div>\n"])


def plain(page: str) -> str:
    """Return a page in which the equations are Unicode again."""
    columns = page.replace("</span><span>", "    ")
    text = re.sub(r"</?(?:span|div)[^>]*>", "", columns)
    return re.sub(r"&#\d+;", lambda entity: html.unescape(entity[0]), text)


class _Equation:
    """An equation in which characters stand for parts that are LaTeX already."""

    def __init__(self) -> None:
        # Of each: its LaTeX, its Unicode, and the LaTeX between its brackets.
        self.parts = {_SPACE: (r"\,", " ", "")}

    def keep(self, latex: str, source: str = "", inner: str = "", first: int = 0xE000) -> str:
        """Return a character that stands for a part."""
        mark = chr(first + len(self.parts))
        self.parts[mark] = (latex, source, inner)
        return mark

    def source(self, text: str) -> str:
        """Return the Unicode of what a text stands for."""
        return "".join(self.parts.get(mark, ("", mark))[1] for mark in text)

    def flatten(self, text: str) -> str:
        """Return an equation in which brackets, functions and written subscripts are parts."""
        text = re.sub(
            r"(?<=\d)e(-\d+)", lambda power: self.keep(rf"\cdot 10^{{{power[1]}}}", power[0]), text
        )
        text = re.sub(
            r"(?<![A-Za-z][A-Za-z])_([A-Za-z]{2,})",
            lambda found: "_" + self.keep(rf"\text{{{found[1]}}}", found[1]),
            text,
        )
        while found := _BRACKETS.search(text):
            left, right = found[0][0], found[0][-1]
            inner = self.latex(self._functions(found[0][1:-1]))
            tall = r"\frac" in inner or r"\sum" in inner
            latex = rf"\left{left}{inner}\right{right}" if tall else f"{left}{inner}{right}"
            kept = self.keep(latex, self.source(found[0]), inner * (left != "|"))
            text = text[: found.start()] + kept + text[found.end() :]
        return self._functions(text)

    def _functions(self, text: str) -> str:
        def function(name: re.Match[str]) -> str:
            return self.keep(rf"\operatorname{{{name[0]}}}".replace("_", r"\_"), name[0])

        return re.sub(rf"{_FUNCTION}|{_NAME}(?={_PART})", function, text)

    def latex(self, flat: str) -> str:
        """Return the LaTeX of a flat equation; a/b and a b / c d become fractions."""

        def words(found: re.Match[str]) -> str:
            return self.keep(rf"\text{{{found[0]}}}".replace("_", r"\_"), first=0xF000)

        def fraction(found: re.Match[str]) -> str:
            return self.keep(rf"\frac{{{self._operand(found[1])}}}{{{self._operand(found[2])}}}")

        flat = re.sub(rf" ?{_NAME}(?: {_NAME})* ?", words, flat)
        flat = re.sub(
            rf"√({_ATOM})", lambda found: self.keep(rf"\sqrt{{{self._operand(found[1])}}}"), flat
        )
        flat = re.sub(rf"({_ATOM})/({_ATOM})", fraction, flat)
        flat = re.sub(rf"({_ATOMS}) / ({_ATOMS})", fraction, flat)
        flat = re.sub(rf"({_ATOM}) (?={_BASE})", rf"\1{_SPACE}", flat).translate(_LATEX)
        flat = re.sub(rf"(?<=[_^]){_PART}", lambda part: f"{{{self._operand(part[0])}}}", flat)
        shown = "".join(self.parts.get(mark, (mark,))[0] for mark in flat)
        return shown.replace(r"}\left", r"}\!\left")

    def _operand(self, flat: str) -> str:
        latex, _, inner = self.parts.get(flat, ("", "", ""))
        return inner or latex or self.latex(flat)
