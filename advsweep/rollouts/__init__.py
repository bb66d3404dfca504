"""Rollout policies: how the groups of a step come to be."""
