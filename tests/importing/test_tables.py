"""Tables of several runs: which columns are keys and settings, and what is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from advsweep.errors import ConfigError
from advsweep.importing import ImportRequest, import_runs
from advsweep.logs import READERS
from advsweep.logs.names import NamePattern


@pytest.fixture
def imported(store, tmp_path):
    """Import a text as a file, and return the runs by estimator and seed with their settings."""

    def run(text, name="table.csv", form="csv", **options):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        summary = import_runs(store, READERS.build(form), str(file), ImportRequest(**options))
        found = {}
        for record in store.runs.select(newest_first=False):
            config = {k: v for k, v in record.config.items() if k not in ("backend", "seed")}
            points = store.metrics.points(record.id)
            found[record.estimator, record.config.get("seed")] = (config, points)
        return found, summary

    return run


@pytest.mark.parametrize(
    "column", ["method", "Algorithm", "algo", "adv_estimator", "advantage_estimator", "loss_type"]
)
def test_a_text_names_the_estimator(imported, column):
    text = f"{column},random_seed,step,reward\ngrpo,0,1,0.3\ngrpo,1,1,0.31\nmine,0,1,0.6\n"
    found, summary = imported(text)
    assert {key: points for key, (_, points) in found.items()} == {
        ("grpo", 0): [("reward/mean", 1, 0.3)],
        ("grpo", 1): [("reward/mean", 1, 0.31)],
        ("mine", 0): [("reward/mean", 1, 0.6)],
    }
    assert not summary.left_out


def test_of_several_names_the_first_counts_and_the_others_are_settings(imported):
    text = "method,loss_type,seed,step,reward\nmine,dapo,0,1,0.3\n"
    ((key, (config, _)),) = imported(text)[0].items()
    assert key == ("mine", 0)
    assert config == {"estimator": {"name": "mine"}, "loss_type": "dapo"}


def test_a_text_that_is_constant_within_a_run_is_a_setting_of_that_run(imported):
    text = "run,language,thinking,step,reward\na,vi,True,1,0.3\na,vi,True,2,0.4\nb,en,False,1,0.5\n"
    _, summary = imported(text)
    assert not summary.left_out
    assert len(summary.runs) == 2


@pytest.mark.parametrize(
    ("columns", "rows", "by"),
    [
        ("run,step,benchmark,acc", ["a,50,aime,0.1", "a,50,amc,0.5"], "benchmark"),
        ("seed,step,model,split,acc", ["0,1,m,test,0.1", "0,1,m,train,0.5"], "split"),
        ("seed,step,model,acc", ["0,1,x,0.1", "0,2,x,0.2", "0,1,y,0.5", "0,2,y,0.6"], "model"),
        ("seed,step,lr,acc", ["0,1,1e-6,0.1", "0,2,1e-6,0.2", "0,1,3e-6,0.5", "0,2,3e-6,0.6"],
         "lr"),
        ("seed,step,k,acc", ["0,1,1,0.1", "0,1,4,0.5", "0,1,8,0.6"], "k"),
        ("seed,step,metric,value,dataset", ["0,1,acc,0.1,a", "0,1,acc,0.5,b"], "dataset"),
        ("seed,dataset,acc", ["0,a,0.1", "0,b,0.5"], "dataset"),  # no step
        ("seed,step,thinking,acc", ["0,1,True,0.1", "0,1,False,0.5"], "thinking"),
    ],
)  # fmt: skip
def test_lines_that_collide_are_refused_with_what_parts_them(imported, store, columns, rows, by):
    text = "\n".join([columns, *rows, ""])
    with pytest.raises(ConfigError, match=rf"on lines that differ in {by}: --by {by} makes"):
        imported(text)
    assert not store.runs.select()
    _, summary = imported(text, by=[by])
    number = len({row.split(",")[columns.split(",").index(by)] for row in rows})
    assert len(summary.runs) == number


def test_json_lines_that_collide_are_refused(imported):
    rows = [{"step": 1, "task": task, "acc": acc} for task, acc in (("a", 0.1), ("b", 0.5))]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with pytest.raises(ConfigError, match="--by task makes"):
        imported(text, name="x.jsonl", form="jsonl")
    assert len(imported(text, name="x.jsonl", form="jsonl", by=["task"])[1].runs) == 2


@pytest.mark.parametrize(
    "rows",
    [
        # After a resume: the last value of a step counts, whatever the time and the machine say.
        ["1,0.1,10:00:01,a", "2,0.2,10:00:02,a", "2,0.3,11:00:02,b", "3,0.4,11:00:03,b"],
        ["1,0.25,10:00:01,a", "2,0.5,10:00:02,a", "2,0.25,10:00:02,a", "3,0.5,10:00:02,a"],
    ],
)
def test_a_resumed_run_is_one_run(imported, rows):
    text = "\n".join(["step,reward,time,hostname", *rows, ""])
    found, summary = imported(text)
    ((_, points),) = found.values()
    assert [step for _, step, _ in points] == [1, 2, 3]
    assert points[1][2] == float(rows[2].split(",")[1])
    assert summary.left_out["values that a later line of the same step replaced"] == 1


def test_by_adds_to_the_columns_that_are_known(imported):
    text = "estimator,seed,lang,step,acc\ngrpo,0,vi,1,0.1\ngrpo,0,en,1,0.2\ngrpo,1,vi,1,0.3\n"
    assert len(imported(text, by=["lang"])[1].runs) == 3
    with pytest.raises(ConfigError, match=r"--by: expected columns .*'language'"):
        imported(text, by=["lang", "language"])


def test_a_column_may_be_mapped_to_a_setting(imported):
    text = "arm,rate,s,it,acc\nx,1e-6,0,1,0.1\nx,1e-6,1,1,0.2\ny,3e-6,0,1,0.3\n"
    names = {"arm": "estimator", "rate": "optimizer.lr", "s": "seed", "it": "step"}
    found, summary = imported(text, names=names)
    assert {key: config for key, (config, _) in found.items()} == {
        ("x", 0): {"estimator": {"name": "x"}, "optimizer": {"lr": 1e-6}},
        ("x", 1): {"estimator": {"name": "x"}, "optimizer": {"lr": 1e-6}},
        ("y", 0): {"estimator": {"name": "y"}, "optimizer": {"lr": 3e-6}},
    }
    assert not [note for note in summary.notes if "--map" in note]
    with pytest.raises(ConfigError, match="column of the step"):
        imported(text, names={"iteration_number": "step"})


def test_a_line_per_run_is_its_result(imported):
    text = "estimator,seed,accuracy\ngrpo,0,0.5\ngrpo,1,0.6\n"
    found, summary = imported(text)
    assert [points for _, points in found.values()] == [[("accuracy", 0, 0.5)],
                                                        [("accuracy", 0, 0.6)]]  # fmt: skip
    assert any("no column of the step" in note for note in summary.notes)
    with pytest.raises(ConfigError, match="got: estimator, batch, acc; name it with --map COLUMN="):
        imported("estimator,batch,acc\ngrpo,1,0.5\ngrpo,2,0.6\n")


def test_json_lines_without_a_step_name_their_keys(imported):
    text = '{"epoch": 0.5, "loss": 1}\n{"epoch": 1, "loss": 2}\n'
    with pytest.raises(ConfigError, match=r"\(columns: epoch, loss; name it with --map COLUMN="):
        imported(text, name="x.jsonl", form="jsonl")
    found, _ = imported('{\n"eval_accuracy": 0.5\n}\n', name="all_results.json", form="jsonl")
    assert [points for _, points in found.values()] == [[("eval_accuracy", 0, 0.5)]]


@pytest.mark.parametrize(
    ("key", "value"), [("current_steps", 5), ("global_step/max_steps", "5/100"), ("Steps", "5")]
)
def test_names_of_the_step(imported, key, value):
    text = json.dumps({key: value, "loss": 1}) + "\n"
    if key == "Steps":
        found, _ = imported("Steps,loss\n5,1\n")
    else:
        found, _ = imported(text, name="x.jsonl", form="jsonl")
    assert [points for _, points in found.values()] == [[("loss/policy", 5, 1.0)]]


HISTORY = [
    {"_step": 0, "_runtime": 1.5, "_timestamp": 1.7e9, "train/reward": 0.1},
    {"_step": 1, "_runtime": 2.5, "_timestamp": 1.7e9, "train/global_step": 7, "train/reward": 0.2},
    {"_step": 2, "_runtime": 3.5, "_timestamp": 1.7e9, "train/global_step": None, "loss": 0.3},
]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_step_of_a_history_is_the_trainers(imported, form):
    """A row before the first named step has wandb's count, a later one the last named step."""
    if form == "jsonl":
        text = "".join(json.dumps(row) + "\n" for row in HISTORY)
    else:
        # A frame's index has no name.
        text = ",_step,_runtime,_timestamp,train/global_step,train/reward,loss\n"
        text += "0,0,1.5,1.7e9,,0.1,\n1,1,2.5,1.7e9,7,0.2,\n2,2,3.5,1.7e9,nan,,0.3\n"
    found, _ = imported(text, name=f"history.{form}", form=form)
    ((_, points),) = found.values()
    points = [point for point in points if not point[0].startswith("Unnamed")]
    assert sorted(points) == [
        ("loss/policy", 7, 0.3), ("reward/mean", 0, 0.1), ("reward/mean", 7, 0.2),
    ]  # fmt: skip


WEB = (
    '"{axis}","grpo-s0 - train/reward","grpo-s0 - train/reward__MIN","grpo-s0 - train/reward__MAX"'
    ',"rloo-s0 - train/reward","rloo-s0 - train/reward__MIN","rloo-s0 - train/reward__MAX"{more}\n'
)


def test_a_chart_of_wandb_is_a_run_per_name(imported):
    from advsweep.logs.names import NamePattern

    text = WEB.format(axis="Step", more="") + '"1","0.1","0.0","0.9","0.2","0.0","0.9"\n'
    text += '"2","0.3","0.0","0.9","","",""\n'
    found, summary = imported(text, pattern=NamePattern("{estimator}-s{seed}"))
    assert {key: points for key, (_, points) in found.items()} == {
        ("grpo", 0): [("reward/mean", 1, 0.1), ("reward/mean", 2, 0.3)],
        ("rloo", 0): [("reward/mean", 1, 0.2)],
    }
    assert not summary.left_out


def test_a_chart_without_bounds_is_a_run_per_name(imported):
    from advsweep.logs.names import NamePattern

    text = "Step,grpo-s0 - train/reward,rloo-s0 - train/reward\n1,0.1,0.2\n2,0.3,0.4\n"
    found, _ = imported(text, pattern=NamePattern("{estimator}-s{seed}"))
    assert {key: points for key, (_, points) in found.items()} == {
        ("grpo", 0): [("reward/mean", 1, 0.1), ("reward/mean", 2, 0.3)],
        ("rloo", 0): [("reward/mean", 1, 0.2), ("reward/mean", 2, 0.4)],
    }


def test_a_chart_over_time_needs_a_column_of_the_step(imported):
    axis = "Relative Time (Process)"
    with pytest.raises(ConfigError, match=r"got one over 'Relative Time \(Process\)'; choose"):
        imported(WEB.format(axis=axis, more="") + '"0.5","0.1","0","1","0.2","0","1"\n')
    more = "".join(f',"{run} - _step"' for run in ("grpo-s0", "rloo-s0"))
    text = WEB.format(axis=axis, more=more) + '"0.5","0.1","0","1","0.2","0","1","3","4"\n'
    (_, summary) = imported(text)
    assert [written.steps for _, written in summary.runs] == [1, 1]
    assert summary.metrics == {"reward/mean"}


def test_a_group_of_wandb_is_said_to_be_a_mean(imported):
    text = WEB.replace("grpo-s0", "estimator: grpo").format(axis="train/global_step", more="")
    found, summary = imported(text + '"1","0.1","0","1","0.2","0","1"\n')
    assert "grpo" in {estimator for estimator, _ in found}
    (note,) = [note for note in summary.notes if "mean over the runs" in note]
    assert note.startswith("estimator: grpo is a mean over the runs of a group")


def test_scalars_of_tensorboard_name_run_and_metric_in_their_files(imported, store, tmp_path):
    head = "Wall time,Step,Value\n"
    folder = tmp_path / "scalars"
    folder.mkdir()
    (folder / "run-grpo-s0-tag-train_reward.csv").write_text(head + "1.7e9,1,0.5\n1.7e9,2,0.6\n")
    (folder / "run-grpo-s0-tag-custom_x.csv").write_text(head + "1.7e9,1,3\n")
    import_runs(store, READERS.build("csv"), str(folder))
    (run,) = store.runs.select()
    assert sorted(store.metrics.points(run.id)) == [
        ("custom_x", 1, 3.0), ("reward/mean", 1, 0.5), ("reward/mean", 2, 0.6),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--map Value=reward/mean"):
        imported(head + "1.7e9,1,0.5\n", name="scalar.csv")
    found, _ = imported(head + "1.7e9,1,0.5\n", name="x.csv", names={"Value": "reward/mean"})
    assert any(points == [("reward/mean", 1, 0.5)] for _, points in found.values())


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\nstep;reward\n1;0.5\n",
        "# made by a script\nstep,reward\n1,0.5\n",
        "# step,reward\n1,0.5\n",
        "step|reward\n1|0.5\n",
        "step,reward,\n1,0.5,\n",
        "\ufeffStep,reward\r\n1,0.5\r\n",
        'step,reward,note\n1,0.5,"a text\nof two lines"\n',
        "step,reward\n1,0.5\n".encode("utf-16"),
        gzip.compress(b"step,reward\n1,0.5\n", mtime=0),
        "step,reward,maj@8\n1,0.5,-\n",
    ],
)
def test_forms_of_tables(imported, text):
    ((_, points),) = imported(text)[0].values()
    assert points == [("reward/mean", 1, 0.5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("step,reward,reward\n1,2,3\n", "line 1: expected each column once, got 'reward' twice"),
        ("step,n\u00e9\n1,2\n".encode("latin-1"), "line 1: expected text in UTF-8 or UTF-16"),
    ],
)
def test_tables_that_cannot_be_right(imported, text, told):
    with pytest.raises(ConfigError, match=told):
        imported(text)


def test_nothing_is_written_if_a_later_file_is_refused(store, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.csv").write_text("step,reward\n1,0.5\n")
    (tmp_path / "logs" / "b.csv").write_text("step,task,acc\n1,x,0.5\n1,y,0.6\n")
    with pytest.raises(ConfigError, match="--by task"):
        import_runs(store, READERS.build("csv"), str(tmp_path / "logs"))
    assert not store.runs.select()


@pytest.mark.parametrize(
    "header", ["step,seed0,seed1", "step,grpo_s0,grpo_s1", "step,GRPO seed 1,GRPO seed 2"]
)
def test_a_column_for_each_run_is_refused(imported, header):
    with pytest.raises(ConfigError, match=r"line 1: .* got one for each run \(.*df\.melt"):
        imported(f"{header}\n1,0.1,0.2\n")


def test_metrics_may_end_like_seeds(imported):
    _, summary = imported("step,pass_s1,loss,s1,layers1\n1,0.1,0.2,0.3,0.4\n")
    assert len(summary.metrics) == 4


def test_times_tell_no_settings_apart(imported, store):
    text = "Created,note,seed,estimator,acc\nlast week,2025-01-01T10:00:00,0,grpo,0.5\n"
    text += "today,2025-01-02T10:00:00,1,grpo,0.6\n"
    imported(text)
    assert len({run.config_hash for run in store.runs.select()}) == 1


def test_a_text_may_change_in_one_run_and_be_a_setting_of_another(imported):
    text = "run,step,phase,reward\na,1,x,0.1\na,2,y,0.2\na,3,z,0.2\nb,1,x,0.3\nb,2,x,0.4\n"
    _, summary = imported(text)
    assert summary.left_out == {"values of phase that are texts which change within a run": 3}


def test_a_step_that_is_a_fraction_is_shown(imported):
    with pytest.raises(ConfigError, match=r"no whole number from 0 to [\d,]*, such as 0\.5 \(2\)"):
        imported("step,acc\n0.5,0.1\n1.5,0.2\n")


def rows_of(store):
    """Return the estimators and the number of runs of each setting."""
    found = {}
    for record in store.runs.select(newest_first=False):
        key = record.config_hash
        estimator, number = found.get(key, (record.estimator, 0))
        found[key] = (estimator, number + 1)
    return sorted(found.values())


@pytest.mark.parametrize("names", [["grpo-s0", "grpo-s1", "mine-s0", "mine-s1"], list("wxyz")])
def test_names_of_runs_do_not_split_rows_where_estimator_and_seed_are_known(imported, store, names):
    rows = zip(names, ["grpo", "grpo", "mine", "mine"], [0, 1, 0, 1], strict=True)
    lines = [f'"{name}",{estimator},{seed},0.{seed + 1}' for name, estimator, seed in rows]
    imported("\n".join(["Name,algorithm.adv_estimator,seed,eval/acc", *lines, ""]))
    assert rows_of(store) == [("grpo", 2), ("mine", 2)]


def test_what_a_name_says_besides_the_seed_is_a_setting_where_runs_are_alike(imported, store):
    runs = [(rate, seed) for rate in ("1e-6", "3e-6") for seed in (1, 2, 3)]
    lines = [f"grpo-lr{rate}-s{seed},grpo,{seed},0.5" for rate, seed in runs]
    imported("\n".join(["Name,estimator,seed,acc", *lines, ""]))
    assert rows_of(store) == [("grpo", 3), ("grpo", 3)]


def test_names_split_rows_of_unknown_estimators_and_a_pattern_reads_them(imported, store):
    text = "Name,acc\ngrpo-s0,0.1\ngrpo-s1,0.2\nmine-s0,0.3\nmine-s1,0.4\n"
    imported(text)
    assert rows_of(store) == [("unknown", 1)] * 4
    found, _ = imported(text, pattern=NamePattern("{estimator}-s{seed}"))
    assert sorted(found) == [("grpo", 0), ("grpo", 1), ("mine", 0), ("mine", 1)]
    assert rows_of(store) == [("grpo", 2), ("mine", 2)]


@pytest.mark.parametrize(
    "order", [[(1, 0.1), (2, 0.2), (1, 0.3), (2, 0.4)], [(1, 0.1), (1, 0.3), (2, 0.2), (2, 0.4)]]
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_several_runs_that_no_column_tells_apart_are_refused(imported, store, order, form):
    if form == "csv":
        text = "step,method,reward\n" + "".join(f"{step},grpo,{value}\n" for step, value in order)
    else:
        rows = [{"step": step, "method": "grpo", "reward": value} for step, value in order]
        text = "".join(json.dumps(row) + "\n" for row in rows)
    with pytest.raises(ConfigError, match=r"no column tells the lines apart.*add a column seed"):
        imported(text, name=f"table.{form}", form=form)
    assert not store.runs.select()


def test_a_log_that_begins_anew_and_goes_further_is_one_run(imported):
    lines = [f"{step},0.{step}" for step in (1, 2, 3)] + [f"{step},0.5" for step in (1, 2, 3, 4)]
    found, summary = imported("\n".join(["step,reward", *lines, ""]))
    ((_, points),) = found.values()
    assert [(step, value) for _, step, value in points] == [(step, 0.5) for step in (1, 2, 3, 4)]
    assert summary.left_out["values that a later line of the same step replaced"] == 3


@pytest.mark.parametrize(
    ("text", "seed"),
    [("seed3", 3), ("seed_3", 3), ("s3", 3), ("Seed 3", 3), ("3.0", 3), ("first", None)],
)
def test_a_seed_may_be_a_word_with_its_number(imported, text, seed):
    found, _ = imported(f"method,seed,step,reward\ngrpo,{text},1,0.5\ngrpo,{text},2,0.5\n")
    assert list(found) == [("grpo", seed)]


def test_columns_of_estimators_are_refused_as_those_of_runs(imported):
    with pytest.raises(ConfigError, match=r"one for each estimator.*var_name='estimator'"):
        imported("step,grpo,rloo\n1,0.1,0.2\n")


def test_an_index_is_no_metric_and_may_tell_runs_apart(imported, store):
    found, _ = imported(",step,reward\n0,1,0.5\n1,2,0.5\n", name="steps.csv")
    assert [name for name, _, _ in found["unknown", None][1]] == ["reward/mean"] * 2
    text = ",method,acc\n0,grpo,0.3\n1,grpo,0.4\n2,mine,0.5\n"
    with pytest.raises(ConfigError, match="--by 'Unnamed: 0'"):
        imported(text)
    imported(text, by=["Unnamed: 0"])
    assert rows_of(store) == [("grpo", 2), ("mine", 1), ("unknown", 1)]


def test_a_column_that_may_be_the_step_is_proposed_as_such(imported):
    text = "method,seed,round,reward\ngrpo,0,1,0.1\ngrpo,0,2,0.2\n"
    with pytest.raises(ConfigError, match="--map round=step if it is the step"):
        imported(text)
    found, _ = imported(text, names={"round": "step"})
    assert found["grpo", 0][1] == [("reward/mean", 1, 0.1), ("reward/mean", 2, 0.2)]


def test_spaces_before_quotes_and_capitals_change_no_name(imported):
    found, _ = imported('"Step" , "Method", "Seed" , "Reward"\n1 , grpo , 0 , 0.5\n')
    assert found["grpo", 0][1] == [("reward/mean", 1, 0.5)]


def test_an_object_of_columns_may_be_one_line(imported):
    text = json.dumps({"step": [1, 2], "metrics": [{"reward": 0.25}, {"reward": 0.5}]})
    found, _ = imported(text, name="x.json", form="jsonl")
    assert found["unknown", None][1] == [("reward/mean", 1, 0.25), ("reward/mean", 2, 0.5)]


def test_a_table_without_a_number_shows_its_first_line(imported):
    with pytest.raises(ConfigError, match=r"the first line has acc: 0.31 ± 0.02"):
        imported("method,acc\ngrpo,0.31 ± 0.02\n")


def test_logs_of_other_formats_in_the_folder_are_named(store, tmp_path):
    (tmp_path / "a.csv").write_text("step,reward\n1,0.5\n")
    (tmp_path / "b.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (tmp_path / "notes.md").write_text("text\n")
    summary = import_runs(store, READERS.build("csv"), str(tmp_path))
    assert "logs of other formats, which were not read: b.jsonl (import jsonl)" in summary.notes


@pytest.mark.parametrize("text", ["", "\n", "\ufeff", "\n\n"])
def test_an_empty_table_is_refused_in_one_line(imported, text):
    with pytest.raises(ConfigError, match="expected a"):
        imported(text)
