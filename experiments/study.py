"""Runs a study: its sweeps, then its tables, claims and figures, from an empty store.

    python experiments/study.py fade                 # train what is missing, write the results
    python experiments/study.py fade --results       # write the results of the store alone
    python experiments/study.py fade --recorded      # what runs.csv suffices for; no store
    python experiments/study.py fade --smoke         # a piece of every sweep; writes nothing
    python experiments/study.py fade --store my.db   # a store other than studies.db

A sweep that was interrupted is resumed. `experiments/NAME/study.yaml` says what belongs to a study:

    experiments: {fade/study: tiny, fade/study_bandit: bandit}   # sweep files and their backends;
                                         # null: no piece of it, as it is large or like another
    piece: ['sweep.seeds=1']             # more overrides that make a piece of a sweep
    smoke: {study-fade: 'entropy/token[dr_grpo] > 0'}         # what a piece of a sweep must show
    after: [[weights, study-fade]]       # commands between the training and the tables
    sums: [cost/tokens]                  # metrics that runs.csv has summed up to each evaluation
    tables:                              # each as FILE.csv and FILE.md
      - {file: report, sweep: study-fade, sort: 'rank:pass@1', columns: [pass@1, pass@32]}
    figures:                             # runs.csv has every run of these sweeps
      - {file: passk.svg, sweep: study-fade, figure: passk}
      - {file: frontier.svg, records: frontier.csv, sweep: study-fade, figure: frontier}
    matched:                             # each as FILE.csv and FILE.svg, from runs.csv alone
      - {file: matched, sweep: study-fade, baseline: dr_grpo, outcomes: [pass@32]}
      - file: pairs                      # with pairs of rows, and at a pass@1 of one's own
        sweep: study-fade
        pairs: {fade 4e-4: dr_grpo 4e-4}
        outcomes: [pass@32]
        level: 0.45
        drawn: false                     # the CSV alone

`claims.yaml` beside it has the study's claims; their verdicts are written to `claims.csv`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from advsweep import load_evaluations, load_metrics, load_runs
from advsweep.errors import NotFoundError
from advsweep.report.claims.lists import read_claim_list
from advsweep.report.figures import draw
from advsweep.report.figures.matched import MatchedRows, draw_matched
from advsweep.report.tables.matched import Matching

FOLDER = Path(__file__).resolve().parent
ACCURACY = "pass@1"
CHANGE = "optim/change_norm"
TABLE_OPTIONS = ("sort", "baseline", "margin", "difference", "rows", "where", "at")
FIGURE_OPTIONS = ("figure", "metric", "where", "smooth", "x", "baseline", "margin")
VERDICT = [
    *("claim", "verdict", "n", "difference", "low", "high", "p_value", "p_adjusted"),
    *("setting", "reason", "study"),
]
SMOKE = {
    "tiny": (
        *("steps=2", "prompts_per_step=16", "sweep.seeds=2", "executor=debug"),
        *("model.pretraining_steps=300", "task.held_out_per_level=2", "task.train_per_level=30"),
        *("evaluation.every=0", "evaluation.n=4", "evaluation.n_between=null", "evaluation.k=[1]"),
    ),
    "bandit": ("steps=30", "sweep.seeds=2", "executor=debug", "evaluation.n=4", "evaluation.k=[1]"),
}
"""Overrides that make a piece of a sweep, by backend."""


def advsweep(*arguments: str, store: str, allowed: Sequence[int] = (0,)) -> str:
    """Runs a command and returns what it prints as data; ends with its exit code if it fails."""
    print("$ advsweep", *arguments, file=sys.stderr, flush=True)
    command = [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments]
    done = subprocess.run(
        [*command, "--store", store], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode not in allowed:
        raise SystemExit(done.returncode)
    return done.stdout


def train(study: Mapping[str, Any], overrides: Sequence[str], store: str) -> None:
    for experiment in study["experiments"]:
        started = time.perf_counter()
        advsweep("sweep", f"+experiment={experiment}", *overrides, store=store)
        print(f"{experiment}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


def write_results(study: Mapping[str, Any], folder: Path, store: str) -> None:
    """Write the runs' values, tables, figures and claims into the study's folder."""

    def write(file: str, *arguments: str) -> None:
        text = advsweep(*arguments, store=store)
        # Where the store lies on this machine says nothing to others.
        text = text.replace(f"- {Path(store).resolve()}, sweep", f"- {Path(store).name}, sweep")
        (folder / file).write_text(text, encoding="utf-8")

    for command in study.get("after", []):
        advsweep(*command, store=store)
    named = [entry for kind in ("tables", "figures", "matched") for entry in study.get(kind, [])]
    sweeps = dict.fromkeys(entry["sweep"] for entry in named)
    sums = study.get("sums", [])
    values = pd.concat([recorded_or_stored(sweep, folder, store, sums) for sweep in sweeps])
    values.to_csv(folder / "runs.csv", index=False, float_format="%.6g")
    for table in study.get("tables", []):
        options = _options(table, TABLE_OPTIONS)
        options += ["--columns", ",".join(table["columns"])] if "columns" in table else []
        for form, suffix in (("csv", "csv"), ("markdown", "md")):
            write(f"{table['file']}.{suffix}", "report", table["sweep"], *options, "--format", form)
    for figure in study.get("figures", []):
        options = _options(figure, FIGURE_OPTIONS)
        options += ["-o", str(folder / figure["file"]), "--format", "csv"]
        records = advsweep("plot", figure["sweep"], *options, store=store)
        if "records" in figure:
            (folder / figure["records"]).write_text(records, encoding="utf-8")
    write_matched(study, folder)
    verdicts = judge_claims(folder, store)
    verdicts.to_csv(folder / "claims.csv", index=False, float_format="%.6g")


def judge_claims(folder: Path, store: str) -> pd.DataFrame:
    """Return the verdicts on a study's claims with the day on which each claim's study ended.

    A claim whose runs the store lacks keeps the verdict in `claims.csv`, if it has one.
    """
    path, recorded = folder / "claims.yaml", folder / "claims.csv"
    # 2: a claim names what the store does not have.
    text = advsweep("claims", str(path), "--format", "json", store=store, allowed=(0, 2))
    found = pd.DataFrame(json.loads(text)["claims"]).rename(columns={"p": "p_value"})
    found = found[found["verdict"] != "not judged"]
    sweeps = {claim.id: claim.sweep for claim in read_claim_list(path).claims}
    own = found["claim"].map(sweeps)
    ends = {
        sweep: load_runs(store, sweep=sweep, where="status=done", mixed_protocols=True)[
            "finished"
        ].max()
        for sweep in own.unique()
    }
    found["study"] = own.map(ends).map(lambda end: end.date().isoformat())
    if recorded.exists():
        earlier = pd.read_csv(recorded)
        kept = earlier["claim"].isin(sweeps) & ~earlier["claim"].isin(found["claim"])
        found = pd.concat([earlier[kept], found])
    return found.sort_values("claim")[VERDICT]


def recorded_or_stored(
    sweep: str, folder: Path, store: str, sums: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the runs of a sweep in the store, or else those that `runs.csv` has."""
    try:
        return runs_of(sweep, store, sums)
    except NotFoundError:
        recorded = pd.read_csv(folder / "runs.csv", low_memory=False)
        return recorded[recorded["sweep"] == sweep]


def runs_of(sweep: str, store: str, sums: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row for each finished run of a sweep and its evaluations on its own task.

    Args:
        sweep: its name.
        store: the store that has it.
        sums: metrics of steps, each a column of what a run has had until the evaluation.
    """
    runs = load_runs(store, sweep=sweep, where="status=done", mixed_protocols=True).set_index("run")
    try:
        change = load_metrics(store, sweep=sweep, names=[CHANGE], wide=True)
    except NotFoundError:  # the model has more weights than `backend.measured_weights`
        change = pd.DataFrame(columns=["run", "step", CHANGE], dtype=float)
    found = load_evaluations(store, sweep=sweep, where="status=done")
    keys = found.columns[1 : found.columns.get_loc("seed")]
    measured = found.columns[found.columns.get_loc("problems") + 1 :]
    found = found.merge(change[["run", "step", CHANGE]], on=["run", "step"], how="left")
    found["sweep"] = sweep
    found["row"] = [_row_name(values) for values in found[keys].to_dict("records")]
    found["optimizer.lr"] = found["run"].map(runs["optimizer.lr"])
    for name in sums:
        of_steps = load_metrics(store, sweep=sweep, names=[name], wide=True)
        found[name] = _sums_until(found, of_steps.set_index(["run", "step"])[name])
    about = ["sweep", "row", "estimator", "optimizer.lr", "seed", "step", "n"]
    own = found["task"] == found["run"].map(runs["task"])
    # A task of data is called by the data's name.
    own |= found.groupby("run")["task"].transform("nunique") == 1
    return found.loc[own, [*about, *measured, CHANGE, *sums]]


def _sums_until(evaluations: pd.DataFrame, values: pd.Series) -> list[float]:
    """Return the sum of a metric until each evaluation.

    Args:
        values: those of the steps, by run and step.
    """
    sums = values.sort_index().groupby("run").cumsum()
    places = zip(evaluations["run"], evaluations["step"], strict=True)
    return [float(sums.get(place, 0.0)) for place in places]


def write_matched(study: Mapping[str, Any], folder: Path) -> None:
    """Write the differences at equal pass@1, of the values in `runs.csv`."""
    entries = study.get("matched", [])
    if not entries:
        return
    runs = pd.read_csv(folder / "runs.csv", low_memory=False)
    for entry in entries:
        chart = draw_matched(
            recorded_rows(runs, entry),
            Matching(ACCURACY, entry["outcomes"], entry.get("level")),
        )
        records = pd.DataFrame(chart.records)
        records.to_csv(folder / f"{entry['file']}.csv", index=False, float_format="%.6g")
        if entry.get("drawn", True):
            draw.write([chart], folder / f"{entry['file']}.svg")


def recorded_rows(runs: pd.DataFrame, entry: Mapping[str, Any]) -> MatchedRows:
    """Return the rows of a sweep in `runs.csv`, to be compared as an entry of `matched` says.

    Its `pairs` are rows and what each is compared with; its `baseline` is an estimator with one
    row, which all others are compared with.
    """
    points = runs[runs["sweep"] == entry["sweep"]]
    points = points.assign(row=[_short_name(values) for values in points.to_dict("records")])
    if "pairs" in entry:
        return MatchedRows(entry["sweep"], points, entry["pairs"])
    (other,) = points.loc[points["estimator"] == entry["baseline"], "row"].unique()
    names = [name for name in points["row"].unique() if name != other]
    return MatchedRows(entry["sweep"], points, dict.fromkeys(names, other))


def _short_name(values: Mapping[str, Any]) -> str:
    """Shorten the name of a row: `psr 4e-4` for `psr optimizer.lr=0.0004`."""
    rate = f"{values['optimizer.lr']:.0e}".replace("e-0", "e-")
    parts = values["row"].removeprefix(values["estimator"]).split()
    others = [part.rpartition(".")[2] for part in parts if not part.startswith("optimizer.lr=")]
    return " ".join([values["estimator"], rate, *others])


def _row_name(values: Mapping[str, Any]) -> str:
    """Name a row of the tables, such as `fade estimator.h_star=0.5`."""
    # A missing value is NaN, which is unequal to itself.
    own = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v == v}
    return " ".join(v if key == "estimator" else f"{key}={v}" for key, v in own.items())


def _options(entry: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [part for name in names if name in entry for part in (f"--{name}", str(entry[name]))]


def smoke(study: Mapping[str, Any], store: str) -> None:
    """Trains a piece of every sweep and holds its report against what it must show."""
    for experiment, backend in study["experiments"].items():
        if backend is not None:
            overrides = [*SMOKE[backend], *study.get("piece", [])]
            advsweep("sweep", f"+experiment={experiment}", *overrides, store=store)
    for sweep, assertion in study["smoke"].items():
        advsweep("report", sweep, "--assert", assertion, store=store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=sorted(p.parent.name for p in FOLDER.glob("*/study.yaml")))
    parser.add_argument("overrides", nargs="*", help="as of advsweep sweep")
    parser.add_argument("--store", default="studies.db")
    parser.add_argument("--results", action="store_true", help="train nothing")
    parser.add_argument("--recorded", action="store_true", help="write what runs.csv suffices for")
    parser.add_argument("--smoke", action="store_true", help="train a piece; write nothing")
    options = parser.parse_args()
    folder = FOLDER / options.name
    study = yaml.safe_load((folder / "study.yaml").read_text("utf-8"))
    if options.smoke:
        smoke(study, options.store)
        return
    if options.recorded:
        write_matched(study, folder)
        return
    if not options.results:
        train(study, options.overrides, options.store)
    write_results(study, folder, options.store)


if __name__ == "__main__":
    main()
