"""What the backend refuses when a run is built, and how it divides rollouts; loads no TRL."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.trl.config import lay_out, share_of
from advsweep.errors import ConfigError

MakeRun = Callable[..., Run]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"path": ""}}, r"model\.path: expected a folder or a name on the hub"),
        ({"model": {"path": "/no/such"}}, r"model\.path: expected a folder with a model, got '/no"),
        ({"model": {"hub_revision": "main"}}, r"model\.hub_revision: expected null with a folder"),
        ({"model": {"name": "tiny"}}, "model: backend 'trl' trains a model of transformers"),
        ({"group_size": 1}, "group_size: expected >= 2"),
        (
            {"prompts_per_step": 7, "backend": {"minibatches": 4}},
            r"4 x 1, got 7 x 6 = 42 rollouts; the nearest that fits is prompts_per_step=6 or 8$",
        ),
        (
            {"prompts_per_step": 1, "backend": {"minibatches": 4, "processes": 2}},
            r"4 x 2, got 1 x 6 = 6 rollouts; the nearest that fits is prompts_per_step=4$",
        ),
        ({"backend": {"accelerate": "/no.yaml"}}, r"backend\.accelerate: expected a file .* '/no"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    small_config: Callable[..., dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    config = small_config("trl", **changes)
    if changes.get("model") == {"name": "tiny"}:
        config["model"] = {"name": "tiny"}
    with pytest.raises(ConfigError, match=message):
        build_run(config)


def test_a_reference_is_not_kept_in_pieces(small_run: MakeRun, tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text("")
    with pytest.raises(ConfigError, match="'reference' draws rollouts of a reference model"):
        small_run("trl", rollout={"name": "reference"}, backend={"accelerate": str(file)})


@pytest.mark.parametrize(
    ("missing", "changes", "message"),
    [
        ("trl", {}, r"backend: 'trl' needs trl, .*pip install .*'trl=="),
        ("peft", {"model": {"lora_rank": 4}}, r"model\.lora_rank: a LoRA adapter needs peft"),
    ],
)
def test_an_extra_that_is_not_installed(
    small_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a)
    )
    with pytest.raises(ConfigError, match=message):
        small_run("trl", **changes)


@pytest.mark.slow
def test_a_run_is_planned_without_what_trains_it(
    small_config: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Importing TRL takes seconds, and plans are made in the time that a command takes."""
    job = tmp_path / "run.json"
    job.write_text(json.dumps(small_config("trl")))
    program = (
        "import json, sys; from advsweep.backends.build import build_run\n"
        f"build_run(json.load(open({str(job)!r})))\n"
        "sys.exit(any(m in sys.modules for m in ('trl', 'transformers', 'datasets')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_largest_equal_passes_are_taken() -> None:
    given = {"prompts": 6, "group_size": 8, "minibatches": 2, "inner_epochs": 3, "processes": 2}
    # 48 rollouts, of which each process has 12 in every minibatch.
    for most, size in [(None, 12), (50, 12), (12, 12), (11, 6), (5, 4), (1, 1)]:
        layout = lay_out(**given, device_batch=most)  # type: ignore[arg-type]
        assert (layout.device_batch, layout.passes) == (size, 12 // size)
        assert layout.updates == 6


def test_shares_are_equal_and_in_order() -> None:
    assert share_of([1, 2, 3, 4], 1, 2) == [3, 4]
    assert [share_of([1, 2, 3], i, 2) for i in (0, 1)] == [[1, 2], [3, 1]]
    # Whole groups of three: 6 rollouts for four processes become 12.
    shares = [share_of(list("abcdef"), i, 4, unit=3) for i in range(4)]
    assert shares == [list("abc"), list("def"), list("aaa"), list("aaa")]
