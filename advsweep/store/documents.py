"""Reading the JSON documents of a store."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

_SEED = re.compile(r', "seed": ([0-9]+)\}\Z')
_CONFIGS = 1024


def parse_document(text: str) -> Any:
    """The value of a JSON document.

    Configs of runs that differ by their seed alone, which ends them, are parsed once: their
    mappings are new, and the nodes in them are shared. Nothing changes a node in place.
    """
    seed = _SEED.search(text, max(0, len(text) - 40))
    if seed is None:
        return json.loads(text)
    return _parse_but_seed(text[: seed.start()]) | {"seed": int(seed.group(1))}


@functools.lru_cache(maxsize=_CONFIGS)
def _parse_but_seed(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text + "}")
    return parsed
