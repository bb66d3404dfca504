"""How the JSON columns of a store are decoded: what replicates share is decoded once.

A sweep has thousands of runs whose configs differ in the seed alone, which is their last key.
Decoding each would take most of the time that reading these runs takes.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

_SEED_AT_END = re.compile(r', "seed": (0|[1-9][0-9]{0,18})\}\Z')

# Characters of the longest such tail.
_TAIL = 32

# Different settings whose decoded configs are kept.
_SETTINGS = 1024


def decode_json(text: str) -> Any:
    """Decode the text of a JSON column.

    Configs that differ in their seed alone share the nodes below the top: never change them.
    """
    tail = _SEED_AT_END.search(text, max(0, len(text) - _TAIL))
    if tail is None:
        return json.loads(text)
    setting = _decode_setting(text[: tail.start()])
    return {**setting, "seed": int(tail[1])}


@functools.lru_cache(maxsize=_SETTINGS)
def _decode_setting(head: str) -> dict[str, Any]:
    """Decode a config that ends before its seed."""
    # The closing brace of the whole text is that of the outermost mapping.
    setting: dict[str, Any] = json.loads(head + "}")
    return setting
