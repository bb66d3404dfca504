"""Scripts run as `python FILE < given > printed` runs them, each in a process of its own."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import Code, namespaces_missing

ISOLATIONS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
    ),
    "limits",
]


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


@pytest.fixture(params=ISOLATIONS)
def outcome(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    def outcome(program: str, *pairs: tuple[str, str], **fields: Any) -> Outcome:
        spec = {"name": "code", "isolation": request.param, "seconds": 10.0, **fields}
        verifier = VERIFIERS.build(spec)
        assert isinstance(verifier, Code)
        tests = [{"input": given, "output": printed} for given, printed in pairs]
        text = f"```python\n{program}\n```"
        return verifier.judge({"tests": tests, "setup": ""}, text).outcome

    return outcome


# What a program could tell the sandbox by. Each prints something.
LOOKS = {
    "modules": "import sys\nprint(sorted(sys.modules))",
    "children of modules": """
import sys
names = sorted(sys.modules)
print([(name, child) for name in names for child, value in sorted(vars(sys.modules[name]).items())
       if type(value) is type(sys)])
""",
    "flags": """
import sys
print([(name, getattr(sys.flags, name)) for name in dir(sys.flags) if name[0].islower()
       and name not in ("count", "index", "int_max_str_digits")])
""",
    "frames": """
import sys
frame, names = sys._getframe(), []
while frame:
    names.append((frame.f_code.co_name, frame.f_lineno))
    frame = frame.f_back
print(names)
""",
    "globals": "print(sorted((name, type(value).__name__) for name, value in globals().items()))",
    "arguments": "import os, sys\nprint([os.path.basename(a) for a in sys.argv], len(sys.orig_argv))",
    "path": "import os, sys\nprint(os.path.dirname(os.path.realpath(__file__)) == sys.path[0])\nprint(sys.path[1:])",
    "environment": """
import os
print(sorted(set(os.environ) - {"HOME", "TMPDIR"}))
names = [line.partition(b"=")[0] for line in open("/proc/self/environ", "rb").read().split(b"\\0")]
print(sorted(name.decode() for name in names if name.strip()))
""",
    "descriptors": """
import os, stat
print(len(os.listdir("/proc/self/fd")))
print([stat.S_ISREG(os.fstat(descriptor).st_mode) for descriptor in (0, 1)])
""",
    "streams": """
import sys
for stream in (sys.stdin, sys.stdout, sys.__stdin__, sys.__stdout__):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.seekable(),
          stream.line_buffering, stream.buffer.name, stream.buffer.raw.mode, stream.fileno())
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stdin.tell())
""",
    "hooks": """
import gc, sys
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
print(sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile(), sys.warnoptions)
print(sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), gc.callbacks, len(sys.meta_path))
print(len(sys.path_hooks), sys.exc_info())
""",
    "depth": """
import sys
def deep(n):
    try:
        return deep(n + 1)
    except RecursionError:
        return n
print(deep(0))
""",
    "objects": """
import gc
kinds = (type(o) for o in gc.get_objects())
print(any("advsweep" in repr(kind) for kind in kinds))
names = (str(o.get("__name__")) for o in gc.get_objects() if type(o) is dict)
print(any("advsweep" in name or "sitecustomize" in name for name in names))
""",
    "threads": """
import threading
print(threading.current_thread() is threading.main_thread(), [t.name for t in threading.enumerate()])
""",
    "signals": """
import signal
print([str(signal.getsignal(n)) for n in (1, 2, 13, 14, 15, 17)], signal.pthread_sigmask(0, []))
""",
    "annotations": """
def f(x: int | None = None) -> "text": pass
print(f.__annotations__, type(f.__annotations__["x"]).__name__)
""",
    "wait": "import os\ntry:\n    os.waitpid(-1, 0)\nexcept ChildProcessError as e:\n    print(e)",
}


@pytest.fixture
def plainly(tmp_path: Path) -> Callable[[str, str], str]:
    """What `python FILE < given > printed` prints in the environment of a sandbox."""

    def plainly(program: str, given: str) -> str:
        for name, text in (("main.py", program), ("given", given)):
            (tmp_path / name).write_text(text)
        environment = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8"}
        with open(tmp_path / "given") as stdin, open(tmp_path / "printed", "w") as stdout:
            subprocess.run(
                [sys.executable, str(tmp_path / "main.py")],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                cwd=tmp_path,
                env=environment,
                check=True,
            )
        return (tmp_path / "printed").read_text()

    return plainly


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_script_sees_what_plain_python_shows(
    outcome: Callable[..., Outcome], plainly: Callable[[str, str], str], look: str
) -> None:
    look = look.strip()
    expected = plainly(look, "")
    assert outcome(look, ("", expected)) is Outcome.CORRECT, expected
    assert outcome(look, ("", f"{expected}and more")) is Outcome.WRONG


# Programs that print, or do not, while Python ends them.
ENDS = {
    "__del__": "class A:\n    def __del__(self): print('end')\na = A()",
    "__del__ in a cycle": "class A:\n    def __del__(self): print('end')\na = A()\na.a = a\ndel a",
    "__del__ without attributes": "class A:\n    __slots__ = ()\n    def __del__(self): print('end')\na = A()",
    "__del__ of a base": "class A:\n    def __del__(self): print('end')\nclass B(A): pass\nb = [B()]",
    "__del__ of a metaclass": "class M(type):\n    def __del__(self): print('end')\nclass A(metaclass=M): pass",
    "__del__ in an exit handler": "import atexit\nclass A:\n    def __del__(self): print('end')\n@atexit.register\ndef f():\n    global a\n    a = A()",
    "a metaclass that looks": "class M(type):\n    def __getattribute__(self, name):\n        print(name)\n        return type.__getattribute__(self, name)\nclass A(metaclass=M): pass\na = A()",
    "__class__": "class A:\n    @property\n    def __class__(self): print('looked')\na = A()",
    "a generator": "def g():\n    try:\n        yield 1\n    finally:\n        print('end')\na = g()\nprint(next(a))",
    "a coroutine": "async def f(): pass\na = f()\nprint(1)",
    "a context manager": "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield\n    print('no')\na = f()\na.__enter__()",
    "a file": "out = open(1, 'w')\nout.write('7')",
    "a raw file": "import os\nout = os.fdopen(1, 'wb', 100)\nout.write(b'7')",
    "the buffer": "import sys\nsys.stdout.buffer.write(b'7')",
    "another stdout": "import io, sys\nprint(1)\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(2)",
    "a stdout of texts": "import io, sys\nprint(1)\nsys.stdout = io.StringIO()\nprint(2)",
    "no stdout": "import sys\nprint(1)\nsys.stdout = None",
    "a weak reference": "import weakref\nclass A: pass\na = A()\nr = weakref.ref(a, lambda _: print('end'))",
    "weakref.finalize": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'end')",
    "the C library": "import ctypes\nctypes.CDLL(None).printf(b'7')",
    "own exit handlers": "import atexit\natexit.register(print, 'end')\natexit._run_exitfuncs()\nprint('more')",
    "own exit handlers in a thread": "import atexit, threading\nthreading.Thread(target=atexit._run_exitfuncs).start()\nprint('more')",
    "no exit handlers": "import atexit\natexit.register(print, 'end')\natexit._clear()\nprint('more')",
    "threads": "import threading, time\ndef f():\n    time.sleep(.1)\n    print('end')\nthreading.Thread(target=f).start()",
    "a thread's locals": "import threading\nclass A:\n    def __del__(self): print('end')\nl = threading.local()\nl.a = A()",
    "no main": "import sys\nprint(1)\ndel sys.modules['__main__']",
    "another main": "import sys, types\nprint(1)\nsys.modules['__main__'] = types.ModuleType('__main__')",
    "a pool": "import concurrent.futures as c\npool = c.ThreadPoolExecutor(1)\npool.submit(print, 7)",
    "logging": "import logging, logging.handlers\nclass H(logging.handlers.MemoryHandler):\n    def flush(self): print(len(self.buffer))\nlogging.getLogger().addHandler(H(9))",
    "sys.exit": "import sys\nclass A:\n    def __del__(self): print('end')\na = A()\nsys.exit()",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_in_plain_python(
    outcome: Callable[..., Outcome], plainly: Callable[[str, str], str], end: str
) -> None:
    expected = plainly(end, "")
    assert outcome(end, *[("", expected)] * 2) is Outcome.CORRECT, expected
    assert outcome(end, ("", f"{expected}and more")) is Outcome.WRONG


# Right programs for "3 4" on the standard input: they add the numbers.
SUMS = {
    "input": "a, b = map(int, input().split())\nprint(a + b)",
    "open(0)": "print(sum(map(int, open(0).read().split())))",
    "open(0), lines": "for line in open(0):\n    print(sum(map(int, line.split())))",
    "open(0, closefd=False)": "with open(0, closefd=False) as f:\n    print(sum(map(int, f.read().split())))",
    "fileinput": "import fileinput\nfor line in fileinput.input():\n    print(sum(map(int, line.split())))",
    "stdin": "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "readline": "import sys\ninput = sys.stdin.readline\nprint(sum(map(int, input().split())))",
    "readlines": "from sys import stdin\nprint(sum(int(w) for l in stdin.readlines() for w in l.split()))",
    "buffer": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
    "os.read": "import os\nprint(sum(map(int, os.read(0, 10**6).split())))",
    "fstat": "import io, os\ndata = io.BytesIO(os.read(0, os.fstat(0).st_size)).read()\nprint(sum(map(int, data.split())))",
    "mmap": "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:].split())))",
    "/dev/stdin": "print(sum(map(int, open('/dev/stdin').read().split())))",
    "/proc/self/fd/0": "print(sum(map(int, open('/proc/self/fd/0').read().split())))",
    "seek": "import sys\nsys.stdin.read()\nsys.stdin.seek(0)\nprint(sum(map(int, sys.stdin.read().split())))",
    "until the end": "total = 0\ntry:\n    while True:\n        total += sum(map(int, input().split()))\nexcept EOFError:\n    print(total)",
    "walrus": "import sys\ntotal = 0\nwhile line := sys.stdin.readline():\n    total += sum(map(int, line.split()))\nprint(total)",
    "iter": "import sys\nprint(sum(int(w) for l in iter(sys.stdin.readline, '') for w in l.split()))",
    "main guard": "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "os._exit": "import os\nprint(sum(map(int, input().split())), flush=True)\nos._exit(0)",
    "atexit": "import atexit\natexit.register(lambda: print(sum(numbers)))\nnumbers = map(int, input().split())",
    "atexit, buffered": "import atexit, io\nout = io.StringIO()\natexit.register(lambda: print(out.getvalue()))\nout.write(str(sum(map(int, input().split()))))",
    "close": "import sys\nprint(sum(map(int, input().split())))\nsys.stdout.close()",
    "closed descriptor": "import os\nprint(sum(map(int, input().split())), flush=True)\nos.close(1)",
    "exit": "import sys\nprint(sum(map(int, input().split())))\nsys.exit()",
    "exit(0)": "print(sum(map(int, input().split())))\nexit(0)",
    "quit": "print(sum(map(int, input().split())))\nquit()",
    "SystemExit": "print(sum(map(int, input().split())))\nraise SystemExit",
    "exit in a function": "import sys\ndef solve():\n    print(sum(map(int, input().split())))\n    sys.exit(0)\nsolve()",
    "thread": "import threading\nt = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\nt.start()",
    "thread with a stack": "import sys, threading\nthreading.stack_size(2**26)\nsys.setrecursionlimit(10**6)\ndef deep(n): return 0 if n == 0 else 1 + deep(n - 1)\ndef main():\n    deep(20000)\n    print(sum(map(int, input().split())))\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint(sum(map(int, input().split())))",
    "write": "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.readline().split()))))",
    "os.write": "import os\nos.write(1, b'%d' % sum(map(int, input().split())))",
    "buffer, write": "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, input().split())))",
    "own stdout": "import io, os, sys\nsys.stdout = io.TextIOWrapper(open(1, 'wb'), write_through=True)\nprint(sum(map(int, input().split())))",
    "StringIO": "import io, sys\nout = io.StringIO()\nsys.stdout, stdout = out, sys.stdout\nprint(sum(map(int, input().split())))\nstdout.write(out.getvalue())",
    "reconfigure": "import sys\nsys.stdin.reconfigure(encoding='ascii')\nsys.stdout.reconfigure(line_buffering=True)\nprint(sum(map(int, input().split())))",
    "redirect": "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    print('no')\nprint(sum(map(int, input().split())))",
    "asyncio": "import asyncio\nasync def main():\n    print(sum(map(int, input().split())))\nasyncio.run(main())",
    "exec": "exec('print(sum(map(int, input().split())))')",
    "fast input": "import os, sys\nfrom io import BytesIO, IOBase\nclass IO(IOBase):\n    def __init__(self, file):\n        self.fd = file.fileno()\n        self.buffer = BytesIO(os.read(self.fd, max(os.fstat(self.fd).st_size, 8192)))\n    def readline(self):\n        return self.buffer.readline().decode()\nsys.stdin = IO(sys.stdin)\nprint(sum(map(int, sys.stdin.readline().split())))",
    "own main": "import __main__\nprint(sum(map(int, input().split())) if __main__.__name__ == '__main__' else 0)",
    "stderr": "import sys\nprint('reading', file=sys.stderr)\nprint(sum(map(int, input().split())))",
    "own file": "assert 'print' in open(__file__).read()\nprint(sum(map(int, input().split())))",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\np = P(*map(int, input().split()))\nprint(p.x + p.y)",
    "pickle": "import pickle\nclass P: pass\np = P()\np.x = sum(map(int, input().split()))\nprint(pickle.loads(pickle.dumps(p)).x)",
    "input of a subclass": "import builtins\nclass I(int): pass\nprint(sum(map(I, builtins.input().split())))",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", SUMS.values(), ids=SUMS)
def test_a_right_script_is_correct_for_each_input(
    outcome: Callable[..., Outcome], program: str
) -> None:
    right = [("3 4\n", "7\n"), ("10 5", "15"), ("0 0\n", "0\n")]
    assert outcome(program, *right) is Outcome.CORRECT
    assert outcome(program, *right, ("1 1\n", "3\n")) is Outcome.WRONG


# Each leaves something behind, and prints whether it has found that of an earlier script.
STATES = {
    "globals": "print('seen' in globals())\nseen = 1",
    "builtins": "import builtins\nprint(hasattr(builtins, 'seen'))\nbuiltins.seen = 1",
    "patched": "import builtins\nprint(len([1]) != 1)\nbuiltins.len = lambda x: 5",
    "library": "import math\nprint(math.sqrt(4) != 2)\nmath.sqrt = lambda x: 5",
    "file": "import os\nprint(os.path.exists('seen'))\nopen('seen', 'w').close()",
    "folder": "import os\nprint(os.path.exists('seen'))\nos.makedirs('seen/a')\nopen('seen/a/b', 'w').close()",
    "link": "import os\nprint(os.path.lexists('seen'))\nos.symlink('/usr', 'seen')",
    "module": "try:\n    import seen\n    print(True)\nexcept ImportError:\n    print(False)\nopen('seen.py', 'w').close()",
    "own source": "import os, sys\nprint(len(open(__file__).read()) < 40)\nopen(__file__, 'w').write('print(True)')",
    "environment": "import os\nprint('SEEN' in os.environ)\nos.environ['SEEN'] = '1'",
    "working folder": "import os\nprint(os.getcwd() == '/')\nos.chdir('/')",
    "recursion": "import sys\nprint(sys.getrecursionlimit() == 77)\nsys.setrecursionlimit(77)",
    "signals": "import signal\nprint(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "masks": "import signal\nprint(bool(signal.pthread_sigmask(0, [])))\nsignal.pthread_sigmask(signal.SIG_BLOCK, [10])",
    "limits": "import resource as r\nprint(r.getrlimit(r.RLIMIT_NOFILE)[0] == 9)\nr.setrlimit(r.RLIMIT_NOFILE, (9, 9))",
    "umask": "import os\nprint(os.umask(0o123) == 0o123)",
    "random": "import random\nprint(random.random() == random.Random(7).random())\nrandom.seed(7)",
    "warnings": "import warnings\nprint(any(f[2] is KeyError for f in warnings.filters))",
    "cache": "import functools\nimport re\nprint('seen' in vars(re))\nre.seen = 1",
    "path": "import sys\nprint('seen' in sys.path)\nsys.path.append('seen')",
    "hooks": "import sys\nprint(sys.gettrace() is not None)\nsys.settrace(lambda *a: None)",
    "garbage": "import gc\nprint(not gc.isenabled())\ngc.disable()",
    "threads": "import threading, time\nprint(threading.active_count() > 1)\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "exit handlers": "import atexit\nprint(False)\natexit.register(lambda: None)",
    "decimal": "import decimal\nprint(decimal.getcontext().prec == 5)\ndecimal.getcontext().prec = 5",
    "offset": "import os\nprint(os.lseek(0, 0, 1) != 0)\nos.lseek(0, 1, 0)",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", STATES.values(), ids=STATES)
def test_a_script_sees_nothing_of_an_earlier_one(
    outcome: Callable[..., Outcome], program: str
) -> None:
    assert outcome(program, *[("1\n", "False\n")] * 3) is Outcome.CORRECT


def test_a_process_that_a_script_leaves_ends_before_the_next_script() -> None:
    """With namespaces: without them a user's programs start no processes."""
    if reason := namespaces_missing():
        pytest.skip(reason)
    program = """
import os, time
print(len([name for name in os.listdir("/proc") if name.isdigit()]), flush=True)
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
"""
    verifier = VERIFIERS.build({"name": "code", "seconds": 10.0})
    assert isinstance(verifier, Code)
    tests = [{"input": "", "output": "2"}] * 3
    assert verifier.judge({"tests": tests, "setup": ""}, program).outcome is Outcome.CORRECT


WRONG_SCRIPTS = {
    "a status": "import os\nprint(7, flush=True)\nos._exit(1)",
    "an error": "print(7)\nraise ValueError",
    "an error at the end": "import atexit, os\nprint(7)\natexit.register(os._exit, 1)",
    "a signal": "import os, signal\nprint(7, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    "exit(1)": "import sys\nprint(7)\nsys.exit(1)",
    "exit with a text": "import sys\nprint(7)\nsys.exit('done')",
    "no file": "print(open('given').read() and 7)",
    "the parent": "import os, signal\nfor n in (2, 9, 15, 19):\n    try:\n        os.kill(os.getppid(), n)\n    except OSError:\n        pass\nprint(8)",
    "the group": "import os, signal\nos.killpg(0, 9)\nprint(7)",
    "descriptors": "import os\nfor d in range(3, 64):\n    try:\n        os.write(d, b'[\"value\", \"7\", null]\\n')\n    except OSError:\n        pass\nprint(8)",
    "descriptors of the parent": "import os\nfor d in range(64):\n    try:\n        open(f'/proc/{os.getppid()}/fd/{d}', 'wb').write(b'[\"value\", \"7\", null]\\n')\n    except OSError:\n        pass\nprint(8)",
    "memory of the parent": "import os\ntry:\n    open(f'/proc/{os.getppid()}/mem', 'rb').read(1)\n    print(7)\nexcept OSError:\n    print(8)",
    "a flood": "import sys\nwhile True:\n    sys.stdout.write('7\\n' * 10**6)",
    "annotations": "def f(x: Nope): pass\nprint(7)",
    "an error of a subclass": "print(7)\nclass E(BaseException): pass\nraise E",
    "no traceback": "import sys\nsys.excepthook = lambda *a: None\nprint(7)\nraise ValueError",
    "an error in the hook": "import sys\ndef hook(*a): raise KeyError\nsys.excepthook = hook\nprint(7)\nraise ValueError",
    "a detached stdout": "import sys\nout = sys.stdout.detach()\nout.write(b'7')",
    "an interrupt": "print(7)\nraise KeyboardInterrupt",
    "no descriptor to write to": "import os\nprint(7, flush=True)\nprint()\nos.close(1)",
    "an exit in __del__": "import os\nclass A:\n    def __del__(self): os._exit(3)\nprint(7, flush=True)\na = A()",
    "exit in an exit handler": "import atexit, os\nprint(7)\natexit.register(lambda: os._exit(3))",
    "a child that prints later": "import os, time\nif os.fork():\n    print(8, flush=True)\n    os._exit(0)\ntime.sleep(.2)\nos.lseek(1, 0, 0)\nos.write(1, b'7')",
    "its own stop": "import os, signal\nprint(7, flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)",
}  # fmt: skip


@pytest.mark.security
@pytest.mark.parametrize("program", WRONG_SCRIPTS.values(), ids=WRONG_SCRIPTS)
def test_a_script_that_ends_with_an_error_or_reaches_for_more_is_wrong(
    outcome: Callable[..., Outcome], program: str
) -> None:
    assert outcome(program, ("", "7\n"), seconds=1.0) is Outcome.WRONG


def test_memory_and_time_are_limited_for_each_script(outcome: Callable[..., Outcome]) -> None:
    program = "kept = bytearray(300 * 2**20)\nprint(input())"
    assert outcome(program, ("1", "1"), ("2", "2"), ("3", "3")) is Outcome.CORRECT
    busy = "import time\nwhile time.process_time() < .5: pass\nprint(input())"
    pairs = [(str(n), str(n)) for n in range(6)]
    assert outcome(busy, *pairs[:1], seconds=1.0) is Outcome.CORRECT
    assert outcome(busy, *pairs, seconds=1.0) is Outcome.WRONG


SOME = ["open(0)", "fileinput", "os._exit", "atexit", "close", "thread"]


def test_some_right_scripts_are_correct_for_each_input(outcome: Callable[..., Outcome]) -> None:
    for name in SOME:
        assert outcome(SUMS[name], ("3 4\n", "7\n"), ("10 5", "15")) is Outcome.CORRECT, name
