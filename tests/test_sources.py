"""Which files the source of a class is made of, and what changes its hash."""

from __future__ import annotations

import importlib
import itertools
import py_compile
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from advsweep.components import SOURCE, Component, identity_of, without_sources
from advsweep.errors import ConfigError
from advsweep.estimators import ESTIMATORS
from advsweep.sources import LARGE_BYTES, SourceCode, named_files, source_of, source_of_files

CLASS = """
from dataclasses import dataclass
from typing import ClassVar
from advsweep.components import Component
{imports}

@dataclass(kw_only=True)
class Part({base}):
    name: ClassVar[str] = "part"
    size: int = 1
"""

_numbers = itertools.count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package({FILE: TEXT, ...})` returns the folder of a package with a name of its own.

    `NAME` in texts stands for the package's name.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def make(files: dict[str, str], folder: Path = tmp_path) -> Path:
        made = folder / f"foreign_{next(_numbers)}"
        for name, text in files.items():
            file = made / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("NAME", made.name), encoding="utf-8")
        importlib.invalidate_caches()
        return made

    return make


def part(imports: str = "", base: str = "Component") -> str:
    return CLASS.format(imports=imports, base=base)


def source_in(folder: Path, module: str = "part", cls: str = "Part") -> SourceCode:
    """The source of a class as a new process computes it."""
    for name in [n for n in sys.modules if n.split(".")[0] == folder.name]:
        del sys.modules[name]
    loaded = importlib.import_module(f"{folder.name}.{module}")
    source = source_of(getattr(loaded, cls))
    assert source is not None
    return source


def names_in(source: SourceCode, folder: Path) -> set[str]:
    return {name.replace(folder.name, "NAME") for name in source.files}


def changes(folder: Path, name: str, text: str) -> bool:
    """Whether another content of a file changes the source."""
    before = source_in(folder)
    (folder / name).write_text(text, encoding="utf-8")
    return source_in(folder).digest != before.digest


def test_components_of_advsweep_have_no_source() -> None:
    for name in ESTIMATORS.modules:
        estimator = ESTIMATORS.get(name)
        assert source_of(estimator) is None
    assert SOURCE not in identity_of(ESTIMATORS.build("grpo_n"))


def test_a_changed_sign_a_comment_and_a_new_line_change_the_source(package) -> None:
    folder = package({"__init__.py": "", "part.py": part() + "    sign = 1\n"})
    assert changes(folder, "part.py", part() + "    sign = -1\n")
    assert changes(folder, "part.py", part() + "    sign = -1  # as in the paper\n")
    assert changes(folder, "part.py", part() + "    sign = -1  # as in the paper\n\n")


def test_line_ends_and_a_byte_order_mark_change_nothing(package) -> None:
    text = part()
    folder = package({"__init__.py": "", "part.py": text})
    before = source_in(folder)
    (folder / "part.py").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert source_in(folder) == before


@pytest.mark.parametrize(
    "imports",
    [
        "from NAME.helper import SIGN",
        "from . import helper",
        "from .helper import *",
        "import NAME.helper",
        "import NAME.helper as h",
        "from NAME import helper",
        'import importlib\nh = importlib.import_module("NAME.helper")',
        'import importlib\nh = importlib.import_module(".helper", __package__)',
        'h = __import__("NAME.helper")',
        # What is imported where it is used.
        "def late():\n    from .helper import SIGN\n    return SIGN",
        "try:\n    from .helper import SIGN\nexcept ImportError:\n    SIGN = 1",
        # A name that is computed: every module of the package counts.
        "import importlib\nh = importlib.import_module(f\"NAME.{'helper'}\")",
        "import pkgutil\nfound = list(pkgutil.iter_modules(__path__ if False else []))",
    ],
)
def test_a_helper_is_part_of_the_source_however_it_is_imported(package, imports) -> None:
    files = {"__init__.py": "", "helper.py": "SIGN = 1\n", "other.py": "", "part.py": part(imports)}
    folder = package(files)
    assert changes(folder, "helper.py", "SIGN = -1\n")


def test_what_is_not_imported_is_no_part_of_the_source(package) -> None:
    folder = package({"__init__.py": "", "plot.py": "x = 1\n", "README.md": "", "part.py": part()})
    assert names_in(source_in(folder), folder) == {"NAME", "NAME.part"}
    assert not changes(folder, "plot.py", "x = 2\n")
    assert not changes(folder, "README.md", "new")
    # Importing a package runs its own file.
    assert changes(folder, "__init__.py", "x = 1\n")


def test_helpers_of_helpers_count_and_circles_end(package) -> None:
    folder = package(
        {
            "__init__.py": "",
            "part.py": part("from .a import x"),
            "a.py": "from . import b\nx = 1\n",
            "b.py": "from . import a\nfrom .deep.c import y\n",
            "deep/__init__.py": "",
            "deep/c.py": "from .. import b\ny = 1\n",
        }
    )
    expected = {"", ".part", ".a", ".b", ".deep", ".deep.c"}
    assert names_in(source_in(folder), folder) == {f"NAME{name}" for name in expected}
    assert changes(folder, "deep/c.py", "y = 2\n")


def test_a_parent_in_another_package_is_part_of_the_source(package) -> None:
    parent = package({"__init__.py": "", "base.py": part("", "Component").replace("Part", "Base")})
    child = package(
        {"__init__.py": "", "part.py": part(f"import {parent.name}.base as b", "b.Base")}
    )
    before = source_in(child)
    assert {child.name, f"{child.name}.part", f"{parent.name}.base"} <= before.files.keys()
    text = (parent / "base.py").read_text()
    (parent / "base.py").write_text(text + "    sign = -1\n")
    for name in [n for n in sys.modules if n.startswith(parent.name)]:
        del sys.modules[name]
    assert source_in(child).digest != before.digest


def test_a_namespace_package_needs_no_file_of_its_own(package) -> None:
    folder = package({"helper.py": "SIGN = 1\n", "part.py": part("from . import helper")})
    assert names_in(source_in(folder), folder) == {"NAME.part", "NAME.helper"}
    assert changes(folder, "helper.py", "SIGN = -1\n")


def test_the_same_source_has_one_hash_wherever_it_lies(package, tmp_path, monkeypatch) -> None:
    files = {"__init__.py": "", "helper.py": "x = 1\n", "part.py": part("from . import helper")}
    here = package(files)
    first = source_in(here)
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    here.rename(installed / here.name)
    monkeypatch.syspath_prepend(installed)
    importlib.invalidate_caches()
    assert source_in(installed / here.name) == first


def test_installed_libraries_are_not_followed(package, tmp_path, monkeypatch) -> None:
    installed = tmp_path / "lib" / "site-packages"
    library = package({"__init__.py": "x = 1\n"}, installed)
    monkeypatch.syspath_prepend(installed)
    imports = f"import numpy, torch, {library.name}"
    folder = package({"__init__.py": "", "part.py": part(imports)})
    assert names_in(source_in(folder), folder) == {"NAME", "NAME.part"}


def test_a_module_without_a_package_counts_with_the_modules_beside_it(
    tmp_path, monkeypatch
) -> None:
    name, helper = f"alone_{next(_numbers)}", f"beside_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(part(f"import {helper}"))
    (tmp_path / f"{helper}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    source = source_of(importlib.import_module(name).Part)
    assert source is not None
    assert source.files.keys() == {name, helper}


def test_files_that_code_reads_beside_itself_count(package) -> None:
    reads = "from pathlib import Path\ntable = Path(__file__).parent / 'data' / 'table.json'\n"
    folder = package(
        {
            "__init__.py": "",
            "part.py": part(reads),
            "data/table.json": "1",
            ".hidden": "",
            "b.py": "",
        }
    )
    assert names_in(source_in(folder), folder) == {"NAME", "NAME.part", "NAME/data/table.json"}
    assert changes(folder, "data/table.json", "2")
    assert not changes(folder, ".hidden", "x")
    assert not changes(folder, "b.py", "x = 1")


def test_a_large_file_counts_by_its_size(package) -> None:
    folder = package({"__init__.py": "place = __file__\n", "part.py": part()})
    weights = folder / "weights.bin"
    with open(weights, "wb") as file:
        file.truncate(LARGE_BYTES + 1)
    before = source_in(folder)
    with open(weights, "r+b") as file:
        file.write(b"x")
    assert source_in(folder) == before
    with open(weights, "r+b") as file:
        file.truncate(LARGE_BYTES + 2)
    assert source_in(folder).digest != before.digest


def test_bytecode_without_source_counts_by_its_code(package) -> None:
    folder = package({"__init__.py": "", "part.py": part()})

    def compiled(text: str) -> str:
        (folder / "part.py").write_text(text)
        py_compile.compile(str(folder / "part.py"), str(folder / "part.pyc"), dfile="part.py")
        (folder / "part.py").unlink()
        importlib.invalidate_caches()
        return source_in(folder).digest

    first = compiled(part())
    assert compiled(part()) == first
    assert compiled(part() + "    sign = -1\n") != first


def test_a_package_in_an_archive_has_a_source(package, tmp_path, monkeypatch) -> None:
    folder = package({"__init__.py": "", "part.py": part()})
    unpacked = source_in(folder)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for file in folder.glob("*.py"):
            archive.write(file, f"{folder.name}/{file.name}")
            file.unlink()
    shutil.rmtree(folder)
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    importlib.invalidate_caches()
    assert source_in(folder) == unpacked


def test_a_process_keeps_the_source_that_it_imported(package) -> None:
    folder = package({"__init__.py": "", "part.py": part(), "other.py": part()})
    module = importlib.import_module(f"{folder.name}.part")
    before = source_of(module.Part)
    (folder / "part.py").write_text(part() + "    sign = -1\n")
    assert source_of(module.Part) == before
    importlib.reload(module)
    assert source_of(module.Part) != before


def test_a_class_without_a_file_is_refused() -> None:
    scope: dict[str, Any] = {"__name__": "typed_in", "Component": Component}
    exec("class Typed(Component):\n    name = 'typed'\n", scope)
    with pytest.raises(ConfigError, match=r"whose source can be read.*write it into a file"):
        source_of(scope["Typed"])


def test_what_a_component_says_of_its_identity_cannot_leave_its_source_out(package) -> None:
    own = "    def identity(self):\n        return {'name': 'part'}\n"
    folder = package({"__init__.py": "", "part.py": part() + own})
    cls = importlib.import_module(f"{folder.name}.part").Part
    source = source_of(cls)
    assert source is not None
    assert identity_of(cls()) == {"name": "part", SOURCE: source.digest}
    assert without_sources({"a": [identity_of(cls())]}) == {"a": [{"name": "part"}]}


def test_a_script_counts_with_its_modules_and_shell_scripts_with_their_files(tmp_path) -> None:
    (tmp_path / "lib").mkdir()
    for name, text in {
        "run.sh": "set -e\npython train.py --config=conf.yaml > train.log\n",
        "train.py": "import helper, json\nfrom lib import deep\n",
        "helper.py": "",
        "lib/deep.py": "",
        "conf.yaml": "",
        "train.log": "",
        "notes.md": "",
        "plot.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    source = source_of_files([tmp_path / "run.sh"], tmp_path)
    assert source.files.keys() == {"run.sh", "train.py", "helper", "lib.deep", "conf.yaml"}
    (tmp_path / "helper.py").write_text("x = 1")
    assert source_of_files([tmp_path / "run.sh"], tmp_path).digest != source.digest


def test_words_of_a_text_that_name_files(tmp_path) -> None:
    for name in ("a.py", "b.sh", "out.log"):
        (tmp_path / name).write_text("")
    text = 'cd "$0" && ./b.sh --x=a.py; cat out.log missing.py ~nobody/x ' + "y" * 5000
    assert [file.name for file in named_files(text, (tmp_path,))] == ["b.sh", "a.py"]
