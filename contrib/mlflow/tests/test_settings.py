"""The settings of the tracker, and what is refused before anything is trained."""

from __future__ import annotations

import json
import re
import socket
import sys

import pytest
from advsweep_mlflow.tracking import MlflowTracking, mlflow_name
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.cli import main
from advsweep.errors import ConfigError
from advsweep.store import Status, open_store


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)


def test_names_are_readable():
    assert mlflow_name("collapse/acr") == "collapse/acr"
    assert mlflow_name("pass@8") == "pass_at_8"
    assert re.fullmatch(r"pass_at_8_split_train_-[0-9a-f]{8}", mlflow_name("pass@8[split=train]"))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_names_are_valid_and_stay_apart(one, other):
    name = mlflow_name(one)
    assert re.fullmatch(r"[/\w.\- ]{1,250}", name, re.ASCII)
    assert not {"", ".", ".."} & set(name.split("/"))
    assert (name == mlflow_name(other)) == (one == other)


def test_the_address_is_that_of_option_environment_or_default(tmp_path, monkeypatch):
    assert MlflowTracking().address(tmp_path) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert MlflowTracking().address(tmp_path) == "http://localhost:5000"
    exported = MlflowTracking().in_folder(tmp_path / "out")
    assert exported.address(tmp_path) == f"sqlite:///{tmp_path}/out/mlflow.db"


@pytest.mark.security
@pytest.mark.parametrize("uri", ["https://me:secret@host", "postgresql://me@host/db"])
def test_a_password_is_no_field(uri):
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        MlflowTracking(uri=uri)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///tmp/mlruns", "a database (sqlite:///FILE)"),
        ("mlruns", "a database (sqlite:///FILE)"),
        ("sqlite:///a?b.db", "a path without"),
        ("http://[::1", "expected a URL such as http://HOST:5000"),
    ],
)
def test_an_address_that_mlflow_does_not_write_to_is_refused(uri, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        MlflowTracking(uri=uri).check()


@pytest.mark.security
@pytest.mark.parametrize(
    "uri",
    ["http://me:secret@", "http://me:secret@[::1", "http://me:secret@h\u2100", "//me:secret@h"],
)
def test_a_broken_address_of_the_environment_is_refused_without_its_password(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ConfigError, match=r"tracking\.uri: expected") as refused:
        MlflowTracking().check()
    assert "secret" not in str(refused.value)


@pytest.mark.security
def test_a_server_that_is_away_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADVSWEEP_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    arguments = ["run", "backend=bandit", "task=bandit", "model=table", "steps=1"]
    monkeypatch.setattr(sys, "argv", ["advsweep", *arguments, "optimizer=sgd", "tracking=mlflow"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert f"expected an MLflow server at http://127.0.0.1:{port}, but nobody answers" in said
    assert "secret" not in said
    with open_store(str(tmp_path / "advsweep.db")) as store:
        assert not [run for run in store.runs.select() if run.status is not Status.PENDING]


def test_the_package_offers_the_tracker(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["advsweep", "list", "plugins", "--format", "json"])
    with pytest.raises(SystemExit):
        main()
    listed = json.loads(capsys.readouterr().out)
    [offered] = [each for each in listed if each["package"] == "advsweep-mlflow"]
    assert (offered["kind"], offered["name"], offered["state"]) == ("tracking", "mlflow", "usable")
