"""Files that install advsweep: the lock, the images, the development container, the documents."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

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
        source
        for name, words in instructions(image)
        if name == "COPY"
        for source in words[:-1]
        if not source.startswith("/")
    }
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], PROJECT["project"]["readme"], "LICENSE"}
    assert needed <= copied


def test_no_document_assumes_a_published_package():
    """Only a clone, a file or a URL after `@` can be installed until a release is on PyPI."""
    assumed = re.compile(
        r"(?:pip|pipx|tool) install [^`\n#]*?(?<=[ '\"])advsweep(?![-\w./]|(?:\[[\w,-]+\])? @)"
    )
    suffixes = {".md", ".py", ".ipynb"}
    roots = [ROOT / name for name in ("advsweep", "benchmarks", "docs", "examples", "experiments")]
    files = [*ROOT.glob("*.md"), *(path for root in roots for path in root.rglob("*.*"))]
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in suffixes}
    assert [f"{p}: {m[0]}" for p, text in texts.items() for m in assumed.finditer(text)] == []
