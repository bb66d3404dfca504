"""`advsweep eval` of models: counted once, resumable, greedy and cut as protocols ask for."""

import json

import pytest

from advsweep.backends import BACKENDS
from advsweep.backends.trl.config import HfModel, TransformersGeneration
from advsweep.backends.trl.sampling import ModelSampler
from advsweep.config.settings import EvaluationSettings
from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import Completions, Split

TASK = ["--task", "countdown", "--set", "task.levels=[0,1]", "--set", "task.held_out_per_level=3"]


def _evaluated(advsweep, *arguments, store="a.db"):
    [record] = advsweep(
        "eval", "--model", "MODEL", *TASK, *arguments, "--format", "json", store=store
    )
    return record


def test_an_evaluation_is_made_once(advsweep, monkeypatch, tmp_path):
    first = _evaluated(advsweep, "--samples", "4", "--set", "evaluation.temperature=0.6")
    assert [problem["n"] for problem in first["problems"]] == [4] * 6
    assert first["settings"]["temperature"] == 0.6
    assert first["settings"]["k"] == [1, 4]  # those of the protocol up to n, and n
    # Its pieces are gone.
    assert not any((tmp_path / "a-runs" / ".evaluations").iterdir())
    monkeypatch.setattr(ModelSampler, "sample", lambda *a, **k: pytest.fail("sampled again"))
    assert _evaluated(advsweep, "--samples", "4", "--set", "evaluation.temperature=0.6") == first
    [listed] = advsweep("ls", "--models", "--format", "json")
    assert (listed["task"], listed["n"]) == ("countdown", 4)


def test_greedy_is_the_limit_of_a_small_top_p(exported_base):
    backend = BACKENDS.build("trl")
    model, task = HfModel(path=str(exported_base())), TASKS.build("countdown")
    problems = task.problems(Split.HELD_OUT)[:6]

    def answers(temperature, top_p, seed):
        n = 1 if temperature == 0 else 3
        settings = EvaluationSettings(n=n, k=(1,), temperature=temperature, top_p=top_p)
        sampler = backend.model_sampler(model, TransformersGeneration(), task, settings)
        return sampler.sample(problems, n, temperature=temperature, seed=seed)

    greedy = answers(0, 1.0, seed=0)
    assert greedy.texts == answers(0, 1.0, seed=1).texts
    assert greedy.token_entropy == pytest.approx(0, abs=1e-3)
    cut = answers(1.0, 1e-6, seed=0)
    assert cut.texts == [texts * 3 for texts in greedy.texts]
    assert answers(1.0, 1.0, seed=0).texts != cut.texts


def test_the_answers_may_be_longer_than_another_tasks(small_run, tmp_path, exported_base):
    run = small_run("trl")
    data = tmp_path / "sums.jsonl"
    data.write_text('{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "3"}\n')
    other = TASKS.build(
        {"name": "dataset", "data": str(data), "held_out": 1, "verifier": "numeric"}
    )
    assert run.backend.sampler(run, tmp_path, 0).tokens == run.task.max_completion_length
    assert run.backend.sampler(run, tmp_path, 0, other).tokens == 512


def test_refuses_without_transformers(exported_base, monkeypatch):
    backend, task = BACKENDS.build("trl"), TASKS.build("countdown")
    model = HfModel(path=str(exported_base()))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*'transformers>"):
        backend.model_sampler(model, TransformersGeneration(), task, EvaluationSettings())


def test_select_makes_a_level_file_that_tasks_read(advsweep, tmp_path, monkeypatch):
    data = tmp_path / "sums.jsonl"
    sums = [{"id": f"p{i}", "question": f"1+{i}", "answer": str(1 + i)} for i in range(5)]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in sums))
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"id": "h", "question": "9+1", "answer": "10"}\n')
    fields = {
        "name": "dataset",
        "data": str(data),
        "held_out_data": str(held_out),
        "id_column": "id",
        "train": 4,
    }
    task = TASKS.build({**fields, "verifier": "numeric"})
    ids = [problem.id for problem in task.problems(Split.TRAIN)]
    # Of 4 answers to the first training problem 4 are correct, to the second 3, and so on.
    correct = {name: 4 - i for i, name in enumerate(ids)}

    def answers(self, problems, n, **how):
        texts = [
            [p.reference["answer"] if i < correct[p.id] else "none" for i in range(n)]
            for p in problems
        ]
        return Completions(texts)

    monkeypatch.setattr(ModelSampler, "sample", answers)
    options = [f"task.{key}={value}" for key, value in fields.items() if key != "name"]
    asked = [part for option in (*options, "task.verifier=numeric") for part in ("--set", option)]
    made = advsweep(
        "select",
        *("--model", "MODEL", "--task", "dataset", *asked, "-n", "4"),
        *("--output", "levels.json"),
    )
    # Rates 1, 0.75, 0.5 and 0.25.
    assert made == "levels.json: 1 of level 0, 2 of level 2, 1 of level 4\n"
    levelled = TASKS.build(
        {**fields, "verifier": "numeric", "level_file": "levels.json", "levels": [2]}
    )
    # All of the level: the others of the five have no level.
    assert {p.id for p in levelled.problems(Split.TRAIN)} == set(ids[1:3])
