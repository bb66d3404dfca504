"""The production backend: TRL's GRPOTrainer, with the estimators, losses and rollouts of advsweep.

`backend`, `model_config`, `generation_config` and `layout` are read when plans are made and
import neither trl nor transformers; the other modules are imported when something is trained.
"""
