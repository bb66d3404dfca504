"""Runs the sandbox where a Python that starts looks for a site's own settings.

Python then runs a script of a model as it runs any file: no frame, flag or module of the sandbox
is below it. The process of each script is a fork of this one, and returns from here.
"""

import sys

_MODULES = set(sys.modules) - {__name__}  # before the imports below

import os  # noqa: E402
import types  # noqa: E402


def _forget_environment(name: str) -> None:
    """Remove a variable, also from what /proc/self/environ shows."""
    import ctypes

    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_void_p
    place = get(name.encode())
    length = len(f"{name}={os.environ.pop(name)}".encode())
    ctypes.memset(place - len(f"{name}=".encode()), 0, length)


def _start() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    _forget_environment("PYTHONPATH")
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    own = sys.modules.pop(__name__)
    # That of the installation, if it has one. Without contextlib, which scripts may import anew.
    try:  # noqa: SIM105
        __import__(__name__)
    except ImportError:
        pass
    sys.modules[__name__] = own
    sys.set_int_max_str_digits(0)
    # A package of this name that has nothing but its folder: the real one would import a registry,
    # and double the time that a program takes to start.
    package = types.ModuleType("advsweep.tasks.verifiers")
    package.__path__ = [os.path.dirname(folder)]
    sys.modules[package.__name__] = package
    from advsweep.tasks.verifiers import inside

    inside.main(_MODULES)


_start()
# Python's `site` takes this for a module that does not exist, and leaves nothing of it.
raise ImportError(name=__name__)
