"""Negative controls of tests: programs that do nothing, which no tests may accept."""

from __future__ import annotations

from collections.abc import Sequence

from advsweep.tasks.verifiers.tester import CLASS

_NOT_A_NUMBER = "return float('nan')"

# What a function does that does nothing: it raises, returns something that nobody asked for, clears
# its arguments, or returns a number that is unequal to all others.
_BODIES = (
    "raise RuntimeError('a control')",
    "return 'a control: 7f1e90c2'",
    "return object()",
    "[a.clear() for a in [*args, *named.values()] if hasattr(a, 'clear')]",
    _NOT_A_NUMBER,
)

_PROGRAM = """
class _Nothing:
    def __call__(self, *args, **named):
        {body}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
"""

_CLASS = """
class {name}:
    def __init__(self, *args, **named):
        pass

    def __getattr__(self, name):
        return _Nothing()
"""


def control_programs(names: Sequence[str], tests: str) -> list[str]:
    """Return programs that define some names and do nothing.

    Args:
        names: what the tests take from a program.
        tests: their source.
    """
    # Constants such as 0, "" or [] are right answers to some problems, and not among them.
    programs = ["", "import os\nos._exit(0)"]
    if not names:
        return programs
    for body in _BODIES:
        if body == _NOT_A_NUMBER and "nan" in tests.lower():
            continue  # it may be the right answer
        source = _PROGRAM.format(body=body)
        for name in names:
            if name == CLASS:
                source += _CLASS.format(name=name)
            else:
                source += f"{name} = _Nothing()\n"
        programs.append(source)
    return programs
