"""Numbers for the states of environments, which estimators compare."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def number_state(state: Any) -> int:
    """Return a number of 64 bits for a state, equal for equal states in every process.

    Args:
        state: text, numbers, or lists and mappings of these.

    Raises:
        TypeError, ValueError: it is no such plain data.
    """
    text = json.dumps(state, sort_keys=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
