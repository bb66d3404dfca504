"""The program by which `doctor` asks torch for GPUs, in a process that may crash or hang.

Where there can be no GPU it loads torch's libraries, to see that they are whole, and not its
modules, which take two seconds of CPU time. Only the standard library is imported here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Print as the last line what torch was built for, and the GPUs that it can use."""
    # A line of its own: torch may have printed something.
    sys.stdout.write(f"\n{json.dumps(_read_build() or _ask_torch())}\n")


def _read_build() -> dict[str, Any] | None:
    """Load the libraries of a torch that can have no GPU; None for one that has to be asked."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    version = folder / "version.py"
    library = folder / "lib" / "libtorch_python.so"
    if not version.is_file() or not library.is_file():
        return None
    build = runpy.run_path(str(version))
    # CUDA finds its driver by this name, too.
    has_driver = build.get("cuda") and _can_load("libcuda.so.1")
    if has_driver or build.get("hip"):
        return None
    if not _can_load(str(library)):
        return None  # torch may find what is missing, or say what it is
    return {"version": build["__version__"], "built": build.get("cuda"), "devices": []}


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _ask_torch() -> dict[str, Any]:
    """Return the GPUs by name and memory; compute on the first."""
    import torch

    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if devices:
        torch.ones(8, device="cuda").sum().item()
    return {
        "version": str(torch.__version__),
        "built": torch.version.cuda or getattr(torch.version, "hip", None),
        "devices": [[device.name, device.total_memory] for device in devices],
    }


if __name__ == "__main__":
    main()
