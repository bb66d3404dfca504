"""Hydra's override grammar, and what of it a sweep refuses."""

import pytest

from advsweep.config.overrides import Override, parse_overrides
from advsweep.errors import ConfigError


def parse(text):
    [override] = parse_overrides([text])
    return override


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("steps=20", "steps", (20,)),
        ("optimizer.lr=1e-4", "optimizer.lr", (1e-4,)),
        ("+experiment=demo", "experiment", ("demo",)),
        ("a='x, y'", "a", ("x, y",)),
        ("a=null", "a", (None,)),
        ("a=", "a", ("",)),
        ("evaluation.k=[1,8]", "evaluation.k", ([1, 8],)),
        ("a={b: 1, c: 'd'}", "a", ({"b": 1, "c": "d"},)),
        ("a=${steps}", "a", ("${steps}",)),
    ],
)
def test_one_value(text, key, values):
    assert parse(text) == Override(text, key, values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2", (1, 2)),
        ("a=[1],[1,8]", ([1], [1, 8])),
        ("a=range(3)", (0, 1, 2)),
        ("a=range(0,1,0.5)", (0.0, 0.5)),
        ("a=choice(x,y)", ("x", "y")),
        ("a=['x, y',1],{b: 'c d'}", (["x, y", 1], {"b": "c d"})),
        ("a=sort(3,1,2)", (1, 2, 3)),
        ("a=tag(t,choice(1,2))", (1, 2)),
        ("a=int(choice('1','2'))", (1, 2)),
    ],
)
def test_a_sweep(text, values):
    assert parse(text) == Override(text, "a", values, swept=True)


def test_a_deletion():
    assert parse("~a.b") == Override("~a.b", "a.b", (), deleted=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a=glob(*)", "a file is added"),
        ("a=interval(0,1)", "no finite set"),
        ("a=shuffle(1,2)", "the same each time"),
    ],
)
def test_what_cannot_be_resumed_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "=3",
        "a=range(1,5,0)",
        "--a",
        "~a=3",
    ],
)
def test_what_is_no_override_is_refused(text):
    with pytest.raises(ConfigError, match="expected") as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert text in str(caught.value)


def test_a_package_is_refused():
    with pytest.raises(ConfigError, match="package"):
        parse("a@b=c")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("demo", r"expected KEY=VALUE; did you mean \+experiment=demo\?"),
        ("a = 1", "got spaces before '='"),
        ("a=[1", "quote a text with brackets"),
        ("a=sort(1,b)", "cannot read its value"),
        ("a=range(0,1e9)", "it has more than 100,000 values"),
        ("a=range(0,inf)", "it has more than 100,000 values"),
        ("a=range(nan,3)", "cannot read its value"),
        ("a=" + "9" * 5000, "cannot read its value"),
    ],
)
def test_what_cannot_be_read_is_said_without_the_terms_of_the_parser(text, words):
    with pytest.raises(ConfigError, match=words) as error:
        parse(text)
    assert len(str(error.value)) < 250
