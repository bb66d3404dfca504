"""The JSON schema (draft 2020-12) of sweep files, for editors.

It is made from the registries, so it knows the components of installed packages, and refuses
what building a run would refuse by the form of a file alone: keys, names, types, ranges. Rules
that join several keys are left to `advsweep sweep --dry-run`.

Departures: a choice is written as it is listed, where a config also takes capital letters.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from advsweep import __version__
from advsweep.backends.base import PARAMETERS, RunParameters
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
from advsweep.tasks.controls import CONTROL

_INTERPOLATION = {"$ref": "#/$defs/interpolation"}
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


def make_schema(groups: ConfigGroups) -> Plain:
    """Return the schema of sweep files and presets (`method/NAME.yaml`).

    They set keys for all runs, and list runs under `sweep`.
    """
    values = component_fields(RunParameters, groups.compose({}).config)
    nodes: dict[str, Plain] = {}
    choices: dict[str, Plain] = {}
    for group in sorted(groups.names - {"experiment"}):
        registry = groups.registries.get(group)
        names = [] if registry is None else [*registry.names(), *sorted(registry.aliases())]
        choices[group] = {"enum": list(dict.fromkeys([*groups.members(group), *names]))}
        if registry is None:
            continue
        found: dict[str, list[Plain]] = {}
        for cls in registry.classes():
            given = groups.member_values(group, cls.name)
            for key, field in component_fields(cls, given).items():
                found.setdefault(key, []).append(field)
        values |= {f"{group}.{key}": _merged(fields) for key, fields in found.items()}
        own = {key: {"$ref": f"#/$defs/{group}.{key}"} for key in found}
        nodes[group] = {
            "description": f"the {group}: a name, or a mapping of its keys",
            "anyOf": [{"enum": names}, _closed({"name": {"enum": names}, **own})],
        }
    definitions = {**_SHARED, **values}
    keys: dict[str, Plain] = {}
    for key, value in {**choices, **values}.items():
        definitions[f"swept-{key}"] = _swept(key, value, group=key in choices)
        keys[key] = {"$ref": f"#/$defs/swept-{key}"}
    # Keys may follow those whose values are mappings, as in `task.verifier.deadline`.
    nested = [k for k, v in values.items() if "." in k and {"type": "object"} in _types(v)]
    inner: Plain = {rf"^({'|'.join(map(re.escape, nested))})\.": {}}
    entries = {f"override /{group}": _nullable(choice) for group, choice in choices.items()}
    top = {key: {"$ref": f"#/$defs/{key}"} for key in PARAMETERS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A sweep file of advsweep",
        "description": f"Made by advsweep {__version__}: advsweep schema",
        **_closed(
            {
                "defaults": {
                    "description": "what is chosen from groups, and files that this one extends",
                    "type": "array",
                    "items": {"anyOf": [{"type": "string"}, _closed(entries)]},
                },
                **top,
                **nodes,
                "sweep": _sweep(groups),
            }
        ),
        "$defs": {**definitions, **_blocks(keys, inner)},
    }


def _sweep(groups: ConfigGroups) -> Plain:
    controls = [
        component_schema(cls, groups.member_values(CONTROL, cls.name))
        for cls in groups.registries[CONTROL].classes()
        if cls.name != "none"
    ]
    tune = component_fields(Tune) | {"set": {"$ref": "#/$defs/keys"}}
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    seeds = {"type": "array", "items": {"$ref": "#/$defs/seed"}, "minItems": 1}
    blocks = {"type": "array", "items": {"$ref": "#/$defs/block"}, "minItems": 1}
    names = {"enum": [control["properties"]["name"]["const"] for control in controls]}
    described: dict[str, tuple[str, Plain]] = {
        "name": (
            "the sweep's name, for `advsweep report NAME`; default: the file's",
            {"type": "string", "minLength": 1},
        ),
        "seeds": (
            "how many seeds, counted from 0, or a list of seeds",
            {"anyOf": [{"type": "integer", "minimum": 1}, seeds]},
        ),
        "tune": (
            "each arm finds its own value of a key, with seeds of its own",
            _nullable({**_closed(tune), "required": ["values"]}),
        ),
        "baseline": (
            "what the controls repeat; default: the first estimator",
            {"type": ["string", "null"]},
        ),
        "controls": (
            "arms that repeat the baseline: names, or names with fields",
            {"type": "array", "items": {"anyOf": [names, *controls]}},
        ),
        "outcomes": (
            "the columns of reports whose differences are tested; default: pass@1, pass@k above "
            "chance and the entropy of correct answers",
            texts,
        ),
        "common": ("keys of all blocks", {"$ref": "#/$defs/block"}),
        "blocks": ("grids of runs; a list of values is swept over", blocks),
    }
    return {
        "description": "the runs: each block is a grid, and the sweep is their union",
        **_closed({key: {"description": text, **form} for key, (text, form) in described.items()}),
    }


def _blocks(keys: Mapping[str, Plain], inner: Plain) -> dict[str, Plain]:
    """Return the definitions of a block of a sweep file and of its parts.

    Args:
        keys: the keys that runs have.
        inner: patterns of keys below them.
    """

    def mapping(described: str, **more: Plain) -> Plain:
        closed = _closed({**more, **keys})
        return {"description": described, **closed, "patternProperties": inner}

    own_keys, condition = {"$ref": "#/$defs/keys"}, {"$ref": "#/$defs/condition"}
    when = mapping("values of the runs for which `if` holds", **{"if": condition, "zip": own_keys})
    printed = component_fields(PublishedTime)
    return {
        "keys": mapping("keys with their values"),
        "condition": {"allOf": [own_keys], "minProperties": 1},
        "when": {**when, "required": ["if"], "minProperties": 2},
        "block": mapping(
            "keys of a run, such as estimator or optimizer.lr, each with a value or a list",
            zip=own_keys,
            when={"type": "array", "items": {"$ref": "#/$defs/when"}},
            exclude={"type": "array", "items": condition},
            printed={**_closed(printed), "required": list(printed)},
        ),
    }


def component_schema(cls: type[Component], given: Mapping[str, Any]) -> Plain:
    """Return the schema of a mapping with a component's name and fields."""
    fields = {"name": {"const": cls.name}, **component_fields(cls, given)}
    return {**_closed(fields), "required": ["name"]}


def component_fields(
    cls: type[Component], given: Mapping[str, Any] = types.MappingProxyType({})
) -> dict[str, Plain]:
    """Return the schema of each field of a component.

    Args:
        given: values of its file, which replace defaults.
    """
    hints, fields = field_types(cls), cls.__dataclass_fields__
    found = {}
    for each in parameters(cls, given):
        name, default = each["name"], each["default"]
        forms = list(_forms(hints[name], option_of(fields[name])))
        # A field without a default has None there, which its type does not take.
        known = {} if default is None and {"type": "null"} not in forms else {"default": default}
        text = [] if {"type": "string"} in forms else [_INTERPOLATION]
        found[name] = {"description": each["help"], **known, "anyOf": [*forms, *text]}
    return found


def _merged(fields: list[Plain]) -> Plain:
    """Return the schema of a key that several components have; each may take other values."""
    forms: list[Plain] = []
    for form in (form for field in fields for form in field["anyOf"]):
        if form not in forms:
            forms.append(form)
    meaning = "; ".join(dict.fromkeys(field["description"] for field in fields))
    defaults = [field["default"] for field in fields if "default" in field]
    same = bool(defaults) and all(default == defaults[0] for default in defaults)
    known = {"default": defaults[0]} if same else {}
    return {"description": meaning, **known, "anyOf": forms}


def _forms(hint: Any, option: Option) -> Iterable[Plain]:
    """Yield the schemas of the values that fit a type, as `components.check` has it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    bounds = {
        "minimum": option.ge,
        "exclusiveMinimum": option.gt,
        "maximum": option.le,
        "exclusiveMaximum": option.lt,
    }
    within = {name: bound for name, bound in bounds.items() if bound is not None}
    if hint is Any:
        yield {}
    elif origin in (types.UnionType, typing.Union):
        for arg in args:
            yield from _forms(arg, option)
    elif origin is tuple:
        yield {"type": "array", "items": {"anyOf": [*_forms(args[0], option), _INTERPOLATION]}}
    elif origin is dict:
        yield {"type": "object", "additionalProperties": {"anyOf": [*_forms(args[1], option)]}}
    elif issubclass(hint, Enum):
        texts = [str(member.value) for member in hint]
        # YAML reads a choice such as 1 as a number.
        yield {"enum": [*texts, *(int(text) for text in texts if text.isdecimal())]}
    elif hint is float:
        yield {"type": "number", **within}
        if infinite := [text for text, number in INFINITIES.items() if option.admits(number)]:
            yield {"type": "string", "pattern": f"^({'|'.join(map(re.escape, infinite))})$"}
    elif not issubclass(hint, Component):  # Built in Python, never written in a file.
        names = {bool: "boolean", int: "integer", str: "string", types.NoneType: "null"}
        yield {"type": names[hint], **(within if hint is int else {})}


def _swept(key: str, value: Plain, *, group: bool) -> Plain:
    """Return the schema of a key in a block, where a list is swept over.

    A value that is itself a list stands in another list.
    """
    if group:
        items = _nullable(value) if key in PRESET_GROUPS else value
        single = [items]
        described = {"description": f"the {key}, or a list of several to sweep over"}
    else:
        items = {"$ref": f"#/$defs/{key}"}
        single = [form for form in value["anyOf"] if form.get("type") != "array"]
        described = {"description": value["description"]}
    swept = {"type": "array", "items": items, "minItems": 1}
    return {**described, "anyOf": [*single, swept, {"$ref": "#/$defs/call"}]}


def _types(value: Plain) -> list[Plain]:
    return [{"type": form.get("type")} for form in value["anyOf"]]


def _nullable(schema: Plain) -> Plain:
    return {"anyOf": [schema, {"type": "null"}]}


def _closed(properties: Mapping[str, Plain]) -> Plain:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}
