"""The reference of the site has every command, option, config key, estimator and metric."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import site_estimators
import site_math
import site_pages
import site_reference
import site_text

from advsweep.cli.commands import COMMANDS
from advsweep.components import option_of
from advsweep.estimators import ESTIMATORS, build_estimator
from advsweep.objectives import OBJECTIVES
from advsweep.report.data.metrics import find_metric, read_catalogue
from advsweep.store import open_store
from advsweep.store.tables import METADATA
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute

DOCS = Path(__file__).parents[2] / "docs"
ONE_EVALUATION = ["evaluation.every=0", "evaluation.n=16", "evaluation.k=[1,8]"]
BANDIT = ["backend=bandit", "model=table", "task=bandit", "optimizer=sgd"]


def test_every_command_is_in_the_reference_with_every_option(reference: dict[str, str]) -> None:
    page = reference["commands.md"]
    sections = dict(re.findall(r"^## (.+?) \{ #.+? \}\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert set(sections) == {name for entries in COMMANDS.values() for name in entries}
    for name, command, _ in site_reference.commands():
        shown = [p for p in command.params if not getattr(p, "hidden", False)]
        for opt in (opt for p in shown for opt in p.opts if opt.startswith("-")):
            assert opt in sections[name], (name, opt)


def fields() -> list[tuple[str, type, dataclasses.Field[Any]]]:
    return [
        (key, cls, field)
        for key, registry in GROUPS.items()
        for cls in registry.classes()
        for field in dataclasses.fields(cls)
    ]


def test_every_config_key_is_in_the_reference_with_its_meaning(reference: dict[str, str]) -> None:
    found = fields()
    assert len(found) > 200
    for key, cls, field in found:
        page = reference[f"config/{key}.md"]
        section = page.split(f"\n## {cls.name}\n")[1].split("\n## ")[0]
        [row] = [
            line for line in section.splitlines() if line.startswith(f"| `{key}.{field.name}`")
        ]
        cells = re.split(r"(?<!\\)\|", row)
        help_text = " ".join(option_of(field).help.split())
        assert help_text, f"{cls.__name__}.{field.name} has no help"
        assert cells[4].strip() == site_text.escape(help_text).replace("|", "\\|"), row
        assert cells[2].strip(), row


def test_presets_are_members_without_a_component_of_their_name(reference: dict[str, str]) -> None:
    presets = reference["config/evaluation.md"].split("\n## standard\n")[0]
    assert "| `greedy` | `name=standard, n=1, k=[1], temperature=0` |" in presets
    assert "| `standard` |" not in presets


def test_every_estimator_has_a_page_and_a_line(estimator_pages: dict[str, str]) -> None:
    pages = estimator_pages
    names = {cls.name for cls in ESTIMATORS.classes()}
    assert set(pages) - {"estimators/index.md"} == {f"estimators/{n}.md" for n in names}
    for cls in ESTIMATORS.classes():
        page = pages[f"estimators/{cls.name}.md"]
        assert cls.formula in site_math.plain(page)
        assert ("| none |" in memory_of(page)) is not build_estimator(cls.name).stateful
        for part in ("**Departures from the source.**", "## Masses", "## Keys"):
            assert part in page, cls.name
        assert all(f"`estimator.{f.name}`" in page for f in dataclasses.fields(cls))
        assert f"[`{cls.name}`]({cls.name}.md)" in pages["estimators/index.md"]
    assert "| needs | `rewards`, `ref_rewards` |" in pages["estimators/aapo.md"]
    assert "| order of the rollouts | does not matter |" in pages["estimators/grpo.md"]
    assert "code.** `rule=window` with" in pages["estimators/ha_dw.md"]
    source = "[arXiv:2402.14740](https://arxiv.org/abs/2402.14740)"
    assert source in pages["estimators/rloo.md"]
    assert source in pages["estimators/index.md"]


def test_every_objective_has_a_page_and_a_line(objective_pages: dict[str, str]) -> None:
    pages = objective_pages
    names = {cls.name for cls in OBJECTIVES.classes()}
    assert set(pages) - {"objectives/index.md"} == {f"objectives/{n}.md" for n in names}
    with config_groups() as groups:
        presets = set(groups.members("objective")) - names
    assert {"gspo", "dapo"} <= presets
    index = pages["objectives/index.md"]
    for cls in OBJECTIVES.classes():
        page = pages[f"objectives/{cls.name}.md"]
        for part in ('<span class="formula"', "**When to use it:**", "**Source.**", "## Weights"):
            assert part in page, cls.name
        assert "not named" not in page
        assert all(f"`objective.{f.name}`" in page for f in dataclasses.fields(cls))
        [line] = [line for line in index.splitlines() if f"({cls.name}.md)" in line]
        assert 'class="formula"' in line
        for preset in presets & set(re.findall(r"^\| `(\w+)`", page, re.M)):
            assert f"`{preset}`" in line
            presets.remove(preset)
    assert presets == set()


def test_every_link_between_pages_leads_somewhere(
    reference: dict[str, str],
    estimator_pages: dict[str, str],
    objective_pages: dict[str, str],
    tmp_path: Path,
) -> None:
    pages = reference | estimator_pages | objective_pages
    # It refuses a link to a file that does not exist.
    site_pages.stage(tmp_path, {f"reference/{path}": text for path, text in pages.items()})


def memory_of(page: str) -> str:
    [line] = [line for line in page.splitlines() if line.startswith("| initial state")]
    return line


@pytest.mark.slow
def test_the_masses_of_an_estimator_are_drawn(tmp_path: Path) -> None:
    record = {"masses": {"group_size": 8}}
    assert site_estimators._draw("fade", record, tmp_path / "made" / "fade.svg")
    assert "<svg" in (tmp_path / "made" / "fade.svg").read_text("utf-8")
    assert not site_estimators._draw("intuitor", record, tmp_path / "intuitor.svg")


def test_every_table_and_column_of_the_store_is_in_the_reference(reference: dict[str, str]) -> None:
    page = reference["store.md"]
    for entity in METADATA.tables.values():
        section = page.split(f"\n## {entity.name}\n")[1].split("\n## ")[0]
        for column in entity.columns:
            assert f"| `{column.name}` |" in section
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ")}
    assert "| `name` | String |  | unique |" in sections["sweeps"]
    assert "| `finished` | UtcDateTime | yes |  |" in sections["runs"]
    assert "| `run_id` | Integer |  | primary key, → `runs.id` |" in sections["run_evaluations"]


def test_the_python_api_is_in_the_reference(reference: dict[str, str]) -> None:
    page = reference["python.md"]
    for name in (
        "load_runs",
        "report",
        "sweep",
        "plot",
        "GroupBatch",
        "build_estimator",
        "EstimatorGRPOTrainer",
    ):
        assert f"### {name}\n" in page
    assert "AdvsweepError" in page
    assert "-> 'pd.DataFrame'" not in page
    assert not re.search(r"<factory>| at 0x|__version__|`\w+\._\w", page)


# Metrics


@pytest.mark.parametrize(
    "settings",
    [
        ["backend=fake", "evaluation.n=16", "evaluation.k=[1,8]", "estimator=avspo"],
        [*BANDIT, "estimator=fade", "evaluation.n=16", "evaluation.k=[1,8]"],
        [*BANDIT, "rollout=retry", "evaluation.n=16", "evaluation.k=[1,8]"],
        pytest.param(
            [*ONE_EVALUATION, "estimator=ha_dw", "backend.entropy_change=true"],
            marks=pytest.mark.slow,
        ),
        pytest.param([*ONE_EVALUATION, "task=walks"], marks=pytest.mark.slow),
    ],
    ids=["fake", "bandit", "retries", "tiny", "turns"],
)
def test_every_metric_that_a_run_records_is_in_the_catalogue(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        plan = make_plan([*settings, "steps=30", "executor=debug", "prompts_per_step=8"])
        outcome = execute(plan, store, jobs=1, policy=Policy(retries=0))
        assert outcome.done == 1, outcome.failed
        [run] = outcome.run_ids
        names = {*store.metrics.names(run), *store.metrics.summaries([run])[run]}
    assert len(names) > 20
    assert [name for name in names if find_metric(name) is None] == []


def test_every_metric_of_the_pages_is_in_the_catalogue() -> None:
    known = {metric.name for metrics in read_catalogue().values() for metric in metrics}
    for page in ("diagnostics.md", "bandit.md"):
        text = (DOCS / page).read_text("utf-8")
        for cell in re.findall(r"^\| (`[a-z]+/[^|]*`) \|", text, re.MULTILINE):
            first = ""
            for name in re.findall(r"`([^`]+)`", cell):
                # `collapse/acr`, `all_wrong`: the second has the prefix of the first.
                full = name if "/" in name else f"{first}/{name}"
                first = full.partition("/")[0]
                assert full.replace("*", "NAME") in known, (page, full)


# Markdown


def test_text_is_shown_unchanged() -> None:
    assert site_text.escape("a_b *c* <d> `e_f`") == r"a\_b \*c\* &lt;d&gt; `e_f`"
    assert [site_text.value(each) for each in (None, "", "a", 0.5)] == [
        *("`null`", "`''`", "`a`", "`0.5`")
    ]
    assert site_text.escape("an odd ` _") == "an odd \\` \\_"
    assert site_text.escape("(Ye 2020, arXiv:1912.09729)") == (
        "(Ye 2020, [arXiv:1912.09729](https://arxiv.org/abs/1912.09729))"
    )
    assert site_text.escape("(doi:10.1007/BF00992696).") == (
        "([doi:10.1007/BF00992696](https://doi.org/10.1007/BF00992696))."
    )
    assert site_text.table(("a",), [["x|y\nz"]]).splitlines()[2] == "| x\\|y z |"


def test_sections_of_a_docstring_are_lists() -> None:
    def example() -> None:
        """Do it.

        Args:
            one: the first,
                on two lines.
            two: the second.

        Returns:
            A number_ of
            two lines.

        With a formula_:

            a_b = c_d
        """

    assert site_text.docstring(example) == (
        "Do it.\n\n\n**Args**\n\n- `one`: the first,\n  on two lines.\n- `two`: the second.\n\n\n"
        "**Returns**\n\nA number\\_ of\n  two lines.\n\nWith a formula\\_:\n\n"
        + site_math.formulas("    a_b = c_d\n")
    )
