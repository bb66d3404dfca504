"""The bandit backend: a softmax over behaviours, where the theory of estimators is exact.

What is sampled, weighed and updated are tables `[..., prompts, behaviours]`; a leading axis
may hold several runs, none of which changes another's numbers.
"""
