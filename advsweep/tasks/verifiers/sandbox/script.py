"""The modules of `inside` as one script, for a Python that has no advsweep."""

from __future__ import annotations

import binascii
import functools
import marshal
from importlib.resources import files
from types import CodeType
from typing import Any

_PACKAGE = "advsweep.tasks.verifiers.sandbox.inside"
_MODULES = ("wire", "confine", "namespaces", "program", "tester", "main")  # in order of imports

# Modules that stand in `sys.modules` under their full names are imported from there.
_START = """
import binascii, marshal, sys, types
package = sys.modules[{package!r}] = types.ModuleType({package!r})
for name, code in {modules!r}:
    module = types.ModuleType({package!r} + "." + name)
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec({load}, module.__dict__)
package.main.main({settings!r})
"""


def script(settings: dict[str, Any], *, portable: bool = False) -> str:
    """A script that runs `inside.main` with some settings.

    Args:
        portable: for another Python than this one, which starts more slowly.
    """
    modules = _sources() if portable else _compiled()
    load = "code" if portable else "marshal.loads(binascii.a2b_base64(code))"
    return _START.format(package=_PACKAGE, modules=modules, load=load, settings=settings)


@functools.cache
def _sources() -> tuple[tuple[str, str], ...]:
    folder = files(_PACKAGE)
    return tuple((name, (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES)


@functools.cache
def _compiled() -> tuple[tuple[str, bytes], ...]:
    """Each module as text that is short enough for a command line."""
    return tuple(
        (name, binascii.b2a_base64(marshal.dumps(_compile(name, source)), newline=False))
        for name, source in _sources()
    )


def _compile(name: str, source: str) -> CodeType:
    # Documentation strings are left out.
    return compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)
