"""Masks secrets in command lines and URLs, for what is stored and shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import unquote

MASK = "***"

# How the name of a secret ends: password, PGPASSWORD, HF_TOKEN, api_key. `model.pad_token` is none.
_NAME = r"(?:passw(?:or)?d|passphrase|pwd|secret|(?<!pad_)token|credentials?|key)"

_SECRET_NAME = re.compile(rf".*{_NAME}", re.IGNORECASE | re.DOTALL)

_OPTION = re.compile(rf"--?[\w.-]*{_NAME}", re.IGNORECASE)
"""An option whose value is the next argument."""

_ASSIGNMENT = re.compile(
    rf"((?:^|[\s{{(\[,:'\"+])[\w.@/-]*{_NAME}['\"]?\s*[=:]\s*).+", re.IGNORECASE | re.DOTALL
)
"""NAME=VALUE and NAME: VALUE, up to the end: a value may contain any character."""

_PARAMETER = re.compile(r"([?&;])([^=&;]+)=[^&]+")

# As SQLAlchemy reads it: all up to the next @ is the password, slashes included. A password that
# contains an unquoted @ is masked as well, though the URL is wrong then.
_PASSWORD = re.compile(r"(://[^:/?#@]*):[^@]*@(?:[^/?#@]*@)*")

_USER = re.compile(r"([\w+.-]+)://[^:/?#@\s]+@")


def redacted(argument: str) -> str:
    """An argument or URL with `***` in place of each secret.

    Secrets are passwords in URLs; the users of URLs other than those of stores, as access tokens
    stand there; and the values of options, overrides and parameters of URLs whose name ends in
    password, token, key, secret or the like.
    """
    argument = _PASSWORD.sub(rf"\1:{MASK}@", argument)
    argument = _USER.sub(_without_user, argument)
    argument = _PARAMETER.sub(_without_value, argument)
    return _ASSIGNMENT.sub(rf"\1{MASK}", argument)


def redacted_arguments(arguments: Sequence[str]) -> str:
    """A command line, quoted for a shell, with `***` in place of each secret."""
    shown, follows = [], False
    for argument in arguments:
        shown.append(MASK if follows else redacted(argument))
        follows = _OPTION.fullmatch(argument) is not None
    return shlex.join(shown)


def redacted_command(command: str) -> str:
    """The same for a command line as one text, which stays as it is where no secret is in it."""
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
    # A name may be quoted, as in `p%61ssword`.
    if not _SECRET_NAME.fullmatch(unquote(found[2])):
        return found[0]
    return f"{found[1]}{found[2]}={MASK}"
