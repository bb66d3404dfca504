"""Components that are made of plain functions: inputs and options by the names of parameters.

A parameter that is an input of its kind is given by name, and may have a default. Any other one has
a default, and is an option of the component.

Only the standard library is imported here.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from advsweep.components import Component, describe_type, option
from advsweep.errors import ConfigError, nearest

if TYPE_CHECKING:
    from advsweep.named_code import NamedCode

C = TypeVar("C", bound=Component)

_OF_DEFAULT = {bool: bool, int: int | float, float: float, str: str, tuple: tuple[Any, ...]}


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of a function.

    Attributes:
        given: the inputs that it takes.
        required: those without a default.
        options: name, type and field of each option.
    """

    given: frozenset[str]
    required: frozenset[str]
    options: Sequence[tuple[str, Any, Any]]


def read_parameters(
    function: Callable[..., Any], code: NamedCode, inputs: Sequence[str], example: str
) -> Parameters:
    """Tell the inputs of a function from its options.

    Args:
        inputs: the names of all inputs.
        example: the input that most functions take.

    Raises:
        ConfigError: a parameter is neither, or no input is taken; it names file and line.
    """
    where = f"{code.where}: {code.object}"
    given: set[str] = set()
    required: set[str] = set()
    options: list[tuple[str, Any, Any]] = []
    hints = _hints_of(function)
    for parameter in _named_parameters(function, where):
        name = parameter.name
        has_default = parameter.default is not parameter.empty
        if name in inputs:
            given.add(name)
            if not has_default:
                required.add(name)
        elif has_default:
            options.append(_option_of(parameter, hints, code))
        else:
            hint = nearest(name, inputs)
            every = "" if hint.startswith("known") else f" inputs: {', '.join(inputs)};"
            raise ConfigError(
                f"{where}: the parameter '{name}' is no input; {hint};{every} an option has a "
                f"default, as {name}=1.0"
            )
    if not given:
        got = ", ".join(name for name, *_ in options) or "none"
        raise ConfigError(f"{where}: expected an input such as `{example}` as parameter, got {got}")
    return Parameters(given=frozenset(given), required=frozenset(required), options=options)


def read_options(function: Callable[..., Any], code: NamedCode) -> Parameters:
    """Return the parameters of a function that has options alone, such as a constructor.

    Raises:
        ConfigError: a parameter has no default; it names file and line.
    """
    where = f"{code.where}: {code.object}"
    hints = _hints_of(function)
    options = []
    for parameter in _named_parameters(function, where):
        if parameter.default is parameter.empty:
            raise ConfigError(
                f"{where}: expected a default of the parameter '{parameter.name}', which makes it "
                f"an option, as {parameter.name}=1.0"
            )
        options.append(_option_of(parameter, hints, code))
    return Parameters(given=frozenset(), required=frozenset(), options=options)


def make_class(
    function: Callable[..., Any],
    code: NamedCode,
    base: type[C],
    parameters: Parameters,
    **attributes: Any,
) -> type[C]:
    """Make a subclass of a component whose attribute `function` is the function.

    Args:
        attributes: further class attributes.
    """
    namespace = {
        "__doc__": inspect.getdoc(function) or f"A function of {code.place}.",
        "__module__": function.__module__,
        "function": staticmethod(function),
        "given": parameters.given,
        "options": tuple(name for name, *_ in parameters.options),
        **attributes,
    }
    fields: Any = parameters.options
    made = dataclasses.make_dataclass(
        code.object, fields, bases=(base,), kw_only=True, namespace=namespace
    )
    return typing.cast("type[C]", made)


def call_function(component: Any, inputs: Mapping[str, Any]) -> Any:
    """Return what a component's function returns for its inputs and its options."""
    given = {name: inputs[name] for name in component.given}
    options = {name: getattr(component, name) for name in component.options}
    return type(component).function(**given, **options)


def where_of(component: Component) -> str:
    """Return file, line and name of a component's function or class: `idea.py:1: advantages`."""
    code = component.named_code
    return type(component).__name__ if code is None else f"{code.where}: {code.object}"


def line_of(component: Component, error: BaseException) -> str:
    """Return the file and the line at which a component's function raised an error."""
    code = component.named_code
    return type(component).__name__ if code is None else code.line_of(error)


def _named_parameters(function: Callable[..., Any], where: str) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, all of which have names that it can be called by."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in named:
            raise ConfigError(
                f"{where}: expected parameters with names, as inputs are given by name, got "
                f"{parameter}"
            )
        yield parameter


def _option_of(
    parameter: inspect.Parameter, hints: Mapping[str, Any], code: NamedCode
) -> tuple[str, Any, Any]:
    """Return name, type and field of the option that a parameter with a default is."""
    kind = _type_of(parameter, hints, f"{code.where}: {code.object}")
    # A list would be shared by all instances.
    default = parameter.default
    default = tuple(default) if isinstance(default, list) else default
    return parameter.name, kind, option(default, help=f"`{parameter.name}` of {code.object}")


def _hints_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - an annotation is any expression, and may name nothing
        return {}


def _type_of(parameter: inspect.Parameter, hints: Mapping[str, Any], where: str) -> Any:
    """Return the type of an option: its annotation, or that of its default."""
    hint = hints.get(parameter.name)
    default = parameter.default
    if hint in (bool, int, float, str) or typing.get_origin(hint) is typing.Literal:
        return hint
    if default is None:
        return Any
    kind = tuple if isinstance(default, list) else type(default)
    if kind not in _OF_DEFAULT:
        expected = ", ".join(map(describe_type, (bool, float, str)))
        raise ConfigError(
            f"{where}: expected the option '{parameter.name}' to have one of {expected} or a list "
            f"as its default, got {type(default).__name__}"
        )
    return _OF_DEFAULT[kind]
