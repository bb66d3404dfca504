"""The program of a template: its working folder, its source, and the state of its repository.

The source is part of a run's identity (`advsweep.sources`): the files that the command names, with
the modules that Python files import and the files that shell scripts name. The commit of the
repository and the hash of its changes are recorded and not part of it: a commit of a text would
train everything again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.command.arguments import Values, command_line, fill
from advsweep.errors import ConfigError
from advsweep.logs import READERS
from advsweep.sources import (
    SHELL,
    SourceCode,
    is_output,
    named_files,
    source_of,
    source_of_files,
    starts_shell,
)

if TYPE_CHECKING:
    from advsweep.backends.command.template import Template

# Suffixes of scripts, which interpreters read.
_SCRIPTS = SHELL | {".py", ".pl", ".r", ".R", ".jl", ".lua", ".js"}


def working_folder(template: Template, values: Values, places: Mapping[str, str]) -> Path:
    """Return the folder that a command starts in.

    Args:
        places: the template's file, and the working folder of advsweep.
    """
    folder = Path(places["folder"] or ".").absolute()
    if not template.workdir:
        return folder
    # A relative folder is next to the template.
    workdir = Path(fill(template.workdir, values, "workdir")).expanduser()
    return Path(places["template"]).parent / workdir


def source_of_program(
    template: Template, values: Values, places: Mapping[str, str]
) -> SourceCode | None:
    """Return the source of a command; None if it names no file.

    Args:
        values: of all placeholders; those that are known only when the command starts stand for
            no file.

    Raises:
        ConfigError: a placeholder has no value, or a pattern of `sources` matches no file.
    """
    folder = working_folder(template, values, places)
    files = list(_named_files(command_line(template, values), folder))
    files += _listed_files(template.sources, folder)
    roots = [folder]
    search_path = template.environment.get("PYTHONPATH")
    if search_path:
        parts = fill(str(search_path), values, "environment.PYTHONPATH").split(":")
        roots += [folder / part for part in parts if part]
    source = source_of_files(files, folder, roots)
    digests = dict(source.files)
    reader = source_of(READERS.get(template.log.kind, where="metrics.kind"))
    if reader is not None:
        digests |= {f"reader {name}": digest for name, digest in reader.files.items()}
    return SourceCode.of(digests) if digests else None


def _named_files(argv: Sequence[str], folder: Path) -> Iterator[Path]:
    """Yield the files that program and arguments name, and those of `-m MODULE`."""
    for number, argument in enumerate(argv):
        if number == 0 and "/" not in argument:
            continue  # found on the PATH, even if the folder has such a file
        if number > 1 and argv[number - 1] == "-m":
            yield from _module_files(argument, folder)
            continue
        path = folder / argument
        # As `isfile` of `os.path` is false for a text that can be no path.
        if os.path.isfile(path / "__main__.py"):
            yield path / "__main__.py"
        elif not os.path.isfile(path):
            # Such as `--config=FILE`, or the words of `sh -c`.
            yield from named_files(argument, (folder,))
        elif not is_output(path) and not _is_interpreter(path, folder):
            yield path


def _is_interpreter(path: Path, folder: Path) -> bool:
    """Return whether a file is a program of the machine or of an environment: python, torchrun."""
    if (path.parent.parent / "pyvenv.cfg").is_file():
        return True
    is_own = path.is_relative_to(folder) or path.suffix in _SCRIPTS or starts_shell(path)
    return not is_own and os.access(path, os.X_OK)


def _module_files(module: str, folder: Path) -> Iterator[Path]:
    path = folder.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py"):
        if file.is_file():
            yield file


def _listed_files(patterns: Sequence[Any], folder: Path) -> Iterator[Path]:
    """Yield the files that the template's `sources` name."""
    for pattern in patterns:
        files = [path for path in sorted(folder.glob(str(pattern))) if path.is_file()]
        if not files:
            raise ConfigError(
                f"sources: expected patterns of files below the working folder {folder}, got "
                f"{pattern!r}, which matches none"
            )
        yield from files
