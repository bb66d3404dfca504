"""Imports into a store: what is written, that it is written once, and what reports make of it."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from advsweep.errors import AdvsweepError, ConfigError
from advsweep.importing import ImportRequest, import_runs
from advsweep.importing.write import ImportAction, ImportContext, gather, write_run
from advsweep.logs import READERS
from advsweep.logs.base import ImportedRun, ProblemCount
from advsweep.logs.lines import NOT_WHOLE
from advsweep.logs.names import LoggedStep, NamePattern
from advsweep.store import Status
from advsweep.store.checks import check_store

PATTERN = NamePattern("{estimator}-s{seed}")


def _import(store, source, form="jsonl", **options):
    return import_runs(store, READERS.build(form), str(source), ImportRequest(**options))


def _contents(store) -> dict:
    """All that the store has of each run, without times."""
    return {
        run.identity: (
            run.config, run.seed, run.steps, run.status, run.sweeps,
            store.metrics.points(run.id),
            [(e.identity, e.step) for e in store.evaluations.select([run.id])],
        )
        for run in store.runs.select(newest_first=False)
    }  # fmt: skip


def test_runs_have_our_names_and_their_config(store, logs):
    summary = _import(store, logs, pattern=PATTERN, sweep="theirs")
    assert summary.count(ImportAction.ADDED) == 6
    runs = store.runs.select(sweep="theirs", newest_first=False)
    assert [(run.estimator, run.seed) for run in runs] == [
        (estimator, seed) for estimator in ("grpo", "rloo") for seed in range(3)
    ]
    run = runs[0]
    assert (run.status, run.step, run.steps, run.backend) == (Status.DONE, 20, 20, "imported")
    assert run.config == {
        "backend": {"name": "imported", "format": "jsonl"},
        "estimator": {"name": "grpo"},
        "lr": 1e-6,
        "output_dir": "/data/grpo/0",
        "seed": 0,
    }
    assert len({run.config_hash for run in runs}) == 2
    assert store.metrics.names(run.id) == [
        "collapse/acr", "completions/mean_length", "entropy/token", "reward/mean",
    ]  # fmt: skip
    assert store.metrics.points(run.id, ["entropy/token"])[:2] == [
        ("entropy/token", 1, 1.95), ("entropy/token", 2, 1.9),
    ]  # fmt: skip
    assert summary.names.renamed["reward"] == "reward/mean"
    assert summary.names.kept == {"completions/mean_length"}


def test_importing_twice_adds_nothing_and_a_longer_log_what_is_new(store, logs):
    _import(store, logs, pattern=PATTERN)
    before = _contents(store)
    again = _import(store, logs, pattern=PATTERN)
    assert again.count(ImportAction.UNCHANGED) == 6
    assert _contents(store) == before
    with (logs / "grpo-s0" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "reward": 9}\n{"step": 21, "reward": 7}\n')
    longer = _import(store, logs, pattern=PATTERN)
    assert (longer.count(ImportAction.UPDATED), longer.count(ImportAction.UNCHANGED)) == (1, 5)
    assert [written.new_steps for _, written in longer.runs] == [1, 0, 0, 0, 0, 0]
    assert longer.left_out == {"values that a later line of the same step replaced": 1}
    run = store.runs.find("1")
    assert run.steps == 21
    assert store.metrics.points(run.id, ["reward/mean"])[-2:] == [
        ("reward/mean", 20, 9.0), ("reward/mean", 21, 7.0),
    ]  # fmt: skip


def test_a_run_is_the_same_by_its_file_or_its_folder(store, logs):
    _import(store, logs, pattern=PATTERN)
    again = _import(store, logs / "rloo-s1" / "metrics.jsonl", settings={"seed": 1})
    assert [written.run_id for _, written in again.runs] == [5]
    one = _import(store, logs / "rloo-s1", settings={"estimator": "rloo", "seed": 1})
    assert [(w.run_id, w.action) for _, w in one.runs] == [(5, ImportAction.UPDATED)]


def test_a_log_that_became_shorter_changes_nothing_and_says_so(store, logs):
    _import(store, logs, pattern=PATTERN)
    before = _contents(store)
    (logs / "grpo-s0" / "metrics.jsonl").write_text('{"step": 2, "reward": 1}\n')
    summary = _import(store, logs, pattern=PATTERN)
    assert summary.count(ImportAction.SHORTER) == 1
    assert any("`advsweep rm 1 --force` first" in note for note in summary.notes)
    assert _contents(store) == before


def test_a_log_that_was_rotated_keeps_its_earlier_steps(store, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "reward": 1}\n{"step": 2, "reward": 2}\n')
    _import(store, file)
    file.write_text('{"step": 2, "reward": 5}\n{"step": 3, "reward": 3}\n')
    _import(store, file)
    assert [value for _, _, value in store.metrics.points(1)] == [1.0, 5.0, 3.0]


def test_other_settings_or_names_replace_those_of_before(store, logs):
    file = logs / "grpo-s0"
    _import(store, file, settings={"estimator": "a", "seed": 1})
    _import(
        store,
        file,
        settings={"estimator": "b", "seed": 2},
        names={"completions/mean_length": "len"},
    )
    (run,) = store.runs.select()
    assert (run.estimator, run.seed) == ("b", 2)
    assert "len" in store.metrics.names(run.id)
    assert "completions/mean_length" not in store.metrics.names(run.id)


def test_an_interrupted_import_leaves_whole_runs_alone(store, logs, monkeypatch):
    import advsweep.importing.write as write

    calls = []
    whole = write.write_points

    def interrupted(connection, run_id, rows):
        calls.append(run_id)
        if len(calls) == 7:  # Within the second run: each has four metrics.
            raise KeyboardInterrupt
        whole(connection, run_id, rows)

    monkeypatch.setattr(write, "write_points", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _import(store, logs, pattern=PATTERN, sweep="theirs")
    (run,) = store.runs.select()
    assert len(store.metrics.points(run.id)) == 80
    monkeypatch.undo()
    summary = _import(store, logs, pattern=PATTERN, sweep="theirs")
    assert (summary.count(ImportAction.UNCHANGED), summary.count(ImportAction.ADDED)) == (1, 5)


def test_the_seed_of_a_log_that_does_not_say_is_unknown(store, tmp_path):
    for name in ("b", "c"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "x.jsonl").write_text('{"step": 1, "reward": 1}\n')
    summary = _import(store, tmp_path / "logs", settings={"estimator": "grpo"})
    assert any("the seed of 2 runs is not known" in note for note in summary.notes)
    again = _import(store, tmp_path / "logs", settings={"estimator": "grpo"})
    assert again.count(ImportAction.UNCHANGED) == 2
    runs = store.runs.select(newest_first=False)
    assert [run.seed for run in runs] == [None, None]
    assert all("seed" not in run.config for run in runs)
    assert len({run.seed_key for run in runs}) == 2
    # Once it is known, the run has it.
    _import(store, tmp_path / "logs" / "b", settings={"estimator": "grpo", "seed": 3})
    assert [run.seed for run in store.runs.select(newest_first=False)] == [3, None]


def test_one_table_may_hold_several_runs(store, tmp_path):
    file = tmp_path / "runs.csv"
    lines = [f"{e},{s},{t},0.5" for e in ("grpo", "rloo") for s in (0, 1) for t in (1, 2)]
    file.write_text("\n".join(["estimator,seed,step,reward", *lines, ""]))
    _import(store, file, form="csv")
    assert [(r.estimator, r.seed, r.steps) for r in store.runs.select(newest_first=False)] == [
        ("grpo", 0, 2), ("grpo", 1, 2), ("rloo", 0, 2), ("rloo", 1, 2),
    ]  # fmt: skip


def test_results_per_problem_become_an_evaluation(store):
    results = [ProblemCount(5, "p1", 4, 1), ProblemCount(5, "p2", 4, 4, ""),
               ProblemCount(5, "p3", 2, 3)]  # fmt: skip
    config = {"backend": {"name": "imported", "format": "x"}, "estimator": {"name": "grpo"}}
    content = gather("x", "a", config, [LoggedStep(7, {"a": 1.0})], results)
    write_run(store, content, ImportContext(environment={}))
    (record,) = store.evaluations.select([1])
    # 1 - C(3, 1) / C(4, 1) = 1/4 and 1, so that their mean is 5/8.
    assert record.scores([1])["pass@1"] == 0.625
    assert (record.step, record.settings["k"], record.problem_ids) == (5, [1, 2, 4], ("p1", "p2"))
    more = gather("x", "a", config, [LoggedStep(7, {"a": 1.0})], [ProblemCount(5, "p1", 8, 8)])
    write_run(store, more, ImportContext(environment={}))
    (record,) = store.evaluations.select([1])
    assert record.problem_ids == ("p1",)


@pytest.mark.security
def test_hostile_logs_stay_text_that_every_store_accepts(store, tmp_path):
    evil = "\x1b]52;c;eA==\x07\n=1+1|<script>\u202e../../x"
    folder = tmp_path / "logs"
    folder.mkdir()
    config = {evil: evil, "estimator": evil, "backend": {"name": "tiny"}, "seed": 1,
              "endless": math.inf,
              "optimizer": {"calibrates": True}, "task": {"name": "dataset", "data": "/etc/passwd"},
              "executor": {"name": "slurm", "setup": ["touch x"]}}  # fmt: skip
    lines = [{"config": config}, {"step": 1, evil: 1, "n" * 300: 2, "reward": 0.5},
             {"step": 2**40, "reward": 1}, {"step": 2, "reward": 1e400}]  # fmt: skip
    (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = _import(store, folder, sweep="evil")
    (run,) = store.runs.select()
    with store.database.read() as connection:
        check_store(store, connection)
    assert run.backend == "imported"
    assert run.directory.parent == store.runs_directory
    assert not run.directory.exists()
    assert all(name.isprintable() for name in store.metrics.names(run.id))
    assert summary.left_out[NOT_WHOLE] == 1


@pytest.mark.parametrize("pattern", [None, PATTERN])
def test_a_copy_among_the_runs_is_named(store, logs, pattern):
    """By its settings and its seed, or where the seed is unknown by its values."""
    shutil.copytree(logs / "grpo-s1", logs / "backup" / "grpo-s1")
    for file in logs.rglob("*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if '"config"' not in line))
    (note,) = [n for n in _import(store, logs, pattern=pattern).notes if "another" in n]
    assert note.startswith("1 run with the settings and the seed of another, or with all its val")
    assert "grpo-s1" in note
    assert "(as backup/grpo-s1" in note


def test_a_sweep_that_advsweep_trains_is_refused(store, logs):
    store.sweeps.add("ours", {})
    with pytest.raises(ConfigError, match="which advsweep trains"):
        _import(store, logs, sweep="ours")


def test_what_is_missing_is_said(store, tmp_path):
    with pytest.raises(ConfigError, match="expected a file or a folder of logs, got nothing"):
        _import(store, tmp_path / "nothing")
    (tmp_path / "logs").mkdir()
    with pytest.raises(ConfigError, match=r"\*\.jsonl"):
        _import(store, tmp_path / "logs")
    (tmp_path / "logs" / "x.jsonl").write_text('{"step": 1, "a": 1}\n')
    with pytest.raises(ConfigError, match="--name-pattern: expected names such as"):
        _import(store, tmp_path / "logs", pattern=NamePattern("run{seed}"))
    for text, why in (
        ("", "empty files"),
        ('{"step": 0.5, "a": 1}\n', "lines whose step is no whole number"),
        ('{"step": 1}\n', "sources without a logged value"),
        ("step,a\n1,2\n", "lines that are not JSON|incomplete lines"),
    ):
        (tmp_path / "logs" / "x.jsonl").write_text(text)
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match=f"expected a run .*, got none; left out:.*{why}"):
                _import(store, tmp_path / "logs", dry_run=dry_run)


def test_no_worker_takes_an_imported_run(store, logs):
    from advsweep.backends.build import build_run
    from advsweep.store import Owner

    _import(store, logs, pattern=PATTERN, sweep="theirs")
    assert all(not store.leases.claim(run.id, Owner.current()) for run in store.runs.select())
    with pytest.raises(AdvsweepError, match="imported from the logs of another trainer"):
        build_run(store.runs.find("1").config)


class _Api:
    """The shape of `wandb.Api()`, as far as an import uses it."""

    def runs(self, address, order):
        assert address == "me/project"
        return [_OnlineRun()]


class _OnlineRun:
    entity, project, id, name = "me", "project", "abc", "grpo-s1"
    config = {"estimator": "grpo", "seed": 1, "_wandb": {}}  # noqa: RUF012

    def scan_history(self):
        yield {"reward": 0.25}
        yield {"_step": 0, "reward": 0.5, "_runtime": 1.0}
        yield {"_step": 1, "reward": None, "loss": float("nan")}
        yield {"_step": 2, "train/global_step": 10, "reward": "0.75"}
        yield {"_step": 3, "loss": 0.5}


def test_a_project_online_is_read_through_its_api():
    from advsweep.logs.base import ImportOptions
    from advsweep.logs.names import NameMap
    from advsweep.logs.wandb import Wandb

    options = ImportOptions(names=NameMap("wandb"))
    (run,) = Wandb().read_project(_Api(), "me/project", options)
    assert isinstance(run, ImportedRun)
    assert (run.key, run.config) == ("me/project/abc", {"estimator": "grpo", "seed": 1})
    # Once a row names the step, wandb's own count does not.
    assert list(run.steps) == [
        LoggedStep(0, {"reward/mean": 0.5}),
        LoggedStep(1, {}),
        LoggedStep(10, {"reward/mean": 0.75}),
        LoggedStep(10, {"loss/policy": 0.5}),
    ]
    assert run.left_out == {"rows without a step": 1, "values of loss that are NaN or infinite": 1}


@pytest.mark.parametrize("source", ["me", "wandb/offline-run-1/run-abc.wandb/x/y"])
def test_files_of_wandb_are_refused_with_what_sends_them(source, tmp_path):
    from advsweep.logs.base import ImportOptions
    from advsweep.logs.names import NameMap

    for place in (source, tmp_path):
        with pytest.raises(ConfigError, match="expected ENTITY/PROJECT; `wandb sync FOLDER`"):
            list(READERS.build("wandb").runs(place, ImportOptions(names=NameMap("wandb"))))


@pytest.mark.slow
def test_imports_into_postgresql(postgres_url, logs):
    from advsweep.store import open_store

    with open_store(postgres_url) as store:
        _import(store, logs, pattern=PATTERN, sweep="theirs")
        before = _contents(store)
        assert len(before) == 6
        assert _import(store, logs, pattern=PATTERN).count(ImportAction.UNCHANGED) == 6
        config = {"backend": {"name": "imported", "format": "x"}, "estimator": {"name": "grpo"}}
        for correct in (1, 2):
            results = [ProblemCount(1, "p", 4, correct)]
            write_run(
                store,
                gather("x", "a", config, [LoggedStep(1, {"a": 0.5})], results),
                ImportContext(environment={}),
            )
        (record,) = store.evaluations.select([7])
        assert record.c.tolist() == [2]
