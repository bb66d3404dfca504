"""JSON schemas (draft 2020-12) of sweep files, run configs and component files, for editors.

They are made from the registries, so they know the components of installed packages, and refuse
what building a run would refuse by the form of a file alone: keys, names, types, ranges. Rules
that join several keys are left to `advsweep sweep --dry-run`.

Departures: a choice is written as it is listed, where a config also takes capital letters.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from advsweep import __version__
from advsweep.backends import BACKENDS
from advsweep.backends.base import PARAMETERS, RunParameters
from advsweep.backends.build import NODES
from advsweep.components import (
    INFINITIES,
    Component,
    Option,
    Plain,
    field_types,
    option_of,
    parameters,
)
from advsweep.config.groups import PRESET_GROUPS, ConfigGroups
from advsweep.config.overrides import CALL
from advsweep.config.space import PublishedTime, Tune
from advsweep.errors import UnknownNameError, first_of, nearest
from advsweep.sweep.registry import GROUPS
from advsweep.tasks.controls import CONTROL

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_INTERPOLATION = {"$ref": "#/$defs/interpolation"}
_CALL = {"$ref": "#/$defs/call"}
_SHARED = {
    "interpolation": {
        "type": "string",
        "pattern": r"\$\{|^\?\?\?$",
        "description": "the value of another key, ${KEY}, or ??? for one that must be given",
    },
    "call": {
        "type": "string",
        "pattern": CALL.pattern,
        "description": "several values: choice(4,8), range(4,17,4); interval(0.1,2) in a search",
    },
}
_LISTED = 6  # members that a description names


class _Field(NamedTuple):
    """A field of one component.

    Attributes:
        forms: the schemas of which its values fit one.
        default: its default, or that of the component's file; None without one.
    """

    member: str
    forms: list[Plain]
    default: Any
    help: str


def make_schema(groups: ConfigGroups, kind: str = "sweep") -> Plain:
    """Return the schema of a kind of file.

    Args:
        kind: `sweep` for sweep files and presets (`method/NAME.yaml`), `run` for a run's whole
            config, as stores keep it, or a group for the files of its components.

    Raises:
        UnknownNameError: there is no such kind.
    """
    makers: dict[str, Callable[[ConfigGroups], Plain]] = {"sweep": _sweep_file, "run": _run}
    if kind in GROUPS:
        made = _component_file(groups, kind)
    elif kind in makers:
        made = makers[kind](groups)
    else:
        raise UnknownNameError(
            f"{kind}: no kind of file has this name; {nearest(kind, [*makers, *GROUPS])}"
        )
    title = {"sweep": "A sweep file", "run": "The config of a run"}.get(kind, f"{kind}/NAME.yaml")
    return {
        "$schema": _DRAFT,
        "title": f"{title} of advsweep",
        "description": f"Made by advsweep {__version__}: advsweep schema {kind}",
        **made,
    }


def _sweep_file(groups: ConfigGroups) -> Plain:
    """Return the schema of files that set keys for all runs and list them under `sweep`."""
    values = {key: _value(fields, of=None) for key, fields in _parameters(groups).items()}
    nodes: dict[str, Plain] = {}
    choices: dict[str, Plain] = {}
    nested: list[str] = []
    for group in sorted(groups.names - {"experiment"}):
        choices[group] = {"enum": _members(groups, group)}
        if group not in groups.registries:
            continue
        fields = _group_fields(groups, group)
        members = len(groups.registries[group].names())
        values |= {f"{group}.{key}": _value(each, of=members) for key, each in fields.items()}
        own = {key: {"$ref": f"#/$defs/{group}.{key}"} for key in fields}
        nodes[group] = _name_or_mapping(groups, group, own)
        nested += [f"{group}.{key}" for key, each in fields.items() if _is_nested(each)]
    definitions = {**_SHARED, **values}
    keys: dict[str, Plain] = {}
    for key, value in {**choices, **values}.items():
        definitions[f"swept-{key}"] = _swept(key, value, group=key in choices)
        keys[key] = {"$ref": f"#/$defs/swept-{key}"}
    inner = "|".join(key.replace(".", r"\.") for key in nested)
    definitions |= _blocks({"properties": keys, "patternProperties": {rf"^({inner})\.": {}}})
    top = {key: {"$ref": f"#/$defs/{key}"} for key in PARAMETERS}
    entries = {f"override /{group}": _nullable(choice) for group, choice in choices.items()}
    return {
        **_closed({"defaults": _defaults_list(entries), **top, **nodes, "sweep": _sweep(groups)}),
        "$defs": definitions,
    }


def _sweep(groups: ConfigGroups) -> Plain:
    name = {
        "description": "the sweep's name, for `advsweep report NAME`; default: the file's",
        "type": "string",
        "minLength": 1,
    }
    seeds = {
        "description": "how many seeds, counted from 0, or a list of seeds",
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "array", "items": {"$ref": "#/$defs/seed"}, "minItems": 1},
        ],
    }
    tuned = {key: _value([each], of=None) for key, each in _fields(Tune, {}).items()}
    tune = {
        "description": "each arm finds its own value of a key, with seeds of its own",
        **_closed({**tuned, "set": {"$ref": "#/$defs/keys"}}),
        "required": ["values"],
    }
    controls = {n: c for n, c in _component_schemas(groups, CONTROL).items() if "=none" not in n}
    names = [name.removeprefix(f"{CONTROL}=") for name in controls]
    return {
        "description": "the runs: each block is a grid, and the sweep is their union",
        **_closed(
            {
                "name": name,
                "seeds": seeds,
                "tune": _nullable(tune),
                "baseline": {
                    "description": "what the controls repeat; default: the first estimator",
                    "anyOf": [{"type": "string"}, {"type": "null"}],
                },
                "controls": {
                    "description": "arms that repeat the baseline: names, or names with fields",
                    "type": "array",
                    "items": {"anyOf": [{"enum": names}, *controls.values()]},
                },
                "outcomes": {
                    "description": "the columns of reports whose differences are tested; default: "
                    "pass@1, pass@k above chance and the entropy of correct answers",
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                },
                "common": {"$ref": "#/$defs/block"},
                "blocks": {
                    "description": "grids of runs; a list of values is swept over",
                    "type": "array",
                    "items": {"$ref": "#/$defs/block"},
                    "minItems": 1,
                },
            }
        ),
    }


def _blocks(keys: Plain) -> dict[str, Plain]:
    """Return the definitions of a block of a sweep file and of its parts.

    Args:
        keys: the keys that runs have, as `properties` and `patternProperties`.
    """

    def mapping(described: str, **more: Plain) -> Plain:
        properties = {**more, **keys["properties"]}
        return {"description": described, **_closed(properties), **keys, "properties": properties}

    printed = _fields(PublishedTime, {})
    return {
        "keys": mapping("keys with their values"),
        "condition": {"allOf": [{"$ref": "#/$defs/keys"}], "minProperties": 1},
        "block": mapping(
            "keys of a run, such as estimator or optimizer.lr, each with a value or a list",
            zip={"$ref": "#/$defs/keys"},
            when={"type": "array", "items": {"$ref": "#/$defs/when"}},
            exclude={"type": "array", "items": {"$ref": "#/$defs/condition"}},
            printed={
                "description": "the time that such a run took according to its source",
                **_closed({key: _value([each], of=None) for key, each in printed.items()}),
                "required": list(printed),
            },
        ),
        "when": {
            **mapping(
                "values of the runs for which `if` holds",
                **{"if": {"$ref": "#/$defs/condition"}, "zip": {"$ref": "#/$defs/keys"}},
            ),
            "required": ["if"],
            "minProperties": 2,
        },
    }


def _run(groups: ConfigGroups) -> Plain:
    """Return the schema of the configs that `build_run` takes."""
    definitions = dict(_SHARED)
    properties = {key: _value(fields, of=None) for key, fields in _parameters(groups).items()}
    for group in groups.registries:
        found = _component_schemas(groups, group)
        definitions |= found
        refs = [{"$ref": f"#/$defs/{key}"} for key in found]
        properties[group] = {"anyOf": [{"enum": _names(groups, group)}, *refs]}
    # A backend that starts a program of the user's completes configs.
    external = [cls.name for cls in BACKENDS.classes() if cls.external]
    named = {"properties": {"name": {"enum": external}}, "required": ["name"], "type": "object"}
    return {
        **_closed(properties),
        "required": ["backend"],
        "if": {"properties": {"backend": {"anyOf": [{"enum": external}, named]}}},
        "else": {"required": [*NODES, *PARAMETERS]},
        "$defs": definitions,
    }


def _component_file(groups: ConfigGroups, group: str) -> Plain:
    """Return the schema of `GROUP/NAME.yaml` in a folder of config groups."""
    found = _component_schemas(groups, group)
    based = {key: _value(each, of=None) for key, each in _group_fields(groups, group).items()}
    return {
        "anyOf": [
            *({"$ref": f"#/$defs/{key}"} for key in found),
            # What another file sets can be anything, so its name is unknown here.
            {
                **_closed({"defaults": _defaults_list({}), "name": {"type": "string"}, **based}),
                "required": ["defaults"],
            },
        ],
        "$defs": {**_SHARED, **found},
    }


def _component_schemas(groups: ConfigGroups, group: str) -> dict[str, Plain]:
    """Return a definition per component of a group: a mapping with its name and fields."""
    return {
        f"{group}={cls.name}": {
            "description": (inspect.getdoc(cls) or "").partition("\n")[0],
            **_closed(
                {
                    "name": {"const": cls.name},
                    **{key: _value([each], of=None) for key, each in found.items()},
                }
            ),
            "required": ["name"],
        }
        for cls in groups.registries[group].classes()
        for found in [_fields(cls, groups.member_values(group, cls.name))]
    }


def _parameters(groups: ConfigGroups) -> dict[str, list[_Field]]:
    found = _fields(RunParameters, groups.compose({}).config)
    return {key: [each] for key, each in found.items()}


def _group_fields(groups: ConfigGroups, group: str) -> dict[str, list[_Field]]:
    """Return the fields that components of a group have, by name."""
    found: dict[str, list[_Field]] = {}
    for cls in groups.registries[group].classes():
        for key, each in _fields(cls, groups.member_values(group, cls.name)).items():
            found.setdefault(key, []).append(each)
    return found


def _fields(cls: type[Component], given: Mapping[str, Any]) -> dict[str, _Field]:
    """Return the fields of a component.

    Args:
        given: values of its file, which replace defaults.
    """
    hints = field_types(cls)
    options = {name: option_of(field) for name, field in cls.__dataclass_fields__.items()}
    return {
        each["name"]: _Field(
            cls.name,
            list(_forms(hints[each["name"]], options[each["name"]])),
            each["default"],
            each["help"],
        )
        for each in parameters(cls, given)
    }


def _forms(hint: Any, option: Option) -> Iterable[Plain]:
    """Yield the schemas of the values that fit a type, as `components.check` has it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        yield {}
    elif origin in (types.UnionType, typing.Union):
        for arg in args:
            yield from _forms(arg, option)
    elif origin is tuple:
        yield {"type": "array", "items": _any_of([*_forms(args[0], option), _INTERPOLATION])}
    elif origin is dict:
        items = list(_forms(args[1], option))
        yield {"type": "object", "additionalProperties": _any_of(items)}
    elif issubclass(hint, Enum):
        texts = [str(member.value) for member in hint]
        # YAML reads a choice such as 1 as a number.
        yield {"enum": [*texts, *(int(text) for text in texts if text.isdecimal())]}
    elif hint is float:
        yield {"type": "number", **_bounds(option)}
        if infinite := [text for text, number in INFINITIES.items() if option.admits(number)]:
            yield {"type": "string", "pattern": f"^({'|'.join(map(re.escape, infinite))})$"}
    elif not issubclass(hint, Component):  # Built in Python, never written in a file.
        names = {bool: "boolean", int: "integer", str: "string", types.NoneType: "null"}
        yield {"type": names[hint], **(_bounds(option) if hint is int else {})}


def _bounds(option: Option) -> Plain:
    names = {
        "minimum": option.ge,
        "exclusiveMinimum": option.gt,
        "maximum": option.le,
        "exclusiveMaximum": option.lt,
    }
    return {name: bound for name, bound in names.items() if bound is not None}


def _value(fields: list[_Field], *, of: int | None) -> Plain:
    """Return the schema of a key that components may share.

    Args:
        of: how many components the group has, where the description should say which have the
            key; None otherwise.
    """
    forms: list[Plain] = []
    for form in (form for each in fields for form in each.forms):
        if form not in forms:
            forms.append(form)
    meaning = "; ".join(dict.fromkeys(each.help for each in fields if each.help))
    if of is not None and len(fields) < of:
        meaning = f"{meaning} ({_listed(fields)})"
    by_default: dict[str, list[_Field]] = {}
    for each in fields:
        # A component without a default has None, which its type does not take.
        if each.default is not None or {"type": "null"} in each.forms:
            by_default.setdefault(json.dumps(each.default), []).append(each)
    if len(by_default) > 1:
        texts = (f"{default} ({_listed(each)})" for default, each in by_default.items())
        meaning = f"{meaning}; default: {', '.join(texts)}"
    described: Plain = {"description": meaning}
    if len(by_default) == 1:
        described["default"] = json.loads(*by_default)
    return {
        **described,
        "anyOf": [*forms, *([] if {"type": "string"} in forms else [_INTERPOLATION])],
    }


def _listed(fields: list[_Field]) -> str:
    """Name the components that have a field, the first of them if there are many."""
    return first_of((each.member for each in fields), _LISTED)


def _swept(key: str, value: Plain, *, group: bool) -> Plain:
    """Return the schema of a key in a block, where a list is swept over.

    A value that is itself a list stands in another list.
    """
    if group:
        value = _nullable(value) if key in PRESET_GROUPS else value
        single, items = [value], value
        described = {"description": f"the {key}, or a list of several to sweep over"}
    else:
        items = {"$ref": f"#/$defs/{key}"}
        forms = value["anyOf"]
        plain = [form for form in forms if form.get("type") != "array"]
        single = [items] if len(plain) == len(forms) else plain
        described = {"description": value["description"]} if single is plain else {}
    swept = {"type": "array", "items": items, "minItems": 1}
    return {**described, "anyOf": [*single, swept, _CALL]}


def _name_or_mapping(groups: ConfigGroups, group: str, fields: Mapping[str, Plain]) -> Plain:
    names = {"enum": _names(groups, group)}
    return {
        "description": f"the {group}: a name, or a mapping of its keys",
        "anyOf": [names, _closed({"name": names, **fields})],
    }


def _names(groups: ConfigGroups, group: str) -> list[str]:
    """Return the names of a group's components; aliases included."""
    registry = groups.registries[group]
    return [*registry.names(), *sorted(registry.aliases())]


def _members(groups: ConfigGroups, group: str) -> list[str]:
    """Return what may be chosen from a group: files, components and aliases."""
    names = _names(groups, group) if group in groups.registries else []
    return list(dict.fromkeys([*groups.members(group), *names]))


def _defaults_list(entries: Mapping[str, Plain]) -> Plain:
    """Return the schema of Hydra's defaults list.

    Args:
        entries: what may be chosen from which group.
    """
    chosen = {
        **_closed(entries),
        "patternProperties": {"^(?!override )": {"type": ["string", "null", "array"]}},
    }
    return {
        "description": "what is chosen from groups, and files that this one extends",
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, chosen]},
    }


def _is_nested(fields: list[_Field]) -> bool:
    """Whether keys may follow, as in `task.verifier.deadline`."""
    return any(form.get("type") == "object" for each in fields for form in each.forms)


def _nullable(schema: Plain) -> Plain:
    return {"anyOf": [schema, {"type": "null"}]}


def _any_of(forms: list[Plain]) -> Plain:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _closed(properties: Mapping[str, Plain]) -> Plain:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}
