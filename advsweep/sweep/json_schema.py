"""The JSON schema (draft 2020-12) of sweep files, for editors.

It is made from the registries, so it knows the components of installed packages, and refuses
what building a run would refuse by the form of a file alone: keys, names, types, ranges. Rules
that join several keys are left to `advsweep sweep --dry-run`.

Departures: a choice is written as it is listed, where a config also takes capital letters.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
# A component that is named by its file or its module, as `named_code.parse_word` reads it.
_CODE = {"type": "string", "pattern": r"\.py(:\w+)?$|^\w+(\.\w+)*:\w+$"}

_INTERPOLATION = {"$ref": "#/$defs/interpolation"}


@dataclass(frozen=True)
class _Parts:
    """The schemas of what a config consists of.

    Attributes:
        choices: of the names of each group.
        nodes: of the mapping of each group that holds components.
        values: of each key, dotted.
    """

    choices: dict[str, Plain]
    nodes: dict[str, Plain]
    values: dict[str, Plain]


def make_schema(groups: ConfigGroups) -> Plain:
    """Return the schema of sweep files and presets (`method/NAME.yaml`).

    They set keys for all runs, and list runs under `sweep`.
    """
    parts = _make_parts(groups)
    schema: Plain = read_yaml(TEMPLATE)
    schema["description"] = f"Made by advsweep {__version__}: advsweep schema"
    parameters = {key: {"$ref": f"#/$defs/{key}"} for key in PARAMETERS}
    schema["properties"] |= parts.nodes | parameters
    definitions = schema["$defs"]
    definitions |= parts.values
    keys: dict[str, Plain] = {}
    for key, value in {**parts.choices, **parts.values}.items():
        definitions[f"swept-{key}"] = _swept(key, value, group=key in parts.choices)
        keys[key] = {"$ref": f"#/$defs/swept-{key}"}
    nested = _nested_pattern(parts.values)
    for name in ("keys", "when", "block"):
        definitions[name] |= _closed({**definitions[name]["properties"], **keys})
        definitions[name]["patternProperties"] = {nested: {}}
    entries = {f"override /{group}": _nullable(names) for group, names in parts.choices.items()}
    controls = _control_schemas(groups)
    control_names = {"enum": [control["properties"]["name"]["const"] for control in controls]}

    definitions["call"]["pattern"] = CALL.pattern
    definitions["choices"] = _closed(entries)
    definitions["control"] = {"anyOf": [control_names, *controls]}
    definitions["race"] = _closed(component_fields(Race))
    definitions["tune"] |= _closed(component_fields(Tune) | {"set": {"$ref": "#/$defs/keys"}})

    return schema


def _make_parts(groups: ConfigGroups) -> _Parts:
    """Return the schemas of all groups and keys."""
    parts = _Parts({}, {}, component_fields(RunParameters, groups.compose({})))
    for group in sorted(groups.names - {"experiment"}):
        registry = groups.registries.get(group)
        if registry is None:
            parts.choices[group] = {"enum": list(dict.fromkeys(groups.members(group)))}
            continue
        names = [*registry.names(), *sorted(registry.aliases)]
        choice: Plain = {"enum": list(dict.fromkeys([*groups.members(group), *names]))}
        name: Plain = {"enum": names}
        if registry.takes_code:
            choice = {"anyOf": [choice, _CODE]}
            name = {"anyOf": [name, _CODE]}
        parts.choices[group] = choice
        fields: dict[str, list[Plain]] = {}
        of_files = registry.class_of_files()
        if of_files is not None:
            for key, field in component_fields(of_files).items():
                fields.setdefault(key, []).append(field)
        for cls in registry.classes():
            file_values = groups.member_values(group, cls.name)
            for key, field in component_fields(cls, file_values).items():
                fields.setdefault(key, []).append(field)
        for key, of_components in fields.items():
            parts.values[f"{group}.{key}"] = _merged(of_components)
        references = {key: {"$ref": f"#/$defs/{group}.{key}"} for key in fields}
        parts.nodes[group] = {
            "description": f"the {group}: a name, or a mapping of its keys",
            "anyOf": [name, _closed({"name": name, **references})],
        }
    return parts


def _nested_pattern(values: Mapping[str, Plain]) -> str:
    """Return a pattern of keys that follow those whose values are mappings.

    Such as `task.verifier.deadline`.
    """
    mappings = []
    for key, value in values.items():
        if "." in key and any(form.get("type") == "object" for form in value["anyOf"]):
            mappings.append(re.escape(key))
    return rf"^({'|'.join(mappings)})\."


def _control_schemas(groups: ConfigGroups) -> list[Plain]:
    """Return the schema of each control arm."""
    return [
        component_schema(cls, groups.member_values(CONTROL, cls.name))
        for cls in groups.registries[CONTROL].classes()
        if cls.name != "none"
    ]


def component_schema(cls: type[Component], file_values: Mapping[str, Any]) -> Plain:
    """Return the schema of a mapping with a component's name and fields."""
    fields = {"name": {"const": cls.name}, **component_fields(cls, file_values)}
    return {**_closed(fields), "required": ["name"]}


def component_fields(
    cls: type[Component], file_values: Mapping[str, Any] = types.MappingProxyType({})
) -> dict[str, Plain]:
    """Return the schema of each field of a component.

    Args:
        file_values: values of its file, which replace defaults.
    """
    hints = field_types(cls)
    schemas: dict[str, Plain] = {}
    for parameter in parameters(cls, file_values):
        name = parameter["name"]
        default = parameter["default"]
        forms = list(_forms(hints[name], option_of(cls.__dataclass_fields__[name])))
        schema: Plain = {"description": parameter["help"]}
        # A field without a default has None there, which its type does not take.
        if default is not None or {"type": "null"} in forms:
            schema["default"] = default
        schema["anyOf"] = forms
        if {"type": "string"} not in forms:
            schema["anyOf"] = [*forms, _INTERPOLATION]
        schemas[name] = schema
    return schemas


def _merged(fields: list[Plain]) -> Plain:
    """Return the schema of a key that several components have; each may take other values."""
    forms: list[Plain] = []
    for field in fields:
        for form in field["anyOf"]:
            if form not in forms:
                forms.append(form)
    merged: Plain = {"description": "; ".join(dict.fromkeys(f["description"] for f in fields))}
    defaults = [field["default"] for field in fields if "default" in field]
    if defaults and all(default == defaults[0] for default in defaults):
        merged["default"] = defaults[0]
    merged["anyOf"] = forms
    return merged


def _forms(hint: Any, option: Option) -> Iterable[Plain]:
    """Yield the schemas of the values that fit a type, as `components.check` has it."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    bounds = {
        "minimum": option.ge,
        "exclusiveMinimum": option.gt,
        "maximum": option.le,
        "exclusiveMaximum": option.lt,
    }
    # JSON has no infinite numbers, and every number of a file is below them.
    finite = (pair for pair in bounds.items() if pair[1] is not None and math.isfinite(pair[1]))
    within = dict(finite)
    choices = list(choices_of(hint))
    if hint is Any:
        yield {}
    elif origin in (types.UnionType, typing.Union):
        for arg in args:
            yield from _forms(arg, option)
    elif origin is tuple:
        yield {"type": "array", "items": {"anyOf": [*_forms(args[0], option), _INTERPOLATION]}}
    elif origin is dict:
        yield {"type": "object", "additionalProperties": {"anyOf": [*_forms(args[1], option)]}}
    elif choices:
        # YAML reads a choice such as 1 as a number.
        yield {"enum": [*choices, *(int(text) for text in choices if text.isdecimal())]}
    elif hint is float:
        yield {"type": "number", **within}
        infinite = [text for text, number in INFINITIES.items() if option.admits(number)]
        if infinite:
            yield {"type": "string", "pattern": f"^({'|'.join(map(re.escape, infinite))})$"}
    elif not issubclass(hint, Component):  # Built in Python, never written in a file.
        names = {bool: "boolean", str: "string", types.NoneType: "null"}
        if hint is int:
            yield {"type": "integer", **within}
        else:
            yield {"type": names[hint]}


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
