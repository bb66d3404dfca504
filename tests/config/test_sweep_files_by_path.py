"""Sweep files that are named by their path: no folder `experiment`, no header."""

import pytest

from advsweep.errors import AdvsweepError, ConfigError
from advsweep.sweep.planning.plan import make_plan

SMALL = """\
steps: 3
sweep:
  seeds: 2
  common: {backend: fake, group_size: [4, 8]}
  blocks:
    - estimator: [grpo, rloo]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(text)
        return name

    return write


def shape(plan):
    return [
        (p.run.estimator.name, p.run.seed, p.run.group_size, p.run.steps, p.run.backend.name)
        for p in plan.runs
    ]


def test_file_without_a_header_is_a_sweep(file):
    plan = make_plan([file(SMALL)])
    assert plan.name == "mine"
    assert sorted(shape(plan)) == sorted(
        (estimator, seed, size, 3, "fake")
        for estimator in ("grpo", "rloo")
        for seed in (0, 1)
        for size in (4, 8)
    )
    assert plan.spec["overrides"] == ["mine.yaml"]


@pytest.mark.slow
def test_three_spellings_are_the_same_runs(file, tmp_path):
    name = file(SMALL)
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"# @package _global_\n{SMALL}")
    plans = [
        make_plan([name]),
        make_plan([f"+experiment={tmp_path / name}"]),
        make_plan(["+experiment=mine"], config_dirs=[tmp_path / "conf"]),
    ]
    identities = [[p.run.identity for p in plan.runs] for plan in plans]
    assert identities[0] == identities[1] == identities[2]
    assert {plan.name for plan in plans} == {"mine"}


def test_defaults_of_hydra_may_stand_in_a_file(file):
    text = "defaults:\n  - override /task: routes\n  - override /backend: fake\nsteps: 2\n"
    [planned] = make_plan([file(text)]).runs
    assert (planned.run.task.name, planned.run.backend.name) == ("routes", "fake")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps:\n\t3\n", ["mine.yaml, line 2", "tab"]),
        ("a: [1\n", ["mine.yaml, line"]),
        ("", ["mine.yaml", "got nothing"]),
        ("\n- a\n", ["mine.yaml, line 2", "got a list"]),
        ("sweep: [1, 2]\n", ["mine.yaml, line 1: sweep: expected a mapping", "got a list"]),
        ("steps: 2\nsweep:\n", ["mine.yaml, line 2: sweep: expected a mapping", "got nothing"]),
        ("steps: 2\nevaluation: [1]\n", ["mine.yaml, line 2: evaluation: expected the name"]),
        ("steps: [1, 2]\n", ["mine.yaml, line 1: steps: expected one value"]),
        ("task:\n", ["mine.yaml, line 1: task: expected the name", "got nothing"]),
        ("defaults: {a: b}\n", ["mine.yaml, line 1: defaults: expected a list"]),
        ("sweep:\n  blocks:\n    - [a]\n", ["mine.yaml, line 3: sweep.blocks[0]: expected"]),
        ("sweep:\n  blocks:\n    - zip:\n        a: []\n", ["line 4: sweep.blocks[0].zip.a"]),
        ("sweep:\n  seeds: -1\n", ["mine.yaml, line 2: sweep.seeds: expected how many"]),
        ("sweep:\n  seeds: 1000000\n", ["line 2: sweep.seeds: expected at most 100,000"]),
        ("sweep:\n  sedes: 3\n", ["mine.yaml, line 2: sweep.sedes: no such key", "seeds"]),
        ("sweep:\n  seeds:\n", ["line 2: sweep.seeds: expected how many", "got nothing"]),
        ("sweep:\n  seeds: {from: 0}\n", ["mine.yaml, line 2: sweep.seeds: expected how many"]),
        ("sweep:\n  seeds: [0, 0.5]\n", ["mine.yaml, line 2: seed: expected an integer"]),
        ("seed: 0\nstep: 3\n", ["mine.yaml, line 2: step: ", "steps"]),
        ("\nsteps: true\n", ["mine.yaml, line 2: steps: expected an integer"]),
        ("seed: 0\noptimizer: {lr: -1}\n", ["mine.yaml, line 2: optimizer.lr: expected > 0"]),
        (
            "sweep:\n  common: {steps: 2}\n  blocks:\n    - optimizer.lr: [1, -1]\n",
            ["mine.yaml, line 4: optimizer.lr: expected > 0"],
        ),
        ("defaults: [grop]\nsteps: 2\n", ["mine.yaml': Could not load 'experiment/grop'"]),
        ("sweep: {blocks: [{estimator: grop}]}\n", ["grop", "grpo"]),
    ],
)
def test_wrong_file_is_one_line_that_says_where(file, text, words):
    with pytest.raises(AdvsweepError) as error:
        make_plan([file(text)])
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_of_an_override_names_no_line_of_the_file(file):
    with pytest.raises(ConfigError, match=r"^steps: expected an integer"):
        make_plan([file("steps: 2\n"), "steps=true"])


def test_an_experiment_of_a_config_folder_is_read_as_strictly(tmp_path):
    for name, text in {
        "experiment/mine": "# @package _global_\ndefaults:\n  - override /task: own\n",
        "task/own": "name: routes\nseed: 010\n",
        "task/other": "name: routes\nseed: 010\n",
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"own\.yaml, line 2: expected a number without leading"):
        make_plan(["experiment=mine", "backend=fake", "steps=1"], config_dirs=[tmp_path])
    # A file that nobody chose is nobody's fault.
    make_plan(["backend=fake", "steps=1"], config_dirs=[tmp_path])


def test_the_largest_seed_is_that_of_the_store():
    overrides = ["backend=fake", "steps=1"]
    [planned] = make_plan([*overrides, f"seed={2**63 - 1}"]).runs
    assert planned.run.seed == 9223372036854775807
    for seed in (2**63, -1):
        words = rf"^seed: expected >= 0 and <= 9223372036854775807, got {seed}$"
        with pytest.raises(ConfigError, match=words):
            make_plan([*overrides, f"seed={seed}"])


def test_aliases_that_would_fill_memory_are_refused(file):
    lines = ["a0: &a0 [1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError):
        make_plan([file("\n".join(lines))])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["demo"], "did you mean +experiment=demo?"),
        (["two_stage/toy"], "did you mean +experiment=two_stage/toy?"),
        (["nothing"], "as in estimator=fade"),
        (["../config"], "as in estimator=fade"),
        (["seed", "=", "1"], "without spaces"),
        (["lr=1e-4"], "did you mean optimizer.lr?"),
        (["temperature=1"], "did you mean generation.temperature or evaluation.temperature?"),
        (["estimater=grpo"], "did you mean 'estimator'?"),
    ],
)
def test_messages_say_how_to_write_it(words, expected):
    with pytest.raises(ConfigError) as error:
        make_plan(words)
    assert expected in str(error.value)
