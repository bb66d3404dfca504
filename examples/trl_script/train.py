"""Teaches a model to add: TRL's GRPOTrainer with the advantages of an estimator of advsweep."""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from advsweep.integrations.trl import EstimatorGRPOTrainer

parser = argparse.ArgumentParser()
for name in ("model", "estimator", "output", "resume"):
    parser.add_argument(f"--{name}")
for name in ("group-size", "prompts", "steps", "seed", "save-every"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--lr", type=float)
options = parser.parse_args()

pairs = [(a, b) for a in range(10) for b in range(10) if a + b < 10]
dataset = Dataset.from_list([{"prompt": f"{a} + {b} =", "sum": str(a + b)} for a, b in pairs])


def solved(completions, sum, **_):
    return [
        float(text.split()[:1] == [right]) for text, right in zip(completions, sum, strict=True)
    ]


class JsonLines(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        with open(Path(options.output) / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


config = GRPOConfig(
    output_dir=options.output,
    learning_rate=options.lr,
    num_generations=options.group_size,
    per_device_train_batch_size=options.group_size * options.prompts,
    max_completion_length=4,
    max_steps=options.steps,
    save_steps=options.save_every,
    seed=options.seed,
    logging_steps=1,
    log_completions=True,
    num_completions_to_print=0,
    report_to="none",
    bf16=torch.cuda.is_available(),
    use_cpu=not torch.cuda.is_available(),
)
trainer = EstimatorGRPOTrainer(
    model=options.model,
    reward_funcs=solved,
    args=config,
    train_dataset=dataset,
    estimator=json.loads(options.estimator),
    callbacks=[JsonLines()],
)
trainer.train(resume_from_checkpoint=options.resume)
