"""Teaches a model to walk: TRL's GRPOTrainer with an environment and an estimator of turns."""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig
from walk import Walk

from advsweep.integrations.trl import EstimatorGRPOTrainer

parser = argparse.ArgumentParser()
for name in ("model", "estimator", "output", "resume"):
    parser.add_argument(f"--{name}")
for name in ("group-size", "prompts", "steps", "seed", "save-every"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--lr", type=float)
options = parser.parse_args()

# Two or three rooms to the right; the door to the left of the start is closed.
lines = Path(__file__).with_name("rooms.jsonl").read_text().splitlines()
rows = []
for row in map(json.loads, lines):
    rows.append({**row, "prompt": [{"role": "user", "content": row["prompt"]}]})


class JsonLines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        with open(Path(options.output) / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


config = GRPOConfig(
    output_dir=options.output,
    learning_rate=options.lr,
    num_generations=options.group_size,
    per_device_train_batch_size=options.group_size * options.prompts,
    max_completion_length=512,
    max_tool_calling_iterations=8,
    max_steps=options.steps,
    save_steps=options.save_every,
    seed=options.seed,
    logging_steps=1,
    report_to="none",
    bf16=torch.cuda.is_available(),
    use_cpu=not torch.cuda.is_available(),
)
trainer = EstimatorGRPOTrainer(
    model=options.model,
    reward_funcs=[],  # the environment has the reward
    args=config,
    train_dataset=Dataset.from_list(rows),
    environment_factory=Walk,
    estimator=json.loads(options.estimator),
    callbacks=[JsonLines()],
)
trainer.train(resume_from_checkpoint=options.resume)
