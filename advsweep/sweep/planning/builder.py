"""The points of a space on their way to runs: composed, patched, built, errors gathered."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from advsweep.backends import EVALUATIONS
from advsweep.backends.base import Run, RunParameters
from advsweep.backends.build import NODES, ComponentCache, build_run
from advsweep.components import Component, Plain
from advsweep.config.compose import PRESET_GROUPS, Composer, Delete
from advsweep.config.conditions import Assignment
from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.registry import Registry
from advsweep.sweep.planning.no_effect import NoEffect
from advsweep.sweep.registry import SETTINGS

GROUPS: Mapping[str, Registry[Any]] = {**NODES, **SETTINGS}
"""The config groups that hold components."""

KEYS = tuple(f.name for f in dataclasses.fields(RunParameters))
"""The keys of a configuration that are no groups."""

LISTED_MESSAGES = 5


class Built(NamedTuple):
    """What the points of a space come to.

    Attributes:
        runs: one for each point.
        settings: what all of them share, by config group.
        warnings: settings that have no effect, and parameters that some components lack.
    """

    runs: list[Run]
    settings: dict[str, Any]
    warnings: list[str]


@dataclass(frozen=True)
class _Point:
    """One assignment, divided into the choice of groups and the values to patch in."""

    where: str
    choices: dict[str, str]
    values: dict[str, Any]


class Points:
    """Points of a space; `add` all, then `build` once.

    Args:
        shared: keys that are left out of the points whose components lack them, as long as
            some components have them. Any other such key is an error.
    """

    def __init__(self, composer: Composer, shared: Collection[str] = ()) -> None:
        self._composer = composer
        self._shared = frozenset(shared)
        self._points: list[_Point] = []
        self._known_keys: dict[tuple[str, str], bool] = {}
        self._known_members: dict[tuple[str, str, str], str | None] = {}
        self._errors: list[ConfigError] = []

    def __len__(self) -> int:
        return len(self._points)

    def add(self, assignment: Assignment, where: str = "") -> None:
        """Takes a point in; what is wrong with its keys and names is said by `build`.

        Args:
            where: the block that it comes from; empty where there is but one.
        """
        choices: dict[str, str] = {}
        values: dict[str, Any] = {}
        sound = True
        for key, value in assignment.items():
            if not self._knows(key, where):
                continue
            if key not in self._composer.groups:
                values[key] = value
            elif key not in PRESET_GROUPS or not (isinstance(value, Delete) or value is None):
                member = self._member(key, value, where)
                sound = sound and member is not None
                choices[key] = member or ""
        if sound:
            self._points.append(_Point(where, choices, values))

    def build(self, *, fetch: bool = True) -> Built:
        """Every point as a run, and the settings that all of them share.

        Args:
            fetch: as in `build_run`.

        Raises:
            ConfigError: what does not fit; several errors come as one message. Keys and names
                that do not exist come first, and all of them.
        """
        strange, partial = self._strange_keys()
        if unknown := [*self._errors, *strange]:
            raise _together(unknown)
        built: list[Run] = []
        errors: Counter[str] = Counter()
        warnings: Counter[str] = Counter()
        settings: Plain = {}
        cache: ComponentCache = {}
        no_effect = NoEffect()
        for point in self._points:
            try:
                composed = self._composer.compose(point.choices)
                values = _without_lacking(point.values, composed.config, partial)
                config = self._composer.patched(composed, values)
                own = {key: config[key] for key in SETTINGS if key in config}
                if own != settings:
                    settings = _same(settings, own)
                config.pop("sweep", None)
                if "evaluation.n" in values and "evaluation.k" not in values:
                    config["evaluation"], left_out = with_fitting_k(config["evaluation"])
                    warnings.update(left_out)
                run = build_run(config, fetch=fetch, cache=cache)
                warnings.update(no_effect.check(run, values))
                built.append(run)
            except ConfigError as error:
                errors[str(error)] += 1
        if errors:
            raise ConfigError(_one_message(errors, len(self._points)))
        nodes: Plain = {key: settings.get(key) for key in SETTINGS}
        return Built(
            built,
            {key: SETTINGS[key].build(node, where=key) for key, node in nodes.items()},
            [*map(str, partial.values()), *_listed(warnings, len(built), "warnings more")],
        )

    def _knows(self, key: str, where: str) -> bool:
        asked = (key, where)
        if asked not in self._known_keys:
            try:
                self._composer.check_key(key)
            except ConfigError as error:
                self._errors.append(type(error)(f"{error}{_in(where)}"))
                self._known_keys[asked] = False
            else:
                self._known_keys[asked] = True
        return self._known_keys[asked]

    def _member(self, group: str, value: Any, where: str) -> str | None:
        """The name of a group's member; None for one that does not exist."""
        asked = (group, repr(value), where)
        if asked not in self._known_members:
            try:
                self._known_members[asked] = self._found_member(group, value)
            except ConfigError as error:
                self._errors.append(type(error)(f"{error}{_in(where)}"))
                self._known_members[asked] = None
        return self._known_members[asked]

    def _found_member(self, group: str, value: Any) -> str:
        if value is None or isinstance(value, Delete):
            members = ", ".join(self._composer.members(group))
            raise ConfigError(f"{group}: expected one of {members}, as every run has one")
        return self._composer.member(group, value)

    def _strange_keys(self) -> tuple[list[ConfigError], dict[tuple[str, str], Partial]]:
        """Errors about keys that some of the chosen components do not have.

        Building the runs would complain of each in turn; here all components are known that
        a key is given to, and the message can name them.

        Returns:
            The errors, and of the keys that may be left out which components have them.
        """
        given: dict[tuple[str, str], dict[tuple[str, str], type[Component]]] = {}
        shared: dict[tuple[str, str], bool] = {}
        distinct = {(p.where, tuple(p.choices.items()), tuple(p.values)) for p in self._points}
        for where, choices, keys in distinct:
            config = self._composer.compose(dict(choices)).config
            for key in keys:
                group, *path = key.split(".")
                node = config.get(group)
                if path and group in GROUPS and isinstance(node, Mapping) and "name" in node:
                    name = str(node["name"])
                    cls = GROUPS[group].get(name, where=group)
                    found = group, path[0]
                    given.setdefault(found, {})[name, where] = cls
                    shared[found] = shared.get(found, True) and key in self._shared
        errors: list[ConfigError] = []
        partial: dict[tuple[str, str], Partial] = {}
        for (group, parameter), receivers in sorted(given.items()):
            having, lacking = _holders(parameter, receivers)
            if lacking and having and shared[group, parameter]:
                partial[group, parameter] = Partial(f"{group}.{parameter}", having, lacking)
            elif lacking:
                errors.append(_strange_key(group, parameter, receivers, having, lacking))
        return errors, partial


@dataclass(frozen=True)
class Partial:
    """A parameter that some of the chosen components have and others lack."""

    key: str
    having: Sequence[str]
    lacking: Sequence[str]

    def __str__(self) -> str:
        return (
            f"{self.key}: set for {', '.join(self.having)} alone, as "
            f"{_have(list(self.lacking))} no such parameter"
        )


def _without_lacking(
    values: Mapping[str, Any], config: Plain, partial: Mapping[tuple[str, str], Partial]
) -> Mapping[str, Any]:
    """The values of a point without the parameters that its components lack."""
    if not partial:
        return values
    kept = {}
    for key, value in values.items():
        group, _, rest = key.partition(".")
        known = partial.get((group, rest.split(".")[0]))
        if known is None or config[group]["name"] not in known.lacking:
            kept[key] = value
    return kept


def _holders(
    parameter: str, receivers: Mapping[tuple[str, str], type[Component]]
) -> tuple[list[str], list[str]]:
    """The names of those that have a parameter, and of those that lack it."""
    has = {
        name: any(field.name == parameter for field in dataclasses.fields(cls))
        for (name, _), cls in receivers.items()
    }
    return sorted(n for n in has if has[n]), sorted(n for n in has if not has[n])


def _strange_key(
    group: str,
    parameter: str,
    receivers: Mapping[tuple[str, str], type[Component]],
    having: list[str],
    lacking: list[str],
) -> ConfigError:
    """Names who was given a parameter and lacks it, and in which blocks."""
    blocks = ", ".join(sorted({where for name, where in receivers if where and name in lacking}))
    message = f"{group}.{parameter}: {_have(lacking)} no parameter '{parameter}'"
    if having:
        who = "it" if len(having) == 1 else "those"
        return ConfigError(
            f"{message}, {_have(having)}; give it to {who} alone, in a block of a sweep file or "
            f"in another sweep{_in(blocks)}"
        )
    known = {field.name for cls in receivers.values() for field in dataclasses.fields(cls)}
    hints = [nearest(parameter, known)]
    hints += sorted({cls.elsewhere for cls in receivers.values() if cls.elsewhere})
    return UnknownNameError(f"{message}; {'; '.join(hints)}{_in(blocks)}")


def _in(where: str) -> str:
    return f" (in {where})" if where else ""


def _together(errors: list[ConfigError]) -> ConfigError:
    """All of them as one, on a line each when there are several."""
    if len(errors) == 1:
        return errors[0]
    first = f"{len(errors)} keys or names of the sweep do not fit:"
    return ConfigError("\n  ".join([first, *map(str, errors)]))


def _have(names: list[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def _same(settings: Plain, own: Plain) -> Plain:
    """The settings that the points so far share with one more."""
    for key in own.keys() | settings.keys():
        if settings and own.get(key) != settings.get(key):
            raise ConfigError(
                f"{key}: expected the same for all runs of a sweep, as it is no part of a run, "
                f"got {settings.get(key)} and {own.get(key)}"
            )
    return own


def _one_message(errors: Mapping[str, int], runs: int) -> str:
    if len(errors) == 1 and runs in errors.values():
        return next(iter(errors))
    lines = [f"{sum(errors.values())} of {runs} runs cannot be built:"]
    lines += [f"  {message}" for message in _listed(errors, runs, "errors more")]
    return "\n".join(lines)


def _listed(messages: Mapping[str, int], runs: int, more: str) -> list[str]:
    """The first messages, each with its runs where these are not all."""
    lines = []
    for message, count in list(messages.items())[:LISTED_MESSAGES]:
        some = f" ({count} run{'s' if count > 1 else ''})" if count < runs else ""
        lines.append(f"{message}{some}")
    if len(messages) > LISTED_MESSAGES:
        lines.append(f"... and {len(messages) - LISTED_MESSAGES} {more}")
    return lines


def with_fitting_k(node: Mapping[str, Any]) -> tuple[Plain, list[str]]:
    """An evaluation's config with no k of pass@k above n; n stands in the place of those.

    Returns:
        The config, and what was changed: one text or none.
    """
    # Built once with the largest n, for the default of k, and all else checked later.
    default = EVALUATIONS.get(node["name"])().k
    n, ks = node["n"], node.get("k", default)
    if not isinstance(n, int) or not any(k > n for k in ks):
        return {**node}, []
    fitting = sorted({*(k for k in ks if k <= n), n})
    before, after = (", ".join(map(str, each)) for each in (ks, fitting))
    return {**node, "k": fitting}, [
        f"evaluation.k: {after} instead of {before}, as evaluation.n is {n}"
    ]
