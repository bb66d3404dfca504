"""Import torch when it is first used, in commands that show what components are.

The modules of estimators and objectives import torch, which takes two seconds of CPU time, and use
nothing of it before they compute. `importlib.util.LazyLoader` would execute torch as soon as a
second module imports it. Python 3.15 has `lazy import` for this (PEP 810).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "torch"


def defer_torch() -> None:
    """Let `import torch` import nothing until an attribute or a submodule of it is used.

    Has no effect if torch is imported already or is not installed. Only for commands of one
    thread: while one executes torch, another would see a part of it.
    """
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _DeferredModule
    sys.modules[_NAME] = module
    sys.meta_path.insert(0, _SubmoduleFinder())


class _DeferredModule(ModuleType):
    """torch before its code is executed; the first attribute executes it, in this same object."""

    def __getattr__(self, name: str) -> Any:
        _execute(self)
        return getattr(self, name)


class _SubmoduleFinder(MetaPathFinder):
    """Executes torch before a submodule is imported: `import torch.nn` uses no attribute of it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}."):
            return None
        _execute(sys.modules[_NAME])
        imported = sys.modules.get(fullname)
        if imported is None:
            return None
        its_own = imported.__spec__
        assert its_own is not None
        spec = ModuleSpec(fullname, _ImportedLoader(imported), origin=its_own.origin)
        spec.submodule_search_locations = its_own.submodule_search_locations
        # Python prefers the spec that a module has already, by which it would execute it again.
        imported.__spec__ = spec
        return spec


class _ImportedLoader(Loader):
    """Returns a module that torch has imported itself."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def __getattr__(self, name: str) -> Any:
        """Return what its own loader has: a module that was only searched for keeps this one."""
        assert self.spec is not None
        return getattr(self.spec.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _execute(module: ModuleType) -> None:
    """Execute the code of torch; from then on it is a module like others."""
    module.__class__ = ModuleType
    # A new list, as the import of a submodule is going through the present one.
    sys.meta_path = [each for each in sys.meta_path if not isinstance(each, _SubmoduleFinder)]
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # As an import does: the next one must fail in the same way, and not find half of torch.
        sys.modules.pop(_NAME, None)
        raise
