"""From GSM8K's files to a report, undisturbed and killed in the middle: is it the same?

    python experiments/gsm8k_end_to_end/study.py DATA FOLDER [--width 128] [KEY=VALUE ...]

DATA is a folder with GSM8K's train.jsonl and test.jsonl. KEY=VALUE are settings of `advsweep run`
in place of those below. FOLDER takes the model, the stores and the runs; started again with the
same settings, the study goes on. Prints what came of it as JSON, and ends with code 1 unless a run
was killed, went on and equals the undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from advsweep.backends.base import Run
from advsweep.backends.build import build_run
from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.sampling import encode
from advsweep.store import RunRecord, Status, Store, open_store
from advsweep.sweep.planning.plan import make_plan
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = {
    "backend": "trl",
    "backend.checkpoint_every": "15",
    "backend.gradient_checkpointing": "false",
    "backend.keep_last": "100",
    "backend.skip_zero_advantages": "true",
    "estimator": "fade",
    "evaluation.every": "20",
    "evaluation.k": "[1,8]",
    "evaluation.n": "8",
    "generation.max_tokens": "12",
    "generation": "transformers",
    "model": "hf",
    "optimizer.lr": "1e-4",
    "prompts_per_step": "32",
    "steps": "40",
    "task": "gsm8k",
    "task.held_out": "200",
    "task.train": "300",
}

MIXED = 0.25
"""The share of groups, right and wrong in part, up to which a model is fitted."""

VOCABULARY = 1000
FIT_LR = 0.128  # over the width
FIT_BATCH = 32
EPOCHS_AT_ONCE = 3
LAST = 10

CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_RESUMED = r"(?:going on|resuming) after step (\d+)"


def main(data: Path, folder: Path, width: int, given: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    base, exported = folder / "base", folder / "exported"
    settings = SETTINGS | {"model.path": str(base), "task.data": str(data)}
    settings |= dict(setting.split("=", 1) for setting in given)
    if not base.exists():
        unfinished = folder / "unfinished"
        fit(settings | {"model.path": str(unfinished)}, unfinished, width)
        unfinished.rename(base)

    run = ["run", *spelt(settings)]
    undisturbed, killed = folder / "undisturbed.db", folder / "killed.db"
    advsweep(undisturbed, *run)
    if not killed.exists():
        kill_in_the_middle(killed, run, int(settings["steps"]) // 2 + 1)
    advsweep(killed, *run)
    if not exported.exists():
        advsweep(killed, "export", "last", str(exported))

    # A store of its own: a report has the models that were evaluated beside the runs.
    asked = [
        f"--set={text}" for text in spelt(settings) if text.startswith(("task.", "evaluation."))
    ]
    asked.append(f"--set=generation.max_tokens={settings['generation.max_tokens']}")
    model = ["--model", str(exported), "--task", settings["task"]]
    advsweep(folder / "exported.db", "eval", *model, *asked)

    with open_store(str(undisturbed)) as first, open_store(str(killed)) as second:
        equal = compare(first, second)
        [record] = second.runs.select()
        results = {**figures(second, record, base, exported), "equal": equal}
    with open_store(str(folder / "exported.db")) as store:
        [evaluation] = store.evaluations.of_models()
        results["held out"]["exported"] = evaluation.scores()
    print(json.dumps(results, indent=1))
    print(advsweep(killed, "report"), file=sys.stderr)
    return 0 if all(equal.values()) and results["resumed after step"] else 1


def spelt(settings: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def command(store: Path, *arguments: str) -> list[str]:
    program = [sys.executable, "-c", "from advsweep.cli import main; main()"]
    return [*program, *arguments, "--store", str(store)]


def advsweep(store: Path, *arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(command(store, *arguments), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def fit(settings: dict[str, str], folder: Path, width: int) -> None:
    """Builds a Qwen2 and teaches it the answers until enough of its groups are mixed."""
    folder.mkdir(exist_ok=True)
    disable_progress_bar()
    run = build_run(make_plan(spelt(settings), single=True).runs[0].config)
    problems = run.task.problems(Split.TRAIN)
    tokenizer = Qwen2Tokenizer().train_new_from_iterator(
        [problem.text for problem in problems], VOCABULARY, show_progress=False
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=FIT_LR / width)
    answers = tokenizer([problem.reference["solution"] for problem in problems])["input_ids"]
    pairs = [
        (prompt, [*answer, tokenizer.eos_token_id])
        for prompt, answer in zip(encode(problems, run.model, tokenizer), answers, strict=True)
    ]
    mixed, epoch = 0.0, 0
    while mixed < MIXED:
        for _ in range(EPOCHS_AT_ONCE):
            epoch += 1
            for rows in torch.randperm(len(pairs)).split(FIT_BATCH):
                model(**batch([pairs[row] for row in rows.tolist()])).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        model.save_pretrained(folder)
        mixed, reward = sampled(run, folder).values()
        print(f"epoch {epoch}: reward {reward:.3f}, mixed {mixed:.3f}", file=sys.stderr)


def batch(pairs: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
    """Prompts with their answers, which alone are learned; filled up on the right."""
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    shape = (len(pairs), width)
    ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, -100)
    for row, (prompt, answer) in enumerate(pairs):
        length = len(prompt) + len(answer)
        ids[row, :length] = torch.tensor(prompt + answer)
        mask[row, :length] = 1
        labels[row, len(prompt) : length] = torch.tensor(answer)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def sampled(run: Run, folder: Path) -> dict[str, float]:
    """A group for each training problem, sampled and verified as in the run."""
    problems = run.task.problems(Split.TRAIN)
    sampler = run.backend.model_sampler(
        HfModel(path=str(folder)), run.generation, run.task, run.evaluation
    )
    answers = sampler.sample(
        problems, run.group_size, temperature=run.generation.temperature, seed=0
    )
    asked = [problem for problem in problems for _ in range(run.group_size)]
    texts = [text for group in answers.texts for text in group]
    rewards = torch.tensor(run.task.score(asked, texts)).view(-1, run.group_size)
    mixed = (rewards.amin(dim=1) < rewards.amax(dim=1)).double().mean().item()
    return {"mixed": mixed, "reward": rewards.mean().item()}


def kill_in_the_middle(file: Path, run: list[str], step: int) -> None:
    """Starts a run in a new store and kills it, with what watches over it, after this step."""
    with open_store(str(file)) as store:
        process = subprocess.Popen(command(file, *run), stdout=subprocess.DEVNULL)
        while process.poll() is None and not any(each.step >= step for each in store.runs.select()):
            time.sleep(0.02)
        # It must not see its worker die, which it would start again.
        process.send_signal(signal.SIGSTOP)
        for worker in store.runs.select(status=Status.RUNNING):
            os.kill(worker.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        while store.runs.select(status=Status.RUNNING):
            time.sleep(0.02)
        [record] = store.runs.select()
    if record.status is Status.DONE:
        # It was quicker than we were.
        shutil.rmtree(store.runs_directory)
        file.unlink()
        kill_in_the_middle(file, run, step)
    print(f"killed after step {record.step}: {record.status.value}", file=sys.stderr)


def compare(first: Store, second: Store) -> dict[str, bool]:
    """What two stores with one run each agree in."""
    [[one], [other]] = first.runs.select(), second.runs.select()

    def equal(read: Any) -> bool:
        return bool(read(first, one) == read(second, other))

    return {
        "metrics": equal(metrics),
        "checkpoints": equal(checkpoints),
        "evaluations": equal(evaluations),
        "report": equal(lambda store, _: advsweep(store.file, "report", "--format", "csv")),
    }


def metrics(store: Store, run: RunRecord) -> list[tuple[str, int, float]]:
    """All points but times and memory."""
    points = store.metrics.points(run.id)
    return [point for point in points if not point[0].startswith(("time/", "memory/"))]


def checkpoints(store: Store, run: RunRecord) -> dict[int, Any]:
    """By step, the checksums of all files."""
    found = store.checkpoints.select(run.id)
    return {each.step: json.loads((each.path / "manifest.json").read_text()) for each in found}


def evaluations(store: Store, run: RunRecord) -> list[Any]:
    """By step, the counts of each problem."""
    columns = ("n", "c", "distinct", "unscorable", "answer_entropy", "token_entropy")
    return [
        (each.step, each.identity, each.problem_ids, *(getattr(each, c).tolist() for c in columns))
        for each in store.evaluations.select([run.id])
    ]


def figures(store: Store, record: RunRecord, base: Path, exported: Path) -> dict[str, Any]:
    run = build_run(record.config)
    before, after = (
        each.scores() for each in store.evaluations.select([record.id], ends_only=True)
    )
    log = (record.directory / "log.txt").read_text(encoding="utf-8")
    course = {}
    for name in ("reward/mean", "collapse/acr"):
        values = [value for _, _, value in store.metrics.points(record.id, [name])]
        course[name] = {"first": fmean(values[:LAST]), "last": fmean(values[-LAST:])}
    return {
        "training problems": {"base": sampled(run, base), "trained": sampled(run, exported)},
        "rollouts": course,
        "held out": {"base": before, "trained": after},
        "resumed after step": [int(step) for step in re.findall(_RESUMED, log)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=128, help="of the model, a multiple of 8")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    raise SystemExit(
        main(given.data.resolve(), given.folder.resolve(), given.width, given.settings)
    )
