"""Every block of docs/library.md and docs/inside_trl.md does what the page says of it."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from advsweep.estimators import GroupBatch, build_estimator
from advsweep.estimators.fade import FADE

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
DOCS = Path(__file__).parents[2] / "docs"


def blocks(section: str, page: str = "library.md") -> list[str]:
    """The code blocks under a heading, python and toml, as they are printed."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (body,) = re.findall(
        rf"^# {section}\n(.*?)(?=^#+ |\Z)", text.replace("\n## ", "\n# "), re.M | re.S
    )
    return re.findall(r"^```(?:python|toml)\n(.*?)^```$", body, re.M | re.S)


def executed(code: str, **names: Any) -> dict[str, Any]:
    exec(code, names)
    return names


def test_in_short() -> None:
    (code,) = blocks("Using an estimator elsewhere")
    # Failures count double: dᵢ/δ with δ = 1/2.
    expected = torch.tensor([[0.75, -0.5, -0.5, -0.5], [0.25, 0.25, -1.5, 0.25]])
    assert torch.equal(executed(code)["advantages"], expected)


def test_a_loop_of_ones_own_learns_and_goes_on() -> None:
    loop, resume = blocks("In your own loop")
    done = executed(loop)
    history, checkpoint = done["history"], done["checkpoint"]
    assert all(math.isfinite(step["loss"]) for step in history)
    first, last = (sum(s["reward"] for s in part) / 10 for part in (history[:10], history[-10:]))
    assert last > first + 0.2
    # FADE follows: alpha falls as prompts are solved, and delta as entropy does.
    assert history[-1]["alpha"] < history[0]["alpha"]
    assert history[-1]["delta"] < history[0]["delta"] == 1
    resumed = executed(resume, build_estimator=build_estimator, checkpoint=checkpoint)["estimator"]
    assert isinstance(resumed, FADE)
    assert resumed.state_dict() == done["estimator"].state_dict() == checkpoint["estimator"]


def test_turns_have_advantages_of_their_own() -> None:
    (code,) = blocks("One advantage per turn")
    values = executed(code, torch=torch, GroupBatch=GroupBatch, build_estimator=build_estimator)[
        "advantages"
    ]
    # Less the mean of the others: of 1, 0, 0 at the first turn, of 1 and 0 at the second.
    expected = [[[1, 0, 1, 1], [-0.5, 0, 0, 0], [-0.5, 0, -1, 0]]]
    torch.testing.assert_close(values, torch.tensor(expected))


# Inside TRL


@pytest.mark.slow
def test_the_trainer_of_trl_trains(policy_folder: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", minversion="1.12")
    from datasets import Dataset

    (code,) = blocks("Inside TRL", "inside_trl.md")
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        num_generations=2,
        per_device_train_batch_size=4,
        max_completion_length=3,
        max_steps=1,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = executed(
        code,
        model=str(policy_folder),
        reward=lambda completions, **_: [float("a" in text) for text in completions],
        dataset=Dataset.from_dict({"prompt": ["a b", "b c"]}),
        config=config,
    )["trainer"]
    assert isinstance(trainer.estimator, FADE)
    assert {"collapse/acr", "estimator/alpha"} <= set(trainer.state.log_history[0])


# Your own package


@pytest.mark.slow
def test_a_package_made_by_the_page_is_an_estimator_like_any_other(
    install: Callable[..., Path],
) -> None:
    module, project = blocks("Your own package")
    described = tomllib.loads(project)["project"]
    folder = install(described["name"], described["entry-points"], halved=module)
    program = (
        "import torch\n"
        "from advsweep.estimators import GroupBatch, build_estimator\n"
        "halved = build_estimator('halved')\n"
        "assert halved.plain() == {'name': 'halved', 'scale': 0.5}\n"
        "values = halved(GroupBatch(rewards=torch.tensor([[1.0, 0.0]])))\n"
        "assert values.tolist() == [[0.25, -0.25]], values\n"
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True
    )
