"""Finds the program in a completion: among its fenced blocks, the last that solves the problem."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
from collections.abc import Collection
from dataclasses import dataclass

# CommonMark's opening line: at least three of a sign, and an info string. Models also write one of
# backticks behind other text, such as a tag.
_BACKTICKS = re.compile(r"(?P<before>.*?)(?P<fence>`{3,})(?P<info>[^`]*)")
_TILDES = re.compile(r"(?P<before>[\s>*+\-\d.)]*)(?P<fence>~{3,})(?P<info>.*)")
_MARKER = re.compile(r"\s*(?:[-*+>]|\d+[.)])?\s*")  # of a list or a quotation
_LANGUAGE = re.compile(r"\{?\s*\.?(?P<word>[\w+#-]*)")
_PYTHON = {"python", "python3", "python2", "py", "py3", "pypy", "pypy3", "ipython", "sage"}
_DOCUMENTS = {"markdown", "md"}
_THOUGHT = "</think>"

# Names that a module has without defining them.
_IMPLICIT = {"__name__", "__file__", "__doc__", "__builtins__", "__annotations__", *dir(builtins)}


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block.

    Attributes:
        language: the first word of its info string, in small letters; empty if there is none.
    """

    language: str
    text: str


def find_program(completion: str, names: Collection[str]) -> str:
    """Return the program of a completion; without a fenced block the whole answer.

    It is the last block of Python that defines one of the names, or for a script the last that
    needs nothing of another block; earlier blocks that define what it needs come before it.

    Args:
        names: what tests take from the program; empty for a script.
    """
    completion = completion.replace("\r\n", "\n").replace("\r", "\n")
    answer = completion.rpartition(_THOUGHT)[2]
    blocks = fenced_blocks(answer) or fenced_blocks(completion)
    if not blocks:
        return answer.strip()
    programs = [b for b in blocks if b.language in _PYTHON]
    programs = programs or [b for b in blocks if not b.language] or blocks
    modules = [module for module in map(_module, programs) if module is not None]
    if not modules:
        return programs[-1].text.strip("\n")
    place = _place(modules, set(names))
    return _with_needs(modules, place)


def fenced_blocks(text: str) -> list[CodeBlock]:
    """Return the fenced blocks of a text; the last one may have no end."""
    blocks: list[CodeBlock] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = _BACKTICKS.fullmatch(lines[number]) or _TILDES.fullmatch(lines[number])
        number += 1
        if opening is None:
            continue
        content, number = _content(lines, number, opening)
        language = _language(opening["info"])
        inner = fenced_blocks(content) if language in _DOCUMENTS else []
        blocks += inner or [CodeBlock(language, content)]
    return blocks


def _content(lines: list[str], first: int, opening: re.Match[str]) -> tuple[str, int]:
    """Return what a block contains, and the number of the line behind it."""
    before = opening["before"]
    fence = opening["fence"]
    indent = len(before) if _MARKER.fullmatch(before) else 0
    content: list[str] = []
    for number in range(first, len(lines)):
        line = lines[number]
        text = line.lstrip()
        # One that is indented more is content, such as an example in a docstring.
        is_end = text.startswith(fence) and len(line) - len(text) <= indent + 3
        if is_end:
            # A block that begins before this one has ended is read again.
            begins = bool(_language(text.lstrip(fence[0])))
            return _dedented(content, indent), number if begins else number + 1
        if line.rstrip().endswith(fence) and not text.startswith(fence) and "`" in fence:
            content.append(line.rstrip()[: -len(fence)])
            return _dedented(content, indent), number + 1
        content.append(line)
    return _dedented(content, indent), len(lines)


def _language(info: str) -> str:
    """Return the first word of an info string, as in `python title=x` and `{.python}`."""
    match = _LANGUAGE.match(info.strip())
    return match["word"].lower() if match else ""


def _dedented(lines: list[str], indent: int) -> str:
    shifted = [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines]
    return textwrap.dedent("\n".join(shifted))


@dataclass(frozen=True)
class _Module:
    """A block that is Python.

    Attributes:
        defined: names that it binds at its outermost level.
        needed: names that it reads and does not bind.
        has_effect: whether it does more than define and import.
    """

    text: str
    defined: frozenset[str]
    needed: frozenset[str]
    has_effect: bool


def _module(block: CodeBlock) -> _Module | None:
    try:
        tree = ast.parse(block.text)
        table = symtable.symtable(block.text, "<answer>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    has_effect = any(not isinstance(node, definitions) for node in tree.body)
    needed = _read_names(table) - bound - _IMPLICIT
    return _Module(block.text.strip("\n"), frozenset(bound), frozenset(needed), has_effect)


def _read_names(table: symtable.SymbolTable) -> set[str]:
    is_module = table.get_type() == "module"
    read = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (is_module or symbol.is_global())
    }
    for child in table.get_children():
        read |= _read_names(child)
    return read


def _place(modules: list[_Module], names: set[str]) -> int:
    """Return the place of the block that is the answer."""
    places = range(len(modules))
    if names:
        best = max(len(names & module.defined) for module in modules)
        defining = [p for p in places if len(names & modules[p].defined) == best > 0]
        return defining[-1] if defining else len(modules) - 1
    earlier: set[str] = set()
    alone = len(modules) - 1
    for place, module in enumerate(modules):
        if module.has_effect and not module.needed & earlier:
            alone = place
        earlier |= module.defined
    return alone


def _with_needs(modules: list[_Module], place: int) -> str:
    """Return a block behind the earlier ones that define what it needs."""
    answer = modules[place]
    chosen = [answer.text]
    needed = set(answer.needed)
    for module in reversed(modules[:place]):
        # One that defines the same is an earlier attempt.
        if needed & module.defined and not module.defined & answer.defined:
            chosen.append(module.text)
            needed = (needed - module.defined) | module.needed
    return "\n\n".join(reversed(chosen))
