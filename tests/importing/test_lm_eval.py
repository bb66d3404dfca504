"""Importing samples of lm-evaluation-harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.importing import ImportRequest, import_runs
from advsweep.logs import READERS, ImportedRun, ImportOptions
from advsweep.logs.names import NameMap, NamePattern
from advsweep.store import Store

AT_THE_END = (
    "no checkpoint is in the path of a model: it is taken for the end of a training, and its step "
    "is a placeholder; --set steps=N gives it (0: it is untrained)"
)

DATE = "2026-11-20T10-00-00.000001"


def samples(
    folder: Path, task: str, rows: list[dict[str, Any]], *, responses: int = 1, date: str = DATE
) -> Path:
    """Writes what `--log_samples` does (lm-eval 0.4.13); a row has a filter and metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    written = []
    for number, row in enumerate(rows):
        metrics = {k: v for k, v in row.items() if k not in ("filter", "doc_id", "resps")}
        written.append(
            {
                "doc_id": row.get("doc_id", number),
                "doc": {"question": "q"},
                "target": "1",
                "arguments": {"gen_args_0": {"arg_0": "q", "arg_1": {}}},
                "resps": row.get("resps", [["a"] * responses]),
                "filtered_resps": ["a"],
                "filter": row.get("filter", "none"),
                "metrics": list(metrics),
                "doc_hash": f"{row.get('doc_id', number):064x}",
                **metrics,
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return path


def results(folder: Path, model: str, *, date: str = DATE, **more: Any) -> None:
    content = {
        "config": {"model": "hf", "model_args": f"pretrained={model},dtype=float32"},
        "model_name": model,
        **more,
    }
    (folder / f"results_{date}.json").write_text(json.dumps(content))


def read(source: Path, **given: Any) -> list[ImportedRun]:
    options = ImportOptions(names=NameMap("jsonl"), settings=given)
    return list(READERS.build("lm-eval").runs(source, options))


def counts(run: ImportedRun) -> list[tuple[int, int]]:
    return [(result.n, result.correct) for result in run.evaluations]


def test_one_response_per_problem(tmp_path: Path) -> None:
    folder = tmp_path / "org__model"
    samples(folder, "arc_easy", [{"acc": 1.0, "acc_norm": 0.0}, {"acc": 0.0, "acc_norm": 1.0}])
    results(folder, "org/model")
    (run,) = read(tmp_path)
    assert run.source == "org/model"
    assert run.config == {
        "model": {"path": "org/model"},
        "lm_eval": {"model": "hf", "model_args": "dtype=float32"},
    }
    assert counts(run) == [(1, 1), (1, 0)]
    assert [(r.step, r.task) for r in run.evaluations] == [(1, "arc_easy")] * 2
    assert run.evaluations[0].problem == "0-00000000"
    assert run.notes == ["arc_easy: acc of filter none, one response", AT_THE_END]


def test_several_responses(tmp_path: Path) -> None:
    # Of pass@8 alone n and c are not known: with 1 to 8 right ones of 8 it is 1.
    samples(tmp_path, "code", [{"pass@2": 0.25, "pass@8": 1.0}], responses=8)
    samples(tmp_path, "first", [{"pass@1": 3 / 8}, {"pass@1": 0.0}], responses=8)
    samples(tmp_path, "never", [{"pass@1": 0.0, "pass@8": 0.0}], responses=8)
    samples(tmp_path, "mean", [{"acc": 0.25}, {"acc": 1.0}], responses=4)
    samples(tmp_path, "listed", [{"exact_match": [1, 0, True]}], responses=3)
    samples(tmp_path, "bleu", [{"bleu": 0.123}], responses=2)
    (run,) = read(tmp_path)
    by_task: dict[str, list[tuple[int, int]]] = {}
    for result in run.evaluations:
        by_task.setdefault(result.task, []).append((result.n, result.correct))
    assert by_task == {
        "first": [(8, 3), (8, 0)],
        "never": [(8, 0)],
        "mean": [(4, 1), (4, 4)],
        "listed": [(3, 2)],
    }
    assert run.left_out == {"tasks without a metric that says what is correct": 2}
    assert "first: pass@1 of filter none, the share of the responses" in run.notes


def test_votes_are_no_samples(tmp_path: Path) -> None:
    rows = [
        {"doc_id": 0, "filter": "vote-8", "exact_match": 1.0},
        {"doc_id": 0, "filter": "score-first", "exact_match": 0.0},
    ]
    samples(tmp_path, "gsm8k", rows, responses=8)
    listed = [{"name": "vote-8", "filter": [{"function": "majority_vote"}]}]
    results(tmp_path, "m", configs={"gsm8k": {"filter_list": listed}})
    (run,) = read(tmp_path)
    assert counts(run) == [(1, 0)]
    assert run.notes == [
        "gsm8k: exact_match of filter score-first, one of 8 responses; other filters: vote-8 "
        "(--set filter=NAME)",
        AT_THE_END,
    ]
    (run,) = read(tmp_path, filter="vote-8")
    assert counts(run) == [(1, 1)]
    with pytest.raises(NotFoundError, match="gsm8k has none called 'score-frist'"):
        read(tmp_path, filter="score-frist")


def test_checkpoints_are_steps_of_a_run(tmp_path: Path) -> None:
    for step, right in ((100, 0.0), (200, 1.0)):
        folder = tmp_path / f"out__grpo-s0__checkpoint-{step}"
        samples(folder, "aime", [{"exact_match": right}])
    (run,) = read(tmp_path)
    assert run.source == "out/grpo-s0"
    assert [(r.step, r.correct) for r in run.evaluations] == [(100, 0), (200, 1)]
    assert run.notes == ["aime: exact_match of filter none, one response"]


@pytest.mark.parametrize("name", ["org__model", ""])
def test_a_pattern_matches_the_path(store: Store, tmp_path: Path, name: str) -> None:
    """The folder that `--output_path` named has the settings, and the model's a name of its own."""
    for seed in (0, 1):
        folder = tmp_path / f"grpo-s{seed}" / name
        file = samples(folder, "aime", [{"exact_match": float(seed)}])
        results(folder, "org/model")
    for source in (tmp_path, folder.parent if name else folder, file):
        import_runs(
            store,
            READERS.build("lm-eval"),
            str(source),
            ImportRequest(pattern=NamePattern("{estimator}-s{seed}")),
        )
        runs = store.runs.select(newest_first=False)
        assert {(run.estimator, run.seed) for run in runs} == {("grpo", 0), ("grpo", 1)}


def test_damaged_lines_do_not_hide_the_rest(tmp_path: Path) -> None:
    path = samples(tmp_path, "t", [{"acc": 1.0}, {"acc": float("nan")}, {"acc": 1.0}])
    text = path.read_text().replace("NaN", '"x"')
    path.write_text(text[:-20] + "\n[]\n" + '{"filter": "none"}\n')
    (run,) = read(tmp_path)
    assert counts(run) == [(1, 1)]
    assert run.left_out == {
        "lines that are cut or damaged": 2,
        "lines without a problem (doc_id)": 1,
        "values of acc that are not numbers": 1,
    }


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    samples(tmp_path, "t\x1b]52", [{"acc": 1.0, "filter": "f\x1b"}])
    results(tmp_path, "https://user:pass@host/m\x1b")
    (run,) = read(tmp_path)
    assert run.source == "https://user:***@host/m\\x1b"
    assert all(note.isprintable() for note in run.notes)
    assert run.evaluations[0].task.isprintable()


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got nothing"):
        read(tmp_path / "x")
    with pytest.raises(ConfigError, match="run lm_eval with --log_samples"):
        read(tmp_path)


def test_a_final_model_is_evaluated_at_the_end(tmp_path: Path) -> None:
    for place in ("grpo-s0__checkpoint-100", "grpo-s0"):
        samples(tmp_path / place, "gsm8k", [{"exact_match": 1.0}])
        results(tmp_path / place, place.replace("__", "/"))
    (run,) = read(tmp_path)
    assert [result.step for result in run.evaluations] == [101, 100]
    (run,) = read(tmp_path / "grpo-s0", steps=300)
    assert [result.step for result in run.evaluations] == [300]
    assert AT_THE_END not in run.notes
    (run,) = read(tmp_path / "grpo-s0", steps=0)
    assert [result.step for result in run.evaluations] == [0]


def test_final_models_make_no_row_of_an_untrained_one(tmp_path: Path, store: Store) -> None:
    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.request import ReportRequest

    for estimator in ("grpo", "rloo"):
        for seed in (0, 1):
            folder = tmp_path / "results" / f"{estimator}-s{seed}"
            samples(folder, "gsm8k", [{"exact_match": float(seed == 0)}, {"exact_match": 1.0}])
            results(folder, folder.name)
    pattern = NamePattern("{estimator}-s{seed}")
    import_runs(
        store, READERS.build("lm-eval"), str(tmp_path / "results"), ImportRequest(pattern=pattern)
    )
    rows = build_report(store, ReportRequest()).rows
    assert [(row.group["estimator"], row.is_untrained) for row in rows] == [
        ("grpo", False), ("rloo", False),
    ]  # fmt: skip


def test_releases_without_filters_and_metrics(tmp_path: Path) -> None:
    """lm-eval 0.4.2: MODEL_TASK.jsonl, a line for each filter, metrics beside the problem."""
    path = tmp_path / "pretrained__m_gsm8k.jsonl"
    rows = [
        {"doc_id": i, "doc": {}, "target": "1", "arguments": [], "resps": [["a"]],
         "filtered_resps": ["a"], "exact_match": value}
        for i, values in enumerate([(0.0, 1.0), (1.0, 1.0)])
        for value in values
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (tmp_path, path):
        (run,) = read(source)
        assert counts(run) == [(1, 0), (1, 1)]
        assert "other filters: unnamed-2 (--set filter=NAME)" in run.notes[0]
        (run,) = read(source, filter="unnamed-2")
        assert counts(run) == [(1, 1), (1, 1)]


def test_results_without_samples_are_metrics_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "out__grpo-s0__checkpoint-100"
    folder.mkdir()
    by_task = {
        "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.5,
                  "exact_match_stderr,strict-match": 0.1, "bleu,none": 1e300},
        "arc": {"acc,none": 0.25, "acc_stderr,none": "N/A"},
    }  # fmt: skip
    results(folder, "out/grpo-s0/checkpoint-100", results=by_task)
    (run,) = read(tmp_path)
    assert list(run.steps) == [(100, {"gsm8k/exact_match/strict-match": 0.5, "arc/acc": 0.25})]
    assert any("--log_samples" in note for note in run.notes)
