"""Code that comes with a model is not run."""

import json

import pytest

from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.loading import load_tokenizer
from advsweep.errors import ConfigError

CODE = """
from pathlib import Path
from transformers import PretrainedConfig

Path(__file__).with_name("ran").touch()
Path({marker!r}).touch()

class Hostile(PretrainedConfig):
    model_type = "hostile"
"""


@pytest.mark.security
def test_code_of_a_model_is_not_run_whatever_is_answered(tmp_path, monkeypatch):
    folder, marker = tmp_path / "model", tmp_path / "marker"
    folder.mkdir()
    config = {
        "model_type": "hostile",
        "architectures": ["Hostile"],
        "auto_map": {"AutoConfig": "hostile.Hostile"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    (folder / "hostile.py").write_text(CODE.format(marker=str(marker)))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ConfigError, match=r"model\.path"):
        load_tokenizer(HfModel(path=str(folder)))
    assert not marker.exists()
