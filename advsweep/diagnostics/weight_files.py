"""ModelWeights in folders of safetensors files, read a strip at a time.

A file is opened for each strip and closed after it. So nothing stays mapped into memory, and a
folder may hold more than fits into memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors import SafetensorError, safe_open

from advsweep.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
ADAPTER = "adapter_model.safetensors"
_ADAPTER_CONFIG = "adapter_config.json"
_CONFIG = "config.json"
_TIED = "tie_word_embeddings"

_FLOATS = ("F64", "F32", "BF16", "F16")
_ADAPTER_PREFIX = "base_model.model."
_HALVES = (".lora_A.weight", ".lora_B.weight")


class ModelWeights(Protocol):
    """The weights of a model by name; shapes are known, and numbers are read when needed."""

    @property
    def title(self) -> str:
        """The name of the weights in messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
        ...

    @property
    def tied(self) -> bool | None:
        """Whether the output head is the embedding; None if the config does not say."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Float[Tensor, "some columns"]:
        """The rows of a matrix from the first number up to the second."""
        ...


class HeldWeights:
    """Weights in memory; see `ModelWeights`."""

    def __init__(self, title: str, tensors: Mapping[str, Tensor], tied: bool) -> None:
        self.title = title
        self.tied = tied
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._tensors = tensors

    def rows(self, name: str, start: int, stop: int) -> Float[Tensor, "some columns"]:
        return self._tensors[name].detach()[start:stop]


class StoredWeights:
    """A model's folder in the format of transformers: one file, or several with an index.

    Raises:
        ConfigError: the folder holds no such model, or its numbers are not floats.
        CheckpointError: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.title = str(folder)
        self._folder = folder
        self.tied = _tied(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._file: dict[str, str] = {}
        for file, expected in _files(folder).items():
            shapes = _shapes(folder / file)
            if missing := sorted(expected - shapes.keys()):
                raise CheckpointError(
                    f"{folder / file}: expected the tensor {missing[0]}, which {INDEX} lists; the "
                    "file belongs to another model or is damaged"
                )
            self.shapes |= shapes
            self._file |= dict.fromkeys(shapes, file)

    def rows(self, name: str, start: int, stop: int) -> Float[Tensor, "some columns"]:
        return _read(self._folder / self._file[name], name, start, stop)


class Adapter:
    """A LoRA adapter's folder in the format of PEFT; it adds s B A to each matrix.

    s is α/r, or α/√r for rank-stabilised adapters.

    Source: LoRA, Hu et al. 2021 (arXiv:2106.09685), Eq. 3; rsLoRA: Kalajdzievski 2023
    (arXiv:2312.03732).

    Raises:
        ConfigError: the folder holds no such adapter, or an adapter of another kind.
        CheckpointError: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.title = str(folder)
        config = _json(folder / _ADAPTER_CONFIG)
        _refuse_other_adapters(folder, config)
        self._file = folder / ADAPTER
        rank, alpha = config["r"], config["lora_alpha"]
        self._scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        stored = _shapes(self._file)
        self._prefix: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name in stored:
            half = next((h for h in _HALVES if name.endswith(h)), None)
            if half is None:
                raise ConfigError(
                    f"{self._file}: expected the halves lora_A and lora_B of linear layers alone, "
                    f"got {name}; merge the adapter into its model and give that folder"
                )
            prefix = name.removesuffix(half)
            rows, columns = stored[prefix + _HALVES[1]][0], stored[prefix + _HALVES[0]][1]
            target = f"{prefix.removeprefix(_ADAPTER_PREFIX)}.weight"
            self._prefix[target] = prefix
            self.shapes[target] = (rows, columns)

    def rows(self, name: str, start: int, stop: int) -> Float[Tensor, "some columns"]:
        """Return rows `start` up to `stop` of the added matrix."""
        inner, outer = (self._prefix[name] + half for half in _HALVES)
        a = _read(self._file, inner, 0, None).float()
        b = _read(self._file, outer, start, stop).float()
        added: Tensor = self._scale * (b @ a)
        return added


def open_tuned(folder: Path) -> StoredWeights | Adapter:
    """Open the folder of a model or of an adapter.

    Raises:
        ConfigError, CheckpointError: see `StoredWeights` and `Adapter`.
    """
    if (folder / ADAPTER).is_file() and not _has_model(folder):
        return Adapter(folder)
    return StoredWeights(folder)


def _has_model(folder: Path) -> bool:
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def _files(folder: Path) -> Mapping[str, set[str]]:
    """Return the files of a model's folder with the tensors that its index expects in each."""
    if not folder.is_dir():
        raise ConfigError(f"expected a folder with {SINGLE}, got {folder}, which is not a folder")
    if (folder / INDEX).is_file():
        found: dict[str, set[str]] = {}
        index = _json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise CheckpointError(f"{folder / INDEX}: expected a weight_map in it")
        for name, file in index.items():
            found.setdefault(file, set()).add(name)
        if missing := sorted(file for file in found if not (folder / file).is_file()):
            raise CheckpointError(
                f"{folder}: expected the {len(found)} files that {INDEX} lists, but "
                f"{', '.join(missing)} is missing; download the model again"
            )
        return found
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    if (folder / ADAPTER).is_file():
        raise ConfigError(f"{folder}: expected a whole model, got an adapter; give its base")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ConfigError(
            f"{folder}: expected safetensors, got weights in PyTorch's own format; load the model "
            "with transformers and save_pretrained it into another folder"
        )
    raise ConfigError(f"{folder}: expected {SINGLE} or {INDEX} in it, got neither")


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    found = {}
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                part = opened.get_slice(name)
                if part.get_dtype() not in _FLOATS:
                    raise ConfigError(
                        f"{file}: expected floats of 16, 32 or 64 bits, got {name} in "
                        f"{part.get_dtype()}; quantised weights cannot be compared"
                    )
                found[name] = tuple(part.get_shape())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: expected a safetensors file, got: {error}") from error
    return found


def _read(file: Path, name: str, start: int, stop: int | None) -> Tensor:
    try:
        with safe_open(file, framework="pt") as opened:
            found: Tensor = opened.get_slice(name)[start:stop]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: {name} cannot be read: {error}") from error
    return found


def _tied(folder: Path) -> bool | None:
    if not (folder / _CONFIG).is_file():
        return None
    config = _json(folder / _CONFIG)
    # Models of images and texts have the setting in the config of their text part.
    tied = config.get(_TIED, config.get("text_config", {}).get(_TIED))
    return tied if isinstance(tied, bool) else None


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{file.parent}: expected the file {file.name}, which is missing"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: expected JSON that can be read, got: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return content


def _refuse_other_adapters(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    plain = kind == "LORA" and isinstance(config.get("r"), int)
    ours = ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
    besides = [key for key in ours if config.get(key)]
    if not plain or besides:
        raise ConfigError(
            f"{folder}: expected a plain LoRA adapter, got "
            f"{' with '.join([str(kind), *besides[:1]])}; merge it into its model and give that "
            "folder"
        )
