"""The JSON contract: every command with `--format json` prints what its schema says.

A new command, or a new key of an old one, fails here with what to write. All other tests of
`tests/cli` that print JSON check it in passing (`json_contract.py`).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from advsweep.cli.app import app
from advsweep.cli.commands import BY_NAME
from advsweep.cli.json_documents import FOLDER, documents_of, find_document, json_documents
from advsweep.errors import UnknownNameError
from tests.cli.conftest import FAKE
from tests.cli.json_contract import check_document, draft, draft_file, first_error

ROOT = Path(__file__).parents[2]
ROOT_COMMAND: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT_COMMAND)
DEBUG = (*FAKE, "executor=debug")

# A use of every document, over the sweep `two` of `fake_folder`.
USES: dict[str, tuple[str, ...]] = {
    "audit": ("audit", "table.csv"),
    "claims": ("claims", "claims.yaml"),
    "describe": ("describe", "fade"),
    "describe-advantages": ("describe", "grpo", "--rewards", "1,0,0,1"),
    "describe-keys": ("describe", "adamw"),
    "describe-masses": ("describe", "grpo", "fade"),
    "describe-member": ("describe", "forest"),
    "describe-objective": ("describe", "objective=gspo"),
    "describe-task": ("describe", "countdown"),
    "describe-word": ("describe", "p@8 - guess"),
    "describe-weights": ("describe", "clipped", "cispo"),
    "doctor": ("doctor",),
    "eval": ("eval", "1", "-n", "4"),
    "import": ("import", "jsonl", "log.jsonl", "--sweep", "imported"),
    "judge": ("judge", "rloo"),
    "keys": ("keys", "rate"),
    "list": ("list",),
    "list-components": ("list", "methods"),
    "list-documents": ("list", "documents"),
    "list-estimators": ("list", "estimators"),
    "list-metrics": ("list", "metrics"),
    "list-plugins": ("list", "plugins"),
    "ls": ("ls", "two"),
    "ls-models": ("ls", "--models"),
    "ls-sweeps": ("ls", "--sweeps"),
    "plot": ("plot", "two"),
    "replay": ("replay", "rollouts.jsonl", "--by", "step"),
    "report": ("report", "two"),
    "run": ("run", "seed=9", *DEBUG),
    "run-config": ("run", "--dry-run", *FAKE),
    "run-multirun": ("run", "--multirun", "seed=0,1", *DEBUG),
    "samples": ("samples", "1"),
    "show": ("show", "1"),
    "status": ("status", "two"),
    "sweep": ("sweep", "seed=0,1", *DEBUG),
    "sweep-plan": ("sweep", "seed=0,1,1", "--dry-run", *FAKE),
}
# Documents that need more than a store of the backend `fake`, and the test that prints them.
ELSEWHERE = {
    "audition": "tests/cli/test_audition.py",
    "retry": "tests/cli/test_management.py",
}
FILES = {
    "table.csv": "name,benchmark,value,size,bold\nA,AIME,33.3,30,\nB,AIME,41.0,30,yes\n",
    "log.jsonl": "".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in range(3)),
    "rollouts.jsonl": '{"step": 1, "prompt": "a", "rewards": [0, 1, 1, 0]}\n',
    "claims.yaml": (
        "title: Mine\ncommon: {sweep: two}\nclaims:\n"
        '  - {id: a, says: It is, statement: "pass@1[fade] > pass@1[grpo]"}\n'
    ),
}


def commands_with_json() -> list[str]:
    """The names of the commands that have a `--format json`."""
    names = []
    for name in BY_NAME:
        for parameter in ROOT_COMMAND.get_command(CONTEXT, name).params:
            if "--format" in parameter.opts and "json" in parameter.type_descriptor.choices:
                names.append(name)
    return names


@pytest.fixture(scope="module")
def store_folder(fake_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder with the finished sweep, which commands may change."""
    folder = tmp_path_factory.mktemp("documents")
    shutil.copytree(fake_folder, folder, dirs_exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("command", commands_with_json())
def test_every_command_with_json_has_its_documents(command: str) -> None:
    names = [each.name for each in documents_of(command)]
    assert command in names, (
        f"`advsweep {command} --format json` has no schema: write advsweep/cli/documents/"
        f"{command}.yaml, whose first entry is '{command}:' with command, title, version: 1 and "
        f"its schema, and a line of USES in {Path(__file__).name}, which then prints a draft"
    )


def test_every_document_has_a_command_and_a_use() -> None:
    used = USES.keys() | ELSEWHERE.keys()
    documents = json_documents()
    assert used == documents.keys(), "USES has a line for each document"
    printing = commands_with_json()
    for name, document in documents.items():
        command = document.command.split()[1]
        assert command in printing, f"{name}: `{document.command}` prints no JSON"
        assert name == command or name.startswith(f"{command}-")
    for name, file in ELSEWHERE.items():
        text = (ROOT / file).read_text("utf-8")
        assert f'"{name}"' in text
        assert '"--format", "json"' in text


@pytest.mark.parametrize("name", USES)
def test_the_document_is_what_its_schema_says(name, store_folder, monkeypatch, succeeds):
    monkeypatch.chdir(store_folder)
    printed, _ = succeeds(*USES[name], "--format", "json")
    document = json.loads(printed)
    assert first_error(name, document) is None
    if not document:
        return
    strange = {**document, "new_key": 1} if isinstance(document, dict) else [*document, 7]
    closed = name != "run-config"  # the keys of a config are those of `advsweep keys`
    assert (first_error(name, strange) is not None) == closed


@pytest.mark.parametrize("name", json_documents())
def test_the_schema_is_one_and_can_be_printed(name, succeeds):
    from jsonschema import Draft202012Validator

    schema = json.loads(succeeds("schema", name)[0])
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:advsweep:{name}:{find_document(name).version}"
    references = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    assert references == set(schema.get("$defs", {}))


def test_a_schema_that_does_not_exist_is_refused(refused):
    refused(["no document 'reprot'", "did you mean 'report'"], "schema", "reprot")
    with pytest.raises(UnknownNameError):
        find_document("definitions")


def test_the_page_and_the_files_name_every_document():
    page = (ROOT / "docs" / "json.md").read_text("utf-8")
    for name, document in json_documents().items():
        assert f"| `{name}` | `{document.command}` |" in page.replace(r"\|", "|"), (
            f"write into the table of docs/json.md: | `{name}` | `{document.command}` | "
            f"{document.title} |"
        )
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*commands_with_json(), "definitions"}


def test_what_no_schema_describes_fails_with_what_to_write(monkeypatch):
    with pytest.raises(AssertionError, match=r"doctor\.yaml does not describe.*\n.*'colour'"):
        check_document("doctor", {"checks": [], "colour": "red"})
    monkeypatch.setattr("tests.cli.json_contract.documents_of", lambda command: [])
    with pytest.raises(AssertionError, match=r"write advsweep/cli/documents/doctor\.yaml"):
        check_document("doctor", {"checks": []})


def test_a_draft_describes_what_it_was_made_of():
    document = {"n": 1, "rows": [{"a": 1, "b": None}, {"a": 0.5}], "none": []}
    assert draft([document]) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "rows": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"a": {"type": "number"}, "b": {"type": "null"}},
                    "required": ["a"],
                },
            },
            "none": {"type": "array"},
        },
    }
    assert draft_file("forecast", []).startswith("forecast:\n  command: advsweep forecast\n")
