"""The worker: the process that trains a run, or several runs side by side."""
