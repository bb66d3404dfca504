"""What a program can reach: each probe finds something where nothing confines it."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advsweep.errors import AdvsweepWarning
from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE, RUN_CODE_AS_ROOT
from advsweep.tasks.verifiers.code import Code, namespaces_missing
from advsweep.tasks.verifiers.isolation import (
    _FCNTL,
    _FORBIDDEN,
    _IOCTL,
    _PRLIMIT,
    _SOCKET,
    landlock_version,
)

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
]

GOLD = {"tests": ["assert found() is True"], "setup": ""}

# Each defines `found`; TEXT, HOME, PORT and FOLDER are filled in. Unconfined they find something.
PROBES = {
    "the home folder": """
import os, sys
def found():  # but the folders of Python
    prefixes = sys.prefix, sys.base_prefix
    pythons = [prefix for prefix in prefixes if prefix.startswith(HOME)]
    paths = [f"{HOME}/{name}" for name in os.listdir(HOME)]
    return not all(any(p.startswith(path) for p in pythons) for path in paths)
""",
    "a file of the project": "found = lambda: bool(open(FILE).read())",
    "names of keys": "found = lambda: bool(open('/proc/keys').read())",
    "/etc/passwd": "found = lambda: bool(open('/etc/passwd').read())",
    "a path socket": """
import socket
def found():
    socket.socket(socket.AF_UNIX).connect(FOLDER + "/path")
    return True
""",
    "an abstract socket": """
import socket
def found():
    socket.socket(socket.AF_UNIX).connect("\\0" + FOLDER)
    return True
""",
    "a port of this machine": """
import socket
def found():
    socket.create_connection(("127.0.0.1", PORT), 5)
    return True
""",
    "folders of the host": "import os\nfound = lambda: os.path.exists(FOLDER)",
    "other processes": """
import os
found = lambda: len([p for p in os.listdir("/proc") if p.isdigit()]) > 2
""",
    "the environment of the parent": """
import os
found = lambda: b"PATH" in open(f"/proc/{os.getppid()}/environ", "rb").read()
""",
    "a process outside": "import os\nfound = lambda: os.kill(PID, 0) is None",
    "a user namespace": """
import ctypes
found = lambda: ctypes.CDLL(None).unshare(0x10000000) == 0
""",
    "new privileges": """
found = lambda: "NoNewPrivs:\\t0" in open("/proc/self/status").read()
""",
    "more than the scratch folder holds": """
def found():
    for number in range(10):
        with open(f"/tmp/{PID}.{number}", "wb") as file:
            file.write(bytes(7 * 2**20))
    return True
""",
    "many files": """
import os
def found():
    os.makedirs(f"/tmp/{PID}", exist_ok=True)
    for number in range(2000):
        open(f"/tmp/{PID}/{number}", "w").close()
    return True
""",
    "many nested folders": """
import os
def found():
    os.chdir("/tmp")
    for _ in range(2000):
        os.mkdir("d")
        os.chdir("d")
    return True
""",
    "a library folder to write to": """
import os, sys, sysconfig
def found():
    place = sysconfig.get_paths()["purelib"] + f"/probe{PID}"
    open(place, "w").close()
    os.remove(place)
    return True
""",
}

MANY = {"many nested folders", "many files", "more than the scratch folder holds"}

# These would find nothing, or too much, where nothing confines them.
CONFINED_PROBES = {
    "any other place to write to": """
import os
def found():
    places = []
    # /tmp, or another folder where Python lies below /tmp.
    scratch = os.path.realpath("/dev/shm")
    for folder, folders, files in os.walk("/"):
        if folder == scratch or folder.startswith(("/proc", "/usr/")):
            folders.clear()
            continue
        try:
            open(folder + "/probe", "w").close()
            places.append(folder)
        except OSError:
            pass
    return bool(places)
""",
    "settings of the kernel": """
def found():
    for name in ("kernel/core_pattern", "kernel/hostname", "user/max_user_namespaces"):
        try:
            open("/proc/sys/" + name, "r+").close()
            return True
        except OSError:
            pass
""",
    "mounts": """
import ctypes
libc = ctypes.CDLL(None)
found = lambda: 0 in (
    libc.mount(b"t", b"/tmp", b"tmpfs", ctypes.c_ulong(0), b""),
    libc.mount(None, b"/", None, ctypes.c_ulong(32 | 4096), b""),
    libc.umount2(b"/tmp", 2),
    libc.umount2(b"/proc", 2),
    libc.chroot(b"/tmp"),
)
""",
    "capabilities": """
import re
def found():
    status = open("/proc/self/status").read()
    return any(int(mask, 16) for mask in re.findall(r"Cap(?:Prm|Eff|Bnd|Amb):\\s*(\\w+)", status))
""",
    "a process of the tests": """
import ctypes, os
found = lambda: os.getppid() != 1 or ctypes.CDLL(None).ptrace(16, 1, None, None) == 0
""",
    "descriptors": """
import os
found = lambda: len(os.listdir("/proc/self/fd")) > 3 + 2 + 1
""",
    "devices": """
import os
found = lambda: set(os.listdir("/dev")) > {
    *("null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr")
}
""",
    "leftovers": """
import os, signal
def found():
    # Links to the folder that programs may write to: /tmp, unless Python lies there.
    left = bool(os.listdir("/var/tmp") or os.listdir("/dev/shm"))
    open("/dev/shm/left", "w").close()
    return left
""",
}

# Programs that do much harm, and are correct if they may do it.
BOMB = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
started = 0
try:
    while started < 200:
        if os.fork() == 0:
            time.sleep(600)
        started += 1
except OSError:
    pass
found = lambda: started > 20
"""
DOUBLE_FORK = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "612345"])
    os._exit(0)
os.wait()
found = lambda: True
"""


@pytest.fixture(scope="module")
def holes() -> Iterator[dict[str, object]]:
    """What probes look for: sockets, a file and a process of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        listeners = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        listeners[0].bind(f"{folder}/path")
        listeners[1].bind(f"\0{folder}")
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        for listener in listeners:
            listener.listen()
        yield {
            "FOLDER": folder,
            "PORT": listeners[2].getsockname()[1],
            "HOME": os.path.expanduser("~"),
            "FILE": str(Path(__file__).resolve()),
            "PID": os.getpid(),
        }
        for listener in listeners:
            listener.close()


@pytest.fixture(scope="module")
def outcome() -> Callable[[str], Outcome]:
    verifier = VERIFIERS.build({"name": "code", "seconds": 10.0})
    assert isinstance(verifier, Code)
    return lambda program: verifier.judge(GOLD, program).outcome


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


def source(probe: str, holes: dict[str, object]) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in holes.items()) + f"\n{probe}"


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
def test_a_program_finds_nothing(
    probe: str, holes: dict[str, object], outcome: Callable[[str], Outcome]
) -> None:
    assert outcome(source(probe, holes)) is Outcome.WRONG


@pytest.mark.parametrize("name", sorted(PROBES.keys() - MANY))
def test_without_isolation_it_finds_something(name: str, holes: dict[str, object]) -> None:
    code = f"{source(PROBES[name], holes)}\nassert found() is True"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(probe, id=name, marks=[pytest.mark.slow] if "any other place" in name else [])
        for name, probe in CONFINED_PROBES.items()
    ],
)
def test_a_program_is_confined(probe: str, outcome: Callable[[str], Outcome]) -> None:
    for _ in range(2):
        assert outcome(probe) is Outcome.WRONG
    # The probe itself runs to its end, and finds nothing.
    assert outcome(f"{probe}\nhas, found = found, lambda: not has()") is Outcome.CORRECT


def test_nothing_is_left_running(outcome: Callable[[str], Outcome]) -> None:
    assert outcome(DOUBLE_FORK) is Outcome.CORRECT
    assert b"612345" not in b"".join(_command_lines())


def test_many_processes_end(outcome: Callable[[str], Outcome]) -> None:
    before = len(_command_lines())
    limited = os.geteuid() != 0  # root is not bound by the limit
    assert outcome(BOMB) is (Outcome.WRONG if limited else Outcome.CORRECT)
    assert len(_command_lines()) < before + 100
    assert outcome("found = lambda: True") is Outcome.CORRECT


def _command_lines() -> list[bytes]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def become_nobody() -> None:
    """Makes this process, which is root's, one of the user nobody, who can read its Python.

    Python may lie below a folder that others may not enter; then that folder is replaced, for
    this process alone, by one that has nothing else.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
        kind_bytes = None if kind is None else kind.encode()
        flags_long = ctypes.c_ulong(flags)
        arguments = (source.encode(), target.encode(), kind_bytes, flags_long, options.encode())
        assert libc.mount(*arguments) == 0, os.strerror(ctypes.get_errno())

    assert libc.unshare(0x00020000) == 0
    mount("none", "/", None, 16384 | (1 << 18))  # recursively private
    prefix = Path(sys.base_prefix)
    closed = [f for f in reversed(prefix.parents) if not f.stat().st_mode & 1]
    if closed:
        kept = tempfile.mkdtemp(dir="/tmp")
        mount(str(prefix), kept, None, 4096)
        mount("tmpfs", str(closed[0]), "tmpfs", 0, "mode=755")
        prefix.mkdir(parents=True)
        mount(kept, str(prefix), None, 4096)
    os.environ["HOME"] = "/nonexistent"
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as another user than root")
def test_the_same_holds_for_another_user() -> None:
    """In a process of its own, of the user nobody."""
    folder = str(Path(__file__).resolve().parent)
    code = f"""
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("probes", {__file__!r})
probes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(probes)
probes.become_nobody()
os.environ[{RUN_CODE!r}], os.environ[{RUN_CODE_AS_ROOT!r}] = "1", ""
os.chdir("/")
verifier = probes.VERIFIERS.build({{"name": "code", "seconds": 10.0}})
verifier.check()
verifier.check_consent()
holes = {{"FOLDER": "/sys", "PORT": 1, "HOME": "/root", "FILE": {__file__!r}, "PID": os.getpid()}}
found = {{}}
for name, probe in probes.PROBES.items():
    found[name] = verifier.judge(probes.GOLD, probes.source(probe, holes))
for name, probe in probes.CONFINED_PROBES.items():
    probe += "\\nhas, found = found, lambda: not has()"
    found["not " + name] = verifier.judge(probes.GOLD, probe)
found["not fork"] = verifier.judge(probes.GOLD, probes.DOUBLE_FORK)
found["bomb"] = verifier.judge(probes.GOLD, probes.BOMB)
limited = probes.VERIFIERS.build({{"name": "code", "isolation": "limits", "seconds": 10.0}})
found["not limited"] = limited.judge(probes.GOLD, "found = lambda: True")
found["environ"] = limited.judge(probes.GOLD, probes.PROBES["the environment of the parent"])
found["fork"] = limited.judge(probes.GOLD, probes.DOUBLE_FORK)
for name, verdict in found.items():
    print(name, verdict.outcome.value, verdict.reason, sep=": ")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(PROBES) + len(CONFINED_PROBES) + 5
    for line in lines:
        assert line.split(": ")[1] == ("correct" if line.startswith("not ") else "wrong"), line


# A program's `found`, which returns what is not refused.
CALLS = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *arguments):
    ctypes.set_errno(0)
    arguments = [ctypes.c_long(argument) for argument in arguments]
    return libc.syscall(number, *arguments) == -1 and ctypes.get_errno() == errno.EPERM
def found():
    named = [name for name, number in CALLS.items() if not refused(number, 0, 0, 0, 0, 0, 0)]
    kinds = [kind for kind in range(60) if not refused(SOCKET, kind, 2, 0)]
    owner = [command for command in (8, 10, 15, 1024, 1026) if not refused(FCNTL, 0, command, 0)]
    owner += [command for command in (0x8901, 0x8902) if not refused(IOCTL, 0, command, 0)]
    limit = [] if refused(PRLIMIT, 1 if os.getpid() != 1 else 2, 7, 0, 0) else ["a limit"]
    return [*named, *owner, *limit], kinds
"""


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="unknown calls")
def test_calls_are_refused(isolation: str) -> None:
    """Keys, shared memory without a limit, io_uring and the like; all sockets but a few kinds."""
    place = ["x86_64", "aarch64"].index(os.uname().machine)
    lists = [call.split() for call in _FORBIDDEN.split(",")]
    constants = {
        "CALLS": {name: int(numbers[place]) for name, *numbers in lists},
        "SOCKET": _SOCKET[place],
        "FCNTL": _FCNTL[place],
        "IOCTL": _IOCTL[place],
        "PRLIMIT": _PRLIMIT[place],
    }
    code = source(CALLS, constants)
    sockets = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]
    gold = {"tests": [f"assert found() == ([], {sorted(map(int, sockets))})"], "setup": ""}
    verifier = VERIFIERS.build({"name": "code", "isolation": isolation, "seconds": 10.0})
    assert isinstance(verifier, Code)
    assert verifier.judge(gold, code).outcome is Outcome.CORRECT
    # Without the filter, most of them fail for another reason, or do not fail.
    free = f"{code}\nCALLS.pop('ptrace'), CALLS.pop('bpf')\nassert len(found()[0]) > 15"
    subprocess.run([sys.executable, "-c", free], check=True)


KEYS = """
import ctypes
libc = ctypes.CDLL(None)
def found():
    libc.syscall(ADD_KEY, b"user", b"advsweep-left", b"x", ctypes.c_long(1), ctypes.c_long(RING))
    return libc.syscall(REQUEST_KEY, b"user", NAME, None, ctypes.c_long(0)) > 0
"""


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="unknown calls")
def test_keys_of_the_session_are_out_of_reach(isolation: str) -> None:
    """Neither does a program find a key of the session, nor does it leave one."""
    place = ["x86_64", "aarch64"].index(os.uname().machine)
    calls = {name: int(n[place]) for name, *n in (c.split() for c in _FORBIDDEN.split(","))}
    libc, session = ctypes.CDLL(None), ctypes.c_long(-3)
    if libc.syscall(calls["keyctl"], 1, None) == -1:
        pytest.skip("the kernel has no keys")
    one = ctypes.c_long(1)
    assert libc.syscall(calls["add_key"], b"user", b"advsweep-ours", b"x", one, session) > 0
    names = {"ADD_KEY": calls["add_key"], "REQUEST_KEY": calls["request_key"], "RING": -3}
    ours = source(KEYS, {**names, "NAME": b"advsweep-ours"})
    left = source(KEYS, {**names, "NAME": b"advsweep-left"})
    verifier = VERIFIERS.build({"name": "code", "isolation": isolation, "seconds": 10.0})
    assert isinstance(verifier, Code)
    for program in (ours, left):
        assert verifier.judge(GOLD, program).outcome is Outcome.WRONG
        honest = f"{program}\nhas, found = found, lambda: not has()"
        assert verifier.judge(GOLD, honest).outcome is Outcome.CORRECT
    assert libc.syscall(calls["request_key"], b"user", b"advsweep-left", None, 0) == -1
    subprocess.run([sys.executable, "-c", f"{ours}\nassert found()"], check=True)


KEYRING = """
import ctypes
from advsweep.tasks.verifiers import isolation
def session():
    return ctypes.CDLL(None).syscall(KEYCTL, 0, ctypes.c_long(-3), 0)
isolation._DENY = isolation._ALLOW  # as if the filter missed a way to the keys
before = session()
isolation.drop_capabilities()
isolation.forbid_calls(own_processes=False)
assert before > 0 and session() not in (-1, before)
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="unknown calls")
def test_each_program_has_a_keyring_of_its_own() -> None:
    keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    if ctypes.CDLL(None).syscall(keyctl, 0, ctypes.c_long(-3), 0) == -1:
        pytest.skip("the kernel has no keys")
    subprocess.run([sys.executable, "-c", f"KEYCTL = {keyctl}\n{KEYRING}"], check=True)


@pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, ctypes.c_long(0), 1) < 1, reason="no Landlock"
)
def test_limits_have_one_folder_to_write_to(tmp_path: Path) -> None:
    """Else a program could change the modules that judge the next one."""
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 10.0})
    assert isinstance(verifier, Code)
    (tmp_path / "file").write_text("ours")
    holes: dict[str, object] = {"FOLDER": str(tmp_path), "PID": os.getpid()}
    probes = {
        "a file": "found = lambda: open(FOLDER + '/file', 'a').close() is None",
        "a new file": "found = lambda: open(FOLDER + '/other', 'w').close() is None",
        "its length": "import os\nfound = lambda: os.truncate(FOLDER + '/file', 0) is None",
        "its name": "import os\nfound = lambda: os.rename(FOLDER + '/file', 'file') is None",
        "its end": "import os\nfound = lambda: os.remove(FOLDER + '/file') is None",
        "a folder": "import os\nfound = lambda: os.mkdir(FOLDER + '/folder') is None",
        "a library folder": PROBES["a library folder to write to"],
    }
    for name, probe in probes.items():
        assert verifier.judge(GOLD, source(probe, holes)).outcome is Outcome.WRONG, name
    own = """
import os, subprocess, tempfile
def found():
    os.makedirs("a/b")
    open("a/b/c", "w").write("x")
    os.rename("a/b/c", "d")
    os.truncate("d", 0)
    open(os.devnull, "w").write("x")
    with tempfile.NamedTemporaryFile("w") as file:
        return os.path.dirname(file.name) == os.getcwd()
"""
    assert verifier.judge(GOLD, own).outcome is Outcome.CORRECT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "ours"


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_root_needs_more_consent(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = VERIFIERS.build({"name": "code", "isolation": isolation})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv(RUN_CODE_AS_ROOT, "")
    with pytest.raises(Exception, match=r"as root, .* allow it with ADVSWEEP_RUN_CODE_AS_ROOT=1"):
        verifier.check_consent()
    assert verifier.judge(GOLD, "found = lambda: True").outcome is Outcome.UNSCORABLE
    monkeypatch.setenv(RUN_CODE_AS_ROOT, "1")
    verifier.check_consent()


@pytest.mark.parametrize("isolation", ["namespaces", "limits"])
def test_programs_end_with_the_process_that_judges(isolation: str) -> None:
    """However it ends: here it is killed while a program sleeps."""
    code = f"""
import os
os.environ.update({{{RUN_CODE!r}: "1", {RUN_CODE_AS_ROOT!r}: "1"}})
from advsweep.tasks.verifiers import VERIFIERS
verifier = VERIFIERS.build({{"name": "code", "isolation": {isolation!r}, "seconds": 60.0}})
gold = {{"tests": ["assert found()"], "setup": ""}}
verifier.judge(gold, "import time\\ntime.sleep(600)")
"""
    with subprocess.Popen([sys.executable, "-c", code]) as judging:
        children = Path(f"/proc/{judging.pid}/task/{judging.pid}/children")
        while not (found := children.read_text().split()) or len(_states(int(found[0]))) < 3:
            time.sleep(0.02)
        session = int(found[0])
        judging.kill()
    deadline = time.monotonic() + 20
    while set(_states(session)) - {"Z"} and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(_states(session)) <= {"Z"}


def _states(session: int) -> list[str]:
    """Of the processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(fields[0])
    return found


@pytest.mark.skipif(landlock_version() < 1, reason="there is no Landlock in this kernel")
def test_without_namespaces_a_program_reads_no_file_of_the_user(tmp_path: Path) -> None:
    answers = tmp_path / "problems.jsonl"
    answers.write_text("True")
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 10.0})
    assert isinstance(verifier, Code)
    for path in (answers, tmp_path, Path(__file__)):
        look = f"import os\npath = {str(path)!r}\n"
        look += (
            "found = lambda: bool(os.listdir(path) if os.path.isdir(path) else open(path).read())"
        )
        assert verifier.judge(GOLD, look).outcome is Outcome.WRONG
    library = "import json, os\nfound = lambda: bool(open(os.__file__).read())"
    assert verifier.judge(GOLD, library).outcome is Outcome.CORRECT


def test_a_kernel_without_landlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advsweep.tasks.verifiers.code.landlock_version", lambda: 0)
    with pytest.warns(AdvsweepWarning, match="no Landlock in this kernel"):
        VERIFIERS.build({"name": "code", "isolation": "limits"}).check()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_child_ends_whose_parent_ended_before_it_asked_to_be_told(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import os, time
from advsweep.tasks.verifiers import isolation
prctl = isolation._prctl
parent = os.getpid()

def ask_late(*arguments):
    while os.getppid() == parent:
        time.sleep(0.01)
    prctl(*arguments)

isolation._prctl = ask_late
if isolation.fork() == 0:
    time.sleep(600)
open({str(pid_file)!r}, "w").write(str(os.getsid(0)))
"""
    subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)
    session = int(pid_file.read_text())
    deadline = time.monotonic() + 20
    while set(_states(session)) - {"Z"} and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(_states(session)) <= {"Z"}


def test_a_child_that_cannot_ask_to_end_with_its_parent_ends_at_once():
    code = """
import os
from advsweep.tasks.verifiers import isolation

def refuse(*_):
    raise OSError(1, "refused")

isolation._prctl = refuse
try:
    status = os.waitpid(isolation.fork(), 0)[1]
finally:
    os.write(1, b"went on\\n")
assert os.waitstatus_to_exitcode(status) == 1
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert process.stdout == b"went on\n"
    assert b"refused" in process.stderr
