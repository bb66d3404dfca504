"""What the documents say of the papers' claims."""

from __future__ import annotations

import math
from pathlib import Path

import page_queries
import yaml

MAP = Path(__file__).resolve().parent / "map.yaml"


def papers() -> list[float]:
    """How many papers the map of claims has."""
    return [len(yaml.safe_load(MAP.read_text("utf-8")))]


def verdicts(verdict: str) -> list[float]:
    """How many of the claims that an exact check does not judge have a verdict."""
    ledger = page_queries.table("papers/ledger.csv")
    return [int(((ledger["judge"] != "exact") & (ledger["verdict"] == verdict)).sum())]


def exact(verdict: str) -> list[float]:
    """How many of the exact checks have a verdict."""
    ledger = page_queries.table("papers/ledger.csv")
    return [int(((ledger["judge"] == "exact") & (ledger["verdict"] == verdict)).sum())]


def excluded(part: str) -> list[float]:
    """The smallest difference, in thousandths, that the 95 % interval of a part excludes."""
    [low] = page_queries.value("papers/ledger.csv", f"part={part}", "low")
    [high] = page_queries.value("papers/ledger.csv", f"part={part}", "high")
    return [math.ceil(1000 * max(-low, high)) / 1000]


def found(part: str) -> list[float]:
    """What a study found of a part of a claim, in the claimed direction."""
    return page_queries.value("papers/ledger.csv", f"part={part}", "found")
