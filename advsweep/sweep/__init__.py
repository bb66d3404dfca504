"""Sweeps: a plan of everything first, then processes under supervision, resumable."""
