"""Masks secrets in command lines and URLs, for what is stored and shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import unquote

MASK = "***"

# Names of secrets end like password, PGPASSWORD, HF_TOKEN, api_key, but not `model.pad_token`.
_NAME = r"(?:passw(?:or)?d|passphrase|pwd|secret|(?<!pad_)token|credentials?|key)"

_SECRET_NAME = re.compile(rf".*{_NAME}", re.IGNORECASE | re.DOTALL)

_OPTION = re.compile(rf"--?[\w.-]*{_NAME}", re.IGNORECASE)
"""An option whose value is the next argument."""

_ASSIGNMENT = re.compile(
    rf"((?:^|[\s{{(\[,:'\"+])[\w.@/-]*{_NAME}['\"]?\s*[=:]\s*).+", re.IGNORECASE | re.DOTALL
)
"""NAME=VALUE and NAME: VALUE up to the end, as a value may contain any character."""

_PARAMETER = re.compile(r"([?&;])([^=&;]+)=[^&]+")

# As SQLAlchemy parses it: everything up to the next @ is the password, slashes included. A password
# with an unquoted @ makes the URL wrong, and is masked nevertheless.
_PASSWORD = re.compile(r"(://[^:/?#@]*):[^@]*@(?:[^/?#@]*@)*")

_USER = re.compile(r"([\w+.-]+)://[^:/?#@\s]+@")


def redacted(argument: str) -> str:
    """Replace each secret in an argument or URL by `***`.

    Secrets are passwords in URLs; user names in URLs other than a store's, since access tokens
    are given there; and values of options, overrides and URL parameters whose name ends in
    password, token, key, secret or the like.
    """
    argument = _PASSWORD.sub(rf"\1:{MASK}@", argument)
    argument = _USER.sub(_without_user, argument)
    argument = _PARAMETER.sub(_without_value, argument)
    return _ASSIGNMENT.sub(rf"\1{MASK}", argument)


def redacted_arguments(arguments: Sequence[str]) -> str:
    """Join a command line, quoted for a shell, with `***` in place of each secret."""
    shown, follows = [], False
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
