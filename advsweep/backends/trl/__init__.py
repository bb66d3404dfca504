"""The TRL backend: language models trained by TRL's GRPOTrainer, on GPUs or small ones on a CPU.

`backend` and `config` are imported when plans are made and import neither trl nor transformers; a
training imports the other modules.

The walk of a reward through one step, module by module:

1. `training` makes the trainer and the loop around it (`backends.training_loop`); transformers'
   `Trainer.train` calls everything below.
2. `trainer` `_generate_and_score_completions` starts a `StepBuffer`, and lets the run's rollout
   policy draw groups from a `StepSource` (`steps`).
3. `StepSource.draw` chooses the problems by seed and step, and calls `EstimatorTrainer.roll_out`,
   which lets TRL generate. `_generate_single_turn` puts token statistics of the completions into
   the buffer (`sampling`); `vllm_trainer` does so for vLLM. The first rollouts of a process are
   compared with the pass of an update (`consistency`).
4. TRL calls the reward function `_reward`, which keeps the answers; `roll_out` joins those of all
   processes of the run (`ranks`), and `_judge` verifies them and computes rewards, which stay in
   the buffer. Where completions end is `ends`' business.
5. Back in `_generate_and_score_completions`, the estimator turns the rewards of the groups that
   the policy kept into advantages, which go into TRL's rows with the tokens.
6. Each process takes its part of the rows. TRL splits it into minibatches; `_prepare_inputs`
   counts the rollouts of each. `_compute_loss` hands log-probabilities and advantages to the
   objective.
7. `end_update` checks loss and gradient before each update. After the last one, `step_metrics`
   reads the step's metrics from the buffer, and `training` reports them.

What a checkpoint brings is looked at before: its prompts, template and end marks (`prompt_checks`),
sampling defaults (`generation_defaults`), positions of padded rows (`positions`); for plans
`tokenizer_file`.

The other processes of a run on several GPUs are started by `helpers` and begin in `helper_main`.
"""
