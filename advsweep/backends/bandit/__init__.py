"""The bandit backend: a softmax over behaviours, where the theory of estimators is exact.

All operations work on tables `[..., prompts, behaviours]`. A leading axis may hold several runs;
no run changes another's numbers.
"""
