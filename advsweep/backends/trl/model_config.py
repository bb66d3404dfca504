"""A causal language model that transformers loads: from the hub or from a folder.

Only the standard library is imported here, so that plans are made without torch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from advsweep.components import Component, Plain, option
from advsweep.errors import ConfigError

_SAMPLED_BYTES = 1 << 16


class Dtype(Enum):
    """What the weights are kept in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Prompt(Enum):
    """How a problem's text becomes what the model is given."""

    AUTO = "auto"
    CHAT = "chat"
    PLAIN = "plain"


@dataclass(kw_only=True)
class HfModel(Component):
    """A pretrained causal language model, trained in full or by a LoRA adapter.

    A folder is known by its files' names, sizes and samples of their content, wherever it
    lies; what the hub has under a name is known by the name and the revision alone.

    Source: LoRA, Hu et al. 2021 (arXiv:2106.09685), as PEFT has it.
    """

    name: ClassVar[str] = "hf"

    path: str = option("", help="a folder, or a name on the hub such as Qwen/Qwen2.5-0.5B")
    fingerprint: str | None = option(
        None, help="what a folder's content must hash to; null: filled in when the run is planned"
    )
    hub_revision: str | None = option(None, help="branch, tag or commit on the hub; null: main")
    dtype: Dtype = option(Dtype.FLOAT32, help="what the weights are kept in")
    attention: str | None = option(
        None, help="transformers' attention implementation; null: its choice"
    )
    prompt: Prompt = option(
        Prompt.AUTO, help="chat: the tokeniser's chat template; auto: that where there is one"
    )
    pad_token: str | None = option(
        None, help="the token that fills batches; null: the tokeniser's own"
    )
    lora_rank: int = option(0, ge=0, help="rank of a LoRA adapter; 0: all weights are trained")
    lora_alpha: float = option(32.0, gt=0, help="the adapter is scaled by this over its rank")
    lora_targets: tuple[str, ...] = option(
        ("all-linear",), help="modules that get an adapter; all-linear: all but the output layer"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            return  # the backend refuses it, when the settings of all groups are together
        folder = self.folder
        if folder.is_dir():
            if self.hub_revision is not None:
                raise ConfigError(
                    f"hub_revision: expected null with a folder, got {self.hub_revision!r}"
                )
            if self.fingerprint is None:
                self.fingerprint = fingerprint(folder)
        elif self.fingerprint is None and self.path.startswith(("/", ".", "~")):
            raise ConfigError(f"path: expected a folder with a model, got {self.path!r}: no folder")

    @property
    def folder(self) -> Path:
        """The path as a folder; it may not be there."""
        return Path(self.path).expanduser()

    @property
    def location(self) -> str:
        """What transformers is to load."""
        return str(self.folder) if self.folder.is_dir() else self.path

    def identity(self) -> Plain:
        """As of any component; a folder counts by its content."""
        material = super().identity()
        if self.fingerprint is not None:
            del material["path"]
        if self.lora_rank == 0:
            del material["lora_alpha"], material["lora_targets"]
        return material

    def check_folder(self) -> None:
        """Refuses a folder that is gone or has changed since the run was planned.

        Raises:
            ConfigError: says which of both.
        """
        if self.fingerprint is None:
            return
        if not self.folder.is_dir():
            raise ConfigError(f"model.path: expected the folder {self.path}, which is not there")
        found = fingerprint(self.folder)
        if found != self.fingerprint:
            raise ConfigError(
                f"model.path: expected the folder {self.path} as it was when the run was planned "
                f"(fingerprint {self.fingerprint[:12]}), got another content ({found[:12]}); "
                f"plan a run with model.path alone, or put the folder back"
            )


def fingerprint(folder: Path) -> str:
    """sha256, in hex, of the files at the top of a folder: names, sizes and samples.

    Of each file the beginning, the middle and the end are read, 64 KiB each: all of any
    tokeniser's settings, and of any weights enough to tell two trainings apart.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(str(path), path.stat()) for path in files if not path.name.startswith(".")]
    return _fingerprint(tuple((name, s.st_size, s.st_mtime_ns) for name, s in stats))


@functools.lru_cache(maxsize=64)
def _fingerprint(files: Sequence[tuple[str, int, int]]) -> str:
    digest = hashlib.sha256()
    for name, size, _ in files:
        digest.update(f"{Path(name).name}\0{size}\0".encode())
        with open(name, "rb") as file:
            for start in sorted({0, size // 2, max(0, size - _SAMPLED_BYTES)}):
                file.seek(start)
                digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()
