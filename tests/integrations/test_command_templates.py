"""The templates that come with advsweep, with the programs that they start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from advsweep.backends.command import template as consent
from advsweep.store import Status, Store, open_store
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from tests.integrations.conftest import save_policy

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _no_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(consent.COMMANDS, "{}")
    # The tests' own variables would turn the programs' warnings into errors.
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "advsweep.db"))


def curve(store: Store, run_id: int, name: str) -> dict[int, float]:
    steps, values = store.metrics.series([run_id], name)[run_id]
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


# TRL


@pytest.fixture(scope="session")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("adder"), [*"0123456789+="])


def trl_sweep(model: Path) -> list[str]:
    return [
        *("backend=command", "backend.template=trl_script", "estimator=grpo,dr_grpo", "seed=0,1"),
        f"backend.parameters.script={EXAMPLES / 'trl_script' / 'train.py'}",
        *(f"backend.parameters.model={model}", "backend.parameters.lr=0.01"),
        *("steps=8", "group_size=8", "prompts_per_step=4", "backend.checkpoint_every=2"),
    ]


def parent(overrides: list[str], url: str) -> None:
    os.environ.update({"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    with open_store(url) as store:
        done = execute(make_plan(overrides), store, jobs=2, policy=Policy(retries=0))
    sys.exit(done.exit_code)


def test_a_script_with_trl_is_swept_killed_and_resumed(
    adder: Path, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from advsweep.cli import main as cli

    overrides = trl_sweep(adder)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=parent, args=(overrides, store.url))
    process.start()
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.is_alive():
        if any(record.step >= 3 for record in store.runs.select()):
            break
        time.sleep(0.1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    again = context.Process(target=parent, args=(overrides, store.url))
    again.start()
    again.join(280)
    assert again.exitcode == 0
    records = store.runs.select()
    assert [record.status for record in records] == [Status.DONE] * 4
    for record in records:
        rewards = curve(store, record.id, "reward/mean")
        assert list(rewards) == list(range(1, 9))
        rates = curve(store, record.id, "collapse/acr")
        # TRL's own count of such groups, which the name of the metric replaces.
        assert all(0 <= rate <= 1 for rate in rates.values())
        assert list(curve(store, record.id, "entropy/token")) == list(rewards)
        assert [c.step for c in store.checkpoints.select(record.id)][-1] == 8
    columns = "reward/mean,collapse/acr,entropy/token"
    monkeypatch.setattr(
        sys, "argv", ["advsweep", "report", "--store", store.url, "--columns", columns]
    )
    with pytest.raises(SystemExit) as ended:
        cli()
    assert not ended.value.code
    assert "dr_grpo" in capsys.readouterr().out


def test_an_environment_in_a_script_with_trl_is_swept(agent_folder: Path, store: Store) -> None:
    overrides = [
        *("backend=command", "backend.template=trl_script", "estimator=gigpo"),
        f"backend.parameters.script={EXAMPLES / 'trl_agent' / 'train.py'}",
        f"backend.parameters.model={agent_folder}",
        *("steps=2", "group_size=4", "prompts_per_step=4", "executor=debug"),
    ]
    done = execute(make_plan(overrides), store, jobs=1, policy=Policy(retries=0))
    assert done.exit_code == 0
    (record,) = store.runs.select()
    assert list(curve(store, record.id, "reward/mean")) == [1, 2]
    # Every walk begins in the room of its prompt, so that first turns have company.
    shares = curve(store, record.id, "estimator/company")
    assert all(0 < share <= 1 for share in shares.values())


# torchrun


def test_a_script_with_torchrun(store: Store) -> None:
    """Two processes over gloo; stopped in the middle, and resumed."""

    def plan(steps: int) -> Plan:
        return make_plan(
            [
                *("backend=command", "backend.template=torchrun", f"steps={steps}"),
                f"backend.parameters.script={EXAMPLES / 'torchrun' / 'train.py'}",
                *("group_size=8", "prompts_per_step=16", "executor=debug"),
                "backend.checkpoint_every=10",
            ]
        )

    outcome = execute(plan(30), store, jobs=1, policy=Policy(retries=0))
    assert outcome.done == 1
    [run_id] = outcome.run_ids
    rewards = curve(store, run_id, "reward/mean")
    assert list(rewards) == list(range(1, 31))
    # A guess is right in 1 of 10 cases.
    assert sum(rewards[step] for step in range(1, 6)) / 5 < 0.35
    assert curve(store, run_id, "collapse/acr").keys() == rewards.keys()
    assert [c.step for c in store.checkpoints.select(run_id)] == [10, 20, 30]
    [evaluation] = store.evaluations.select([run_id])
    assert evaluation.task == "torchrun"
    assert evaluation.n.tolist() == [64] * 32
    assert curve(store, run_id, "pass@1")[30] == pytest.approx((evaluation.c / 64).mean())


# verl

STAND_IN = """
import json, os, sys, time
from pathlib import Path

# verl's own way: overrides of Hydra, a file logger that begins its file anew, and checkpoints
# that are saved before the step is logged.
given = dict(text.lstrip("+").split("=", 1) for text in sys.argv[1:])
assert given["algorithm.adv_estimator"] == "advsweep"
folder = Path(given["trainer.default_local_dir"])
steps, every = int(given["trainer.total_training_steps"]), int(given["trainer.save_freq"])
start = 0
if given.get("trainer.resume_mode") == "resume_path":
    start = int(given["trainer.resume_from_path"].rpartition("_")[2])
print("estimator", {k: v for k, v in given.items() if k.startswith("algorithm.advsweep")})
log = open(os.environ["VERL_FILE_LOGGER_PATH"], "wb", buffering=0)

def write(step, data):
    log.write(json.dumps({"step": step, "data": data}).encode() + b"\\n")

if start == 0:
    write(0, {"val-core/gsm8k/acc/mean@1": 0.1})
for step in range(start + 1, steps + 1):
    time.sleep(0.05)
    if step == 5 and start == 0 and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)
    if step % every == 0 or step == steps:
        actor = folder / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "model.pt").write_bytes(b"weights")
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    seed = int(given["data.seed"])
    write(step, {
        "critic/score/mean": (step + seed) / 100, "actor/entropy": 1 / step,
        "actor/grad_norm": float("nan") if step == 3 else 0.5, "training/global_step": step,
        # The trainer of advsweep.integrations.verl logs it under our name.
        "collapse/acr": 0.25,
    })
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `verl` whose `main_ppo` takes verl's overrides and writes verl's logs."""
    package = tmp_path / "stand-in" / "verl" / "trainer"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main_ppo.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-in"))


def verl_plan(*overrides: str) -> Plan:
    return make_plan(
        [
            *("backend=command", "backend.template=verl", "executor=debug", "steps=8"),
            *("backend.checkpoint_every=2", *overrides),
        ]
    )


def test_verls_command_line_and_logs(stand_in: None, store: Store) -> None:
    plan = verl_plan("estimator=asym_grpo", "estimator.delta=0.5", "seed=1")
    first = execute(plan, store, jobs=1, policy=Policy(retries=0))
    assert list(first.failed) == list(first.run_ids)
    [run_id] = first.run_ids
    [record] = store.runs.select(ids=[run_id])
    assert "exit code 1 after step 4 of 8" in str(record.error)
    assert execute(plan, store, jobs=1).done == 1
    assert curve(store, run_id, "reward/mean") == {s: (s + 1) / 100 for s in range(1, 9)}
    assert curve(store, run_id, "entropy/token")[8] == 1 / 8
    assert set(curve(store, run_id, "collapse/acr").values()) == {0.25}
    # NaN is left out, and said.
    assert list(curve(store, run_id, "optim/grad_norm")) == [1, 2, 4, 5, 6, 7, 8]
    [record] = store.runs.select(ids=[run_id])
    assert record.config["estimator"]["delta"] == 0.5
    kept = {checkpoint.step for checkpoint in store.checkpoints.select(run_id)}
    assert {6, 8} <= kept
    assert (record.directory / "output" / "metrics.jsonl.until-4").exists()


def test_the_overrides_fit_verls_own_config(tmp_path: Path) -> None:
    """With the real package, where it is installed (`make test-verl`)."""
    pytest.importorskip("verl")
    import importlib.util

    from hydra import compose, initialize_config_dir

    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    overrides = verl_overrides("grpo_n")
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides)
    assert config.algorithm.adv_estimator == "advsweep"
    assert config.algorithm.advsweep.name == "grpo_n"
    assert config.algorithm.advsweep.base.name == "grpo"
    assert config.trainer.total_training_steps == 8
    assert config.trainer.logger == ["console", "file"]


def verl_overrides(estimator: str) -> list[str]:
    """What the template gives to verl."""
    from typing import Any

    from advsweep.backends.command.arguments import command_line, values_of

    [planned] = verl_plan(f"estimator={estimator}").runs
    backend: Any = planned.run.backend
    values = values_of(planned.run, backend.parameters, Path("/runs/1/output"), backend.template)
    line = command_line(backend.spec, values)
    return line[line.index("verl.trainer.main_ppo") + 1 :]
