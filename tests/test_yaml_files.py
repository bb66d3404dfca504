"""YAML files stay small, whatever their aliases stand for."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from advsweep.errors import ConfigError
from advsweep.report.claims.lists import read_claim_list
from advsweep.sweep.registry import config_groups
from advsweep.yaml_files import read_document, read_yaml, yaml_literal

pytestmark = pytest.mark.security

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20)
)
"""Ten to the power of twenty values, in two kilobytes."""

BOMBS = {
    "aliases": (LAUGHS, "aliases written out"),
    "circle": ("a: &a [*a]\n", "aliases written out"),
    "nested": ("[\n" * 5_000, "within each other"),
    "large": ("#" * (11 * 2**20), "at most 10,485,760 bytes"),
}


@pytest.mark.parametrize(("text", "words"), BOMBS.values(), ids=BOMBS)
def test_bomb_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_yaml(path)
    with pytest.raises(ConfigError, match=words):
        read_claim_list(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb:\n\tc: 2\n", r"line 3, column 1: .* expected spaces, got a tab"),
        ("a: 1\nb: c: 2\n", r"line 2, column 5: .* expected no second ':'"),
        (
            "a:\n  b: 1\n c: 2\n",
            r"line 3, column 2: .* expected the indentation",
        ),
        ("a: 1\nb: !!int x\n", r"line 2, column 4: .* expected a value of type int"),
        ("a: " + "9" * 5000, r"line 1, column 4: .* expected a value of type int"),
        ("a: 1\n? [b]\n: 2\n", r"line 2, column 3: .* unhashable key"),
        ("a: 1\nb: \x1b", r"line 2: expected a text without control characters, got U\+001B"),
        ("a: &x 1\nb: *x\nc: \x07", r"line 3: expected a text without control .*, got U\+0007"),
    ],
)
def test_faults_are_named_with_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "odd.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"odd\.yaml(, )?{words}|odd\.yaml: .*{words}"):
        read_claim_list(folder / "odd.yaml")
    with (
        config_groups([tmp_path]) as groups,
        pytest.raises(ConfigError, match=rf"odd\.yaml(, )?{words}|odd\.yaml: .*{words}"),
    ):
        groups.compose({"experiment": "odd"})


def test_text_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_bytes("a: 1\nb: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"line 2: expected a text in UTF-8, got the byte 0xe9"):
        read_yaml(tmp_path / "odd.yaml")


def test_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "odd.yaml")
    with pytest.raises(ConfigError, match="expected a file of YAML"):
        read_claim_list(tmp_path / "odd.yaml")


def test_few_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": [{"x": 1}] * 2, "c": {"x": 1, "y": 2}}


def test_numbers_and_dates_are_read_as_in_config_groups(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("[1e-4, -2.5E+3, 1_0e2, 3e, 1e4x, 2026-01-31, 0.1, 7]")
    found = read_yaml(path, strict=False)
    assert found == [1e-4, -2500.0, 1000.0, "3e", "1e4x", "2026-01-31", 0.1, 7]
    assert found == OmegaConf.to_container(OmegaConf.load(path))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 0", 0),
        ("a: -0.5", -0.5),
        ("a: 0.010", 0.01),
        ("a: .5", 0.5),
        ("a: .5e3", 500.0),
        ("a: 1.", 1.0),
        ("a: 1e-4", 1e-4),
        ("a: 1e5", 1e5),
        ("a: 1_000", 1000),
        ("a: 0x10", 16),
        ("a: 10", 10),
        ("a: 0e0", 0.0),
        ("a: .inf", float("inf")),
        ("a: ~", None),
        ("a: true", True),
        ("a: y", "y"),
        ("a: '010'", "010"),
        ('a: "no"', "no"),
        ("a: '12:30'", "12:30"),
        ("a: '2026-01-31'", "2026-01-31"),
        ("a: 1.2.3", "1.2.3"),
        ("a: host:80", "host:80"),
        ("a: 2026-01", "2026-01"),
        ("a: none", "none"),
        ("a: online", "online"),
    ],
)
def test_what_is_read_as_it_looks(tmp_path: Path, text: str, value: object) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(text)
    assert read_yaml(path) == {"a": value}
    assert type(read_yaml(path)["a"]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *("010", "-07", "+00", "08", "007", "0o17", "0_7", "00.5", "01e3"),
        *("12:30", "1:30:00", "190:20:30.15", "-1:30"),
        *("2026-01-31", "2026-1-3", "2026-01-31 10:00:00", "2026-01-31T10:00:00Z"),
        *("yes", "No", "ON", "off"),
        *("1e400", "-1.5e+999"),
    ],
)
@pytest.mark.parametrize("form", ["a: 1\nb: {}\n", "a: 1\nb: [1, {}]\n", "- x\n- {}\n"])
def test_what_yaml_reads_otherwise_than_people_is_refused(
    tmp_path: Path, text: str, form: str
) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(form.replace("{}", text))
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}, line 2: expected ")
    assert str(error.value).endswith(f"got {text}")
    # In quotes it is a text, and programs write what they like.
    path.write_text(form.replace("{}", f"'{text}'"))
    read_yaml(path)
    path.write_text(form.replace("{}", text))
    read_yaml(path, strict=False)


@pytest.mark.parametrize(
    ("text", "line", "first"),
    [
        ("steps: 2\n\nsteps: 3\n", 3, 1),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, 2),
        ("a: {b: 1, c: 2,\n b: 3}\n", 2, 1),
        ("- {b: 1}\n- {b: 2,\n   'b': 2}\n", 3, 2),
        ("b: 1\n'b': 1\n", 2, 1),
        ("1: a\n'1': b\n", 2, 1),
        ("x: &x {b: 1}\nc:\n  <<: *x\n  b: 1\n  b: 2\n", 5, 4),
    ],
)
def test_a_key_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, line: int, first: int
) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"line {line}: expected each key once.* line {first}"):
        read_yaml(path)


def test_keys_that_a_merge_replaces_are_no_repetition(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("x: &x {b: 1, c: 1}\ny: &y {b: 2}\nz:\n  <<: *x\n  b: 3\n")
    assert read_yaml(path)["z"] == {"b": 3, "c": 1}


def test_a_document_has_the_lines_of_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("a: 1\nb:\n  - {c: 1}\n  - d: 2\n    e.f: 3\n")
    lines = read_document(path).lines
    assert lines[("a",)] == 1
    assert lines[("b",)] == 2
    assert (lines[("b", "0", "c")], lines[("b", "1")], lines[("b", "1", "e.f")]) == (3, 4, 5)


def test_our_own_files_are_read_as_they_look() -> None:
    root = Path(__file__).parents[1]
    files = [f for name in ("conf", "advsweep", "examples") for f in (root / name).rglob("*.yaml")]
    # Those of `init` have places to fill in.
    files = [file for file in files if file.parent.name != "init_files"]
    assert files
    for file in files:
        read_yaml(file)


# Pieces that mean something to YAML, to OmegaConf or to JSON, and any other character.
_SIGNS = ("${", "}", "\\", "$", "oc.env:HOME", "'", '"', ": ", " #", "%", "&a", "*a", "!!x", ",")
_WORDS = ("null", "1e-3", "~", "- ", "?", "\n", "\t", "\u2028", "\x85", "\x00", "\U0001f600")
_PIECES = st.sampled_from((*_SIGNS, *_WORDS))
TEXTS = st.lists(_PIECES | st.characters(), max_size=8).map("".join).filter("???".__ne__)


@given(TEXTS, TEXTS)
def test_what_is_written_into_a_file_is_composed_to_the_same(text: str, other: str) -> None:
    """`yaml_literal` is composed as Hydra composes a sweep file: by YAML, then by OmegaConf."""
    value = {"key": text, "list": [other, 3, 1e-6, True, None]}
    written = f"{yaml_literal(value)}\n"
    assert written.count("\n") == 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.yaml"
        path.write_text(written, encoding="utf-8")
        composed = OmegaConf.create(read_yaml(path))
    assert OmegaConf.to_container(composed, resolve=True) == value


def test_a_text_that_stands_for_a_missing_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="other than '\\?\\?\\?'"):
        yaml_literal(["???"])
