"""The pages of the estimators: formula, masses, defaults, source and departures of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from site_math import formula, formulas
from site_text import code, escape, keys_table, link_papers, prose, sentence, table

from advsweep.cli.catalogue import list_estimators
from advsweep.cli.commands.describe import draw_masses
from advsweep.cli.episodes import episode_table
from advsweep.cli.estimators import build_from_options, facts, mass_curves
from advsweep.cli.estimators import describe_estimator as describe
from advsweep.errors import AdvsweepError
from advsweep.estimators import ESTIMATORS

_RATES = tuple(percent / 100 for percent in range(2, 100, 2))
_SIZE = 8


def estimator_pages(figures: Path | None = None) -> dict[str, str]:
    """Return the pages by path below `reference/`.

    Args:
        figures: the folder to draw the figures of the masses into; None draws none.
    """
    pages = {"estimators/index.md": _overview()}
    for name in sorted(cls.name for cls in ESTIMATORS.classes()):
        record = describe(build_from_options(ESTIMATORS, name, []))
        figure = figures is not None and _draw(name, record, figures / f"{name}.svg")
        pages[f"estimators/{name}.md"] = _page(record, figure)
    return pages


def _overview() -> str:
    listed = link_papers(_table_of_all())
    for cls in ESTIMATORS.classes():
        listed = listed.replace(f" `{cls.name}`", f" [`{cls.name}`]({cls.name}.md)", 1)
    return (
        "# Estimators\n\n"
        "Each maps the rewards rᵢ of a prompt's G rollouts to one advantage Aᵢ per rollout. "
        "p is their mean, q = 1 - p, σ their population standard deviation, dᵢ = rᵢ - p. A group "
        "of equal rewards gets exactly 0 wherever the formula reads 0/0.\n\n"
        "On the page of each, *defaults follow* names the source of the defaults: the formula of a "
        "**paper**, the **released code** of the method's authors where no paper's text has it, or "
        "**ours** where no source has one.\n\n" + listed
    )


def _table_of_all() -> str:
    rows = [
        [
            record["family"],
            ", ".join(map(code, (record["name"], *record["aliases"]))),
            formula(record["formula"]),
            record["source"],
        ]
        for record in list_estimators()
    ]
    return table(("family", "name, aliases", "advantage", "source"), rows)


def _page(record: dict[str, Any], figure: bool) -> str:
    name = record["name"]
    also = f"Also called {', '.join(map(code, record['aliases']))}. " if record["aliases"] else ""
    listed = [[key, escape(text)] for key, text in facts(record).items()]
    inputs = {"needs": ["rewards", *record["needs"]], "reads if given": record["uses"]}
    for row in listed:
        if names := inputs.get(row[0]):
            row[1] = ", ".join(map(code, names))
    parts = [f"# {escape(name)}\n", formulas(record["formula"])]
    shown = f"`advsweep describe {name}` prints this page. "
    parts += [also + shown + "[All estimators](index.md)\n"]
    parts += [table(("property", "value"), listed), prose(record["description"].splitlines())]
    if record["released"]:
        parts.append(f"**The authors' released code.** {sentence(record['released'])}\n")
        parts += [f"- `{options}`\n" for options in record["released_options"]]
    parts.append(f"**Departures from the source.** {sentence(record['departures'])}\n")
    parts.append("## Keys\n")
    parts.append(keys_table("estimator.", record["parameters"]))
    if record["episodes"]:
        parts += _episodes(record["episodes"])
    parts.append("## Masses\n")
    if figure:
        parts += [f"![Masses of {name} over the solve rate]({name}.svg)\n"]
        parts += [f"```sh\nadvsweep describe {name} -o {name}.svg\n```\n"]
    masses = record["masses"]
    if masses["refused"]:
        parts.append(f"They are not defined here: {escape(masses['refused'])}\n")
    else:
        inputs = "".join(f", {k} = {v:g}" for k, v in record["inputs"].items())
        parts.append(f"Expected masses at G = {masses['group_size']}{escape(inputs)}:\n")
        numbers = [
            [f"{each[k]:.3g}" for k in ("p", "success", "failure")] for each in masses["rates"]
        ]
        parts.append(table(("p", "m_S", "m_F"), numbers))
    parts.append("## Degenerate groups\n")
    groups = [
        [
            escape(each["group"]),
            escape(" ".join(f"{x:g}" for x in each["advantages"]))
            if each["advantages"] is not None
            else escape(f"refused: {each['refused']}"),
        ]
        for each in record["degenerate"]
    ]
    parts.append(table(("group, alone in a first step", "advantages"), groups))
    return "\n".join(parts)


def _episodes(record: dict[str, Any]) -> list[str]:
    """Return the advantages of the turns of four episodes."""
    if record["refused"]:
        return ["## An example\n", f"Refused: {escape(record['refused'])}\n"]
    header, rows = episode_table(record["turns"])
    cells = [[escape(cell) for cell in row] for row in rows]
    says = "Four episodes of a prompt: before each turn its state, then its advantage.\n"
    return ["## An example\n", says, table(tuple(header), cells)]


def _draw(name: str, record: dict[str, Any], target: Path) -> bool:
    """Draws the masses; returns whether the estimator has a figure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    given: dict[str, float] = {}
    size = max(_SIZE, record["masses"]["group_size"])
    try:
        records, _ = mass_curves({name: build_from_options(ESTIMATORS, name, [])}, size, given)
        draw_masses(records, target, given)
    except AdvsweepError:
        return False  # such as an estimator that reads no rewards
    return True
