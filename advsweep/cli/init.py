"""`advsweep init`: write a sweep file, a Makefile and a README into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SCHEMA = "advsweep.schema.json"

SWEEP_FILE = f"""\
# yaml-language-server: $schema={SCHEMA}
# A sweep file: `advsweep sweep sweep.yaml` trains every combination of what stands below and
# repeats nothing that is done; with --dry-run it shows the runs and their time.
# Any key of a run can be set here, as on the command line; `advsweep keys` lists them.

steps: 100               # training steps of each run
group_size: 8            # rollouts per prompt
prompts_per_step: 64     # prompts per training step

evaluation:
  every: 0               # before and after training only
  k: [1, 8]              # pass@1 and pass@8

sweep:
  name: first            # the name for `advsweep report first`
  seeds: 3               # seeds 0, 1 and 2; intervals and tests need several
  # Each arm finds its own learning rate first, with other seeds (`advsweep keys sweep.tune`):
  # tune: {{key: optimizer.lr, values: [1.5e-4, 3e-4, 6e-4]}}
  # The first estimator again with other rollouts, and with verdicts at random:
  # controls: [aa, placebo]
  common:                # for all runs; a list is swept over
    task: countdown      # `advsweep list tasks` lists tasks; `advsweep keys task` their options
    model: tiny          # hf for a model of Hugging Face, with backend: trl
    backend: tiny        # trains on a CPU in seconds
    # optimizer.lr: [1e-4, 3e-4]
  blocks:                # each block is a grid of its own; its runs are added to the others
    - estimator: [grpo, rloo]      # `advsweep list estimators` lists them
    - estimator: fade              # with a setting of its own:
      estimator.h_star: 0.5        # `advsweep describe fade` lists its options
"""

MAKEFILE = f"""\
ADVSWEEP ?= advsweep
# The name of the sweep, as the sweep file has it.
NAME := $(shell sed -n 's/^  name: *\\([^ \\#]*\\).*/\\1/p' sweep.yaml)

.PHONY: plan sweep report schema ci

plan:    ## show the runs and their time; start nothing
\t$(ADVSWEEP) sweep sweep.yaml --dry-run

sweep:   ## train what is missing; repeat it to resume
\t$(ADVSWEEP) sweep sweep.yaml

report:  ## the table, and a page to click through
\t$(ADVSWEEP) report $(NAME)
\t$(ADVSWEEP) report $(NAME) --format html > report.html

schema:  ## after an update: what editors know of sweep.yaml
\t$(ADVSWEEP) schema > {SCHEMA}

# For CI: exit code 1 unless the data support the statement (`advsweep report --help`).
ci: sweep
\t$(ADVSWEEP) report $(NAME) --assert 'pass@1[grpo] >= pass@1[base]'
"""

README = f"""\
# A comparison of advantage estimators

- `sweep.yaml` says which runs there are. Change it first.
- `make plan` shows the runs and their time, `make sweep` trains those that are missing,
  `make report` prints the table.
- `make ci` trains and fails unless the runs support the statement in the `Makefile`.
- `{SCHEMA}` lets editors complete and check `sweep.yaml` (in Visual Studio Code with
  the extension YAML of Red Hat); `make schema` makes it anew.

The results are in `advsweep.db` and `advsweep-runs`; delete neither while you need them.
`advsweep doctor` says what is installed and what a feature lacks.
"""

FILES = {"sweep.yaml": SWEEP_FILE, "Makefile": MAKEFILE, "README.md": README}
"""The texts that are written, by name; the schema of the sweep file comes with them."""


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]", help="The folder; it is created if needed.", show_default=False
        ),
    ] = Path(),
) -> None:
    """The sweep file is complete and explains each of its keys: three estimators with three seeds
    on a model that trains on a CPU. A JSON schema beside it lets editors complete and check it.
    Refuses to overwrite a file, and then writes nothing.

    Examples:
        advsweep init first
        advsweep init first && cd first && advsweep sweep sweep.yaml
    """
    from advsweep.cli.output import echo_line
    from advsweep.errors import ConfigError
    from advsweep.sweep.json_schema import make_schema
    from advsweep.sweep.registry import config_groups
    from advsweep.writing import write

    names = [*FILES, SCHEMA]
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
    with config_groups() as groups:
        texts = {**FILES, SCHEMA: write(make_schema(groups), "json")}
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:  # never through a new link
            file.write(text)
        echo_line(f"Wrote {folder / name}.")
    where = "" if folder == Path() else f"cd {folder} && "
    echo_line(f"Next: {where}advsweep sweep sweep.yaml")
