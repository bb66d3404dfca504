"""Tasks: problems with levels, and the verifiers that score answers. Never imports torch."""
