"""Searches: a sampler asks for trials, the engine trains them, their results are told."""
