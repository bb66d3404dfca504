"""Makes text from stores, logs, data files and models safe to show.

Terminals obey control characters: an escape sequence can set the clipboard or hide output.
Characters that change the direction of text, or that have no width, make text look like other
text. All of them are replaced by escapes, such as `\\x1b` and `\\u202e`:

    printable(text)         keeps line breaks and tabs: a prompt, a log
    printable_line(text)    escapes those as well: a name, a cell, an error in a list
    printable_json(text)    uses JSON's own escapes, which keep the values of a document
    spreadsheet_cell(value) also prevents formulas, in a value of a CSV file
    markdown_text(text)     also prevents images, links, HTML and table cells, in Markdown

Escape first, then add styles. Only the standard library is imported here.

Secrets in command lines and URLs are masked by `redacted` and its kin.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

# Controls, formats (direction, zero width), surrogates, and separators of lines and paragraphs.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# Characters that start a formula in some spreadsheet; full-width signs do, too.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

# Characters with a meaning in GitHub's Markdown. An underscore inside a word has none, and a link
# needs its `]` and `(` side by side.
_MARKDOWN = re.compile(r"[\\`*|~$]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
# A `<` before a space does not start a tag: pass@8[a] < pass@8[b].
_TAG = re.compile(r"<(?! )")


class _Escapes(dict[int, str]):
    """A table for `str.translate`, filled with each character that is looked up."""

    def __init__(self, kept: str) -> None:
        super().__init__((ord(character), character) for character in kept)

    def __missing__(self, code: int) -> str:
        character = chr(code)
        # U+FFFE, U+FFFF and their like in other planes are no characters; XML forbids them.
        plain = unicodedata.category(character) not in _CATEGORIES and code & 0xFFFE != 0xFFFE
        self[code] = character if plain else self.escape(code)
        return self[code]

    def escape(self, code: int) -> str:
        if code <= 0xFF:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class _LineEscapes(_Escapes):
    def escape(self, code: int) -> str:
        return _SHORT.get(chr(code)) or super().escape(code)


class _JsonEscapes(_Escapes):
    def escape(self, code: int) -> str:
        units = chr(code).encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


_TEXT = _Escapes("\n\t")
_LINE = _LineEscapes("")
_JSON = _JsonEscapes("\n\t")


def printable(text: str) -> str:
    r"""Escape control characters other than line breaks and tabs.

    >>> printable("a\x1b]52;c;eA==\x07b\nc")
    'a\\x1b]52;c;eA==\\x07b\nc'
    """
    return text if text.isprintable() else text.translate(_TEXT)


def printable_line(text: str) -> str:
    r"""Escape control characters, line breaks and tabs, so that the text is one line.

    >>> printable_line("a\nb")
    'a\\nb'
    """
    return text if text.isprintable() else text.translate(_LINE)


def printable_json(document: str) -> str:
    r"""Replace control characters in a JSON document by JSON's escapes, such as `\u202e`."""
    return document if document.isprintable() else document.translate(_JSON)


def printable_values(value: Any) -> Any:
    """Escape every text in nested plain values, and line breaks in keys; tuples become lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_line(str(key)): printable_values(item) for key, item in value.items()}
    return [*map(printable_values, value)] if isinstance(value, (list, tuple)) else value


def markdown_text(text: str) -> str:
    r"""Escape a text for Markdown, for the middle of a line or a cell of a table.

    >>> markdown_text("a_grae|![x](http://evil) <b>`")
    'a_grae\\|![x\\](http://evil) &lt;b>\\`'
    """
    text = printable_line(" ".join(text.splitlines()))
    text = _TAG.sub("&lt;", _ENTITY.sub("&amp;", text))
    return _MARKDOWN.sub(r"\\\g<0>", text)


def spreadsheet_cell(value: Any) -> Any:
    """Prepare a value for a CSV file: put `'` before a text that would be read as a formula.

    Control characters of a text are escaped. Numbers, and texts that are numbers, stay unchanged.

    >>> [spreadsheet_cell(value) for value in ("=1+1", "-0.5", -0.5, "grpo")]
    ["'=1+1", '-0.5', -0.5, 'grpo']
    """
    if not isinstance(value, str):
        return value
    if value.startswith(_FORMULA_STARTS) and not _is_number(value):
        value = f"'{value}"
    return printable(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    # Python allows spaces around a number; a spreadsheet may not.
    return text == text.strip()


MASK = "***"

# Names of secrets end like password, PGPASSWORD, HF_TOKEN, api_key, but not `model.pad_token`.
_NAME = r"(?:passw(?:or)?d|passphrase|pwd|secret|(?<!pad_)token|credentials?|key)"

_SECRET_NAME = re.compile(rf".*{_NAME}", re.IGNORECASE | re.DOTALL)

# Narrower: a setting of this name is a secret, and not the name of a column or of a symbol, as
# `prompt_key` and `eos_token` are.
_SECRET_SETTING = re.compile(
    r".*(?:passw(?:or)?d|passphrase|secret|credentials?)"
    r"|(?:.*[_.-])?(?:api|access|auth|private|wandb|hf|openai|anthropic)[_-]?(?:key|token)"
    r"|(?:.*[_.-])?(?:hub|bearer|github)[_-]?token|token",
    re.IGNORECASE | re.DOTALL,
)

# An option whose value is the next argument.
_OPTION = re.compile(rf"--?[\w.-]*{_NAME}", re.IGNORECASE)

# NAME=VALUE and NAME: VALUE up to the end, as a value may contain any character.
_ASSIGNMENT = re.compile(
    rf"((?:^|[\s{{(\[,:'\"+])[\w.@/-]*{_NAME}['\"]?\s*[=:]\s*).+", re.IGNORECASE | re.DOTALL
)

_PARAMETER = re.compile(r"([?&;])([^=&;]+)=[^&]+")

# As SQLAlchemy parses it: everything up to the next @ is the password, slashes included. A password
# with an unquoted @ makes the URL wrong, and is masked nevertheless.
_PASSWORD = re.compile(r"(://[^:/?#@]*):[^@]*@(?:[^/?#@]*@)*")

_USER = re.compile(r"([\w+.-]+)://[^:/?#@\s]+@")

# USER:PASSWORD@ of a URL that is mistyped, without the `://` that `_PASSWORD` asks for.
_BARE_PASSWORD = re.compile(r"((?:^|[=/:])[\w.%+-]+):[^@/:\s][^@\s/]*@(?=\w)")

# Texts shorter than this are masked only as parts of the argument that has them: "a" is in
# every sentence.
_SHORTEST_SECRET = 4


def is_secret_setting(name: str) -> bool:
    """Whether a setting of this name holds a password, a key or a token.

    >>> [is_secret_setting(name) for name in ("api_key", "HF_TOKEN", "prompt_key")]
    [True, True, False]
    """
    return _SECRET_SETTING.fullmatch(name) is not None


def redacted(argument: str) -> str:
    """Replace each secret in an argument or URL by `***`.

    Secrets are passwords in URLs; user names in URLs other than a store's, since access tokens
    are given there; and values of options, overrides and URL parameters whose name ends in
    password, token, key, secret or the like.
    """
    argument = _PASSWORD.sub(rf"\1:{MASK}@", argument)
    argument = _BARE_PASSWORD.sub(rf"\1:{MASK}@", argument)
    argument = _USER.sub(_without_user, argument)
    argument = _PARAMETER.sub(_without_value, argument)
    return _ASSIGNMENT.sub(rf"\1{MASK}", argument)


def redacted_message(message: str, arguments: Sequence[str]) -> str:
    """Mask in a message the secrets of the arguments that it may quote, as a whole or in part.

    Args:
        arguments: those of the command line, and URLs that the environment gives.
    """
    for argument in arguments:
        masked = redacted(argument)
        if masked == argument:
            continue
        message = message.replace(argument, masked)
        for secret in sorted(_secrets_in(argument, masked), key=len, reverse=True):
            message = message.replace(secret, MASK)
    return message


def _secrets_in(argument: str, masked: str) -> set[str]:
    """Return the texts that masks stand for, and these without quotes and brackets around them."""
    pattern = "(.+)".join(re.escape(part) for part in masked.split(MASK))
    match = re.fullmatch(pattern, argument, re.DOTALL)
    if match is None:
        return set()
    secrets = set()
    for text in match.groups():
        secrets |= {text, unquote(text), text.strip("'\"{}[](), ")}
    return {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}


def redacted_arguments(arguments: Sequence[str]) -> str:
    """Join a command line, quoted for a shell, with `***` in place of each secret."""
    shown = []
    follows = False
    for argument in arguments:
        shown.append(MASK if follows else redacted(argument))
        follows = _OPTION.fullmatch(argument) is not None
    return shlex.join(shown)


def redacted_command(command: str) -> str:
    """Mask the secrets of a command line given as text; without any it stays unchanged."""
    try:
        arguments = shlex.split(command)
    except ValueError:
        return redacted(command)
    masked = redacted_arguments(arguments)
    return command if masked == shlex.join(arguments) else masked


def _without_user(found: re.Match[str]) -> str:
    if found[1].partition("+")[0] in ("postgresql", "postgres"):
        return found[0]
    return f"{found[1]}://{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    # The name may be percent-encoded, as in `p%61ssword`.
    if not _SECRET_NAME.fullmatch(unquote(found[2])):
        return found[0]
    return f"{found[1]}{found[2]}={MASK}"
