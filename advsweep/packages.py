"""What advsweep and its extras require, and the command that installs it into this environment.

The requirements are read from the metadata of the installed advsweep; nothing is imported in order
to find it. The commands name the required packages themselves, so they work wherever advsweep came
from: a clone, a wheel, pipx or uv.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def requirements(extra: str = "", of: str = "advsweep") -> list[Requirement]:
    """Return what a package requires, or what one of its extras requires in addition.

    An extra that names another one (`advsweep[trl]`) is replaced by what that requires.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed as a package.
    """
    from packaging.requirements import Requirement

    listed = []
    for text in importlib.metadata.requires(of) or []:
        required = Requirement(text)
        marker = required.marker
        if marker is None:
            if not extra:
                listed.append(required)
            continue
        if not marker.evaluate({"extra": extra}) or ("extra" in str(marker)) is not bool(extra):
            continue
        if required.name == of:
            for other in sorted(required.extras):
                listed += requirements(other, of)
        else:
            listed.append(required)
    return listed


def missing(required: Iterable[Requirement]) -> tuple[list[str], list[Requirement]]:
    """Return packages with their versions, and the requirements that are not met."""
    versions = []
    unmet = []
    for requirement in required:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            unmet.append(requirement)
            continue
        versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            unmet.append(requirement)
    return versions, unmet


def describe_unmet(requirement: Requirement) -> str:
    """Return the range that a package should be in, and the release that is installed."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    return f"{requirement.name}{requirement.specifier}, got {version}"


def install_command(required: Iterable[Requirement]) -> str:
    """Return the command that gets packages into this environment."""
    texts = []
    for requirement in required:
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        texts.append(shlex.quote(f"{requirement.name}{extras}{requirement.specifier}"))
    packages = " ".join(texts)
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return f"pipx inject advsweep {packages}"
    python = shlex.quote(sys.executable)
    # uv makes environments without pip.
    has_pip = importlib.util.find_spec("pip") is not None
    pip = f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
    return f"{pip} {packages}"


def extra_command(extra: str, package: str = "") -> str:
    """Return the command that gets an extra of advsweep into this environment.

    Args:
        extra: its name.
        package: what to install where advsweep has no such extra, as for plug-ins.
    """
    from packaging.requirements import Requirement

    try:
        return install_command(requirements(extra) or [Requirement(package)])
    except importlib.metadata.PackageNotFoundError:
        # advsweep is on the path without being installed.
        return f"pip install 'FOLDER_OF_ADVSWEEP[{extra}]'"


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of a package that an extra of advsweep installs.

    Args:
        what: what needs it, for the message.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:  # the reason why another import fails stays visible
        package = module.partition(".")[0]
        raise ConfigError(
            f"{what} needs {package}, which is not installed; install it with "
            f"`{extra_command(extra, package)}`"
        ) from error
