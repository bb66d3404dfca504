"""The pages of the objectives: loss, use, source, keys, presets and token weights of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from site_math import formula
from site_text import code, docstring, escape, keys_table, prose, sentence, table

from advsweep.cli.objectives import CURVE, PROBABILITY, describe_objective, token_weights
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.tokenwise import Tokenwise
from advsweep.report.figures.advantages import draw_weights
from advsweep.report.figures.draw import write
from advsweep.sweep.registry import config_groups

_USE = "When to use it: "
_SYMBOLS = (
    f"{formula('A')} is the advantage; {formula('l')} and {formula('l₀')} are the logarithms of "
    "the sampled token's probability under the weights being trained and under those that sampled "
    f"it; {formula('w = exp(l - l₀)')} is their ratio; sg stops the gradient.\n"
)


def objective_pages(figures: Path | None = None) -> dict[str, str]:
    """Return the pages by path below `reference/`.

    Args:
        figures: the folder to draw the figures of the weights into; None draws none.
    """
    pages, rows = {}, []
    with config_groups() as groups:
        names = sorted(cls.name for cls in OBJECTIVES.classes())
        presets: dict[str, list[list[str]]] = {name: [] for name in names}
        for member in groups.members("objective"):
            values = dict(groups.member_values("objective", member))
            if member not in names:
                keys = ", ".join(f"{key}={given}" for key, given in values.items() if key != "name")
                summary = escape(groups.summary("objective", member))
                presets[values["name"]].append([code(member), code(keys), summary])
        for name in names:
            objective = OBJECTIVES.build({"name": name})
            record = describe_objective(
                name,
                objective,
                groups.member_values("objective", name),
                comment=groups.description("objective", name),
            )
            if figures is not None:
                title = f"Weight of a token sampled with π₀ = {PROBABILITY:g}"
                figures.mkdir(parents=True, exist_ok=True)
                weights = token_weights({name: objective}, CURVE)
                write([draw_weights(weights, title)], figures / f"{name}.svg")
            pages[f"objectives/{name}.md"] = _page(record, presets[name], figures is not None)
            also = "".join(f", {preset[0]}" for preset in presets[name])
            loss = "<br>".join(formula(line) for line in objective.formula.splitlines())
            link = f"[`{name}`]({name}.md){also}"
            rows.append([link, loss, sentence(objective.when_to_use)])
    header = ("objective, presets", "loss of a token", "when to use it")
    parts = [
        "# Objectives\n",
        "Each turns advantages and log-probabilities into a loss. " + _SYMBOLS,
        "[Losses and advantages](../../objectives.md) compares them and has the names of TRL and "
        "verl; [Losses under staleness](../../studies/staleness/index.md) tries six of them on old "
        "rollouts.\n",
        table(header, rows),
        "## What all of them share\n",
        docstring(Tokenwise),
    ]
    return {"objectives/index.md": "\n".join(parts), **pages}


def _page(record: dict[str, Any], presets: list[list[str]], figure: bool) -> str:
    name = record["name"]
    text = prose(record["description"].splitlines()).replace(_USE, f"**{_USE.strip()}** ")
    parts = [f"# {escape(name)}\n", text, _SYMBOLS]
    parts += [
        f"`advsweep describe objective={name}` prints this page. [All objectives](index.md), with "
        "aggregation, KL penalty, entropy bonus and masks, which all share.\n"
    ]
    parts.append(f"**Source.** {sentence(record['source'])}\n")
    parts.append(f"**Departures from the source.** {sentence(record['departures'])}\n")
    parts += ["## Keys\n", keys_table("objective.", record["parameters"])]
    if presets:
        parts += ["## Presets\n", table(("`objective=`", "sets", "what it is"), presets)]
    parts += ["## Weights\n"]
    parts += [
        "The weight of a token, -N ∂loss/∂log π, multiplies ∇log π in the update. Here the token "
        f"is alone in its minibatch and was sampled with probability {PROBABILITY:g}.\n"
    ]
    if figure:
        parts += [f"![Weight of a token over its importance ratio, by {name}]({name}.svg)\n"]
        parts += [f"```sh\nadvsweep describe objective={name} -o {name}.svg\n```\n"]
    return "\n".join(parts)
