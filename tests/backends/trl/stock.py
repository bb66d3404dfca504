"""A training by TRL's own GRPOTrainer, with nothing of ours but prompts, rewards and seeds."""

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed


def train_stock(run, folder, *, callbacks=(), **settings):
    losses = []

    class Stock(GRPOTrainer):
        def compute_loss(self, *arguments, **named):
            loss = super().compute_loss(*arguments, **named)
            losses.append(loss.item())
            return loss

    layout = run.backend.layout_of(run)
    updates = layout.updates

    class Seed(TrainerCallback):
        """Our rollouts are drawn by seed and step."""

        def on_step_begin(self, args, state, control, **_):
            if state.global_step % updates == 0:
                step = state.global_step // updates + 1
                torch.manual_seed(torch_seed(run.seed, Stream.ROLLOUTS, step))

    problems = [
        problem
        for step in range(1, run.steps + 1)
        for problem in run.task.draw(
            run.prompts_per_step, numpy_generator(run.seed, Stream.PROMPTS, step)
        )
    ]

    known = {problem.prompt: problem for problem in problems}

    def score(prompts, completions, **_):
        return run.task.score([known[prompt] for prompt in prompts], completions).tolist()

    place = run.model.path
    given = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": run.steps * updates,
        "per_device_train_batch_size": layout.device_batch,
        "gradient_accumulation_steps": layout.passes,
        "steps_per_generation": layout.minibatches * layout.passes,
        "num_iterations": layout.inner_epochs,
        "num_generations": run.group_size,
        "max_completion_length": run.task.max_completion_length,
        "learning_rate": run.optimizer.lr,
        "lr_scheduler_type": "constant",
        "shuffle_dataset": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        **settings,
    }
    trainer = Stock(
        model=place,
        reward_funcs=score,
        args=GRPOConfig(**given),
        train_dataset=Dataset.from_dict({"prompt": [problem.prompt for problem in problems]}),
        processing_class=AutoTokenizer.from_pretrained(place, padding_side="left"),
        callbacks=[Seed(), *callbacks],
    )
    trainer.train()
    return losses, dict(trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict())
