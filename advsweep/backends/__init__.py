"""Backends: what trains a run, and the run itself."""
