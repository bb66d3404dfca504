"""Names, places and secrets of MLflow; tests/sweep/tracking/test_contract.py reads runs back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.sweep.tracking.mlflow import MlflowTracking, mlflow_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("collapse/acr", "collapse/acr"),
        ("pass@8", "pass_at_8"),
        ("pass@8[split=train]", r"pass_at_8_split_train_-[0-9a-f]{8}"),
        ("pass_at_8", r"pass_at_8-[0-9a-f]{8}"),
        ("../x", r"_/x-[0-9a-f]{8}"),
        ("", r"_-[0-9a-f]{8}"),
    ],
)
def test_names(name, expected):
    assert re.fullmatch(expected, mlflow_name(name))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_names_are_valid_and_stay_apart(one, other):
    name = mlflow_name(one)
    assert re.fullmatch(r"[/\w.\- ]{1,250}", name, re.ASCII)
    assert not {"", ".", ".."} & set(name.split("/"))
    assert (name == mlflow_name(other)) == (one == other)


def test_a_place_is_chosen_by_option_environment_and_default(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    beside = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert MlflowTracking()._address(tmp_path)[0] == beside
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert MlflowTracking()._address(tmp_path) == ("http://localhost:5000", None)
    exported = MlflowTracking().in_folder(tmp_path / "out")
    assert exported._address(tmp_path)[0] == f"sqlite:///{tmp_path}/out/mlflow.db"


@pytest.mark.security
@pytest.mark.parametrize("uri", ["https://me:secret@host", "postgresql://me@host/db"])
def test_a_password_is_no_field(uri):
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        MlflowTracking(uri=uri)
    assert "secret" not in str(refused.value)


def test_fields_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="uri or directory"):
        MlflowTracking(uri="http://localhost", directory="here")
    with pytest.raises(ConfigError, match="without"):
        MlflowTracking(directory="what?")
