"""Packages that share their name with a function of the Python API: `advsweep.report(...)`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Let a package be called as a function, which is imported with its module at a call.

    Args:
        package: the name of the package, in `sys.modules`.
        module: the module of the function, which may load what no command needs.
    """

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(module), function)(*args, **options)

    sys.modules[package].__class__ = CallablePackage
