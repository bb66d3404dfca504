"""Names that several packages write or read: of metrics, times of a step, a run's log, files.

A name that one package uses stands in that package. What each metric means, with its unit and
direction, is in `report/data/metrics.yaml`.
"""

from __future__ import annotations

# Rewards and collapse of a step
REWARD_MEAN = "reward/mean"
UNSCORABLE = "reward/unscorable"
TRUNCATED = "reward/truncated"
ACR = "collapse/acr"
ACR_AFTER = "collapse/acr_after"
ALL_WRONG = "collapse/all_wrong"

# Turns of episodes, and the credit that an estimator gives them
TURN_COUNT = "turns/mean"
TURNS_COLLAPSED = "turns/collapsed"
TURNS_COMPANY = "turns/company"
CREDIT_ERROR = "credit/error"
CREDIT_CORRELATION = "credit/correlation"
CREDIT_SHARE = "credit/share"

# Environment variable of a worker: the whole GPUs of its run, or 1 for a share of one
GPUS_VARIABLE = "ADVSWEEP_GPUS"

# Whether a run's policy collapsed in training, 0 or 1: a metric of its last step, and a summary
COLLAPSED = "collapse/detected"

# The step with the best pass@1 on validation problems: a metric of the last step, and a summary
SELECTED_STEP = "selected/step"

# Entropies, of steps and of evaluations
TOKEN_ENTROPY = "entropy/token"
ANSWER_ENTROPY = "entropy/answer"
ENTROPY_CHANGE = "entropy/change"

# The cost of a step: drawn rollouts in multiples of a plain step's, tokens, the share trained on
ROLLOUT_COST = "cost/rollouts"
TOKEN_COST = "cost/tokens"
TURN_COST = "cost/turns"
UTILISATION = "cost/utilisation"

# The update of a step
POLICY_LOSS = "loss/policy"
LEARNING_RATE = "optim/lr"
GRADIENT_NORM = "optim/grad_norm"
CHANGE_NORM = "optim/change_norm"
WEIGHTS_CHANGED = "optim/weights_changed"
MATCH_FACTOR = "optim/match_factor"

# Where the seconds of a step go
ROLLOUT_SECONDS = "time/rollout"
REWARD_SECONDS = "time/reward"
ESTIMATOR_SECONDS = "time/estimator"
UPDATE_SECONDS = "time/update"
# Seconds of a unit of each kind of work, which a run's process has measured: summaries of the run.
# They are the start of a process's first run and of a later one; an update of the pretraining; a
# training step with all that is around it; and an evaluation, for one sample of each problem.
FIRST_START_SECONDS = "time/first_start"
START_SECONDS = "time/start"
PRETRAINING_SECONDS = "time/pretraining_update"
TRAINING_SECONDS = "time/training_step"
EVALUATION_SECONDS = "time/evaluation_sample"

STEP_SECONDS = (ROLLOUT_SECONDS, REWARD_SECONDS, ESTIMATOR_SECONDS, UPDATE_SECONDS)

# What is recorded of the processor of a run, and of that the vector instructions that torch used
PROCESSOR = "processor"
VECTOR_CAPABILITY = "vector_capability"

# A setting of evaluations: the pool of problems that the seed of the run drew its own from
POOL = "pool"

# The log of a run, in its folder
RUN_LOG = "log.txt"

# Why the process of a run could not use the store, in the run's folder
STORE_ERROR = "store-error.txt"

# Endings of the names of YAML files
YAML_SUFFIXES = (".yaml", ".yml")
