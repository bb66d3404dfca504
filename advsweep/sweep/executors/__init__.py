"""Executors: start the worker processes of runs, here or on other machines."""
