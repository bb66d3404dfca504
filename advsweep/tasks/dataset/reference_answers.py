"""Checks before anything starts that the verifier can read the reference answers."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.local_files import cache_folder
from advsweep.tasks.base import Problem, Split

if TYPE_CHECKING:
    from pathlib import Path

    from advsweep.tasks.dataset.problems import Problems
    from advsweep.tasks.verifiers import Verifier
    from advsweep.tasks.verifiers.server import Job, JobResult

_EXAMPLES = 3

Ask = Callable[[Sequence["Job"]], Sequence["JobResult"]]

_checked: set[str] = set()


def check_reference_answers(problems: Problems, verifier: Verifier, ask: Ask) -> None:
    """Warn of unreadable reference answers, once per process.

    Reading thousands of expressions takes minutes, so the result is cached in a file.

    Args:
        ask: runs jobs under a deadline.

    Raises:
        ConfigError: most of them cannot be read.
    """
    key = _key(problems, verifier)
    if key in _checked:
        return
    everything = [problem for split in Split for problem in problems.splits[split]]
    bad = _unreadable(everything, verifier, ask, cache_folder() / "gold" / f"{key}.json")
    if bad:
        examples = "; ".join(f"{p.id}: {_text(p)}" for p in bad[:_EXAMPLES])
        found = (
            f"{len(bad)} of {len(everything)} reference answers cannot be read by verifier "
            f"'{verifier.name}', such as {examples}"
        )
        if 2 * len(bad) > len(everything):
            raise ConfigError(
                f"gold_column: {found}; name the column of the answers (gold_column, gold_part) "
                f"or another verifier"
            )
        warnings.warn(
            f"{found}; answers to these problems are unscorable, and evaluations leave them out",
            AdvsweepWarning,
            stacklevel=2,
        )
    _checked.add(key)


def _unreadable(
    problems: Sequence[Problem], verifier: Verifier, ask: Ask, kept: Path
) -> list[Problem]:
    quickly = [verifier.reads_quickly(p.reference) for p in problems]
    bad = [i for i, readable in enumerate(quickly) if readable is False]
    left = [i for i, readable in enumerate(quickly) if readable is None]
    if left and kept.is_file():
        bad += json.loads(kept.read_text())
    elif left:
        answers = ask([(problems[i].reference, None) for i in left])
        found = [i for i, answer in zip(left, answers, strict=True) if answer is not None]
        bad += found
        _keep(found, kept)
    return [problems[i] for i in sorted(bad)]


def _keep(found: Sequence[int], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(found))
    part.replace(path)  # atomic, because other processes may write the same file


def _key(problems: Problems, verifier: Verifier) -> str:
    material = {
        "problems": problems.digest,
        "verifier": verifier.identity(),
        "version": _version(verifier.distribution),
    }
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


@functools.cache
def _version(distribution: str | None) -> str:
    return importlib.metadata.version(distribution) if distribution else ""


def _text(problem: Problem) -> str:
    text = str(problem.reference.get("answer", problem.reference))
    if not text:
        return "no answer found"
    return repr(text if len(text) <= 60 else text[:59] + "…")
