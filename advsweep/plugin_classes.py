"""Says whether a class of another package fits the kind of components that it is offered as."""

from __future__ import annotations

import dataclasses
from typing import Any

from advsweep.components import Component


def class_problem(loaded: Any, target: str, name: str, base: type[Component]) -> str:
    """Return why an object cannot be registered under a name; empty if it can."""
    if not (isinstance(loaded, type) and issubclass(loaded, Component)):
        return f"expected {target} to be a component's class"
    called = getattr(loaded, "name", None)
    if called != name:
        return f"expected {target}.name to be '{name}', got {called!r}"
    if not issubclass(loaded, base):
        return f"expected {target} to be a subclass of {base.__module__}.{base.__qualname__}"
    # Not all base classes are ABCs, which would refuse only instances.
    abstract = [
        name
        for name in dir(loaded)
        if getattr(getattr(loaded, name, None), "__isabstractmethod__", False)
    ]
    methods = ", ".join(name for name in abstract if not name.startswith("__"))
    if methods:
        return f"expected {target} to define {methods}"
    return _attribute_problem(loaded, target)


def _attribute_problem(loaded: type[Component], target: str) -> str:
    """Return which attributes a component's class lacks, or has without being a dataclass."""
    of_class: set[str] = set()
    of_instances: set[str] = set()
    for parent in loaded.__mro__:
        if not issubclass(parent, Component):
            continue
        for attribute, hint in vars(parent).get("__annotations__", {}).items():
            if "ClassVar" in str(hint):
                of_class.add(attribute)
            else:
                of_instances.add(attribute)
    missing = sorted(name for name in of_class if not hasattr(loaded, name))
    if missing:
        return f"expected {target} to set the class attributes {', '.join(missing)}"
    undeclared = of_instances - {field.name for field in dataclasses.fields(loaded)}
    options = ", ".join(sorted(name for name in undeclared if not name.startswith("_")))
    if options:
        return (
            f"expected @dataclass(kw_only=True) on {target}, without which its options "
            f"{options} cannot be set"
        )
    return ""
