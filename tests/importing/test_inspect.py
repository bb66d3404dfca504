"""Logs in the shape that inspect_ai 0.3.285 writes: documents, and archives of all kinds."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.logs import inspect_log, lm_eval
from advsweep.logs.base import ProblemCount
from advsweep.logs.inspect_log import read_log
from advsweep.logs.rollouts import read_rollouts
from tests.importing.conftest import read

ZSTD = 93
HEADER = {
    "version": 2,
    "status": "success",
    "eval": {
        "task": "addition",
        "model": "hf/out/grpo-s0/checkpoint-20",
        "created": "2026-01-01T00:00:00+00:00",
        "dataset": {"samples": 2},
        "config": {"epochs": 2},
        "model_args": {"dtype": "bf16"},
    },
}
SAMPLES = [
    {
        "id": i,
        "epoch": e,
        "input": f"q{i}",
        "scores": {"match": {"value": m}, "judge": {"value": j}},
    }
    for i, e, m, j in (("a", 1, "C", 0.25), ("a", 2, "I", 1), (7, 1, "C", "0.75"), (7, 2, "N", "P"))
]


def archive(entries: dict[str, bytes], method: int = 8, *, end: int = 0, crc: int = 0) -> bytes:
    """A zip archive; `end` and `crc` change what it says of itself."""
    content, listed = b"", b""
    for name, data in entries.items():
        packed = data
        if method == ZSTD:
            arrow = pytest.importorskip("pyarrow")
            # Two frames, as inspect_ai makes of long entries.
            parts = (data[: len(data) // 2], data[len(data) // 2 :])
            packed = b"".join(arrow.compress(part, "zstd", asbytes=True) for part in parts)
        elif method == 8:
            packed = zlib.compress(data)[2:-4]
        sizes = (zlib.crc32(data) ^ crc, len(packed), len(data), len(name))
        local = struct.pack("<HHHHH3LHH", 20, 0, method, 0, 0, *sizes, 0)
        place = struct.pack("<HHHLL", 0, 0, 0, 0, len(content))
        listed += b"PK\1\2" + struct.pack("<H", 20) + local + place + name.encode()
        content += b"PK\3\4" + local + name.encode() + packed
    counts = struct.pack(
        "<4H2LH", 0, 0, len(entries), len(entries), end or len(listed), len(content), 0
    )
    return content + listed + b"PK\5\6" + counts


def write(path: Path, samples: list[Any] = SAMPLES, header: Any = HEADER) -> Path:
    """A log of the kind that the file's name says: `x.deflate.eval`, `x.zstd.eval`, `x.json`."""
    start = json.dumps(header).encode()
    if path.suffix == ".json":
        path.write_text(json.dumps({**header, "samples": samples}))
    elif ".journal" in path.name:
        parts = {f"_journal/summaries/{n}.json": [s] for n, s in enumerate(samples, 1)}
        # A sample that was tried again replaces the first.
        parts = {"_journal/summaries/0.json": [{**samples[0], "scores": {}}], **parts}
        packed = {name: json.dumps(part).encode() for name, part in reversed(parts.items())}
        path.write_bytes(archive({"_journal/start.json": start, **packed}))
    else:
        method = ZSTD if ".zstd" in path.name else 8
        entries = {"header.json": start, "summaries.json": json.dumps(samples).encode()}
        path.write_bytes(archive({"samples/a_epoch_1.json": b"{}", **entries}, method))
    return path


@pytest.mark.parametrize("name", ["a.deflate.eval", "a.zstd.eval", "a.journal.eval", "a.json"])
def test_a_log_of_every_kind(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    (tmp_path / "other.json").write_text("{}")
    (run,) = read("inspect", tmp_path)
    assert run.config["model"] == {"path": "hf/out/grpo-s0"}
    assert run.config["inspect"] == {"model_args": {"dtype": "bf16"}, "config": {"epochs": 2}}
    counts = [ProblemCount(20, "7", 2, 1, "addition"), ProblemCount(20, "a", 2, 1, "addition")]
    assert sorted(run.evaluations) == counts
    (step,) = read_rollouts(tmp_path)
    assert [(g.prompt, g.rewards) for g in step.groups] == [("q" + i, [1, 0]) for i in "a7"]
    (step,) = read_rollouts(tmp_path / name, rewards={"judge": 1.0})
    assert step.groups[0].rewards[0] == 0.25


def test_what_is_correct(tmp_path: Path) -> None:
    """Partial credit counts from `success_at`; what failed or has no number is not correct."""
    failed = {**SAMPLES[0], "id": "b", "error": {"message": "x"}}
    parts = {**SAMPLES[0], "id": "c", "scores": {"judge": {"value": {"x": True, "y": [1]}}}}
    nan = {**SAMPLES[0], "id": "d", "scores": {"judge": {"value": float("nan")}}}
    write(tmp_path / "a.eval", [*SAMPLES, failed, parts, nan])
    for given, correct in (
        ({}, {"a": 1, "7": 1}),
        ({"metric": "judge", "success_at": 0.5}, {"a": 1, "7": 1}),
        ({"metric": "judge", "success_at": 0.2}, {"a": 2, "7": 1}),
        ({"metric": "judge/x"}, {"c": 1}),
    ):
        (run,) = read("inspect", tmp_path, **given)
        found = {c.problem: c.correct for c in run.evaluations}
        assert found == {**dict.fromkeys(("a", "7", "b", "c", "d"), 0), **correct}
    # Scores between 0 and 1 do not say what is correct.
    (run,) = read("inspect", tmp_path, metric="judge")
    assert run.left_out == {"tasks without a metric that says what is correct": 1}
    with pytest.raises(NotFoundError, match="metric: addition has none called 'x'"):
        read("inspect", tmp_path, metric="x")


def test_what_failed_is_not_correct_at_a_score_of_0(tmp_path: Path) -> None:
    failed = {**SAMPLES[0], "id": "b", "scores": {}}
    write(tmp_path / "a.eval", [*SAMPLES, failed])
    (run,) = read("inspect", tmp_path, metric="match", success_at=0)
    assert {c.problem: c.correct for c in run.evaluations} == {"a": 2, "7": 2, "b": 0}


def test_a_scorer_of_texts_says_nothing(tmp_path: Path) -> None:
    scores = {"why": {"value": "because"}, "match": {"value": "C"}}
    write(tmp_path / "a.eval", [{**SAMPLES[0], "scores": scores}])
    (run,) = read("inspect", tmp_path)
    assert [c.correct for c in run.evaluations] == [1]


def test_a_damaged_log_does_not_hide_the_others(tmp_path: Path) -> None:
    cut = write(tmp_path / "a.eval").read_bytes()[:-9]
    write(tmp_path / "b.eval")
    (tmp_path / "a.eval").write_bytes(cut)
    (run,) = read("inspect", tmp_path)
    assert len(run.evaluations) == 2
    assert run.left_out == {"logs that cannot be read": 1}


@pytest.mark.security
def test_scores_of_many_scorers_do_not_fill_the_memory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lm_eval, "_MOST_SCORES", 10)
    samples = [{**SAMPLES[0], "id": i, "scores": {f"s{i}": {"value": 1}}} for i in range(4)]
    write(tmp_path / "a.eval", samples)
    with pytest.raises(ConfigError, match="expected at most 10 scores"):
        read("inspect", tmp_path)


def test_samples_of_two_logs_are_no_groups(tmp_path: Path) -> None:
    write(tmp_path / "a.eval")
    write(tmp_path / "b.eval")
    with pytest.raises(ConfigError, match=r"expected one log of inspect_ai, got a.eval, b.eval"):
        list(read_rollouts(tmp_path))


def test_the_newest_log_of_each_model_and_task_counts(tmp_path: Path) -> None:
    for name, created, model in (
        ("b", "2026-01-01", "m"),
        ("a", "2026-01-02", "m"),
        ("c", "", "n"),
    ):
        spec = {**HEADER["eval"], "created": created, "model": model}
        write(tmp_path / f"{name}.eval", SAMPLES[: 2 + 2 * (name == "b")], {**HEADER, "eval": spec})
    runs = read("inspect", tmp_path)
    assert [(run.config["model"]["path"], len(run.evaluations)) for run in runs] == [
        ("m", 1),
        ("n", 1),
    ]
    assert "addition: 1 of 2 problems are in the samples" in runs[0].notes


BOMB = json.dumps([{"x": "0" * 10_000}]).encode()
SUMMARY = {"header.json": json.dumps(HEADER).encode(), "summaries.json": BOMB}
HOSTILE = {
    "no archive": (b"no archive", "not cut"),
    "cut": (archive(SUMMARY)[:-1], "not cut"),
    "zip64": (archive(SUMMARY)[:-22] + b"PK\6\7" + bytes(16) + archive(SUMMARY)[-22:], "not cut"),
    "a large list": (archive(SUMMARY, end=2**25), "a list of entries of up to 16 MiB"),
    "another list": (archive(SUMMARY, end=2**10), "a log of inspect_ai, got: BadZipFile"),
    "no header": (archive({"x": b""}), "no item named '_journal/start.json'"),
    "a checksum": (archive(SUMMARY, 0, crc=1), "Bad CRC-32"),
    "a checksum of zstd": (lambda: archive(SUMMARY, ZSTD, crc=1), "a checksum of 'header.json'"),
    "an unknown method": (archive(SUMMARY, 97), "compression method is not supported"),
    "a bomb": (archive(SUMMARY), "expected at most 0 MiB, got more"),
    "a bomb of zstd": (lambda: archive(SUMMARY, ZSTD), "expected at most 0 MiB, got more"),
    "no JSON": (archive({**SUMMARY, "summaries.json": b"["}), "got: JSONDecodeError"),
    "deep": (archive({**SUMMARY, "summaries.json": b"[" * 5000}), "got: RecursionError"),
    "types": (archive({**SUMMARY, "summaries.json": b"[7]"}), "got: TypeError"),
    "ids": (archive({**SUMMARY, "summaries.json": b'[{"id": [], "epoch": 1}]'}), "got: "),
    "scores": (
        archive(
            {**SUMMARY, "summaries.json": b'[{"id": 1, "epoch": 1, "input": "", "scores": [1]}]'}
        ),
        "got: AttributeError",
    ),
}


@pytest.mark.security
@pytest.mark.parametrize("name", HOSTILE)
def test_archives_of_strangers(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(inspect_log, "MOST_BYTES", 9_000)
    content, message = HOSTILE[name]
    path = tmp_path / "a.eval"
    path.write_bytes(content() if callable(content) else content)
    with pytest.raises(ConfigError, match=message):
        read_log(path)
    with pytest.raises(ConfigError, match=message):
        read("inspect", tmp_path)
    with pytest.raises(ConfigError, match=message):
        list(read_rollouts(path))


@pytest.mark.security
def test_names_in_an_archive_are_not_unpacked(tmp_path: Path) -> None:
    entries = {"../../x.json": b"[]", "/tmp/x": b"", **SUMMARY}
    summary = json.dumps([{**SAMPLES[0], "id": "\x1b]52;c;\a", "input": "q"}]).encode()
    (tmp_path / "a.eval").write_bytes(archive({**entries, "summaries.json": summary}))
    (run,) = read("inspect", tmp_path)
    assert [c.problem for c in run.evaluations] == [r"\x1b]52;c;\x07"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.eval"]


def test_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected logs of inspect_ai, .eval or .json, got none"):
        read("inspect", tmp_path)
