"""`advsweep init`: a sweep file, a Makefile and a README, for a first sweep or for own problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli.output import echo, echo_line
from advsweep.cli.own_data import (
    INIT_FILES,
    Proposal,
    check_model,
    gold_text,
    next_command,
    propose,
    sweep_file,
)
from advsweep.config.overrides import parse_assignments
from advsweep.errors import ConfigError
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.registry import config_groups
from advsweep.writing import write

SCHEMA = "advsweep.schema.json"

# The templates that are written; the schema of the sweep file comes with them.
NAMES = ("sweep.yaml", "Makefile", "README.md")

EXAMPLES = (
    "advsweep init first",
    "advsweep init first && cd first && advsweep sweep sweep.yaml",
    "advsweep init mine --data problems.csv --model Qwen/Qwen2.5-0.5B-Instruct",
)


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            show_default=False,
            metavar="[FOLDER]",
            help="The folder; it is created if needed.",
        ),
    ] = Path(),
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PLACE",
            help="Problems to train on: a file (.csv, .tsv, .jsonl, .json, .parquet), a folder "
            "with a file per split, or hub:OWNER/NAME. Says which columns and verifier it "
            "takes, and shows a problem; a form that it does not know is refused.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="A model of transformers to train: a folder, or a name on the hub.",
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            metavar="COLUMN",
            help="The column of the questions; a dotted name goes into objects.",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            "--answer",
            metavar="COLUMN",
            help="The column of the answers.",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set a field of the task, such as context_column=passage or gold_lists=any; may "
            "be repeated.",
        ),
    ] = None,
) -> None:
    """Write a sweep file, a Makefile for CI and a README.

    The sweep file is complete and explains each of its keys: three estimators with three seeds
    on a model that trains on a CPU, or on your model and problems. A JSON schema beside it lets
    editors complete and check it. Refuses to overwrite a file, and then writes nothing.
    """
    if (data is None) is not (model is None):
        raise ConfigError(
            f"--data and --model: expected both or none, got {'--data' if data else '--model'} "
            "alone; give --data FILE --model PATH"
        )
    names = [*NAMES, SCHEMA]
    # A link counts as well, wherever it leads.
    present = [name for name in names if (folder / name).is_symlink() or (folder / name).exists()]
    if present:
        raise ConfigError(
            f"{folder}: expected a folder without {', '.join(names)}, got one with "
            f"{', '.join(present)}; name another folder: advsweep init FOLDER"
        )
    texts = {name: (INIT_FILES / name).read_text(encoding="utf-8") for name in NAMES}
    proposal = None
    if data is not None and model is not None:
        check_model(model)
        settings = parse_assignments(fields or [])
        proposal = propose(data, question=question, gold=answer, settings=settings)
        texts["sweep.yaml"] = sweep_file(proposal, data, model, folder)
    elif question or answer or fields:
        raise ConfigError("--question, --answer and --set: expected --data with them, got none")
    with config_groups() as groups:
        texts[SCHEMA] = write(make_schema(groups), "json")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:  # never through a new link
            file.write(text)
        echo_line(f"Wrote {folder / name}.")
    if proposal is not None:
        _print_proposal(proposal)
    echo_line(f"Next: {next_command(folder, proposal)}")


def _print_proposal(proposal: Proposal) -> None:
    for sentence in proposal.sentences:
        echo_line(f"Read: {sentence}.")
    for note in proposal.notes:
        echo_line(f"Note: {note}.")
    problem = proposal.problem
    echo_line(f"--- the first problem, as the model gets it ({problem.id})")
    if problem.system:
        echo_line(f"[system] {problem.system}")
    echo(problem.prompt)
    echo_line(f"--- gold: {gold_text(problem.reference)}")
