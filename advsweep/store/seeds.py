"""Seeds of stored runs, which of imported runs may be unknown: as keys of pairs and as text."""

from __future__ import annotations

from dataclasses import dataclass

# How every command writes the seed of a run that nobody knows.
UNKNOWN_SEED = "?"


@dataclass(frozen=True, order=True)
class UnknownSeed:
    """The seed of a run that nobody knows: equal to that of no other run, so that no two pair."""

    run_id: int

    def __str__(self) -> str:
        return f"{UNKNOWN_SEED} (run {self.run_id})"


# What runs are paired by.
SeedKey = int | UnknownSeed


def seed_order(key: SeedKey) -> tuple[bool, int]:
    """Return the sort key of seeds: known ones ascending, then the others by run."""
    if isinstance(key, UnknownSeed):
        return True, key.run_id
    return False, key


def show_seed(seed: int | None) -> str:
    """Return a seed as commands print it."""
    return UNKNOWN_SEED if seed is None else str(seed)
