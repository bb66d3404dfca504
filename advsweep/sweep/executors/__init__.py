"""Executors: where the processes of runs live."""
