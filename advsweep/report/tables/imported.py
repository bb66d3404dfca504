"""Notes about imported runs: where they come from, and what their numbers mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from advsweep.store import RunRecord, Store
from advsweep.store.imported import IMPORTED, is_imported

_SHOWN = 6  # notes of one format
_LONGEST = 300  # characters of a note


def describe_imported(store: Store, runs: Sequence[RunRecord]) -> list[str]:
    """Returns a sentence for each format of which runs were imported; none without any."""
    imported = [run for run in runs if is_imported(run.config)]
    if not imported:
        return []
    environments = store.runs.environments([run.id for run in imported])
    counts: Counter[str] = Counter()
    notes: dict[str, dict[str, None]] = {}
    for run in imported:
        form = str(run.config["backend"].get("format", "unknown"))
        counts[form] += 1
        notes.setdefault(form, {}).update(dict.fromkeys(_notes(environments.get(run.id, {}))))
    sentences = []
    for form, count in sorted(counts.items()):
        shown = [note[:_LONGEST] for note in list(notes[form])[:_SHOWN]]
        more = [f"{len(notes[form]) - _SHOWN} more"] if len(notes[form]) > _SHOWN else []
        text = f"imported from {form}: {count} of {len(runs)} runs, by another trainer"
        sentences.append("; ".join([text, *shown, *more]))
    return sentences


def _notes(environment: Mapping[str, Any]) -> list[str]:
    described = environment.get(IMPORTED)
    notes = described.get("notes") if isinstance(described, Mapping) else None
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
