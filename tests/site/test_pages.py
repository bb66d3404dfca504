"""The pages of the site: links, navigation, commands that exist, and blocks that run."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_blocks
import pytest
import site_pages
import site_reference
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
RUN = [*(ROOT / f"{name}.md" for name in NAMES), *PAGES]
RUN += sorted((ROOT / "experiments").glob("*/README.md"))
# Tests that execute the python blocks of pages on which no command does.
EXECUTED = {
    "command": "integrations/test_command_page.py",
    "frameworks": "integrations/test_frameworks.py",
    "inside_trl": "integrations/test_library_page.py",
    "library": "integrations/test_library_page.py",
    "plugins": "plugins/test_examples.py",
}
LANGUAGES = {"csv", "ini", "sh", "text", "yaml", "python", "toml", "json", "sql", "latex", "make"}
REASON = re.compile(r"it (needs|installs|downloads|takes|opens)\b")


def navigation() -> list[str]:
    def leaves(node: object) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            for each in node:
                yield from leaves(each)
        elif isinstance(node, dict):
            for each in node.values():
                yield from leaves(each)

    return list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))


def test_every_page_study_and_group_is_in_the_navigation(reference: dict[str, str]) -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES]
    pages = ["studies/index.md" if page == "studies.md" else page for page in pages]
    pages += [f"reference/{path}" for path in reference]
    pages += [f"notebooks/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
    studies = (ROOT / "experiments").glob("*/README.md")
    pages += [f"studies/{path.parent.name}/index.md" for path in studies]
    found = navigation()
    assert len(found) == len(set(found))
    assert [page for page in pages if page not in found] == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    prose = re.sub(r"<!-- block: .*?<!-- /block -->", "", text, flags=re.DOTALL)
    assert len(re.sub(r"<!--.*?-->", "", prose, flags=re.DOTALL).split()) <= 850


# Commands


def lines_of_commands(page: Path) -> Iterator[str]:
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:\S*/)?advsweep (.*)", line.strip()):
                yield found[1]


@functools.cache
def all_commands() -> dict[str, Any]:
    return {name: command for name, command, _ in site_reference.commands()}


def check_command(line: str) -> None:
    commands = all_commands()
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(itertools.takewhile(lambda word: word[0] not in "|&><;", lexer))
    if not words or words[0].startswith("-"):
        return
    name = words[0]
    assert name in commands, line
    if len(words) > 1 and f"{name} {words[1]}" in commands:
        name = f"{name} {words[1]}"
    known = {opt for p in commands[name].params for opt in (*p.opts, *p.secondary_opts)}
    known |= {"--help", "-h"}
    for word in words[1:]:
        if re.match(r"--?[a-zA-Z]", word):
            assert word.partition("=")[0] in known, f"{line}: no option {word}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_commands_of_the_pages_exist_with_their_options(page: Path) -> None:
    for line in lines_of_commands(page):
        check_command(line)


def test_a_command_or_an_option_that_does_not_exist_is_found() -> None:
    for line in ("reprot demo", "report demo --no-such-option", "estimators plot x --colour"):
        with pytest.raises(AssertionError):
            check_command(line)
    assert sum(1 for page in PAGES for _ in lines_of_commands(page)) > 100


# Blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in RUN if "\n```sh\n" in page.read_text("utf-8")],
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_blocks_of_the_page_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    parsed = list(page_blocks.blocks(page.read_text("utf-8")))
    commands = [block for block in parsed if block.language == "sh" and not block.hidden]
    left_out = [block for block in commands if block.reason is not None]
    assert page_blocks.check_page(page, tmp_path) == len(commands) - len(left_out)


def check_labels(text: str) -> None:
    parsed = list(page_blocks.blocks(text))
    fences = re.findall(r"^\s*```.*$", text, re.M)
    outputs = [block for block in parsed if block.shown is not None]
    assert len(fences) == 2 * len([b for b in parsed if not b.hidden]) + 2 * len(outputs)
    for block in parsed:
        assert block.language in LANGUAGES, f"{block.language!r} is no label of\n{block.code}"
        if block.language == "text":
            assert not re.match(r"\s*(\$ |advsweep |make |pip )", block.code), block.code
        if block.reason is not None:
            assert REASON.match(block.reason), block.reason


@pytest.mark.parametrize("page", RUN, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_block_of_the_page_has_a_label_and_is_run_or_says_why_not(page: Path) -> None:
    check_labels(page.read_text("utf-8"))


@pytest.mark.parametrize("page", RUN, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_python_block_is_a_file_that_a_command_runs_or_has_a_test(page: Path) -> None:
    parsed = list(page_blocks.blocks(page.read_text("utf-8")))
    python = [block for block in parsed if block.language == "python" and block.reason is None]
    if any(block.title is None for block in python):
        test = ROOT / "tests" / EXECUTED[page.stem]
        assert f'"{page.name}"' in test.read_text("utf-8")
    for block in python:
        if block.title:
            assert any(
                block.title in other.code or f'"{block.title.removesuffix(".py")}:' in other.code
                for other in parsed
                if other is not block
            ), block.title


@pytest.mark.parametrize(
    "text",
    [
        "```\nadvsweep ls\n```\n",
        "```bash\nadvsweep ls\n```\n",
        "```text\nadvsweep ls\n```\n",
        "- a list\n\n  ```sh\n  advsweep ls\n  ```\n",
        "<!-- not run: for some reason -->\n```sh\nadvsweep ls\n```\n",
    ],
)
def test_a_block_without_a_label_or_a_reason_is_an_error(text: str) -> None:
    with pytest.raises(AssertionError):
        check_labels(text)


def page_with(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    return page


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```sh\necho made 12 runs\n```\n\n```text\nmade 7 steps\n```\n", "shows other output"),
        ("```sh\necho more\n```\n\n```text\n```\n", "shows other output"),
        ("```sh\nfalse | cat\n```\n", "exit code 1"),
        ("```sh\ntrue\n```\n\n<!-- set up: exit 4 -->\n", "exit code 4"),
        ("```sh\ntrue\n```\n\n![It](it.svg)\n", r"it\.svg"),
        ("<!-- not run: it needs a GPU -->\n```yaml\na: 1\n```\n", "no ```sh or ```python block"),
        ("<!-- with sweep: steps=2 -->\n```sh\nadvsweep ls\n```\n", "no `advsweep sweep` in"),
    ],
)
def test_a_page_that_is_wrong_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(page_blocks.BlockError, match=why):
        page_blocks.check_page(page_with(tmp_path, text), tmp_path)


def test_what_runs_around_the_blocks_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set-ups are not counted, settings of the terminal and of the user are left out."""
    monkeypatch.setenv("ADVSWEEP_STORE", "mine.db")
    monkeypatch.setenv("COLUMNS", "70")
    text = (
        '<!-- set up:\necho 12 > runs\ntest -d "$REPOSITORY/docs"\n-->\n\nText.\n\n'
        "```sh\necho $COLUMNS $NO_COLOR ${ADVSWEEP_STORE-none}; cat runs\n"
        "echo mean ± half of it; echo commit\n```\n\n"
        "```text\n110 1 none\n7\n...\n```\n\n"
        "<!-- not run: it needs a GPU -->\n```sh\nfalse\n```\n"
    )
    assert page_blocks.check_page(page_with(tmp_path, text), tmp_path) == 1


def test_words_are_appended_to_their_command_alone(tmp_path: Path) -> None:
    command = tmp_path / "advsweep"
    command.write_text('#!/bin/sh\nprintf "[%s]" "$@"; echo\n', "utf-8")
    command.chmod(0o755)
    page = page_with(
        tmp_path,
        "<!-- with sweep, plan: steps=2 -->\n<!-- with report: --short -->\n"
        "```sh\nPATH=.:$PATH\nadvsweep sweep a='b c' \\\n  d | cat  # all\n"
        "advsweep report\nadvsweep plan\nadvsweep ls\n```\n\n"
        "```text\n[sweep][a=b c][d][steps=2]\n[report][--short]\n[plan][steps=2]\n[ls]\n```\n",
    )
    assert page_blocks.check_page(page, tmp_path) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.25 ± 0.01", "0.125   ± 0.2*"),
        ("run 0a1b2c3d", "run ffffffff"),
        ("took 50 s", "took 2 min"),
        ("a\n\n───", "a\n--------"),
    ],
)
def test_outputs_may_differ_in_numbers_digests_times_and_rules(one: str, other: str) -> None:
    assert page_blocks.skeleton(one) == page_blocks.skeleton(other)
    assert page_blocks.skeleton(one) != page_blocks.skeleton(f"{other} more")


def test_output_and_figures_are_written_into_the_page(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    text = (
        '```python title="say.py"\nprint("hello")\n```\n\n```sh\npython say.py\n```\n\n'
        "```text\nold\n```\n\n<!-- not run: no -->\n```sh\nfalse\n```\n\nBetween.\n\n"
        "```sh\necho x > a.svg; echo end\n```\n\n```text\n```\n\n![A](a.svg)\n"
    )
    page = page_with(tmp_path, text)
    page_blocks.write_page(page, tmp_path / "work")
    written = text.replace("old", "hello").replace("```text\n```", "```text\nend\n```")
    assert page.read_text("utf-8") == written
    assert (tmp_path / "a.svg").read_text() == "x\n"
    assert page_blocks.check_page(page, tmp_path / "work") == 2


# The staged pages


def repository(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def test_a_page_of_the_site_does_not_say_where_its_numbers_come_from() -> None:
    fence = "```text\nby 2<!-- = value a.csv b c -->\n```\n"
    page = "By .1<!-- = value a.csv b c -->.\n\n<!-- block: a.table -->\n| a |\n<!-- /block -->\n\n"
    assert site_pages.without_sources(page + fence) == f"By .1.\n\n| a |\n\n{fence}"


def test_links_are_those_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    monkeypatch.setattr(site_pages, "ROOT", root)
    monkeypatch.setattr(site_pages, "_ROOT_PAGES", {"CHANGELOG.md": "changelog.md"})
    page = (
        "[log](../CHANGELOG.md#new) [study](../experiments/one/) [file](../conf/a.yaml) "
        "[x](https://example.org) [made](reference/made.md) [here](#part) [m](mailto:a@b.c) "
        "[front](../README.md) [all](../experiments) [t](../a.txt)\n\n"
        "```\n[code](../nowhere)\n```\n"
    )
    repository(
        root,
        {
            "CHANGELOG.md": "[page](docs/page.md)\n",
            "docs/page.md": page,
            "docs/.hidden.md": "[broken](nowhere.md)\n",
            "README.md": "# It\n",
            "a.txt": "a\n",
            "conf/a.yaml": "a: 1\n",
            "experiments/one/README.md": "# One: a study\n[p](../../docs/page.md) ![f](f.svg)\n",
            "experiments/one/f.svg": "<svg/>",
            "experiments/one/report_weak.md": "| a |\n| -- |\n",
        },
    )
    target = tmp_path / "site"
    site_pages.stage(target, {"reference/made.md": "# Made\n"})
    expected = page.replace("../CHANGELOG.md#new", "changelog.md#new")
    expected = expected.replace("../experiments/one/", "studies/one/index.md")
    expected = expected.replace("../conf/a.yaml", "files/conf/a.yaml.txt")
    expected = expected.replace("../README.md", "index.md").replace("../a.txt", "files/a.txt")
    expected = expected.replace("../experiments", "studies/index.md")
    assert (target / "page.md").read_text() == expected
    assert (target / "files/conf/a.yaml.txt").read_text() == "a: 1\n"
    assert (target / "changelog.md").read_text() == "[page](page.md)\n"
    study = (target / "studies/one/index.md").read_text()
    assert study == "# One: a study\n[p](../../page.md) ![f](f.svg)\n"
    assert (target / "studies/one/f.svg").exists()
    heading = "# One: report weak\n\n[The study](index.md)\n\n| a |"
    assert (target / "studies/one/report_weak.md").read_text().startswith(heading)
    (root / "docs/page.md").write_text("[a](b.md) [outside](../../secret)\n")
    (tmp_path / "secret").write_text("")
    with pytest.raises(site_pages.BrokenLinkError, match=r"b\.md\n.*secret"):
        site_pages.stage(tmp_path / "other", {})


def test_files_that_a_built_page_lacks_are_found(tmp_path: Path) -> None:
    import build_site

    (tmp_path / "there.svg").write_text("")
    (tmp_path / "index.html").write_text(
        '<img src="there.svg"><img alt=a src=gone.svg><a href="https://example.org">x</a>'
        '<script src="https://example.org/x.js"></script><a href="#gone">y</a>'
        '<h2 id="here">z</h2><a href="#here">y</a><a href="other.html#here">y</a>'
        "<a href=other.html#caf%C3%A9>y</a><a href=mailto:a@example.org>z</a>"
        '<link href="//example.org/x.css"><a href="/there.svg#part">y</a><img src="there.svg?v=1">'
    )
    (tmp_path / "other.html").write_text("<h2 id=café>z</h2>", "utf-8")
    assert build_site.missing_files(tmp_path) == [
        "index.html: #gone",
        "index.html: //example.org/x.css",
        "index.html: gone.svg",
        "index.html: https://example.org/x.js",
        "index.html: other.html#here",
    ]
