"""Matrices in folders of safetensors files, in the format of transformers.

A file is opened for each matrix and closed after it, so that a folder may hold more than fits
into memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from advsweep.errors import CheckpointError, ConfigError

MODEL = "model.safetensors"
INDEX = f"{MODEL}.index.json"
_FLOATS = ("F64", "F32", "BF16", "F16")


class StoredWeights:
    """A model's folder in the format of transformers: one file, or several with an index.

    Attributes:
        title: the folder, for messages.
        shapes: the shape of every tensor by name.
        tied: whether the output head is the embedding; None if the config does not say.

    Raises:
        ConfigError: the folder holds no such model, or its numbers are not floats.
        CheckpointError: a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.title = str(folder)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._file: dict[str, Path] = {}
        for file, expected in _files(folder).items():
            shapes = _shapes(file)
            if missing := sorted(expected - shapes.keys()):
                raise CheckpointError(f"{file}: expected the tensor {missing[0]} of {INDEX}")
            self.shapes |= shapes
            self._file |= dict.fromkeys(shapes, file)
        self.tied: bool | None = None
        if (folder / "config.json").is_file():
            config = _json(folder / "config.json")
            # Models of images and texts have the setting in the config of their text part.
            for part in (config.get("text_config", {}), config):
                if isinstance(tied := part.get("tie_word_embeddings"), bool):
                    self.tied = tied

    def matrix(self, name: str) -> Tensor:
        return _read(self._file[name], name)


def _files(folder: Path) -> dict[Path, set[str]]:
    """Return the files of a model's folder with the tensors that its index expects in each."""
    if (folder / INDEX).is_file():
        found: dict[Path, set[str]] = {}
        index = _json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise CheckpointError(f"{folder / INDEX}: expected a weight_map in it")
        for name, file in index.items():
            found.setdefault(folder / Path(str(file)).name, set()).add(name)
        if missing := sorted(file.name for file in found if not file.is_file()):
            raise CheckpointError(f"{folder}: expected {missing[0]}, which {INDEX} lists")
        return found
    if (folder / MODEL).is_file():
        return {folder / MODEL: set()}
    raise ConfigError(
        f"{folder}: expected a folder with {MODEL} or {INDEX}, got none; transformers and PEFT "
        "write whole models with save_pretrained, adapters merged, and so does `advsweep export`"
    )


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


def _read(file: Path, name: str) -> Tensor:
    try:
        with safe_open(file, framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: {name} cannot be read: {error}") from error
    return found


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: expected a JSON file, got: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return content
