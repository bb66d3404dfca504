"""Copied, cut and partly mapped logs of every format.

A copy has the numbers of the sound log. A cut one has the same numbers as far as it goes, and where
numbers are missing it says so; only what ends exactly between two lines or records cannot be told
from a training that ended there.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.importing import ImportRequest, ImportSummary, import_runs
from advsweep.logs import READERS
from advsweep.store import Store
from tests.importing import test_lm_eval, test_trl, test_verl
from tests.importing.conftest import read

STEPS = range(1, 13)


def rows() -> list[dict[str, float]]:
    draw = random.Random(0)
    return [
        {"step": step, "reward": draw.random(), "loss": draw.random() - 0.5, "extra": 1000 + step}
        for step in STEPS
    ]


def csv(folder: Path) -> None:
    import pandas as pd

    pd.DataFrame(rows()).to_csv(folder / "metrics.csv", index=False)


def jsonl(folder: Path) -> None:
    test_verl.lines(folder / "metrics.jsonl", rows())


def tensorboard(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # A training that was resumed has a file for each part.
    for part, own in enumerate((rows()[:7], rows()[7:])):
        writer = EventFileWriter(str(folder), filename_suffix=f".{part}")
        for row in own:
            step = int(row.pop("step"))
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
            writer.add_event(Event(step=step, wall_time=1.0, summary=Summary(value=scalars)))
        writer.close()


def trl(folder: Path) -> None:
    for last in (4, 8, 12):
        test_trl.state(folder, range(1, last + 1), at=last, max_steps=12)
    for step in STEPS:
        test_trl.completions(folder, step)


def verl(folder: Path) -> None:
    # Of the rollouts below, 2 of 8 are right.
    values = {"critic/score/mean": 0.25, "actor/entropy": 0.7, "response_length/mean": 10.0}
    test_verl.lines(folder / "log.jsonl", [{"step": step, "data": values} for step in STEPS])
    test_verl.settings(folder)
    for step in STEPS:
        test_verl.dump(folder / "rollouts", step)
    for step in (0, 6, 12):
        test_verl.dump(folder / "val", step, [[1, 0], [1, 1]], reward=1.0)


def lm_eval(folder: Path) -> None:
    for step in (100, 200):
        place = folder / f"out__checkpoint-{step}"
        values = [{"exact_match": float(n * step % 3 == 0)} for n in range(9)]
        test_lm_eval.samples(place, "aime", values)
        test_lm_eval.results(
            place, f"out/checkpoint-{step}", **{"n-samples": {"aime": {"effective": 9}}}
        )


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "csv": ("csv", csv),
    "jsonl": ("jsonl", jsonl),
    "tensorboard": ("tensorboard", tensorboard),
    "trl": ("trl", trl),
    "verl": ("verl", verl),
    "lm-eval": ("lm-eval", lm_eval),
}

Numbers = dict[tuple[Any, ...], float]


def numbers(form: str, folder: Path) -> tuple[Numbers, set[str]]:
    """The numbers of a log, and what is said about them."""
    found: Numbers = {}
    said: set[str] = set()
    for run in read(form, folder):
        for step, values in run.steps:
            found |= {(run.source, step, name): value for name, value in values.items()}
        for step, problem, n, correct, task in run.evaluations:
            found[run.source, step, task, problem, "n"] = n
            found[run.source, step, task, problem, "correct"] = correct
        said |= {*run.left_out, *run.notes}
    return found, said


@pytest.fixture(params=WRITERS)
def sound(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Numbers, set[str]]:
    form, write = WRITERS[request.param]
    folder = tmp_path / "sound" / "run"
    folder.mkdir(parents=True)
    write(folder)
    found, said = numbers(form, folder)
    assert len(found) >= 24
    return form, folder, found, said


Sound = tuple[str, Path, Numbers, set[str]]


def copied(folder: Path, number: int) -> tuple[Path, list[Path]]:
    """A copy whose files have times in a random order."""
    draw = random.Random(number)
    copy = folder.parents[1] / f"copy{number}" / folder.name
    shutil.copytree(folder, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    for file in files:
        moment = draw.randrange(2**31)
        os.utime(file, (moment, moment))
    return copy, files


def test_a_copy_has_the_same_numbers(sound: Sound) -> None:
    form, folder, found, said = sound
    for number in range(5):
        copy, _ = copied(folder, number)
        assert numbers(form, copy) == (found, said)


def ends_between_records(form: str, file: Path) -> bool:
    data = file.read_bytes()
    if form == "tensorboard":
        place = 0
        while place < len(data):
            place += 16 + int.from_bytes(data[place : place + 8], "little")
        return place == len(data)
    if form in ("trl", "verl", "lm-eval"):
        return False  # Other files, or the number of samples, say what one of these lacks.
    return file.suffix in (".csv", ".jsonl") and data[-1:] in (b"\n", b"}", b"")


@pytest.mark.parametrize("number", range(16))
def test_a_cut_log_has_no_other_numbers_and_says_what_is_missing(sound: Sound, number: int) -> None:
    form, folder, found, said = sound
    draw = random.Random(number)
    copy, files = copied(folder, number)
    file = draw.choice(files)
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))])
    try:
        cut, now_said = numbers(form, copy)
    except ConfigError:
        return  # It says what was expected.
    more = now_said - said
    changed = {key for key, value in cut.items() if found.get(key) != pytest.approx(value)}
    # Metrics of a step with some of its rollouts, and problems with some of their samples, are of
    # those alone; so that as much is said.
    assert form == "verl" or not changed
    if changed or found.keys() - cut.keys():
        assert more or ends_between_records(form, file), (file, draw, len(found) - len(cut))


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("sound", ["trl", "verl"], indirect=True)
def test_a_copy_without_some_file_says_what_is_missing(sound: Sound, number: int) -> None:
    """Of files that belong together; a validation that is gone leaves no trace."""
    form, folder, found, said = sound
    copy, files = copied(folder, number)
    random.Random(number).choice([file for file in files if file.parent.name != "val"]).unlink()
    try:
        rest, now_said = numbers(form, copy)
    except ConfigError:
        return
    assert {key for key, value in rest.items() if found.get(key) != pytest.approx(value)} == set()
    if found.keys() - rest.keys():
        assert now_said - said


def imported(store: Store, form: str, folder: Path, **names: str) -> ImportSummary:
    return import_runs(store, READERS.build(form), str(folder), ImportRequest(names=names))


def test_a_partial_map_changes_names_alone(store: Store, sound: Sound) -> None:
    form, folder, _, _ = sound
    metric = {"trl": "grad_norm", "verl": "actor/entropy"}.get(form, "extra")
    if form == "lm-eval":
        pytest.skip("it has no metrics")
    plain = imported(store, form, folder)
    ours = plain.names.renamed.get(metric, metric)
    before = {tuple(point) for point in store.metrics.points(1)}
    mapped = imported(store, form, folder, **{metric: "mine", "missing": "other"})
    after = {(ours if n == "mine" else n, s, v) for n, s, v in store.metrics.points(1)}
    assert after == before
    assert any("--map: no run has a metric 'missing'" in note for note in mapped.notes)
    assert {note for note in mapped.notes if "--map" not in note} <= {*plain.notes}
