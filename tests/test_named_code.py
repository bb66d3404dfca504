"""Code that a command line names, and the consent to run what a store holds of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from advsweep.components import identity_of, leaves
from advsweep.errors import ConfigError
from advsweep.estimators import ESTIMATORS
from advsweep.named_code import ALLOWED, allow_stored_code, find_codes, parse_word, split_word
from advsweep.rollouts import ROLLOUTS
from advsweep.sources import source_of_text

Write = Callable[..., str]

CENTRED = "def advantages(rewards, scale=1.0): return scale * (rewards - rewards.mean(1, True))\n"
HALVED = """
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.estimators import Estimator


@dataclass(kw_only=True)
class Halved(Estimator):
    name: ClassVar[str] = "halved"
    scale: float = option(0.5, gt=0, help="s")

    def _advantages(self, groups, info):
        return self.scale * groups.centred
"""


@pytest.mark.parametrize(
    ("word", "place", "name"),
    [
        ("idea.py", "idea.py", ""),
        ("~/a b/idea.py:Halved", "~/a b/idea.py", "Halved"),
        ("package.module:Name", "package.module", "Name"),
        ("module:name", "module", "name"),
    ],
)
def test_words_that_name_code(word: str, place: str, name: str) -> None:
    parsed = parse_word(word)
    assert parsed is not None
    assert (parsed.place, parsed.object) == (place, name)


@pytest.mark.parametrize("word", ["grpo", "idea.pyc", "package.module", "a:b:c", "idea.py:", ":x"])
def test_words_that_do_not(word: str) -> None:
    assert parse_word(word) is None


def test_options_follow_a_word() -> None:
    assert split_word("fade") == ("fade", [])
    assert split_word("power_alpha:alpha=3") == ("power_alpha", ["alpha=3"])
    assert split_word("a/idea.py:scale=2") == ("a/idea.py", ["scale=2"])
    assert split_word("idea.py:Halved:scale=2") == ("idea.py:Halved", ["scale=2"])
    assert split_word("a_grae:base={name:grpo}") == ("a_grae", ["base={name:grpo}"])


def test_names_and_labels(write_code: Write) -> None:
    words = [
        write_code(CENTRED),
        write_code(CENTRED + HALVED, "My-Idea.py") + ":Halved",
        write_code(CENTRED, "grpo.py"),
        write_code(CENTRED, "other/idea.py"),
    ]
    names = [ESTIMATORS.resolve(word) for word in words]
    labels = [ESTIMATORS.get(name).named_code.label for name in names]
    assert names == ["idea", "my_idea_halved", "grpo_py", "other_idea"]
    assert labels == ["idea", "My-Idea:Halved", "grpo.py", "other/idea"]
    assert [ESTIMATORS.resolve(word) for word in words] == names
    assert ESTIMATORS.resolve("grpo") == "grpo"


def test_the_only_estimator_of_a_file_needs_no_name(write_code: Write) -> None:
    assert ESTIMATORS.build(ESTIMATORS.resolve(write_code(HALVED))).plain()["scale"] == 0.5
    helpers = "def helper(x): return x\n"
    named = ESTIMATORS.resolve(write_code(helpers + CENTRED))
    assert ESTIMATORS.get(named).named_code.object == "advantages"
    named = ESTIMATORS.resolve(write_code(CENTRED.replace("advantages", "centred")))
    assert ESTIMATORS.get(named).named_code.object == "centred"
    with pytest.raises(ConfigError, match=r"^idea\.py: expected one estimator, got Halved .*name"):
        ESTIMATORS.resolve(write_code(CENTRED + HALVED))


def test_a_class_that_derives_from_ours_does_not_take_its_source(write_code: Write) -> None:
    text = """
from dataclasses import dataclass
from advsweep.estimators.baselines import GRPO

@dataclass(kw_only=True)
class Doubled(GRPO):
    equation = "Eq. 1"
    def _advantages(self, groups, info):
        return 2 * super()._advantages(groups, info)
"""
    doubled = ESTIMATORS.build(ESTIMATORS.resolve(write_code(text)))
    stated = (doubled.formula, doubled.paper, doubled.equation, doubled.provenance)
    assert stated == ("no formula given", "no paper", "Eq. 1", ())
    assert ESTIMATORS.get("grpo").paper.startswith("GRPO")


def test_identity_is_that_of_the_code(write_code: Write) -> None:
    def identity(text: str, name: str = "idea.py", object_name: str = "") -> dict[str, object]:
        word = write_code(text, name) + object_name
        return identity_of(ESTIMATORS.build(ESTIMATORS.resolve(word)))

    first = identity(CENTRED)
    assert identity(CENTRED, "renamed.py") == first
    assert identity(CENTRED, object_name=":advantages") == first
    assert identity(CENTRED.replace("\n", "\r\n")) == first
    assert identity(CENTRED + "# a comment\n") != first
    both = CENTRED + CENTRED.replace("advantages", "other")
    assert identity(both) != identity(both, object_name=":other")


def test_local_modules_that_a_file_imports_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = f"import torch\nfrom mine_of_the_test import FACTOR\n{CENTRED}"
    digests = []
    for number in (1, 22):
        (tmp_path / "mine_of_the_test.py").write_text(f"FACTOR = {number}\n")
        source = source_of_text("file", text)
        assert source.files.keys() == {"file", "mine_of_the_test"}
        digests.append(source.digest)
    assert digests[0] != digests[1]


def test_a_module_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ideas_of_the_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "shaped.py").write_text(HALVED + CENTRED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ESTIMATORS, "_named", {})
    for name in ("Halved", "advantages"):
        built = ESTIMATORS.build(ESTIMATORS.resolve(f"ideas_of_the_test.shaped:{name}"))
        assert built.named_code.label == f"shaped:{name}"
        assert "source:sha256" in identity_of(built)
        assert ESTIMATORS.build(built.plain()) == built
        monkeypatch.setenv(ALLOWED, "[]")
        with pytest.raises(ConfigError, match="only a command line names code"):
            ESTIMATORS.build(built.plain())
    with pytest.raises(ConfigError, match=r"^ideas_of_the_test\.shaped: .*'Halve'.*'Halved'"):
        ESTIMATORS.resolve("ideas_of_the_test.shaped:Halve")
    with pytest.raises(ConfigError, match="expected a module that can be imported"):
        ESTIMATORS.resolve("ideas_of_the_test.nothing:Name")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def advantages(rewards:\n", r":1: expected Python, got a mistake: '\(' was never"),
        ("\nx = 1 / 0\n", r":2: it raised ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", r":2: it raised SystemExit: 3"),
        ("import beside\n", r":1: .*No module named 'beside'; beside\.py lies beside it"),
        ("", r": expected a function `advantages`, or a class of advsweep\.estimators\.Estimator"),
        ("class Idea: pass\n", r": expected a function `advantages`, or a class"),
        ("import time\ndef a(rewards): return time.time()\n", r":2: .*any time, got .*time\.time"),
        ("from datetime import datetime as d\nd.now()\n", r":2: .* got a call of .*datetime"),
        ("#" * 300_000, r": expected at most 256 kB of Python"),
        (
            HALVED.replace("@dataclass(kw_only=True)", ""),
            r":\d+: expected @dataclass",
        ),
        (
            HALVED.replace("_advantages", "_advantage"),
            r":\d+: expected Halved to define",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_line(
    write_code: Write, text: str, message: str
) -> None:
    write_code("", "beside.py")
    with pytest.raises(ConfigError, match=rf"idea\.py{message}") as caught:
        ESTIMATORS.resolve(write_code(text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text(write_code: Write) -> None:
    word = write_code("")
    Path(word).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected Python in UTF-8"):
        ESTIMATORS.resolve(word)
    with pytest.raises(ConfigError, match="there is no such file"):
        ESTIMATORS.resolve(f"{word}.py")
    with pytest.raises(ConfigError, match=r"a class or a function 'nothing'; "):
        ESTIMATORS.resolve(f"{write_code(CENTRED)}:nothing")


@pytest.mark.security
def test_code_of_a_store_runs_with_consent_alone(
    write_code: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "has_run"
    node = ESTIMATORS.build(ESTIMATORS.resolve(write_code(CENTRED))).plain()
    assert ESTIMATORS.build(node).plain() == node
    hostile = f"open({str(witness)!r}, 'w')\n{CENTRED}"
    changed = {**node, "code": {**node["code"], "text": hostile}}
    # The command line named another text under this name.
    for place in ("idea.py", str(tmp_path / "idea.py"), "os.path", "antigravity"):
        stored = {**changed, "code": {**changed["code"], "place": place}}
        with pytest.raises(ConfigError, match="only a command line names code"):
            ESTIMATORS.build(stored)
    assert not witness.exists()
    monkeypatch.setenv(ALLOWED, "[]")
    with pytest.raises(ConfigError, match=r"^estimator: the store holds .*--trust-store"):
        ESTIMATORS.build(node)
    allow_stored_code()
    ESTIMATORS.build(changed)
    assert witness.exists()


@pytest.mark.security
@pytest.mark.parametrize("value", ["", "[", "{}", "1", '["*x"]', "null"])
def test_a_damaged_variable_is_no_consent(
    write_code: Write, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    node = ESTIMATORS.build(ESTIMATORS.resolve(write_code(CENTRED))).plain()
    monkeypatch.setenv(ALLOWED, value)
    with pytest.raises(ConfigError, match="only a command line names code"):
        ESTIMATORS.build(node)


@pytest.mark.security
@pytest.mark.parametrize("code", [None, "x", {}, {"text": 1}, {"label": "a", "place": "b"}])
def test_a_malformed_node_is_refused(code: object) -> None:
    with pytest.raises(ConfigError, match=r"^estimator\.code: expected the texts label"):
        ESTIMATORS.build({"name": "idea", "code": code})


@pytest.mark.security
def test_a_name_in_a_config_is_never_a_file(write_code: Write) -> None:
    """Only `resolve`, which words of the command line go through, reads a file."""
    with pytest.raises(ConfigError, match="no estimator is called"):
        ESTIMATORS.build({"name": write_code(CENTRED)})


def test_keys_of_a_config_are_without_code(write_code: Write) -> None:
    node = ESTIMATORS.build(ESTIMATORS.resolve(write_code(CENTRED))).plain()
    config = {"estimator": {"name": "a_grae", "base": node}, "steps": 2}
    assert dict(leaves(config)) == {
        "estimator.name": "a_grae",
        "estimator.base.name": "idea",
        "estimator.base.scale": 1.0,
        "steps": 2,
    }
    assert list(find_codes(config)) == [("estimator.base", node["code"])]


def test_a_kind_without_files_says_so(write_code: Write) -> None:
    with pytest.raises(ConfigError, match="cannot be named by its file"):
        ROLLOUTS.resolve(write_code(CENTRED))


def test_consent_reaches_processes(write_code: Write) -> None:
    """A worker has the config and the environment, and no file."""
    word = write_code(CENTRED)
    node = ESTIMATORS.build(ESTIMATORS.resolve(word), scale=3).plain()
    Path(word).unlink()
    program = f"from advsweep.estimators import build_estimator; print(build_estimator({node!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "advantages(scale=3.0)\n"
