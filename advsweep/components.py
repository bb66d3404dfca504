"""Components: dataclasses that are the typed schema of a config node.

An estimator, an objective, a task, a backend and a group of settings are components. The same
check of names, types and ranges serves `build_estimator`, YAML files and the command line.
`advsweep.registry` finds components by name.

    @dataclass(kw_only=True)
    class Asym(Estimator):
        name: ClassVar[str] = "asym"
        delta: float = option(0.5, gt=0, help="divides the failures' advantages")

Only the standard library is imported here.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.sources import source_of
from advsweep.synonyms import KEYS, VALUES, hint

# A resolved config node in JSON types; infinities are the strings "inf" and "-inf".
Plain = dict[str, Any]

# Parameters of earlier versions, with values; see `Component`.
Retired = Mapping[str, Collection[Any]]

# Infinite numbers by the texts that stand for them in configs.
INFINITIES = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}


_NEVER = object()


@dataclass(frozen=True)
class Option:
    """The meaning, the range and the role of a field.

    Attributes:
        identity: False for a field that cannot change a run's results, such as the place of
            checkpoints. It is left out of the run's identity.
        absent: for a field that was added later, the plain value that stands for what runs did
            before. A field with this value is left out of the identity, so that older runs keep
            theirs.
    """

    help: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    identity: bool = True
    absent: Any = _NEVER

    def admits(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    @property
    def range(self) -> str:
        """The range in words, such as `> 0 and <= 1`; empty without bounds."""
        bounds = [(">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt)]
        return " and ".join(f"{sign} {in_digits(b)}" for sign, b in bounds if b is not None)


def in_digits(number: float) -> str:
    """Return a number for people: a whole one with all of its digits."""
    return str(number) if isinstance(number, int) else f"{number:g}"


_NO_OPTION = Option()


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    identity: bool = True,
    absent: Any = _NEVER,
) -> Any:
    """Return a dataclass field with a meaning, and the range and role of `Option`."""
    role = Option(help=help, ge=ge, gt=gt, le=le, lt=lt, identity=identity, absent=absent)
    metadata = {"option": role}
    if isinstance(default, (list, dict, set)):
        kind = type(default)
        return dataclasses.field(default_factory=lambda: kind(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def option_of(field: dataclasses.Field[Any]) -> Option:
    """Return the `Option` of a dataclass field; an empty one if it has none."""
    role: Option = field.metadata.get("option", _NO_OPTION)
    return role


@dataclass(kw_only=True)
class Component:
    """Base class of everything that a config node describes.

    Attributes:
        name: the name under which it is registered.
        revision: raised when a fix changes its results, so that runs made before the fix have
            another identity.
        hint_for_unknown: said of unknown parameters: which components of the group have more.
        retired: parameters of earlier versions, which stored configs may have, with those of their
            values that changed no result; empty for any value.
        named_code: the code of a component that a command line named by its file or its module;
            None for a registered one.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    hint_for_unknown: ClassVar[str] = ""
    retired: ClassVar[Retired] = types.MappingProxyType({})
    # A `NamedCode`: hints are resolved here, where that class cannot be imported.
    named_code: ClassVar[Any] = None

    def __post_init__(self) -> None:
        check(self)

    def plain(self) -> Plain:
        """Return the resolved config node: `name`, named code and every field, in JSON types."""
        node: Plain = {"name": self.name}
        if self.named_code is not None:
            node[CODE] = self.named_code.plain()
        return node | {f.name: to_plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def identity(self) -> Plain:
        """Return the options that can change a result, and the revision.

        `identity_of` adds the source of a plug-in: call that to hash a component.
        """
        identity = {"name": self.name, "revision": self.revision}
        for field in dataclasses.fields(self):
            role = option_of(field)
            value = getattr(self, field.name)
            if role.identity and to_plain(value) != role.absent:
                identity[field.name] = _identity_of(value)
        return identity

    @classmethod
    def build(cls, values: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        """Build the component from a plain mapping, with or without `name`.

        Args:
            where: the key of the mapping, as a prefix for messages.

        Raises:
            ConfigError: a key, a type or a value does not fit.
        """
        retired = {"name": (), **cls.retired}
        values = {
            key: value
            for key, value in (values or {}).items()
            if key not in retired or (retired[key] and value not in retired[key])
        }
        fields = fields_of(cls)
        prefix = f"{where}." if where else ""
        for key in values:
            if key not in fields:
                near = _near_key(str(key), fields, prefix)
                if cls.hint_for_unknown:
                    near = f"{near}; {cls.hint_for_unknown}"
                raise UnknownNameError(
                    f"{prefix}{key}: {cls.name} has no parameter '{key}'; {near}"
                )
        for key, field in fields.items():
            is_required = field.default is field.default_factory is dataclasses.MISSING
            if is_required and key not in values:
                raise ConfigError(f"{prefix}{key}: expected a value, got none")
        try:
            return cls(**values)
        except ConfigError as error:
            code = cls.named_code
            # An error in the user's file begins with the file.
            if not where or (code is not None and str(error).startswith(f"{code.place}:")):
                raise
            raise type(error)(f"{prefix}{error}") from error


def fields_of(cls: type[Component]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a component by name."""
    return {field.name: field for field in dataclasses.fields(cls)}


def check(component: Component) -> None:
    """Convert and check every field of a component in place.

    Texts become enum members; integers become floats where the type is float. A choice between
    texts is a `Literal`.

    Raises:
        ConfigError: names the field, what it expected and what it got.
    """
    hints = field_types(type(component))
    for f in dataclasses.fields(component):
        got = getattr(component, f.name)
        hint = hints[f.name]
        value = _fit(got, hint)
        if value is _NO_FIT:
            near = _near(f.name, got, hint)
            raise ConfigError(f"{f.name}: expected {describe_type(hint)}, got {got!r}{near}")
        object.__setattr__(component, f.name, value)
        opt = option_of(f)
        for number in value if isinstance(value, tuple) else (value,):
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if is_number and not opt.admits(number):
                raise ConfigError(f"{f.name}: expected {opt.range}, got {in_digits(number)}")


def _near_key(key: str, fields: Iterable[str], prefix: str) -> str:
    """Return what may be meant by an unknown parameter of a component.

    A name that another tool has for a key of the same node comes first, then one of the
    component's own that is spelt alike, then another node's.
    """
    near = nearest(key, fields)
    # With its node, as the samples of an evaluation are not those of a training.
    said = hint(KEYS, f"{prefix}{key}")
    # A name that we have elsewhere, such as a key of another choice in the same group.
    if said is None or said == f"did you mean {prefix}{key}?":
        return near
    is_alike = near.startswith("did you mean")
    return said if prefix in said or not is_alike else near


def _near(name: str, got: Any, expected: Any) -> str:
    """Return what ends the message on a value that does not fit a type: what may be meant."""
    if typing.get_origin(expected) is tuple and _fit([got], expected) is not _NO_FIT:
        return f"; write [{to_plain(got)}]"
    if isinstance(got, float) and got.is_integer():  # 1e3 where an integer is expected
        return f"; write {got:.0f}"
    if not isinstance(got, str):
        return ""
    said = hint(f"{VALUES}.{name}", got)
    if said is not None:
        return f"; {said}"
    choices = choices_of(expected)
    if choices:
        return f"; {nearest(got, choices)}"
    return _near_number(got, expected) or _near_range(name, got)


# Numbers as they are written elsewhere: 10k and 1.5M.
_SHORT_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?([km])", re.IGNORECASE)
_THOUSANDS = {"k": 10**3, "m": 10**6}


def _near_number(got: str, expected: Any) -> str:
    """Return how a number with a letter for its thousands is written; empty if it is none."""
    match = _SHORT_NUMBER.fullmatch(got.strip())
    if match is None:
        return ""
    number = float(match[1]) * _THOUSANDS[match[2].lower()]
    is_fitting = number.is_integer() and _fit(int(number), expected) is not _NO_FIT
    return f"; write {number:.0f}" if is_fitting else ""


# Ranges of whole numbers as they are written elsewhere: 0:5 and 0..5 and 0-5.
_RANGE = re.compile(r"(\d{1,9})(:|\.\.\.?|-|to)(\d{1,9})")


def _near_range(name: str, got: str) -> str:
    """Return how a range of whole numbers is written in an override; empty if it is none."""
    match = _RANGE.fullmatch(got.replace(" ", ""))
    if match is None:
        return ""
    first, sign, last = int(match[1]), match[2], int(match[3])
    end = last if sign == ":" else last + 1  # a slice of Python is without its end
    return f"; write '{name}=range({first},{end})'"


_types_of: dict[type, dict[str, Any]] = {}


def field_types(cls: type) -> dict[str, Any]:
    """Return the resolved annotations of a class by name."""
    # Cached, since resolving annotations takes 0.1 ms, for each of 10,000 planned runs.
    if cls not in _types_of:
        _types_of[cls] = typing.get_type_hints(cls)
    return _types_of[cls]


def choices_of(hint: Any) -> dict[str, Any]:
    """Return the values of a `Literal` of texts, or of an `Enum`, by their texts."""
    if typing.get_origin(hint) is typing.Literal:
        return {text: text for text in typing.get_args(hint)}
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    return {str(member.value): member for member in hint} if is_enum else {}


def describe_type(hint: Any) -> str:
    """Describe a type to users: `one of exact, formula`, `a number`, `an integer or null`."""
    choices = [*choices_of(hint)]
    if choices:
        return "one of " + ", ".join(choices) if len(choices) > 1 else f"'{choices[0]}'"
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(describe_type(a) for a in args))
    if origin is tuple:
        return f"a list, each {describe_type(args[0])}"
    simple = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    return simple.get(hint, "null" if hint is type(None) else "a mapping")


def parameters(
    cls: type[Component], values: Mapping[str, Any] = types.MappingProxyType({})
) -> list[dict[str, Any]]:
    """List the fields of a component for people: name, type, default, range and meaning.

    Args:
        values: values of a config file, which replace the defaults of the class.
    """
    hints = field_types(cls)
    return [
        {
            "name": f.name,
            "type": describe_type(hints[f.name]),
            "default": values.get(f.name, default_of(f)),
            "range": option_of(f).range,
            "help": option_of(f).help,
        }
        for f in dataclasses.fields(cls)
    ]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field in JSON types; None if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return to_plain(field.default_factory())
    return None if field.default is dataclasses.MISSING else to_plain(field.default)


_NO_FIT = object()


def _fit(value: Any, hint: Any) -> Any:
    """Convert a value to a type; `_NO_FIT` if it does not fit."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        for alternative in args:
            fitted = _fit(value, alternative)
            if fitted is not _NO_FIT:
                return fitted
        return _NO_FIT
    if origin is tuple and isinstance(value, (list, tuple)):
        items = tuple(_fit(item, args[0]) for item in value)
        return _NO_FIT if _NO_FIT in items else items
    if origin is dict:
        return dict(value) if isinstance(value, Mapping) else _NO_FIT
    choices = choices_of(hint)
    if choices:
        is_member = isinstance(value, Enum) and value in choices.values()
        return value if is_member else choices.get(str(value).lower(), _NO_FIT)
    if hint is float:
        return _fit_float(value)
    if hint is int and isinstance(value, bool):
        return _NO_FIT
    return value if isinstance(hint, type) and isinstance(value, hint) else _NO_FIT


def _fit_float(value: Any) -> Any:
    """Convert a number, or a text that stands for an infinite one; NaN does not fit."""
    if isinstance(value, str):
        return INFINITIES.get(value.lower(), _NO_FIT)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return _NO_FIT
    return float(value)


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types: enums to their values, tuples to lists, infinities to text."""
    if isinstance(value, Component):
        return value.plain()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


# The key of a component's identity that holds the hash of its source.
SOURCE = "source:sha256"

# The key of a component's config node that holds the code that a command line named.
CODE = "code"


def identity_of(component: Component) -> Plain:
    """Return what can change a component's results, from which the identity of a run is made.

    A component that is not advsweep's has the hash of its source (`advsweep.sources`), since
    nobody raises a revision for it. Not left to `identity`, which such a component may replace.
    """
    code = component.named_code
    source = None if code is None else code.source
    if source is None:
        source = source_of(type(component))
    if source is None:
        return component.identity()
    identity = {**component.identity(), SOURCE: source.digest}
    if code is not None:
        # A file that is renamed, or named in another way, gives the same results.
        identity["name"] = code.object
    return identity


def without_sources(value: Any) -> Any:
    """Return an identity without the sources of components, as versions before them had it."""
    if isinstance(value, Mapping):
        return {key: without_sources(inner) for key, inner in value.items() if key != SOURCE}
    if isinstance(value, (list, tuple)):
        return [without_sources(inner) for inner in value]
    return value


def _identity_of(value: Any) -> Any:
    if isinstance(value, Component):
        return identity_of(value)
    if isinstance(value, (list, tuple)):
        return [_identity_of(v) for v in value]
    return to_plain(value)


def as_node(value: Any) -> Mapping[str, Any]:
    """Return a config value if it is a mapping; empty for any other."""
    return value if isinstance(value, Mapping) else {}


def leaves(
    node: Mapping[str, Any], prefix: str = "", *, named: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a nested mapping with their values, without the code of components.

    Args:
        named: yield the name of a component as the value of its own key.
    """
    for key, value in node.items():
        if key == CODE and isinstance(value, Mapping):
            continue
        if isinstance(value, Mapping):
            inner = dict(value)
            if named and not isinstance(inner.get("name", inner), Mapping):
                yield f"{prefix}{key}", inner.pop("name")
            yield from leaves(inner, f"{prefix}{key}.", named=named)
        else:
            yield f"{prefix}{key}", value
