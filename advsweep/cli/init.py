"""`advsweep init`: write a sweep file, a Makefile and a README into a folder."""

from __future__ import annotations

from pathlib import Path

from advsweep.cli.output import echo_line
from advsweep.errors import ConfigError
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import config_groups
from advsweep.writing import write

SCHEMA = "advsweep.schema.json"

NAMES = ("sweep.yaml", "Makefile", "README.md")
"""The files of `init_files` that are written; the schema of the sweep file comes with them."""


def init(
    folder: Path = Path(),
) -> None:
    """The sweep file is complete and explains each of its keys: three estimators with three seeds
    on a model that trains on a CPU. A JSON schema beside it lets editors complete and check it.
    Refuses to overwrite a file, and then writes nothing.

    Arguments:
        [FOLDER] (folder): The folder; it is created if needed.

    Examples:
        advsweep init first
        advsweep init first && cd first && advsweep sweep sweep.yaml
    """

    names = [*NAMES, SCHEMA]
    # A link counts as well, wherever it leads.
    present = [name for name in names if (folder / name).is_symlink() or (folder / name).exists()]
    if present:
        raise ConfigError(
            f"{folder}: expected a folder without {', '.join(names)}, got one with "
            f"{', '.join(present)}; name another folder: advsweep init FOLDER"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"{folder}: expected a folder, got a file") from error
    source = Path(__file__).parent / "init_files"
    texts = {name: (source / name).read_text(encoding="utf-8") for name in NAMES}
    with config_groups() as groups:
        texts[SCHEMA] = write(make_schema(groups), "json")
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:  # never through a new link
            file.write(text)
        echo_line(f"Wrote {folder / name}.")
    where = "" if folder == Path() else f"cd {folder} && "
    echo_line(f"Next: {where}advsweep sweep sweep.yaml")
