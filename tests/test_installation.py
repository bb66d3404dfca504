"""Files that install advsweep: the lock, the images, the development container, the documents."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import release_notes
import yaml

import advsweep
from advsweep.cli.commands import BY_NAME

ROOT = Path(__file__).parents[1]
IMAGES = ["Dockerfile", "Dockerfile.cuda"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def instructions(name: str) -> list[tuple[str, list[str]]]:
    """The instructions of a Dockerfile, without flags."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    parsed = [(line.split()[0], shlex.split(line)[1:]) for line in lines if line.strip()]
    return [
        (name, [word for word in words if name == "RUN" or not word.startswith("--")])
        for name, words in parsed
    ]


def test_the_lock_names_public_hosts_and_hashes_alone():
    hosts = set()
    for package in LOCK["package"]:
        source = package["source"]
        if package["name"] == "advsweep":
            assert source == {"editable": "."}
            continue
        hosts.add(urlsplit(source["registry"]).hostname)
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files
        for file in files:
            assert file["hash"].startswith("sha256:"), package["name"]
            hosts.add(urlsplit(file["url"]).hostname)
    assert hosts == {
        *("pypi.org", "files.pythonhosted.org"),
        *("download.pytorch.org", "download-r2.pytorch.org"),
    }


def test_the_lock_has_the_torch_of_the_makefile_for_cpus():
    (pinned,) = PROJECT["dependency-groups"]["cpu"]
    assert f"TORCH ?= {pinned}\n" in MAKEFILE
    version = pinned.removeprefix("torch==")
    torches = [package for package in LOCK["package"] if package["name"] == "torch"]
    (cpu,) = [torch for torch in torches if torch["version"] == f"{version}+cpu"]
    for python in ("cp311", "cp312", "cp313"):
        assert any(f"-{python}-manylinux_2_28_x86_64" in wheel["url"] for wheel in cpu["wheels"])


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_user_in_a_volume_on_a_pinned_base(image):
    parsed = instructions(image)
    for name, words in parsed:
        if name == "FROM":
            assert re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+-[\w-]+", words[0])
    last = dict(parsed)
    assert last["USER"] == ["1000"]
    assert last["WORKDIR"] == last["VOLUME"] == ["/data"]
    assert last["ENTRYPOINT"] == ["[advsweep]"]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_gets_what_it_copies_and_the_build_needs(image):
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source.partition("/")[0]
        for name, words in instructions(image)
        if name == "COPY"
        for source in words[:-1]
        if not source.startswith("/")
    }
    assert copied == sent
    assert copied == {"pyproject.toml", "uv.lock", "dist"}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_the_locked_dependencies_and_the_wheel(image):
    ran = [" ".join(words) for name, words in instructions(image) if name == "RUN"]
    (synced,) = [line for line in ran if "uv sync" in line]
    assert {"--frozen", "--no-install-project"} <= set(synced.split())
    (installed,) = [line for line in ran if "uv pip install" in line]
    assert "--no-deps ./advsweep-*.whl" in installed


# The release


def steps(workflow: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each step of a workflow, with the name and the node of its job."""
    jobs = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text("utf-8"))["jobs"]
    return [(name, job, step) for name, job in jobs.items() for step in job["steps"]]


def test_the_release_pins_its_actions_and_has_the_least_permissions():
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    wanted = {
        "build": {"contents": "read"},
        "image": {"contents": "read"},
        "pypi": {"id-token": "write"},
        "ghcr": {"packages": "write"},
        "github": {"contents": "write"},
    }
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == wanted
    publishing = [name for name, rights in wanted.items() if "write" in rights.values()]
    for name in publishing:
        assert "github.event_name == 'push'" in workflow["jobs"][name]["if"]
    assert workflow["jobs"]["pypi"]["environment"] == "pypi"
    for name, _, step in steps("release.yml"):
        action = step.get("uses", "")
        assert not action or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
        # What publishes runs no code of the repository.
        assert name not in publishing or not action.startswith("actions/checkout@")
        assert "${{" not in step.get("run", ""), "an expression in a script would be code"
    assert len(re.findall(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", text, re.M)) == text.count("uses:")
    assert "password" not in text.replace("--password-stdin", "").replace("no password", "")


def test_every_file_has_the_version_of_the_release(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["release_notes", "--check", f"v{advsweep.__version__}"])
    assert release_notes.main() == 0
    monkeypatch.setattr("sys.argv", ["release_notes", "--check", "v9.9.9"])
    assert release_notes.main() == 1
    said = capsys.readouterr().err
    assert said.splitlines() == [
        f"{file}: expected version 9.9.9, got {advsweep.__version__}"
        for file in ("advsweep/__init__.py", "CHANGELOG.md", "CITATION.cff")
    ]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert str(citation["date-released"]) == release_notes.newest(changelog)["date"]


def test_the_notes_are_those_of_the_newest_release_and_one_screen():
    text = "# Log\n\n## 0.2.0 - 2027-01-02\n\n- new\n\n## 0.1.0 - 2026-11-29\n\n- old\n"
    assert release_notes.notes(text) == "- new\n"
    notes = release_notes.notes((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert len(notes.splitlines()) <= 40
    with pytest.raises(ValueError, match="expected a heading"):
        release_notes.notes("## Unreleased\n")


def test_what_tries_an_installation_uses_commands_that_exist():
    script = (ROOT / "tests/try_installation.sh").read_text("utf-8")
    used = set(re.findall(r'^"\$advsweep" (\w+)', script, re.M))
    assert {"version", "list", "doctor", "sweep", "report", "schema"} <= used <= set(BY_NAME)
