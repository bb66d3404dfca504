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
from pathlib import Path
from typing import Any

from advsweep import __version__
from advsweep.backends.base import PARAMETERS, RunParameters
from advsweep.components import (
    INFINITIES,
    Component,
    Option,
    Plain,
    choices_of,
    field_types,
    option_of,
    parameters,
)
from advsweep.config.groups import PRESET_GROUPS, ConfigGroups
from advsweep.config.overrides import CALL
from advsweep.config.space import Race, Tune
from advsweep.tasks.controls import CONTROL
from advsweep.yaml_files import read_yaml

TEMPLATE = Path(__file__).with_name("sweep_file.yaml")
_INTERPOLATION = {"$ref": "#/$defs/interpolation"}


def make_schema(groups: ConfigGroups) -> Plain:
    """Return the schema of sweep files and presets (`method/NAME.yaml`).

    They set keys for all runs, and list runs under `sweep`.
    """
    values = component_fields(RunParameters, groups.compose({}))
    nodes: dict[str, Plain] = {}
    choices: dict[str, Plain] = {}
    for group in sorted(groups.names - {"experiment"}):
        registry = groups.registries.get(group)
        names = [] if registry is None else [*registry.names(), *sorted(registry.aliases)]
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
    schema: Plain = read_yaml(TEMPLATE)
    schema["description"] = f"Made by advsweep {__version__}: advsweep schema"
    schema["properties"] |= nodes | {key: {"$ref": f"#/$defs/{key}"} for key in PARAMETERS}
    definitions = schema["$defs"]
    definitions |= values
    keys: dict[str, Plain] = {}
    for key, value in {**choices, **values}.items():
        definitions[f"swept-{key}"] = _swept(key, value, group=key in choices)
        keys[key] = {"$ref": f"#/$defs/swept-{key}"}
    # Keys may follow those whose values are mappings, as in `task.verifier.deadline`.
    nested = [
        re.escape(key)
        for key, value in values.items()
        if "." in key and any(form.get("type") == "object" for form in value["anyOf"])
    ]
    for name in ("keys", "when", "block"):
        definitions[name] |= _closed({**definitions[name]["properties"], **keys})
        definitions[name]["patternProperties"] = {rf"^({'|'.join(nested)})\.": {}}
    entries = {f"override /{group}": _nullable(choice) for group, choice in choices.items()}
    controls = [
        component_schema(cls, groups.member_values(CONTROL, cls.name))
        for cls in groups.registries[CONTROL].classes()
        if cls.name != "none"
    ]
    known = {"enum": [control["properties"]["name"]["const"] for control in controls]}

    definitions["call"]["pattern"] = CALL.pattern
    definitions["choices"] = _closed(entries)
    definitions["control"] = {"anyOf": [known, *controls]}
    definitions["race"] = _closed(component_fields(Race))
    definitions["tune"] |= _closed(component_fields(Tune) | {"set": {"$ref": "#/$defs/keys"}})

    return schema


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
    elif texts := [*choices_of(hint)]:
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


def _nullable(schema: Plain) -> Plain:
    return {"anyOf": [schema, {"type": "null"}]}


def _closed(properties: Mapping[str, Plain]) -> Plain:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}
