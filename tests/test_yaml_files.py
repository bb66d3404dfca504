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
from advsweep.yaml_files import read_yaml, yaml_literal

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
        ("a: \x1b", r"special characters are not allowed"),
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
    (tmp_path / "odd.yaml").write_bytes("a: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"expected a text in UTF-8: .* 0xe9 in position 3"):
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
    found = read_yaml(path)
    assert found == [1e-4, -2500.0, 1000.0, "3e", "1e4x", "2026-01-31", 0.1, 7]
    assert found == OmegaConf.to_container(OmegaConf.load(path))


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
