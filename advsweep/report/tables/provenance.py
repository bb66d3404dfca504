"""Where the numbers of a report come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advsweep.errors import counted
from advsweep.names import LEARNING_RATE, PROCESSOR, VECTOR_CAPABILITY
from advsweep.report.data.labels import show_key
from advsweep.report.tables.types import Report
from advsweep.store import RunRecord, Store
from advsweep.store.imported import is_imported

NOT_MATCHED = "none"

_PROCESSOR_NUMBERS = ("family", "model", "stepping")

_SHOWN = ("advsweep", "python", "torch")  # JSON has all versions


def provenance(report: Report) -> list[str]:
    """Describe in a few lines where the numbers come from."""
    facts = report.provenance
    where = facts["store"]
    if facts["sweep"] is not None:
        where += f", sweep {facts['sweep']}"
    times = [time for time in (facts["first"], facts["last"]) if time is not None]
    days = sorted({time.date().isoformat() for time in times})
    made = f", made {' to '.join(days)}" if days else ""
    lines = [f"{where}: {counted(facts['runs'], 'run')}{made}"]
    lines += map(_describe_protocol, facts["evaluations"])
    programs = _describe_programs(facts)
    if programs:
        lines.append("made with " + ", ".join(programs))
    if facts["hardware"]:
        lines.append("made on " + "; ".join(facts["hardware"]))
    return lines


def _describe_protocol(protocol: Mapping[str, Any]) -> str:
    """Say how an evaluation was made."""
    settings = {k: v for k, v in protocol.items() if k not in ("task", "problems")}
    how = ", ".join(f"{key}={show_key(value)}" for key, value in settings.items())
    problems = counted(show_key(protocol["problems"]), "problem")
    return f"evaluated on {problems} of {show_key(protocol['task'])}: {how}"


def _describe_programs(facts: Mapping[str, Any]) -> list[str]:
    """Name the code that made the runs, and its versions."""
    programs = []
    if facts["commits"]:
        commits = "/".join(commit[:10] for commit in facts["commits"])
        changes = "local changes" if facts["dirty"] else "no local changes"
        programs.append(f"commit {commits} ({changes})")
    versions = facts["versions"]
    return programs + [f"{name} {'/'.join(versions[name])}" for name in _SHOWN if name in versions]


def describe_provenance(
    store: Store,
    sweep: str | None,
    runs: Sequence[RunRecord],
    evaluations: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Collect what the store knows about how some runs were made.

    Returns:
        `store`: its path as it was given, or its URL without a password; `sweep`: None for other
        sets of runs; `runs`: how many; `evaluations`: for each measured task its name, the number
        of problems, and how samples were drawn; `learning_rates`: for each method of matching
        them, `match` (`none` without matching), the name of its `reference`, and the `rates` at
        the end of training by estimator; `commits`, `versions` and `hardware` that made the runs,
        sorted; `dirty` if any commit had local changes; `first` and `last`: when the first run
        started and the last one finished, in UTC.
    """
    environments = list(store.runs.environments([run.id for run in runs]).values())
    states = [environment["git"] for environment in environments if environment.get("git")]
    return {
        "store": store.name,
        "sweep": sweep,
        "runs": len(runs),
        "evaluations": list(evaluations),
        "learning_rates": _learning_rates(store, runs),
        "commits": sorted({state["commit"] for state in states}),
        "dirty": any(state["dirty"] for state in states),
        "versions": _collect_versions(environments),
        "hardware": sorted(set(map(_describe_machine, environments)) - {""}),
        "first": min((run.started for run in runs if run.started), default=None),
        "last": max((run.finished for run in runs if run.finished), default=None),
    }


def _collect_versions(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the versions of each program in some environments, both sorted."""
    versions: dict[str, set[str]] = {}
    for environment in environments:
        programs = {key: environment.get(key) for key in ("advsweep", "python")}
        programs |= environment.get("packages", {})
        for name, version in programs.items():
            if version:
                versions.setdefault(name, set()).add(version)
    return {name: sorted(versions[name]) for name in sorted(versions)}


def _describe_machine(environment: Mapping[str, Any]) -> str:
    """Describe processor, cores and memory, as far as they are known."""
    parts = [_describe_processor(environment)]
    cores = environment.get("cores")
    if cores:
        parts.append(f"{cores} cores")
    memory = environment.get("memory_bytes")
    if memory:
        parts.append(f"{memory / 2**30:.0f} GiB")
    return ", ".join(part for part in parts if part)


def _describe_processor(environment: Mapping[str, Any]) -> str:
    """Describe a processor: `AMD EPYC (AuthenticAMD family 25 model 1 stepping 1, torch AVX2)`.

    Older stores have its name alone.
    """
    name = str(environment.get("cpu") or "")
    facts = environment.get(PROCESSOR)
    if not isinstance(facts, Mapping):
        return name
    identity = [facts["vendor"]] if "vendor" in facts else []
    identity += [f"{key} {facts[key]}" for key in _PROCESSOR_NUMBERS if key in facts]
    details = [" ".join(identity)] if identity else []
    if VECTOR_CAPABILITY in facts:
        details.append(f"torch {facts[VECTOR_CAPABILITY]}")
    if not details:
        return name
    return f"{name or 'processor'} ({', '.join(details)})"


def _learning_rates(store: Store, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return how learning rates were matched, and those at the end of training by estimator."""
    last = store.metrics.last_values([run.id for run in runs], [LEARNING_RATE])
    by_match: dict[tuple[str, str | None], dict[str, set[float]]] = {}
    for run in runs:
        values = last.get(run.id, {}).values()
        if is_imported(run.config) and not values:
            continue
        by_estimator = by_match.setdefault(_match_of(run), {})
        by_estimator.setdefault(run.estimator, set()).update(values)
    return [
        {
            "match": match,
            "reference": reference,
            "rates": {estimator: sorted(rates) for estimator, rates in by_estimator.items()},
        }
        for (match, reference), by_estimator in by_match.items()
    ]


def _match_of(run: RunRecord) -> tuple[str, str | None]:
    """Return how a run's learning rate was matched, and the name of what it was matched to."""
    optimizer = {} if is_imported(run.config) else run.config.get("optimizer", {})
    match = optimizer.get("match", NOT_MATCHED)
    reference = None if match == NOT_MATCHED else optimizer["match_reference"]["name"]
    return match, reference
