"""The same rollouts have the same numbers, whether our backend or an import computes them."""

import json
import math

import pytest

from advsweep.backends import training_loop
from advsweep.diagnostics import stacked_rollout_metrics
from advsweep.logs import READERS, ImportOptions
from advsweep.logs.names import NameMap

# What rewards alone do not say: entropies, tokens, levels of problems, times and the update.
UNKNOWN = ("entropy/", "cost/tokens", "collapse/acr/level_", "time/", "optim/", "loss/", "memory/")
UNKNOWN += ("policy/", "estimator/")


@pytest.fixture
def recorded(monkeypatch):
    """Rewards and advantages of every step that the tiny backend makes."""
    steps = []

    def record(batch, advantages, *infos, **options):
        steps.append((batch.rewards, advantages.values))
        return stacked_rollout_metrics(batch, advantages, *infos, **options)

    monkeypatch.setattr(training_loop, "stacked_rollout_metrics", record)
    return steps


def dump_as_verl(folder, step, rewards, _):
    (folder / "rollouts").mkdir(exist_ok=True)
    with (folder / "rollouts" / f"{step}.jsonl").open("w") as file:
        for prompt, group in enumerate(rewards.tolist()):
            for session, score in enumerate(group):
                row = {"input": f"p{prompt}", "output": "", "gts": None, "score": score}
                row |= {"step": step, "uid": f"u{step}-{prompt}_{session}_0"}
                file.write(json.dumps(row) + "\n")


def dump_as_trl(folder, step, rewards, advantages):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    prompts = [f"p{step}-{p}" for p, group in enumerate(rewards) for _ in group]
    texts = [str(number) for number in range(rewards.numel())]
    table = {"step": step, "prompt": prompts, "completion": texts}
    table["right"] = rewards.flatten().tolist()
    if advantages is not None:
        table["advantage"] = advantages.flatten().tolist()
    (folder / "completions").mkdir(exist_ok=True)
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    pandas.DataFrame(table).to_parquet(path)


def dump_without_advantages(folder, step, rewards, _):
    dump_as_trl(folder, step, rewards, None)


@pytest.mark.parametrize(
    ("form", "dump"),
    [("verl", dump_as_verl), ("trl", dump_as_trl), ("trl", dump_without_advantages)],
)
@pytest.mark.parametrize("estimator", ["grpo", "ha_dw"])
def test_equal_numbers(small_run, train, recorded, tmp_path, form, dump, estimator):
    run = small_run("tiny", estimator={"name": estimator}, steps=3)
    own = train(run, tmp_path / "run").points
    for step, (rewards, advantages) in enumerate(recorded, start=1):
        dump(tmp_path, step, rewards, advantages)
    options = ImportOptions(names=NameMap(form), settings={"estimator": estimator})
    (imported,) = READERS.build(form).runs(tmp_path, options)
    found = dict(imported.steps)
    assert sorted(found) == [1, 2, 3]
    for step, values in own.items():
        known = {
            name: value
            for name, value in values.items()
            if not name.startswith(UNKNOWN) and math.isfinite(value)
        }
        assert {"collapse/acr", "mass/success", "mass/failure", "weight/effective_prompts"} <= {
            *known,
            # Where all groups are equal, no group has a weight.
            *(["weight/effective_prompts"] if known["collapse/acr"] == 1 else []),
        }
        # To the last bit: both computed them with the same code from the same float32.
        assert {name: found[step].get(name) for name in known} == known
