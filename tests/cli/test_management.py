"""Commands that watch, stop, restart and remove runs, in this process."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.cli.commands.logs import log_path, read_log
from advsweep.cli.commands.rm import remove_folder
from advsweep.errors import ConfigError, NotFoundError
from advsweep.store import NewEvaluation, Owner, Status, open_store
from advsweep.sweep.executors.lock_files import Holder
from advsweep.sweep.executors.reservations import Reservation
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.scheduler.runs import schedule_runs

DEBUG = "executor=debug"
FAKE = [
    *("backend=fake", "executor=debug", "steps=8", "prompts_per_step=8"),
    *("task.held_out_per_level=2", "task.train_per_level=50"),
    *("evaluation.n=8", "evaluation.k=[1,8]", "evaluation.every=8"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a store: two runs of `pair` are done; `other` has the second and one failed."""
    folder = tmp_path_factory.mktemp("made")
    with open_store(str(folder / "advsweep.db")) as opened:
        execute(make_plan([*FAKE, "seed=0,1"], name="pair"), opened)
        execute(make_plan([*FAKE, "seed=1"], name="other"), opened)
        execute(make_plan([*FAKE, "backend.fail_at=3"], name="other"), opened)
    return folder


@pytest.fixture
def store(made, tmp_path, monkeypatch):
    """The store of a copy of that folder, which is the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with open_store() as opened:
        yield opened


def advsweep(*arguments: str, code: int = 0):
    """The result of a command, which must exit like this."""
    done = CliRunner().invoke(app, list(arguments))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.mark.slow
def test_status_as_json_and_in_words(store):
    status = json.loads(advsweep("status", "other", "--format", "json").stdout)
    assert status["sweep"] == "other"
    assert status["runs"] == 2
    assert status["states"] == {
        **dict.fromkeys(("pending", "running", "interrupted", "pruned", "lost"), 0),
        "done": 1,
        "failed": 1,
    }
    assert [f["error"] for f in status["failures"]] == [
        "RuntimeError: step 3 fails, as the fake backend was told"
    ]
    text = advsweep("status").stdout
    assert text.startswith("all sweeps: 3 runs, 2 done, 1 failed\n")
    assert "step 3 fails" in text
    with pytest.raises(NotFoundError, match="other"):
        advsweep("status", "othr")


def test_status_shows_who_has_what_of_this_machine(store):
    gpu = Reservation()
    assert gpu.add("GPU-aaaa", 0.5)
    gpu.describe(Holder.current(pid=4242, run=7, sweep="of another store"))
    text = advsweep("status", "pair").stdout
    heading, columns, row = text.splitlines()[-3:]
    assert heading == "in use on this machine:"
    assert columns.split() == ["what", "run", "sweep", "pid", "user", "since"]
    assert row.startswith("0.5 of GPU-aaaa  7    of another store  4242  ")
    [reserved] = json.loads(advsweep("status", "--format", "json").stdout)["reserved"]
    assert (reserved["resource"], reserved["amount"], reserved["run"]) == ("GPU-aaaa", 0.5, 7)
    gpu.release()
    assert "in use" not in advsweep("status").stdout


def test_a_log_is_followed_from_before_its_start_to_the_end(store):
    planned = make_plan([*FAKE, "seed=9"], single=True)
    [scheduled] = schedule_runs(planned, store, force=False)
    [run] = store.runs.select(ids=[scheduled.run_id])
    assert run.status is Status.PENDING

    def work() -> None:
        with open_store(store.url) as other:
            time.sleep(0.3)
            other.leases.claim(run.id, Owner.current())
            run.directory.mkdir(parents=True)
            log_path(run).write_text("begun\n")
            time.sleep(0.6)
            with open(log_path(run), "a") as log:
                log.write("ended\n")
            other.leases.finish(run.id, Status.INTERRUPTED)

    worker = threading.Thread(target=work)
    worker.start()
    texts = list(read_log(store, run, follow=True))
    worker.join()
    assert "".join(texts) == "begun\nended\n"
    assert texts[0] == "begun\n"
    assert advsweep("logs", str(run.id), "--follow").stdout == "begun\nended\n"


def test_stop_asks_running_runs_and_those_that_may_be_taken_up(store):
    store.leases.claim(3, Owner.current())
    waiting = make_plan([*FAKE, "seed=7,8"], name="waiting")
    pending, interrupted = (u.run_id for u in schedule_runs(waiting, store, force=False))
    store.leases.claim(interrupted, Owner.current())
    store.leases.finish(interrupted, Status.INTERRUPTED)
    done = advsweep("stop", "other", "waiting")
    assert "Requested a stop of 1 running and 2 waiting runs; 1 had already ended." in done.stderr
    stopped = {run.id for run in store.runs.select() if run.stop_requested}
    assert stopped == {3, pending, interrupted}
    assert store.leases.claim_next(Owner.current()) is None
    with pytest.raises(NotFoundError):
        advsweep("stop", "77")


@pytest.mark.slow
def test_retry_starts_what_is_not_done_and_says_what_came_of_it(store):
    done = advsweep("retry", "other", DEBUG, code=1)
    assert "Skipped 1 of 2 runs: done, running or pruned." in done.stderr
    assert "1 run: 1 failed" in done.stderr
    assert "run 3 failed: RuntimeError: step 3 fails" in done.stderr
    outcome = json.loads(advsweep("retry", "3", DEBUG, "--format", "json", code=1).stdout)
    assert [failure["id"] for failure in outcome["failed"]] == [3]
    assert "No runs to restart" in advsweep("retry", "pair").stderr


@pytest.mark.slow
def test_retry_leaves_pruned_runs_alone_but_for_another_rule(store):
    rule = ("stopping=acr", "stopping.first=4", "stopping.threshold=1e-9")
    sweep = make_plan([*FAKE, *rule, "seed=5,6"], name="ruled")
    execute(sweep, store)
    ids = [run.id for run in store.runs.select(sweep="ruled")]
    assert {run.status for run in store.runs.select(ids=ids)} == {Status.PRUNED}
    assert "No runs to restart" in advsweep("retry", "ruled", DEBUG).stderr
    assert "1 run: 1 pruned" in advsweep("retry", str(ids[0]), DEBUG, *rule).stderr
    assert "1 run: 1 done" in advsweep("retry", str(ids[0]), DEBUG, "stopping=none").stderr
    # The rule of the other one is still the sweep's.
    left, done = store.runs.select(ids=[ids[1], ids[0]])
    assert (left.status, left.stopping) == (Status.PRUNED, sweep.stopping.rule())
    assert (done.status, done.stopping) == (Status.DONE, None)


@pytest.mark.slow
def test_retry_asks_which_settings_are_meant(store):
    execute(make_plan([*FAKE, "resources.cpus=2", "backend.fail_at=2"], name="two"), store)
    with pytest.raises(ConfigError, match=r"resources: expected the same .*such as resources=def"):
        advsweep("retry", "3", "two", DEBUG)
    done = advsweep("retry", "3", "two", DEBUG, "resources.cpus=1", code=1)
    assert "2 runs: 2 failed" in done.stderr
    with pytest.raises(ConfigError, match=r"steps=3: expected a key of executor or resources or"):
        advsweep("retry", "3", DEBUG, "steps=3")
    with pytest.raises(ConfigError, match="expected runs or a sweep to restart, got executor"):
        advsweep("retry", "executor=local")
    with pytest.raises(ConfigError, match=r"expected resources\.cpus=VALUE with one value"):
        advsweep("retry", "3", DEBUG, "resources.cpus=1,2")


def test_retry_does_not_obey_what_a_store_says(store, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "a secret")
    setup = f"touch {tmp_path / 'owned'}"
    settings = {"executor": {"name": "slurm", "cluster": "local", "setup": [setup]}}
    tracking = {"name": "tensorboard", "directory": str(tmp_path / "events")}
    store.sweeps.add("other", {"settings": settings, "tracking": tracking})
    with pytest.raises(ConfigError, match=r"the store has 'slurm' .* give executor=slurm"):
        advsweep("retry", "3", "--trust-store")
    advsweep("retry", "3", DEBUG, code=1)
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "events").exists()
    # No text of the store is resolved, whatever else is given.
    settings["executor"] = {"name": "${oc.env:SECRET}"}
    store.sweeps.add("other", {"settings": settings})
    with pytest.raises(ConfigError, match="got an interpolation"):
        advsweep("retry", "3", "--trust-store")


@pytest.mark.parametrize("which", ["reserve", "log.txt", "checkpoints"])
def test_a_run_does_not_write_through_a_link_in_its_folder(store, tmp_path, which):
    [run] = store.runs.select(ids=[3])
    precious = tmp_path / "precious"
    (precious / "step-000009").mkdir(parents=True)
    (precious / "text").write_text("precious")
    target = precious if which == "checkpoints" else precious / "text"
    place = run.directory / which
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    done = advsweep("retry", "3", DEBUG, code=1)
    assert "expected a plain file or folder, got a link" in done.stderr
    assert (precious / "text").read_text() == "precious"
    assert (precious / "step-000009").is_dir()


def test_a_run_does_not_start_in_the_folder_of_another(store):
    [run] = store.runs.select(ids=[3])
    (run.directory / "run.json").write_text(json.dumps({"format": 1, "run": "f" * 64}))
    before = sorted(run.directory.rglob("*"))
    assert "belongs to the run ffff" in advsweep("retry", "3", DEBUG, code=1).stderr
    assert sorted(run.directory.rglob("*")) == before


def test_eval_resolves_no_text_of_a_store(store, monkeypatch):
    monkeypatch.setenv("SECRET", "0")
    [run] = store.runs.select(ids=[1])
    config = json.loads(json.dumps(run.config))
    config["task"]["seed"] = "${oc.decode:${oc.env:SECRET}}"
    with sqlite3.connect(store.file) as connection:
        connection.execute("UPDATE runs SET config = ? WHERE id = 1", (json.dumps(config),))
    connection.close()
    with pytest.raises(ConfigError, match=r"task of the run: .* got an interpolation"):
        advsweep("eval", "1", "--samples", "4")


def test_rm_asks_and_refuses_what_is_done_or_running(store):
    with pytest.raises(ConfigError, match="1 completed run, such as run 1; pass --force"):
        advsweep("rm", "pair", "--yes")
    with pytest.raises(ConfigError, match="expected a terminal"):
        advsweep("rm", "3")
    store.leases.claim(3, Owner.current())
    with pytest.raises(ConfigError, match=r"advsweep stop 3"):
        advsweep("rm", "3", "--yes", "--force")
    assert len(store.runs.select()) == 3


def test_rm_takes_the_folder_but_not_what_other_sweeps_share(store):
    own, shared = store.runs.select(sweep="pair", newest_first=False)
    assert own.directory.is_dir()
    done = advsweep("rm", "pair", "--yes", "--force")
    assert "Deleted 1 run; kept 1 that other sweeps share" in done.stderr
    assert not own.directory.exists()
    assert shared.directory.is_dir()
    assert [run.sweeps for run in store.runs.select()] == [("other",), ("other",)]
    # A run that is named goes, whoever shares it.
    advsweep("rm", str(shared.id), "last", "--yes", "--force")
    assert store.runs.select() == []
    assert [sweep.name for sweep in store.sweeps.select()] == ["other"]


def test_rm_takes_evaluations_of_models(store):
    for identity, model in (("abc1", "one"), ("abd2", "one"), ("abd3", "two"), ("fff4", "three")):
        new = NewEvaluation(
            identity=identity,
            subject="model:x",
            run_id=None,
            step=0,
            task="sums",
            settings={"model": model},
            problems=[],
        )
        store.evaluations.add(new)
    with pytest.raises(NotFoundError, match=r"got 'abd', which matches 2; `advsweep ls --mo"):
        advsweep("rm", "--models", "abd", "--yes")
    with pytest.raises(ConfigError, match="expected a terminal"):
        advsweep("rm", "--models", "one")
    done = advsweep("rm", "--models", "one", "abd3", "--yes")
    assert done.stderr == "Deleted 3 evaluations of models.\n"
    assert [e.identity for e in store.evaluations.of_models()] == ["fff4"]
    assert len(store.runs.select()) == 3


def test_a_folder_elsewhere_is_never_deleted(store, tmp_path):
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    link = store.runs_directory / "link"
    link.symlink_to(elsewhere, target_is_directory=True)
    [run] = store.runs.select(ids=[1])
    for directory in (elsewhere, link, store.runs_directory, tmp_path / "none"):
        remove_folder(store, replace(run, directory=directory))
    assert elsewhere.is_dir()
    assert link.is_symlink()
    assert store.runs_directory.is_dir()


@pytest.mark.parametrize("text", [None, "of another", '{"run": 3}', '{"run":' + "[" * 9999])
def test_a_folder_without_the_runs_own_manifest_is_left(store, text):
    [run] = store.runs.select(ids=[3])
    manifest = run.directory / "run.json"
    manifest.unlink()
    if text == "of another":
        manifest.write_text(json.dumps({"format": 1, "run": "f" * 64}))
    elif text is not None:
        manifest.write_text(text)
    done = advsweep("rm", "3", "--yes")
    assert "its manifest does not name run 3" in done.stderr
    assert (run.directory / "run.json").exists() == (text is not None)
    assert run.directory.is_dir()


def test_a_name_that_is_a_sweep_and_a_run_is_refused(store):
    store.sweeps.add("2", {})
    with pytest.raises(NotFoundError, match="matches both a sweep and run 2"):
        advsweep("stop", "2")
